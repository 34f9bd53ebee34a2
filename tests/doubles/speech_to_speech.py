"""A server session in the dialect of huggingface speech-to-speech, reimplemented from its public source.

Not the program itself and no recording of it: the events, their order and the refusals of its package
api/openai_realtime (November 2026), with a scripted voice. What differs from `moss-voice serve`: the server
ends turns itself whatever turn_detection says, and answers them without being asked; session.update is not
answered; audio without a format is taken for 16 kHz; the user is transcribed; items cannot be deleted, and
truncate does nothing.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import numpy as np

from app.audio.resample import Resampler
from app.audio.wire_format import pcm_at

Event = dict[str, Any]
RATE = 16_000
_CHUNK = 512
_LOUD = 0.02
_SILENCE_S = 0.5
REPLY_S = 1.0


class SpeechToSpeechSession:
    """One client. `heard_s` is the speech of each turn."""

    def __init__(self, emit: Callable[[Event], None]) -> None:
        self.heard_s: list[float] = []
        self.texts: list[tuple[str, str]] = []
        """The chat: role and text."""
        self._send = emit
        self._formats: dict[str, int] = {}
        self._count = 0
        self._pcm = np.zeros(0, np.float32)
        self._speech = self._silence = 0
        self._item = ""
        self._emit("session.created", session={"type": "realtime"})

    def handle(self, text: str) -> None:
        event = json.loads(text)
        match event.get("type"):
            case "session.update":
                for side, known in event["session"].get("audio", {}).items():
                    if rate := (known.get("format") or {}).get("rate"):
                        self._formats[side] = rate
            case "input_audio_buffer.append":
                self._hear(base64.b64decode(event["audio"]))
            case "input_audio_buffer.commit":
                if not self._speech:
                    self._refuse("input_audio_buffer_commit_empty", event)
            case "conversation.item.create":
                item = event["item"]
                part = item["content"][0]
                self.texts.append((item["role"], part.get("text", "")))
                self._emit("conversation.item.created", item=item)
            case "response.create":
                self._reply()
            case "conversation.item.truncate" | "response.cancel":
                pass
            case _:
                self._refuse("unknown_or_invalid_event", event)

    def _emit(self, kind: str, **fields: Any) -> None:
        self._count += 1
        self._send({"type": kind, "event_id": f"event_{self._count}"} | fields)

    def _refuse(self, code: str, event: Event) -> None:
        error = {"type": "invalid_request_error", "code": code, "message": code}
        self._emit("error", error=error | {"event_id": event.get("event_id")})

    def _hear(self, data: bytes) -> None:
        rate = self._formats.get("input", RATE)
        pcm = pcm_at(rate).decode(data)
        resampler = Resampler(rate, RATE)
        self._pcm = np.concatenate([self._pcm, resampler.push(pcm), resampler.finish()])
        while len(self._pcm) >= _CHUNK:
            chunk, self._pcm = self._pcm[:_CHUNK], self._pcm[_CHUNK:]
            self._rate(float(np.sqrt(np.mean(chunk**2))))

    def _rate(self, level: float) -> None:
        if level > _LOUD:
            if not self._speech:
                self._count += 1
                self._item = f"item_{self._count}"
                self._emit("input_audio_buffer.speech_started", item_id=self._item, audio_start_ms=0)
            self._speech += _CHUNK
            self._silence = 0
        elif self._speech:
            self._silence += _CHUNK
            if self._silence >= _SILENCE_S * RATE:
                self._end_turn()

    def _end_turn(self) -> None:
        self.heard_s.append(self._speech / RATE)
        self._speech = self._silence = 0
        self._emit("input_audio_buffer.speech_stopped", item_id=self._item, audio_end_ms=0)
        self._emit("input_audio_buffer.committed", item_id=self._item)
        item = {"id": self._item, "type": "message", "role": "user", "content": [{"type": "input_audio"}]}
        self._emit("conversation.item.created", item=item)
        said = f"turn {len(self.heard_s)}"
        self.texts.append(("user", said))
        self._emit(
            "conversation.item.input_audio_transcription.completed",
            item_id=self._item,
            content_index=0,
            transcript=said,
        )
        self._reply()

    def _reply(self) -> None:
        self._count += 1
        own = {"response_id": f"resp_{self._count}"}
        item = {"id": f"item_{self._count}", "type": "message", "role": "assistant", "content": []}
        part = own | {"item_id": item["id"], "output_index": 0, "content_index": 0}
        said = f"You said: {self.texts[-1][1]}."
        self.texts.append(("assistant", said))
        described: Event = {"id": own["response_id"], "status": "in_progress"}
        self._emit("response.created", response=described)
        self._emit("response.output_item.added", **own, output_index=0, item=item)
        rate = self._formats.get("output", RATE)
        pcm = (0.5 * np.sin(2 * np.pi * 440 * np.arange(round(REPLY_S * rate)) / rate)).astype(np.float32)
        for start in range(0, len(pcm), rate // 5):
            data = pcm_at(rate).encode(pcm[start : start + rate // 5])
            self._emit("response.output_audio.delta", **part, delta=base64.b64encode(data).decode())
        self._emit("response.output_audio.done", **part)
        self._emit("response.output_audio_transcript.done", **part, transcript=said)
        self._emit("response.done", response=described | {"status": "completed"})
