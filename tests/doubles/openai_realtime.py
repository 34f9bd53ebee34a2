"""A server session in OpenAI's dialect, reimplemented from the types of its public client.

Not the service itself and no recording of it: session shape, events and refusals of the GA protocol, with a
scripted voice. What differs from `moss-voice serve`: fields that the protocol does not have are refused and
nothing of their update is carried out; there are no timings, and a response that is not wanted cannot be
taken back; limits are reported; one that is cancelled ends only once the session has `settled`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import numpy as np

from app.audio.wire_format import PCM16

Event = dict[str, Any]
REPLY_S = 0.6
WORDS = ("It is", " Paris", ".")
VOICES = ("cedar", "marin")
_LEAST_COMMIT_S = 0.1
_FIELDS = {
    "": {"type", "output_modalities", "audio", "instructions", "tools", "tool_choice", "max_output_tokens"},
    "audio": {"input", "output"},
    "audio.input": {"format", "turn_detection", "transcription", "noise_reduction"},
    "audio.output": {"format", "voice", "speed"},
}
_OF_RESPONSE = {"output_modalities", "max_output_tokens", "instructions", "metadata", "audio"}


class OpenAiSession:
    """One client.

    Attributes:
        failure: code and message of the error with which each response ends; None for a complete one.
        makes: number of parts of a reply that are made before `settle`.
    """

    def __init__(self, emit: Callable[[Event], None]) -> None:
        self.failure: tuple[str, str] | None = None
        self.makes = len(WORDS)
        self.heard_s: list[float] = []
        self.items: dict[str, str] = {}
        """Role of each item by its id."""
        self._send = emit
        self._count = 0
        self._audio = b""
        self._session: Event = {
            "type": "realtime",
            "object": "realtime.session",
            "id": "sess_1",
            "model": "gpt-realtime",
            "output_modalities": ["audio"],
            "instructions": "",
            "tools": [],
            "tool_choice": "auto",
            "max_output_tokens": "inf",
            "tracing": None,
            "truncation": "auto",
            "prompt": None,
            "expires_at": 1_900_000_000,
            "include": None,
            "audio": {
                "input": {
                    "format": {"type": "audio/pcm", "rate": 24_000},
                    "transcription": None,
                    "noise_reduction": None,
                    "turn_detection": {"type": "server_vad", "threshold": 0.5},
                },
                "output": {
                    "format": {"type": "audio/pcm", "rate": 24_000},
                    "voice": "marin",
                    "speed": 1.0,
                },
            },
        }
        self._active: Event | None = None
        """The response in progress, or cancelled and not settled."""
        self._part: Event = {}
        self._made = 0
        self._is_cancelled = False
        self._emit("session.created", session=self._session)

    def handle(self, text: str) -> None:
        event = json.loads(text)
        match event["type"]:
            case "session.update":
                self._update(event)
            case "input_audio_buffer.append":
                self._audio += base64.b64decode(event["audio"])
            case "input_audio_buffer.clear":
                self._audio = b""
                self._emit("input_audio_buffer.cleared")
            case "input_audio_buffer.commit":
                self._commit(event)
            case "conversation.item.create":
                self._add(event["item"])
            case "conversation.item.delete" if event["item_id"] in self.items:
                del self.items[event["item_id"]]
                self._emit("conversation.item.deleted", item_id=event["item_id"])
            case "conversation.item.truncate" if event["item_id"] in self.items:
                fields = {name: event[name] for name in ("item_id", "content_index", "audio_end_ms")}
                self._emit("conversation.item.truncated", **fields)
            case "response.create":
                self._create(event)
            case "response.cancel":
                self._cancel(event)
            case kind:
                self._refuse("invalid_value", f"Invalid value: '{kind}'.", "type", event)

    @property
    def voice(self) -> str:
        """The voice of the replies."""
        return str(self._session["audio"]["output"]["voice"])

    def settle(self) -> None:
        """Make the rest of the response in progress, or end the cancelled one."""
        if self._active is not None:
            self.makes = len(WORDS)
            self._make()

    def expire(self) -> None:
        """Say that the session has lasted too long."""
        self._refuse("session_expired", "Your session hit the maximum duration of 60 minutes.", None, {})

    def _emit(self, kind: str, **fields: Any) -> None:
        self._count += 1
        self._send({"type": kind, "event_id": f"event_{self._count}"} | fields)

    def _refuse(self, code: str, message: str, param: str | None, event: Event) -> None:
        error = {"type": "invalid_request_error", "code": code, "message": message, "param": param}
        self._emit("error", error=error | {"event_id": event.get("event_id")})

    def _new_id(self, kind: str) -> str:
        self._count += 1
        return f"{kind}_{self._count}"

    def _update(self, event: Event) -> None:
        given = event["session"]
        for path, known in _FIELDS.items():
            found: Event = given
            for name in filter(None, path.split(".")):
                found = found.get(name) or {}
            if others := sorted(found.keys() - known):
                name = ".".join(filter(None, ("session", path, others[0])))
                self._refuse("unknown_parameter", f"Unknown parameter: '{name}'.", name, event)
                return
        voice = given.get("audio", {}).get("output", {}).get("voice", VOICES[0])
        if voice not in VOICES:
            message = f"Invalid value: '{voice}'. Supported values are: {VOICES}."
            self._refuse("invalid_value", message, "session.audio.output.voice", event)
            return
        _merge(self._session, given)
        self._emit("session.updated", session=self._session)

    def _commit(self, event: Event) -> None:
        seconds = len(self._audio) / PCM16.sample_bytes / PCM16.sample_rate
        if seconds < _LEAST_COMMIT_S:
            message = "Error committing input audio buffer: buffer too small."
            self._refuse("input_audio_buffer_commit_empty", message, None, event)
            return
        self._audio = b""
        self.heard_s.append(seconds)
        item_id = self._new_id("item")
        self._emit("input_audio_buffer.committed", item_id=item_id, previous_item_id=None)
        part = {"type": "input_audio", "transcript": None}
        self._add({"id": item_id, "type": "message", "role": "user", "content": [part]})
        if self._session["audio"]["input"]["transcription"] is not None:
            self._transcribe(item_id)

    def _transcribe(self, item_id: str) -> None:
        kind = "conversation.item.input_audio_transcription"
        place: Event = {"item_id": item_id, "content_index": 0}
        words = f"question {len(self.heard_s)}"
        for delta in ("question", words.removeprefix("question")):
            self._emit(f"{kind}.delta", **place, delta=delta)
        usage = {"type": "duration", "seconds": 1.0}
        self._emit(f"{kind}.completed", **place, transcript=words, usage=usage)

    def _add(self, item: Event) -> None:
        item = {"object": "realtime.item", "status": "completed"} | item
        self.items[item["id"]] = item["role"]
        for kind in ("added", "done"):
            self._emit(f"conversation.item.{kind}", item=item, previous_item_id=None)

    # ---- responses ----

    def _create(self, event: Event) -> None:
        if self._active is not None:
            message = f"Conversation already has an active response in progress: {self._active['id']}."
            self._refuse("conversation_already_has_active_response", message, None, event)
            return
        if others := sorted((event.get("response") or {}).keys() - _OF_RESPONSE):
            name = f"response.{others[0]}"
            self._refuse("unknown_parameter", f"Unknown parameter: '{name}'.", name, event)
            return
        self._active = self._described(self._new_id("resp"), "in_progress")
        self._emit("response.created", response=self._active)
        if self.failure is not None:
            code, message = self.failure
            error = {"type": "tokens", "code": code, "message": message}
            self._end("failed", {"type": "failed", "error": error})
            return
        item: Event = {"object": "realtime.item", "id": self._new_id("item"), "type": "message"}
        item |= {"role": "assistant", "status": "in_progress", "content": []}
        own = {"response_id": self._active["id"], "output_index": 0}
        self.items[item["id"]] = "assistant"
        self._emit("response.output_item.added", **own, item=item)
        self._emit("conversation.item.added", item=item, previous_item_id=None)
        self._part = own | {"item_id": item["id"], "content_index": 0}
        self._made = 0
        part = {"type": "audio", "transcript": ""}
        self._emit("response.content_part.added", **self._part, part=part)
        self._make()

    def _make(self) -> None:
        if self._is_cancelled:
            self._end("cancelled", {"type": "cancelled", "reason": "client_cancelled"})
            return
        samples = round(REPLY_S / len(WORDS) * PCM16.sample_rate)
        pcm = (0.5 * np.sin(2 * np.pi * 440 * np.arange(samples) / PCM16.sample_rate)).astype(np.float32)
        for word in WORDS[self._made : self.makes]:
            self._emit("response.output_audio_transcript.delta", **self._part, delta=word)
            data = base64.b64encode(PCM16.encode(pcm)).decode()
            self._emit("response.output_audio.delta", **self._part, delta=data)
        self._made = self.makes
        if self._made >= len(WORDS):
            self._emit("response.output_audio.done", **self._part)
            said = "".join(WORDS)
            self._emit("response.output_audio_transcript.done", **self._part, transcript=said)
            self._end("completed", None)

    def _cancel(self, event: Event) -> None:
        asked = event.get("response_id")
        if self._active is None or self._is_cancelled or asked not in (None, self._active["id"]):
            message = "Cancellation failed: no active response found"
            self._refuse("response_cancel_not_active", message, None, event)
            return
        self._is_cancelled = True

    def _end(self, status: str, details: Event | None) -> None:
        assert self._active is not None
        response, self._active, self._is_cancelled = self._active, None, False
        usage = {"total_tokens": 30, "input_tokens": 20, "output_tokens": 10}
        done = response | {"status": status, "status_details": details, "usage": usage}
        self._emit("response.done", response=done)
        limit = {"name": "tokens", "limit": 40_000, "remaining": 39_970, "reset_seconds": 0.04}
        self._emit("rate_limits.updated", rate_limits=[limit])

    def _described(self, response_id: str, status: str) -> Event:
        return {
            "object": "realtime.response",
            "id": response_id,
            "conversation_id": "conv_1",
            "status": status,
            "status_details": None,
            "output": [],
            "output_modalities": ["audio"],
            "max_output_tokens": "inf",
            "audio": {"output": self._session["audio"]["output"]},
            "metadata": None,
            "usage": None,
        }


def _merge(known: Event, given: Event) -> None:
    """Change the fields that are given."""
    for name, value in given.items():
        if isinstance(value, dict) and isinstance(known.get(name), dict):
            _merge(known[name], value)
        else:
            known[name] = value
