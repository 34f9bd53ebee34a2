"""The items of a Realtime conversation, in order.

In: items of the client, committed speech, replies. Out: the documents of the protocol. An item names the
engine's turn that it belongs to: the user items since the last reply and the reply to them are one exchange
of the history. Event loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from app.dialog.conversation import SpokenText
from app.server.protocol import (
    Base64,
    Document,
    Id,
    Json,
    ProtocolError,
    Text,
    invalid,
    missing,
    unsupported,
    validated,
)
from engine_runtime.types import Pcm

KEPT_MS = 120_000
"""Sound of a conversation that is kept for conversation.item.retrieve: 10 MB."""
_FULL_SCALE = 32_768
Status = Literal["in_progress", "completed", "incomplete"]
Role = Literal["user", "assistant", "system"]
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


class ItemDocument(Document):
    """The `item` of a conversation.item.create."""

    id: Id | None = None
    object: Literal["realtime.item"] | None = None
    type: Literal["message"] = "message"
    status: Status | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: list[_GivenPart]


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
    """One message."""

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

    @property
    def text(self) -> str:
        """All of its text."""
        return "\n".join(part.text for part in self.parts if part.text)

    def document(self, *, with_content: bool = True) -> Json:
        """The item as an object of the protocol."""
        return {
            "id": self.item_id,
            "object": "realtime.item",
            "type": "message",
            "status": self.status,
            "role": self.role,
            "content": [part.document() for part in self.parts] if with_content else [],
        }

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

    def forget_turn(self, turn_id: int) -> None:
        """The engine has forgotten the exchange of these items."""
        for item in self._items.values():
            if item.turn_id == turn_id:
                item.turn_id = None

    @property
    def latest_question(self) -> int | None:
        """The engine's turn with the latest item of the user that is in its history."""
        turns = (item.turn_id for item in reversed(self._items.values()) if item.role == "user")
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

    def keep(self, part: Part, pcm: Pcm, sample_rate: int) -> None:
        """Keep more sound of a part. Of all sound the latest is kept; an older part loses all of its own."""
        part.sound.append(np.clip(np.rint(pcm * _FULL_SCALE), -_FULL_SCALE, _FULL_SCALE - 1).astype(np.int16))
        self._kept.append((part, len(pcm) * 1000 // sample_rate))
        while sum(length_ms for _, length_ms in self._kept) > KEPT_MS:
            oldest = self._kept[0][0]
            oldest.sound = []
            self._kept = deque(known for known in self._kept if known[0] is not oldest)

    def remove(self, item: Item) -> None:
        """Delete an item."""
        del self._items[item.item_id]


@dataclass(frozen=True, slots=True)
class GivenItem:
    """An item of the client, and for each part its sound in the session's format, None for a text."""

    item: Item
    audio: list[bytes | None]


def read_item(document: Json, new_id: str) -> GivenItem:
    """The item of conversation.item.create. ProtocolError for what the model cannot take."""
    kind = document.get("type", "message")
    if kind in ("function_call", "function_call_output", "item_reference") or str(kind).startswith("mcp_"):
        raise ProtocolError(
            "unsupported", "Items of type {type} are not supported.", param="item.type", type=kind
        )
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


def _type_of(part: _GivenPart, role: Role, param: str) -> PartType:
    if part.type == "input_image":
        raise unsupported(f"{param}.type")
    type_: str = part.type if role != "assistant" else _OLDER_PARTS.get(part.type, part.type)
    for known in _PARTS[role]:
        if type_ == known:
            return known
    raise invalid(f"{param}.type", part.type, " and ".join(map(repr, _PARTS[role])))
