"""One response of the Realtime protocol: from the events of a reply to server events.

In: reply events of the engine. Out: response.created, the item and its only content part, deltas, and
response.done. Audio is sent as it is made, faster than it is played. Event loop.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from app.audio.resample import Resampler
from app.server.items import Item, ItemList
from app.server.protocol import Json
from app.server.session_config import SessionConfig, modalities
from engine_runtime.types import Modality, Pcm, ReplyAudio, ReplyDone, ReplyEvent, ReplyText

Emit = Callable[[Json], None]
CancelReason = Literal["turn_detected", "client_cancelled"]


@dataclass(frozen=True, slots=True)
class ResponseIds:
    """What identifies a response and its item."""

    response_id: str
    item_id: str
    conversation_id: str


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
        self.item: Item | None = None
        """None until the first output."""
        self.characters = 0
        """Text that was sent."""
        self._codes: int | None = None
        """Speech codes of the reply, None until it has ended by itself."""
        self._config, self._metadata = config, metadata
        self._engine_rate = engine_rate
        self._items, self._emit = items, emit
        self._resampler = Resampler(engine_rate, config.output_format.sample_rate)
        emit({"type": "response.created", "response": self._document("in_progress")})

    @property
    def samples(self) -> int:
        """Audio that was sent, in samples at the engine's rate."""
        return self.item.samples if self.item is not None else 0

    def add(self, event: ReplyEvent) -> float:
        """The next event of the reply; returns the seconds of audio in it. A ReplyDone ends the response."""
        if isinstance(event, ReplyText):
            self._add_text(event)
        elif isinstance(event, ReplyAudio):
            self._add_audio(event.pcm)
            return len(event.pcm) / event.sample_rate
        elif isinstance(event, ReplyDone):
            self._codes = len(event.codes)
            if event.finish_reason == "length":
                self.end("incomplete", {"type": "incomplete", "reason": "max_output_tokens"})
            else:
                self.end("completed", {"type": "completed"})
        return 0.0

    def cancel(self, reason: CancelReason) -> None:
        """End it before its end."""
        self.end("cancelled", {"type": "cancelled", "reason": reason})

    def fail(self, error: Json) -> None:
        """The engine failed, or the question cannot be answered."""
        self.end("failed", {"type": "failed", "error": error})

    def end(self, status: Literal["completed", "cancelled", "incomplete", "failed"], details: Json) -> None:
        """Close part and item, and emit response.done."""
        item = self.item
        if item is not None:
            if self._is_spoken:
                self._send_audio(self._resampler.finish())
            item.text = item.text.strip()
            item.status = "completed" if status == "completed" else "incomplete"
            self._close_part(item)
            self._emit(self._of_item("response.output_item.done") | {"item": item.document()})
            done: Json = {"type": "conversation.item.done", "item": item.document()}
            self._emit(done | {"previous_item_id": self._items.before(item)})
        self._emit({"type": "response.done", "response": self._document(status, details)})

    @property
    def _is_spoken(self) -> bool:
        return self._config.modality is Modality.SPEECH

    def _add_text(self, event: ReplyText) -> None:
        item = self._opened_item()
        item.text += event.text
        item.said.add(event.start_sample, event.text)
        self.characters += len(event.text)
        kind = "response.output_audio_transcript.delta" if self._is_spoken else "response.output_text.delta"
        self._emit(self._of_part(kind) | {"delta": event.text})

    def _add_audio(self, pcm: Pcm) -> None:
        self._opened_item().samples += len(pcm)
        self._send_audio(self._resampler.push(pcm))

    def _send_audio(self, pcm: Pcm) -> None:
        if len(pcm):
            data = base64.b64encode(self._config.output_format.encode(pcm)).decode("ascii")
            self._emit(self._of_part("response.output_audio.delta") | {"delta": data})

    def _opened_item(self) -> Item:
        if self.item is None:
            kind: Literal["output_audio", "output_text"] = (
                "output_audio" if self._is_spoken else "output_text"
            )
            item = Item(self.ids.item_id, "assistant", kind, status="in_progress", turn_id=self.turn_id)
            self.item = item
            previous = self._items.last_id
            self._items.add(item)
            document = item.document(with_content=False)
            self._emit(self._of_item("response.output_item.added") | {"item": document})
            added: Json = {"type": "conversation.item.added", "item": document}
            self._emit(added | {"previous_item_id": previous})
            self._emit(self._of_part("response.content_part.added") | {"part": self._part("")})
        return self.item

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
        return {"type": kind, "response_id": self.ids.response_id, "output_index": 0}

    def _of_part(self, kind: str) -> Json:
        return self._of_item(kind) | {"item_id": self.ids.item_id, "content_index": 0}

    def _document(self, status: str, details: Json | None = None) -> Json:
        config, codes = self._config, self._codes
        output = {"format": config.output_format.document(), "voice": config.model}
        return {
            "object": "realtime.response",
            "id": self.ids.response_id,
            "conversation_id": self.ids.conversation_id,
            "status": status,
            "status_details": details,
            "output": [] if self.item is None else [self.item.document()],
            "output_modalities": modalities(config.modality),
            "max_output_tokens": config.max_output_tokens or "inf",
            "audio": {"output": output},
            "metadata": self._metadata,
            # Of the other tokens, the reply does not say how many there are.
            "usage": None if codes is None else {"output_token_details": {"audio_tokens": codes}},
        }
