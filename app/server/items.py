"""The items of a Realtime conversation, in order.

In: items of the client, committed speech, replies. Out: the documents of the protocol. An item names the
engine's turn that it belongs to: the user items since the last reply and the reply to them are one exchange
of the history. Event loop.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from app.dialog.conversation import SpokenText
from app.server.protocol import (
    Base64,
    Document,
    Id,
    Identifiers,
    Json,
    ProtocolError,
    Text,
    invalid,
    missing,
    shown,
    unsupported,
    validated,
)
from engine_runtime.bundle.tools import Tool
from engine_runtime.types import ToolCall

KEPT_MS = 120_000
"""Sound of a conversation that is kept for conversation.item.retrieve: 10 MB."""
Status = Literal["in_progress", "completed", "incomplete"]
Role = Literal["user", "assistant", "system", "tool"]
PartType = Literal["input_text", "input_audio", "output_text", "output_audio"]
_PARTS: dict[Role, tuple[PartType, ...]] = {
    "user": ("input_text", "input_audio"),
    "system": ("input_text",),
    "assistant": ("output_text", "output_audio"),
}
Action = Literal["retrieve", "delete", "truncate"]
_DOING: dict[Action, str] = {"retrieve": "retrieving", "delete": "deleting", "truncate": "truncating"}
_OLDER_PARTS: dict[str, PartType] = {"text": "output_text", "audio": "output_audio"}


class _GivenPart(Document):
    type: Literal["input_text", "input_audio", "input_image", "output_text", "output_audio", "text", "audio"]
    text: Text | None = None
    audio: Base64 | None = None
    transcript: Text | None = None
    image_url: str | None = None
    detail: str | None = None


class _AnyItem(Document):
    id: Id | None = None
    object: Literal["realtime.item"] | None = None
    status: Status | None = None


class ItemDocument(_AnyItem):
    """The `item` of a conversation.item.create, if it is a message."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: list[_GivenPart]


_CallId = Annotated[str, Field(pattern="^[a-zA-Z0-9_-]{1,64}$")]


class CallDocument(_AnyItem):
    """The same, if it is a call."""

    type: Literal["function_call"]
    call_id: _CallId | None = None
    name: str
    arguments: Text


class OutputDocument(_AnyItem):
    """The same, if it is the result of a call."""

    type: Literal["function_call_output"]
    call_id: _CallId
    output: Text


@dataclass(slots=True)
class Part:
    """A part of a message."""

    type: PartType
    text: str = ""
    """The text, or the transcript of speech."""
    sound: list[NDArray[np.int16]] = field(default_factory=list)
    """Speech that is kept, at the engine's rate of its side."""

    def document(self) -> Json:
        """The part as an object of the protocol, without its sound."""
        if not self.type.endswith("audio"):
            return {"type": self.type, "text": self.text}
        is_unknown = self.type == "input_audio" and not self.text
        return {"type": self.type, "transcript": None if is_unknown else self.text}


@dataclass(slots=True)
class Item:
    """One message, a call of the assistant, or what the tool has returned."""

    item_id: str
    role: Role
    parts: list[Part]
    status: Status = "completed"
    turn_id: int | None = None
    """The engine's turn; None while the item waits for one, and if the model never sees it."""
    samples: int = 0
    """Length of a spoken reply, at the engine's rate."""
    said: SpokenText = field(default_factory=SpokenText)
    """The transcript of a spoken reply as it came."""
    call: ToolCall | None = None
    call_id: str = ""
    """Of a call, and of its result."""

    @property
    def text(self) -> str:
        """All of its text."""
        return "\n".join(part.text for part in self.parts if part.text)

    @property
    def reply(self) -> str | ToolCall:
        """What the assistant has said or called, "" for nothing and for the items of others."""
        if self.role != "assistant":
            return ""
        return self.text if self.call is None else self.call

    @property
    def is_question(self) -> bool:
        """Whether a reply can answer it."""
        return self.role in ("user", "tool")

    def document(self, *, with_content: bool = True) -> Json:
        """The item as an object of the protocol."""
        shared: Json = {"id": self.item_id, "object": "realtime.item", "status": self.status}
        if self.role == "tool":
            return shared | {"type": "function_call_output", "call_id": self.call_id, "output": self.text}
        if self.call is not None:
            arguments = self.call.arguments if with_content else ""
            known = {"call_id": self.call_id, "name": self.call.name, "arguments": arguments}
            return shared | {"type": "function_call"} | known
        content = [part.document() for part in self.parts] if with_content else []
        return shared | {"type": "message", "role": self.role, "content": content}

    def truncate(self, samples: int) -> None:
        """No more than this was heard of a spoken reply."""
        self.samples = min(self.samples, samples)
        self.said = self.said.up_to(self.samples)
        part = self.parts[0]
        part.text = self.said.text.strip()
        part.sound = [np.concatenate(part.sound)[: self.samples]] if part.sound else []
        self.status = "incomplete"


def spoken_item(item_id: str) -> Item:
    """An item of speech that was committed."""
    return Item(item_id, "user", [Part("input_audio")])


class ItemList:
    """All items that were not deleted."""

    def __init__(self) -> None:
        self._items: dict[str, Item] = {}
        self._kept: deque[tuple[Part, int]] = deque()
        """Parts with sound, and the length of each piece of it in ms, oldest first."""
        self._kept_ms = 0
        """Length of all these."""

    @property
    def last_id(self) -> str | None:
        """The id of the latest item."""
        return next(reversed(self._items), None)

    def before(self, item: Item) -> str | None:
        """The id of the item before this one."""
        ids = list(self._items)
        place = ids.index(item.item_id)
        return ids[place - 1] if place else None

    def after(self, previous_id: str | None) -> list[Item]:
        """The items after this one: all for "root", none for None. ProtocolError if there is none."""
        items = list(self._items.values())
        if previous_id is None:
            return []
        if previous_id == "root":
            return items
        if previous_id not in self._items:
            raise ProtocolError(
                "item_create_invalid_previous_item_id",
                "Error adding item: the previous item with id '{item_id}' does not exist.",
                param="previous_item_id",
                item_id=previous_id,
            )
        return items[list(self._items).index(previous_id) + 1 :]

    def add(self, item: Item, later: Sequence[Item] = ()) -> None:
        """Add an item before the `later` ones, which are the last."""
        if item.item_id in self._items:
            raise ProtocolError(
                "item_create_duplicate_item_id",
                "Error adding item: an item with id '{item_id}' already exists.",
                param="item.id",
                item_id=item.item_id,
            )
        for known in later:
            del self._items[known.item_id]
        self._items |= {known.item_id: known for known in (item, *later)}

    @property
    def awaits_output(self) -> bool:
        """Whether the latest item is a call."""
        latest = next(reversed(self._items.values()), None)
        return latest is not None and latest.call is not None

    def require_call(self, item: Item) -> None:
        """ProtocolError for the result of a call that is not there, or has its result."""
        calls = [known for known in self._items.values() if known.call_id == item.call_id]
        if any(known.role == "tool" for known in calls) or not calls:
            raise ProtocolError(
                "invalid_tool_call_id",
                "Tool call ID '{call_id}' already has an output."
                if calls
                else "Tool call ID '{call_id}' not found in conversation.",
                param="item.call_id",
                call_id=item.call_id,
            )

    def forget_turn(self, turn_id: int) -> None:
        """The engine has forgotten the exchange of these items."""
        for item in self._items.values():
            if item.turn_id == turn_id:
                item.turn_id = None

    @property
    def latest_question(self) -> int | None:
        """The engine's turn with the latest item of the user that is in its history."""
        turns = (item.turn_id for item in reversed(self._items.values()) if item.is_question)
        return next((turn_id for turn_id in turns if turn_id is not None), None)

    def get(self, item_id: str, action: Action) -> Item:
        """The item for what the client wants to do; ProtocolError if there is none."""
        if item_id not in self._items:
            raise ProtocolError(
                f"item_{action}_invalid_item_id",
                "Error {doing} item: the item with id '{item_id}' does not exist.",
                param="item_id",
                doing=_DOING[action],
                item_id=item_id,
            )
        return self._items[item_id]

    def has(self, item: Item) -> bool:
        """Whether the item is still there."""
        return self._items.get(item.item_id) is item

    def keep(self, part: Part, sound: NDArray[np.int16], sample_rate: int) -> None:
        """Keep more sound [n] of a part. Of all sound the latest is kept; an older part loses all of its
        own."""
        part.sound.append(sound)
        length_ms = len(sound) * 1000 // sample_rate
        self._kept.append((part, length_ms))
        self._kept_ms += length_ms
        while self._kept_ms > KEPT_MS:
            oldest = self._kept[0][0]
            oldest.sound = []
            self._kept = deque(known for known in self._kept if known[0] is not oldest)
            self._kept_ms = sum(length_ms for _, length_ms in self._kept)

    def remove(self, item: Item) -> None:
        """Delete an item."""
        del self._items[item.item_id]


@dataclass(frozen=True, slots=True)
class GivenItem:
    """An item of the client, and for each part its sound in the session's format, None for a text."""

    item: Item
    audio: list[bytes | None]


def read_item(document: Json, ids: Identifiers, tools: Sequence[Tool]) -> GivenItem:
    """The item of conversation.item.create. ProtocolError for what the model cannot take; it can call the
    `tools`."""
    kind, new_id = document.get("type", "message"), ids.new("item")
    if kind == "item_reference" or str(kind).startswith("mcp_"):
        raise ProtocolError(
            "unsupported", "Items of type {type} are not supported.", param="item.type", type=kind
        )
    if kind == "function_call":
        return GivenItem(_called(validated(CallDocument, document, "item"), new_id, ids, tools), [])
    if kind == "function_call_output":
        output = validated(OutputDocument, document, "item")
        item = Item(output.id or new_id, "tool", [Part("input_text", output.output)], call_id=output.call_id)
        return GivenItem(item, [None])
    given = validated(ItemDocument, document, "item")
    role: Role = "system" if given.role == "developer" else given.role
    parts: list[Part] = []
    audio: list[bytes | None] = []
    for place, part in enumerate(given.content):
        type_ = _type_of(part, role, f"item.content[{place}]")
        is_audio = type_.endswith("audio")
        name = "audio" if type_ == "input_audio" else "transcript" if is_audio else "text"
        if getattr(part, name) is None:
            raise missing(f"item.content[{place}].{name}")
        parts.append(Part(type_, (part.transcript if is_audio else part.text) or ""))
        audio.append(part.audio if type_ == "input_audio" else None)
    return GivenItem(Item(given.id or new_id, role, parts), audio)


def _called(given: CallDocument, new_id: str, ids: Identifiers, tools: Sequence[Tool]) -> Item:
    if given.name not in [tool.name for tool in tools]:
        raise ProtocolError(
            "unsupported", "The model cannot call {tools}.", param="item.name", tools=shown(given.name)
        )
    try:
        is_object = isinstance(json.loads(given.arguments), dict)
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        raise invalid("item.arguments", given.arguments, "a JSON object")
    call = ToolCall(given.name, given.arguments)
    return Item(given.id or new_id, "assistant", [], call=call, call_id=given.call_id or ids.new("call"))


def _type_of(part: _GivenPart, role: Role, param: str) -> PartType:
    if part.type == "input_image":
        raise unsupported(f"{param}.type")
    type_: str = part.type if role != "assistant" else _OLDER_PARTS.get(part.type, part.type)
    for known in _PARTS[role]:
        if type_ == known:
            return known
    raise invalid(f"{param}.type", part.type, " and ".join(map(repr, _PARTS[role])))
