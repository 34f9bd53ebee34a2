"""The Realtime protocol: client events from JSON text to typed values, and the ids of what it names.

In: one text message. Out: a `ClientEvent`, or `ProtocolError` with the code, the field and the event's own
id, which the server answers by an `error` event. Codes and texts are those that OpenAI's server gives where
clients are known to look at them. Pure; any thread.
"""

from __future__ import annotations

import base64
import json
import secrets
from itertools import count
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
)

from engine_runtime.errors import MossVoiceError, Problem

_LONGEST_ID = 64
_LONGEST_EVENT_ID = 512
_LONGEST_SHOWN = 80
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

    def document(self) -> Json:
        """The `error` of a server event, without the id of a client event."""
        return describe(self.problem, "invalid_request_error", self.code) | {"param": self.param}


def describe(problem: Problem, kind: str, code: str) -> Json:
    """The `error` of a server event. Clients of this program translate what is in `moss_voice`."""
    return {"type": kind, "code": code, "message": str(problem), "moss_voice": problem.to_json()}


def missing(param: str) -> ProtocolError:
    """A required field is not there."""
    return ProtocolError(
        "missing_required_parameter", "Missing required parameter: '{field}'.", param=param, field=param
    )


def unknown(param: str) -> ProtocolError:
    """The protocol has no such field, or not there."""
    return ProtocolError("unknown_parameter", "Unknown parameter: '{field}'.", param=param, field=param)


def invalid(param: str, value: object, supported: object) -> ProtocolError:
    """A value is none of the `supported` ones."""
    return ProtocolError(
        "invalid_value",
        "Invalid value: {value}. Supported values are: {supported}.",
        param=param,
        value=shown(value),
        supported=supported,
    )


def unsupported(param: str) -> ProtocolError:
    """The protocol has this field, and this server does nothing for it."""
    return ProtocolError("unsupported", "{field} is not supported.", param=param, field=param)


def shown(value: object) -> str:
    """A value of a client in an error."""
    return repr(value)[:_LONGEST_SHOWN]


# ---- documents ----


class Document(BaseModel):
    """An object of the protocol. Unknown fields are refused, and no value is converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def _decoded(value: object) -> object:
    if not isinstance(value, str):
        raise ValueError("it has to be a base64 string")
    return base64.b64decode(value, validate=True)


def _encodable(text: str) -> str:
    # JSON can escape half of a surrogate pair, which no tokenizer takes.
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("it has half of a surrogate pair") from None
    return text


Text = Annotated[str, AfterValidator(_encodable)]
Base64 = Annotated[bytes, BeforeValidator(_decoded)]
Id = Annotated[str, Field(min_length=1, max_length=_LONGEST_ID)]
AnyDocument = TypeVar("AnyDocument", bound=Document)


def validated(model: type[AnyDocument], document: Json, name: str) -> AnyDocument:
    """The typed value of a document, which is the field `name` of its event. ProtocolError names the first
    field that cannot be used."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise _refusal(error, document, name) from error


def _refusal(error: ValidationError, document: Json, name: str = "") -> ProtocolError:
    # Of the branches of a union the one that says more than the type that it expects.
    all_found = error.errors(include_url=False)
    found = next((one for one in all_found if not one["type"].endswith("_type")), all_found[0])
    kind, context = found["type"], found.get("ctx", {})
    param = _path_of(found["loc"], document, name, is_missing=kind == "missing")
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        param = f"{param}.type".lstrip(".")
    if kind in ("missing", "union_tag_not_found"):
        return missing(param)
    if kind == "extra_forbidden":
        return unknown(param)
    if kind in ("literal_error", "union_tag_invalid"):
        supported = context.get("expected") or context.get("expected_tags")
        return invalid(param, context.get("tag") or found["input"], supported)
    return ProtocolError(
        "invalid_type" if kind.endswith("_type") else "invalid_value",
        "Invalid value for '{field}': {reason}.",
        param=param,
        field=param,
        reason=found["msg"].removeprefix("Value error, "),
    )


def _path_of(location: tuple[int | str, ...], document: Any, name: str, *, is_missing: bool) -> str:
    """The field of an error: what pydantic adds to the location, names of the branches of unions, is not in
    the document."""
    path = name
    for place, step in enumerate(location):
        is_last_missing = is_missing and place == len(location) - 1
        if isinstance(document, list) and isinstance(step, int) and step < len(document):
            path, document = f"{path}[{step}]", document[step]
        elif is_last_missing or (isinstance(document, dict) and step in document):
            path = f"{path}.{step}".lstrip(".")
            document = document.get(step) if isinstance(document, dict) else None
    return path


# ---- events ----


class _Event(Document):
    event_id: Annotated[str, Field(max_length=_LONGEST_EVENT_ID)] | None = None
    """The id that the client gave it."""


class SessionUpdate(_Event):
    """Only the given fields change."""

    type: Literal["session.update"]
    session: Json


class AudioAppend(_Event):
    """More audio, in the session's format; a sample may be split between two events."""

    type: Literal["input_audio_buffer.append"]
    audio: Base64


class AudioCommit(_Event):
    """The buffer becomes a user item."""

    type: Literal["input_audio_buffer.commit"]


class AudioClear(_Event):
    """The buffer is forgotten."""

    type: Literal["input_audio_buffer.clear"]


class ItemCreate(_Event):
    """A new item; `previous_item_id` None for the end."""

    type: Literal["conversation.item.create"]
    item: Json
    previous_item_id: Id | None = None


class ItemRetrieve(_Event):
    """An item is asked for."""

    type: Literal["conversation.item.retrieve"]
    item_id: Id


class ItemDelete(_Event):
    """An item is to be deleted."""

    type: Literal["conversation.item.delete"]
    item_id: Id


class ItemTruncate(_Event):
    """No more than this was heard of a reply."""

    type: Literal["conversation.item.truncate"]
    item_id: Id
    content_index: Annotated[int, Field(ge=0, lt=2**53)]
    audio_end_ms: Annotated[int, Field(ge=0, lt=2**53)]


class ResponseCreate(_Event):
    """A reply is asked for; the parameters override those of the session."""

    type: Literal["response.create"]
    response: Json | None = None


class ResponseCancel(_Event):
    """A response is not wanted any more; None for the one in progress."""

    type: Literal["response.cancel"]
    response_id: Id | None = None


class ResponseConfirm(_Event):
    """A speculative response is wanted: the user has finished. An extension of this program."""

    type: Literal["moss_voice.response.confirm"]


ClientEvent = (
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
    | ResponseConfirm
)
EVENTS: TypeAdapter[ClientEvent] = TypeAdapter(Annotated[ClientEvent, Field(discriminator="type")])


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def parse(text: str) -> ClientEvent:
    """The event of a message. ProtocolError if the message is not an event."""
    try:
        event = _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("invalid_json", "The message is not valid JSON: {error}.", error=error) from error
    if not isinstance(event, dict):
        raise ProtocolError("invalid_event", "A message is a JSON object with a type.")
    try:
        return EVENTS.validate_python(event)
    except ValidationError as error:
        refused = _refusal(error, event)
        event_id = event.get("event_id")
        if isinstance(event_id, str) and len(event_id) <= _LONGEST_EVENT_ID:
            refused.event_id = event_id
        raise refused from error


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
