"""A user of a Realtime server, at the pace of real time: speaks, listens to the end, pauses, speaks again.

In: an address and spoken questions. Out: for each reply how long its first audio took, the part of the
network, gaps, and what came. Event loop.

    gap       The next delta came after all audio before it had been played, from the first delta on.
    lateness  The longest gap of a reply: the buffering with which it would have been heard without one.
    network   Time to first audio, minus the server's own where it reports that.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from app.audio.wire_format import AudioFormat
from app.remote.dialect import Json, ServerSession, event_name, id_of, response_create, session_update
from app.remote.link import Link, LinkError
from app.remote.response import TIMINGS
from app.server_address import ServerAddress
from engine_runtime.types import Modality, Pcm

_BLOCK_S = 0.1
_AFTER_REPLY_S = 0.05
"""Time to wait for the timings of the server, which follow its last event of a reply."""
REPLY_LIMIT_S = 60.0
_AUDIBLE = 1e-3


@dataclass(slots=True)
class LoadReply:
    """One reply, or why there is none."""

    question: str
    """Name of the recording."""
    ttfa_ms: float = 0.0
    network_ms: float | None = None
    """Time to first audio by the server itself, None if it does not report it."""
    audio_s: float = 0.0
    gaps: int = 0
    lateness_ms: float = 0.0
    text: str = ""
    level: float = 0.0
    """RMS of the audio, 0 to 1."""
    codes: int | None = None
    """Speech codes of the reply, None if the server does not count them."""
    error: str = ""

    @property
    def problem(self) -> str:
        """What is wrong with the reply, "" if it is valid."""
        if self.error:
            return self.error
        if not self.audio_s:
            return "no audio came"
        return "the audio is silent" if self.level < _AUDIBLE else ""


@dataclass(slots=True)
class LoadQuestion:
    """A recording, and what its answer has to contain where that is known."""

    name: str
    pcm: Pcm
    """The question, at the rate of the server's input."""
    expected: str = ""
    most_tokens: int | None = None
    """Limit of the reply, at which it may end."""


@dataclass
class LoadUser:
    """`questions` makes the recordings for a session, asked one after the other and then again from the first
    one on. `start_s` is the delay before the first question."""

    address: ServerAddress
    questions: Callable[[ServerSession], list[LoadQuestion]]
    start_s: float = 0.0
    pause_s: float = 0.5
    replies: list[LoadReply] = field(default_factory=list)

    async def converse(self, until_s: float) -> None:
        """Ask in turns until the loop's time is `until_s`. A refusal is a reply with that error."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self.start_s)
        try:
            link = await Link.open(self.address)
        except LinkError as error:
            self.replies.append(LoadReply("", error=str(error)))
            return
        try:
            await link.send(session_update(link.session))
            questions = self.questions(link.session)
            turn = 0
            while loop.time() < until_s:
                reply = LoadReply(questions[turn % len(questions)].name)
                self.replies.append(reply)
                await self._ask(link, questions[turn % len(questions)], reply)
                await asyncio.sleep(self.pause_s)
                turn += 1
        except LinkError as error:
            self.replies[-1].error = str(error)
        finally:
            await link.close()

    async def _ask(self, link: Link, question: LoadQuestion, reply: LoadReply) -> None:
        known = link.session.input_format
        size = round(_BLOCK_S * known.sample_rate)
        due_s = time.perf_counter()
        for start in range(0, len(question.pcm), size):
            block = question.pcm[start : start + size]
            due_s += len(block) / known.sample_rate  # a microphone has a block when it is over
            await asyncio.sleep(max(due_s - time.perf_counter(), 0.0))
            audio = base64.b64encode(known.encode(block)).decode("ascii")
            await link.send({"type": "input_audio_buffer.append", "audio": audio})
        asked_s = time.perf_counter()
        await link.send({"type": "input_audio_buffer.commit"})
        await link.send(response_create(link.session, Modality.SPEECH, question.most_tokens))
        playback = _Playback(link.session.output_format, asked_s)
        try:
            async with asyncio.timeout(REPLY_LIMIT_S):
                await self._listen(link, reply, playback, question.most_tokens)
        except TimeoutError:
            reply.error = f"no complete reply within {REPLY_LIMIT_S:g} s"
            return
        playback.fill(reply)
        if not reply.error and question.expected and question.expected not in reply.text.lower():
            reply.error = f"{reply.text!r} instead of an answer with {question.expected!r}"
        await asyncio.sleep(max(playback.ends_s - time.perf_counter(), 0.0))

    async def _listen(
        self, link: Link, reply: LoadReply, playback: _Playback, most_tokens: int | None
    ) -> None:
        """Take events up to the end of the response, and the server's timings right after it."""
        events = link.events()
        response_id, is_done = "", False
        while True:
            limit = _AFTER_REPLY_S if is_done else None
            try:
                async with asyncio.timeout(limit):
                    event = await anext(events)
            except TimeoutError:
                if limit is None:
                    raise
                return
            if event is None:
                reply.error = "a message that is no event came"
                return
            name = event_name(event)
            own_id = id_of(event.get("response")) or str(event.get("response_id") or "")
            if name == "response.created":
                response_id = own_id
            elif name == "error":
                reply.error = _said(event)
                return
            elif own_id and own_id != response_id:
                reply.error = f"an event of another response came ({name})"
                return
            elif name == "response.output_audio.delta":
                playback.add(base64.b64decode(str(event.get("delta"))))
            elif name == "response.output_audio_transcript.done":
                reply.text = str(event.get("transcript") or "")
            elif name == TIMINGS:
                if isinstance(own_ms := event.get("ttfa_ms"), int | float):
                    reply.network_ms = playback.ttfa_ms - own_ms
                if is_done:
                    return
            elif name == "response.done":
                response = event["response"] if isinstance(event.get("response"), dict) else {}
                reason = _inside(response, "status_details", "reason")
                is_as_long_as_asked = most_tokens is not None and reason == "max_output_tokens"
                if response.get("status") != "completed" and not is_as_long_as_asked:
                    reply.error = f"the response was {response.get('status')}"
                codes = _inside(response, "usage", "output_token_details", "audio_tokens")
                reply.codes = codes if isinstance(codes, int) else None
                is_done = True


def _inside(document: object, *names: str) -> object:
    """The value under these nested names; None if the server sends none."""
    for name in names:
        document = document.get(name) if isinstance(document, dict) else None
    return document


class _Playback:
    """The audio of a reply as it would be heard if it was played as soon as it came."""

    def __init__(self, known: AudioFormat, asked_s: float) -> None:
        self.ends_s = asked_s
        """When the audio so far has been played."""
        self.ttfa_ms = 0.0
        self._known, self._asked_s = known, asked_s
        self._chunks: list[Pcm] = []
        self._gaps, self._lateness_s = 0, 0.0

    def add(self, data: bytes) -> None:
        """Add more of the reply's audio."""
        now_s, pcm = time.perf_counter(), self._known.decode(data)
        if not self._chunks:
            self.ttfa_ms = (now_s - self._asked_s) * 1e3
            self.ends_s = now_s
        elif now_s > self.ends_s:
            self._gaps += 1
            self._lateness_s = max(self._lateness_s, now_s - self.ends_s)
            self.ends_s = now_s
        self._chunks.append(pcm)
        self.ends_s += len(pcm) / self._known.sample_rate

    def fill(self, reply: LoadReply) -> None:
        """Note what came."""
        if self._chunks:
            pcm = np.concatenate(self._chunks)
            reply.audio_s = len(pcm) / self._known.sample_rate
            reply.level = float(np.sqrt(np.mean(pcm**2)))
        reply.ttfa_ms, reply.gaps, reply.lateness_ms = self.ttfa_ms, self._gaps, self._lateness_s * 1e3


def _said(event: Json) -> str:
    error = event.get("error")
    return str(error.get("message") if isinstance(error, dict) else error)[:300]
