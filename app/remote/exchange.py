"""One exchange of a conversation that a server holds: what is kept of it, and how it is replayed.

In: the user's speech or text, the reply as it came, what was heard of it. Out: the events that create its
items in another session of the server. Pure; one thread.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from app.audio.resample import Resampler
from app.audio.wire_format import AudioFormat, pcm16
from app.dialog.conversation import SpokenText
from app.remote.dialect import Json, ServerSession, message
from app.session.engine_jobs import Remember
from engine_runtime.types import Modality, Pcm

KEPT_AUDIO_S = 600.0
"""Speech of the user that is kept in total; the oldest is forgotten."""
_BLOCK_S = 0.5
_FULL_SCALE = 32_768.0


@dataclass(slots=True)
class RemoteExchange:
    """A question and its reply, as far as it was heard."""

    turn_id: int
    modality: Modality
    """Modality of the reply."""
    sample_rate: int
    """Sample rate of the kept speech."""
    text: str = ""
    """The typed question."""
    transcripts: dict[str, str] = field(default_factory=dict)
    """Words of a spoken question by the id of its item, if the server sends them."""
    speech: list[NDArray[np.int16]] = field(default_factory=list)
    user_items: list[str] = field(default_factory=list)
    """Ids of the question's items in the present session of the server."""
    reply_item: str = ""
    """Id of the reply's item there; "" before it came."""
    said: SpokenText = field(default_factory=SpokenText)
    """The text of the reply."""
    samples: int = 0
    """Samples of the reply: those that came, later those that were heard."""
    is_answered: bool = False
    """Whether the reply is over."""
    is_replayed: bool = False
    """Whether its present items were created by the client."""

    @property
    def is_spoken(self) -> bool:
        """Whether it began with speech."""
        return bool(self.speech)

    @property
    def transcript(self) -> str:
        """The words of a spoken question."""
        return " ".join(self.transcripts.values())

    @property
    def speech_s(self) -> float:
        """Length of the kept speech."""
        return sum(map(len, self.speech)) / self.sample_rate

    @property
    def reply(self) -> str:
        """The text of the reply."""
        return self.said.text.strip()

    @property
    def items(self) -> list[str]:
        """The ids of its items that are known."""
        return [*self.user_items, *filter(None, [self.reply_item])]

    def hear(self, pcm: Pcm) -> None:
        """Keep more of the user's speech."""
        self.speech.append(pcm16(pcm))

    def take_question(self, earlier: RemoteExchange) -> None:
        """Ask the question of an earlier exchange again."""
        self.text, self.transcripts = earlier.text, dict(earlier.transcripts)
        self.speech = list(earlier.speech)

    def cut(self, samples: int, characters: int) -> None:
        """Truncate the reply to what was heard, or shown."""
        self.is_answered = True
        if self.modality is Modality.TEXT:
            self.said = SpokenText([(0, self.said.text[:characters])])
            return
        self.samples = min(self.samples, samples)
        self.said = self.said.up_to(self.samples)

    def speech_blocks(self, known: AudioFormat) -> Iterator[bytes]:
        """The kept speech in blocks of a format."""
        if not self.speech:
            return
        pcm = (np.concatenate(self.speech) / _FULL_SCALE).astype(np.float32)
        resampler = Resampler(self.sample_rate, known.sample_rate)
        pcm = np.concatenate([resampler.push(pcm), resampler.finish()])
        size = round(_BLOCK_S * known.sample_rate)
        for start in range(0, len(pcm), size):
            yield known.encode(pcm[start : start + size])

    def replay(self, session: ServerSession) -> list[Json]:
        """The events that create the items again; none where the protocol cannot carry the exchange: its
        reply has no text, or its speech is not kept any more."""
        question = self.text or self.transcript
        if not self.reply or not (question or self.speech):
            return []
        user_id, self.reply_item = new_item_id(), new_item_id()
        self.user_items, self.is_replayed = [user_id], True
        if question:
            asked = message("user", question, user_id, is_older=session.is_older)
        else:
            data = base64.b64encode(b"".join(self.speech_blocks(session.input_format))).decode("ascii")
            part = {"type": "input_audio", "audio": data}
            item = {"id": user_id, "type": "message", "role": "user", "content": [part]}
            asked = {"type": "conversation.item.create", "item": item}
        return [asked, message("assistant", self.reply, self.reply_item, is_older=session.is_older)]


def held_elsewhere(job: Remember, sample_rate: int) -> RemoteExchange:
    """An exchange that the server is only told about."""
    exchange = RemoteExchange(job.turn_id, Modality.TEXT, sample_rate, is_answered=True)
    exchange.text = "\n".join(part for part in job.question if isinstance(part, str))
    for part in job.question:
        if not isinstance(part, str):
            exchange.hear(part)
    if isinstance(job.reply, str):
        exchange.said.add(0, job.reply)
    return exchange


def new_item_id() -> str:
    """The id of an item that the client creates."""
    return f"item_{uuid.uuid4().hex[:24]}"


def forget_old_speech(exchanges: Iterable[RemoteExchange], kept_s: float = KEPT_AUDIO_S) -> None:
    """Forget the oldest speech beyond `kept_s`. `exchanges` are in order."""
    for exchange in reversed(list(exchanges)):
        kept_s -= exchange.speech_s
        if kept_s < 0:
            exchange.speech.clear()
