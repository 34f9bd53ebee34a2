"""The Realtime protocol: client events from JSON text to typed values, and the ids of what it names.

In: one text message. Out: a `ClientEvent`, or `ProtocolError` with the code, the field and the event's own
id, which the server answers by an `error` event. Pure; any thread.

Written out, not as pydantic models: a refusal names the field and the remedy in words of its own, and with a
table of these words beside the models this module and session_config.py had 56 lines more.
"""

from __future__ import annotations

import base64
import binascii
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from engine_runtime.errors import MossVoiceError, Problem

_LONGEST_ID = 64
Json = dict[str, Any]


class ProtocolError(MossVoiceError):
    """A client event that cannot be carried out. The session continues."""

    def __init__(
        self,
        code: str,
        cause: str,
        remedy: str = "",
        /,
        *,
        param: str | None = None,
        event_id: str | None = None,
        **values: object,
    ) -> None:
        super().__init__(cause, remedy, **values)
        self.code, self.param, self.event_id = code, param, event_id


def describe(problem: Problem, kind: str, code: str) -> Json:
    """The `error` of a server event. Clients of this program translate what is in `moss_voice`."""
    return {"type": kind, "code": code, "message": str(problem), "moss_voice": problem.to_json()}


@dataclass(frozen=True, slots=True)
class SessionUpdate:
    """session.update: only the given fields change."""

    session: Json


@dataclass(frozen=True, slots=True)
class AudioAppend:
    """input_audio_buffer.append."""

    audio: bytes


@dataclass(frozen=True, slots=True)
class AudioCommit:
    """input_audio_buffer.commit: the buffer becomes a user item."""


@dataclass(frozen=True, slots=True)
class AudioClear:
    """input_audio_buffer.clear."""


@dataclass(frozen=True, slots=True)
class ItemCreate:
    """conversation.item.create; `previous_item_id` None for the end."""

    item: Json
    previous_item_id: str | None = None


@dataclass(frozen=True, slots=True)
class ItemRetrieve:
    """conversation.item.retrieve."""

    item_id: str


@dataclass(frozen=True, slots=True)
class ItemDelete:
    """conversation.item.delete."""

    item_id: str


@dataclass(frozen=True, slots=True)
class ItemTruncate:
    """conversation.item.truncate: no more than this was heard of a reply."""

    item_id: str
    content_index: int
    audio_end_ms: int


@dataclass(frozen=True, slots=True)
class ResponseCreate:
    """response.create; the parameters override those of the session."""

    response: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ResponseCancel:
    """response.cancel; None for the one in progress."""

    response_id: str | None = None


ClientAction = (
    SessionUpdate
    | AudioAppend
    | AudioCommit
    | AudioClear
    | ItemCreate
    | ItemRetrieve
    | ItemDelete
    | ItemTruncate
    | ResponseCreate
    | ResponseCancel
)


@dataclass(frozen=True, slots=True)
class ClientEvent:
    """An action and the id that the client gave it."""

    action: ClientAction
    event_id: str | None = None


def parse(text: str) -> ClientEvent:
    """The event of a message. ProtocolError if it is none."""
    try:
        event = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(
            "invalid_json", "The message is no JSON document: {error}.", error=error
        ) from error
    if not isinstance(event, dict):
        raise ProtocolError("invalid_event", "A message is a JSON object with a type.")
    event_id = event.get("event_id")
    if not isinstance(event_id, str) or len(event_id) > 512:
        event_id = None
    kind = event.get("type")
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        known = ", ".join(sorted(_READERS))
        raise ProtocolError(
            "unknown_event",
            "{kind!r} is no client event.",
            "Known are {known}.",
            param="type",
            event_id=event_id,
            kind=str(kind)[:80],
            known=known,
        )
    try:
        return ClientEvent(reader(event), event_id)
    except ProtocolError as error:
        error.event_id = event_id
        raise


def text_of(value: Json, name: str, *, longest: int = _LONGEST_ID) -> str:
    """A required string."""
    found = value.get(name)
    if not isinstance(found, str) or not found or len(found) > longest:
        raise ProtocolError(
            "invalid_value",
            "{name} has to be a string of 1 to {longest} characters.",
            param=name,
            name=name,
            longest=longest,
        )
    return found


def integer_of(value: Json, name: str) -> int:
    """A required integer of at least 0."""
    found = value.get(name)
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found < 2**53:
        raise ProtocolError(
            "invalid_value", "{name} has to be an integer of at least 0.", param=name, name=name
        )
    return found


def object_of(value: Json, name: str, default: Json | None = None) -> Json:
    """An object; required where there is no default."""
    found = value.get(name)
    if found is None and default is not None:
        return default
    if not isinstance(found, dict):
        raise ProtocolError("invalid_value", "{name} has to be an object.", param=name, name=name)
    return found


def bytes_of(value: Json, name: str) -> bytes:
    """Required base64 data."""
    found = value.get(name)
    if not isinstance(found, str):
        raise ProtocolError("invalid_value", "{name} has to be a base64 string.", param=name, name=name)
    try:
        return base64.b64decode(found, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ProtocolError(
            "invalid_value", "{name} is no valid base64: {error}.", param=name, name=name, error=error
        ) from error


def _item_create(event: Json) -> ItemCreate:
    previous = event.get("previous_item_id")
    if previous is not None:
        previous = text_of(event, "previous_item_id")
    return ItemCreate(object_of(event, "item"), previous)


def _response_cancel(event: Json) -> ResponseCancel:
    return ResponseCancel(text_of(event, "response_id") if event.get("response_id") is not None else None)


_READERS: dict[str, Callable[[Json], ClientAction]] = {
    "session.update": lambda event: SessionUpdate(object_of(event, "session")),
    "input_audio_buffer.append": lambda event: AudioAppend(bytes_of(event, "audio")),
    "input_audio_buffer.commit": lambda event: AudioCommit(),
    "input_audio_buffer.clear": lambda event: AudioClear(),
    "conversation.item.create": _item_create,
    "conversation.item.retrieve": lambda event: ItemRetrieve(text_of(event, "item_id")),
    "conversation.item.delete": lambda event: ItemDelete(text_of(event, "item_id")),
    "conversation.item.truncate": lambda event: ItemTruncate(
        text_of(event, "item_id"), integer_of(event, "content_index"), integer_of(event, "audio_end_ms")
    ),
    "response.create": lambda event: ResponseCreate(object_of(event, "response", {})),
    "response.cancel": _response_cancel,
}


class Identifiers:
    """The ids of one session: unique within the process, and hard to guess. Event loop."""

    def __init__(self) -> None:
        self._session = secrets.token_hex(8)
        self._counts = count(1)

    @property
    def session_id(self) -> str:
        """The id of the session."""
        return f"sess_{self._session}"

    @property
    def conversation_id(self) -> str:
        """The id of its only conversation."""
        return f"conv_{self._session}"

    def new(self, kind: str) -> str:
        """The next id, as kind_session_number."""
        return f"{kind}_{self._session}_{next(self._counts)}"
