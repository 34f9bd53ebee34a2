"""The responses of a session: from the events of a reply to server events, and where the time went.

In: reply events and timing events of the engine. Out: response.created, the item and its only content part,
deltas, the call that the reply ends with as an item of its own, and response.done; then the times of the
response, and how long a client takes to play it. Audio is sent as it is made, faster than it is played. At
most one response is in progress. Event loop.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from app.audio.resample import Resampler
from app.audio.wire_format import pcm16
from app.server.items import Item, ItemList, Part
from app.server.protocol import Identifiers, Json
from app.server.session_config import SessionConfig, modalities
from app.session.engine_jobs import ReplyMade
from app.session.turn_driver import StoppedReply
from engine_runtime.timing import REPLY_FIGURES, REPLY_STAGES, STAGE_FIGURES, TimingEvent
from engine_runtime.types import (
    Modality,
    Pcm,
    ReplyAudio,
    ReplyDone,
    ReplyEvent,
    ReplyText,
    TokenUsage,
    ToolCall,
    TurnEndPrediction,
)

TURN_END = "moss_voice.response.turn_end"
"""Type of the event with the model's prediction."""
Emit = Callable[[Json], None]
StatusReason = Literal["turn_detected", "client_cancelled"]


class ResponseControl:
    """One response after the other."""

    def __init__(
        self, ids: Identifiers, items: ItemList, engine_rate: int, emit: Emit, clock_s: Callable[[], float]
    ) -> None:
        """`engine_rate` is that of reply audio, in Hz."""
        self.active: Response | None = None
        self._ids, self._items = ids, items
        self._engine_rate = engine_rate
        self._emit = emit
        self._clock_s = clock_s
        self._played_until_s = 0.0
        """When a client that plays at once has played all that was sent."""
        self.has_replied = False
        """Whether there was a response."""
        self._untimed: Response | None = None
        """The latest response, until its times are reported."""

    @property
    def has_sound(self) -> bool:
        """Whether sound of the response in progress was sent."""
        return self.active is not None and self.active.samples > 0

    @property
    def is_speculative(self) -> bool:
        """Whether the response in progress waits for its confirmation."""
        return self.active is not None and self.active.is_speculative

    @property
    def is_played(self) -> bool:
        """Whether no response is in progress, and a client has played the latest."""
        return self.active is None and self._clock_s() >= self._played_until_s

    def begin(
        self,
        turn_id: int,
        config: SessionConfig,
        metadata: Json | None,
        asked_s: float,
        endpoint: Endpoint | None = None,
    ) -> None:
        """The reply to a turn was requested at `asked_s`; `endpoint` is how the server found its end."""
        new = self._ids.new
        ids = ResponseIds(new("resp"), new("item"), self._ids.conversation_id, new("item"), new("call"))
        self._played_until_s, self.has_replied = 0.0, True
        self.active = self._untimed = Response(
            ids, turn_id, config, metadata, asked_s, self._engine_rate, self._items, self._emit
        )
        self.active.confirmed_s, self.active.endpoint = self._clock_s(), endpoint

    def add(self, event: ReplyEvent, at_s: float | None = None) -> bool:
        """The next event of the reply, which came at `at_s`, by default just now; whether it is the last."""
        response = self.active
        if response is None:
            return False
        self._played_until_s = max(self._played_until_s, self._clock_s()) + response.add(event)
        if self.has_sound and response.first_audio_s is None:
            response.first_audio_s = self._clock_s() if at_s is None else at_s
        if isinstance(event, ReplyDone):
            self.active = None
        return isinstance(event, ReplyDone)

    def predict(self, probability: float) -> None:
        """Tell the client how likely the user has finished."""
        if self.active is not None:
            predicted: Json = {"type": TURN_END, "response_id": self.active.ids.response_id}
            self._emit(predicted | {"probability": round(probability, 4)})

    def hold(self, event: ReplyDone | ReplyMade) -> None:
        """Keep what ends a speculative response."""
        if self.active is not None:
            self.active.held.append(event)

    def confirm(self) -> list[ReplyDone | ReplyMade]:
        """The speculative response is an ordinary one from now on; returns what was kept of it."""
        response = self.active
        if response is None:
            return []
        held, response.held, response.is_speculative = response.held, [], False
        return held

    def stop(self, reason: StatusReason) -> StoppedReply | None:
        """Cancel the response in progress, if there is one. What was sent counts as heard; if nothing was,
        the user's items wait for another response. Of a speculative one nothing was, and nothing remains."""
        response, self.active = self.active, None
        if response is None:
            return None
        response.cancel(reason)
        if response.item is not None and response.is_speculative:
            self._items.remove(response.item)
            self._emit({"type": "conversation.item.deleted", "item_id": response.item.item_id})
            return StoppedReply("unheard")
        if response.item is None:
            return StoppedReply("unheard")
        return StoppedReply("cut", response.samples, response.characters)

    def fail(self, turn_id: int, error: Json) -> bool:
        """The engine has dropped a turn; whether the response in progress was its."""
        response = self.active
        if response is None or response.turn_id != turn_id:
            return False
        self.active = None
        response.fail(error)
        return True

    def end_empty(self) -> None:
        """The response in progress is complete, with nothing in it."""
        response, self.active = self.active, None
        if response is not None:
            response.end("completed", {"type": "completed"})

    def end_playback(self) -> None:
        """The client has stopped playing the latest response."""
        self._played_until_s = 0.0

    def report_times(self, made: ReplyMade) -> None:
        """The reply is complete."""
        response, self._untimed = self._untimed, None
        if response is not None and response.is_timed and response.first_audio_s is not None:
            ttfa_ms = (response.first_audio_s - response.asked_s) * 1e3
            event: Json = {"type": "moss_voice.response.timings", "response_id": response.ids.response_id}
            event |= {"ttfa_ms": round(ttfa_ms, 1)}
            event |= {"confirmed_ms": round((response.confirmed_s - response.asked_s) * 1e3, 1)}
            if (endpoint := response.endpoint) is not None:
                event |= {"endpointing_ms": round(endpoint.waited_ms, 1)}
                event |= {"speech_end_ms": round(endpoint.speech_end_ms, 1)}
            event |= described_figures(made.stages) | {"rtf_total": round(made.rtf_total, 3)}
            self._emit(event | {"stages": described_stages(made.stages, ttfa_ms)})


@dataclass(frozen=True, slots=True)
class ResponseIds:
    """The ids of a response and its items."""

    response_id: str
    item_id: str
    conversation_id: str
    call_item_id: str
    call_id: str


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The end of a turn that the server found: the place of the last speech in the session's audio, and the
    audio from there to the commit."""

    speech_end_ms: float
    waited_ms: float


class Response:
    """A response in progress."""

    def __init__(
        self,
        ids: ResponseIds,
        turn_id: int,
        config: SessionConfig,
        metadata: Json | None,
        asked_s: float,
        engine_rate: int,
        items: ItemList,
        emit: Emit,
    ) -> None:
        """`config` is that of the session, with what response.create overrides. Emits response.created."""
        self.ids = ids
        self.turn_id = turn_id
        self.asked_s = asked_s
        """When it was requested, by the session's clock."""
        self.first_audio_s: float | None = None
        """When its first audio came, by the session's clock."""
        self.confirmed_s = asked_s
        """When it began: the end of its turn was certain."""
        self.endpoint: Endpoint | None = None
        """How the end of its turn was found; None where the client said so."""
        self.item: Item | None = None
        """None until the first output."""
        self.characters = 0
        """Text that was sent."""
        self.is_speculative = config.finished is not None
        """Whether the client has yet to confirm it: until then it does not end by itself."""
        self.held: list[ReplyDone | ReplyMade] = []
        """The end of a speculative one."""
        self._space = ""
        """White space that was not sent, because nothing has followed it."""
        self._usage = TokenUsage(0, 0, 0, 0, 0)
        """As of the latest event."""
        self._call: ToolCall | None = None
        self._call_item: Item | None = None
        """Comes after the message, whose events are over then."""
        self._config, self._metadata = config, metadata
        self._engine_rate = engine_rate
        self._items, self._emit = items, emit
        self._resampler = Resampler(engine_rate, config.output_format.sample_rate)
        emit({"type": "response.created", "response": self._document("in_progress")})
        emit({"type": "rate_limits.updated", "rate_limits": []})

    @property
    def is_timed(self) -> bool:
        """Whether the client wants its times."""
        return self._config.sends_timings

    @property
    def samples(self) -> int:
        """Audio that was sent, in samples at the engine's rate."""
        return self.item.samples if self.item is not None else 0

    def add(self, event: ReplyEvent) -> float:
        """The next event of the reply; returns the seconds of audio in it. A ReplyDone ends the response."""
        if not isinstance(event, TurnEndPrediction):
            self._usage = event.usage or self._usage
        if isinstance(event, ReplyText):
            self._add_text(event)
        elif isinstance(event, ReplyAudio):
            self._add_audio(event.pcm)
            return len(event.pcm) / event.sample_rate
        elif isinstance(event, ReplyDone):
            self._call = event.call
            if event.finish_reason == "length":
                self.end("incomplete", {"type": "incomplete", "reason": "max_output_tokens"})
            else:
                self.end("completed", {"type": "completed"})
        return 0.0

    def cancel(self, reason: StatusReason) -> None:
        """End it early."""
        self.end("cancelled", {"type": "cancelled", "reason": reason})

    def fail(self, error: Json) -> None:
        """The engine failed, or the question cannot be answered."""
        self.end("failed", {"type": "failed", "error": error})

    def end(self, status: Literal["completed", "cancelled", "incomplete", "failed"], details: Json) -> None:
        """Close part and item, and emit response.done."""
        item = self.item
        if item is not None:
            if self._is_spoken:
                self._send_audio(pcm16(self._resampler.finish()))
            item.status = "completed" if status == "completed" else "incomplete"
            self._close_part(item)
            self._close_item(item)
        if self._call is not None:
            self._send_call(self._call)
        self._emit({"type": "response.done", "response": self._document(status, details)})

    @property
    def _is_spoken(self) -> bool:
        return self._config.modality is Modality.SPEECH

    def _send_call(self, call: ToolCall) -> None:
        ids, kind = self.ids, "response.function_call_arguments"
        item = self._call_item = Item(
            ids.call_item_id, "assistant", [], turn_id=self.turn_id, call=call, call_id=ids.call_id
        )
        self._open_item(item)
        of_call = {"item_id": ids.call_item_id, "call_id": ids.call_id}
        self._emit(self._of_item(f"{kind}.delta") | of_call | {"delta": call.arguments})
        called = {"name": call.name, "arguments": call.arguments}
        self._emit(self._of_item(f"{kind}.done") | of_call | called)
        item.status = "completed"
        self._close_item(item)

    def _add_text(self, event: ReplyText) -> None:
        item = self._opened_item()
        item.said.add(event.start_sample, event.text)
        self.characters += len(event.text)
        # The deltas are the transcript: without the space before it, and after it.
        part, text = item.parts[0], self._space + event.text
        text = text if part.text else text.lstrip()
        delta = text.rstrip()
        self._space = text[len(delta) :]
        if not delta:
            return
        part.text += delta
        kind = "response.output_audio_transcript.delta" if self._is_spoken else "response.output_text.delta"
        self._emit(self._of_part(kind) | {"delta": delta})

    def _add_audio(self, pcm: Pcm) -> None:
        item = self._opened_item()
        item.samples += len(pcm)
        sound, sent = pcm16(pcm), self._resampler.push(pcm)
        self._send_audio(sound if sent is pcm else pcm16(sent))
        self._items.keep(item.parts[0], sound, self._engine_rate)

    def _send_audio(self, sound: NDArray[np.int16]) -> None:
        if len(sound):
            data = base64.b64encode(self._config.output_format.encode16(sound)).decode("ascii")
            self._emit(self._of_part("response.output_audio.delta") | {"delta": data})

    def _opened_item(self) -> Item:
        if self.item is None:
            kind: Literal["output_audio", "output_text"] = (
                "output_audio" if self._is_spoken else "output_text"
            )
            self.item = Item(self.ids.item_id, "assistant", [Part(kind)], turn_id=self.turn_id)
            self._open_item(self.item)
            self._emit(self._of_part("response.content_part.added") | {"part": self._part("")})
        return self.item

    def _open_item(self, item: Item) -> None:
        """Add an item of this response."""
        item.status = "in_progress"
        previous = self._items.last_id
        self._items.add(item)
        document = item.document(with_content=False)
        self._emit(self._of_item("response.output_item.added") | {"item": document})
        added: Json = {"type": "conversation.item.added", "item": document}
        self._emit(added | {"previous_item_id": previous})

    def _close_item(self, item: Item) -> None:
        self._emit(self._of_item("response.output_item.done") | {"item": item.document()})
        done: Json = {"type": "conversation.item.done", "item": item.document()}
        self._emit(done | {"previous_item_id": self._items.before(item)})

    @property
    def _output(self) -> list[Item]:
        return [item for item in (self.item, self._call_item) if item is not None]

    def _close_part(self, item: Item) -> None:
        if self._is_spoken:
            self._emit(self._of_part("response.output_audio.done"))
            transcript = {"transcript": item.text}
            self._emit(self._of_part("response.output_audio_transcript.done") | transcript)
        else:
            self._emit(self._of_part("response.output_text.done") | {"text": item.text})
        self._emit(self._of_part("response.content_part.done") | {"part": self._part(item.text)})

    def _part(self, text: str) -> Json:
        return {"type": "audio", "transcript": text} if self._is_spoken else {"type": "text", "text": text}

    def _of_item(self, kind: str) -> Json:
        place = max(len(self._output) - 1, 0)
        return {"type": kind, "response_id": self.ids.response_id, "output_index": place}

    def _of_part(self, kind: str) -> Json:
        return self._of_item(kind) | {"item_id": self.ids.item_id, "content_index": 0}

    def _document(self, status: str, details: Json | None = None) -> Json:
        config = self._config
        output = {"format": config.output_format.document(), "voice": config.model}
        return {
            "object": "realtime.response",
            "id": self.ids.response_id,
            "conversation_id": self.ids.conversation_id,
            "status": status,
            "status_details": details,
            "output": [item.document() for item in self._output],
            "output_modalities": modalities(config.modality),
            "max_output_tokens": config.max_output_tokens or "inf",
            "audio": {"output": output},
            "metadata": self._metadata,
            "usage": None if status == "in_progress" else described_usage(self._usage),
        }


def described_usage(usage: TokenUsage) -> Json:
    """The tokens as an object of the protocol."""
    taken, made = usage.input_text + usage.input_audio, usage.output_text + usage.output_audio
    return {
        "total_tokens": taken + made,
        "input_tokens": taken,
        "output_tokens": made,
        "input_token_details": {
            "text_tokens": usage.input_text,
            "audio_tokens": usage.input_audio,
            "image_tokens": 0,
            "cached_tokens": usage.cached,
        },
        "output_token_details": {"text_tokens": usage.output_text, "audio_tokens": usage.output_audio},
    }


def described_figures(events: Sequence[TimingEvent]) -> Json:
    """The real-time factors of the reply, the ratio of its first chunk and its flow steps, as far as they are
    known."""
    whole = next((event.attributes for event in events if event.name == "reply"), {})
    return {name: round(float(whole[name]), 3) for name in REPLY_FIGURES if name in whole}


def described_stages(events: Sequence[TimingEvent], ttfa_ms: float) -> list[Json]:
    """Name, start and duration of each stage, in ms after the request whose first audio came after `ttfa_ms`;
    nothing without that first audio among the events."""
    first = next((event for event in events if event.name == "first_audio"), None)
    if first is None:
        return []
    asked_ms = (first.start_ns + first.duration_ns) / 1e6 - ttfa_ms
    described: list[Json] = []
    for event in events:
        if event.name in REPLY_STAGES:
            figures = {name: event.attributes[name] for name in STAGE_FIGURES if name in event.attributes}
            start_ms = max(event.start_ns / 1e6 - asked_ms, 0.0)
            described.append(
                {"name": event.name, "start_ms": round(start_ms, 2), "ms": round(event.duration_ms, 3)}
                | figures
            )
    return described
