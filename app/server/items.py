"""The items of a Realtime conversation, in order.

In: items of the client, committed speech, replies. Out: the documents of the protocol. An item names the
engine's turn that it belongs to: the user items since the last reply and the reply to them are one exchange
of the history. Audio is not kept. Event loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from app.dialog.conversation import SpokenText
from app.server.protocol import Json, ProtocolError, bytes_of, text_of

LONGEST_TEXT = 20_000
Status = Literal["in_progress", "completed", "incomplete"]


@dataclass(slots=True)
class Item:
    """One message."""

    item_id: str
    role: Literal["user", "assistant"]
    content_type: Literal["input_text", "input_audio", "output_text", "output_audio"]
    text: str = ""
    """The text, or the transcript of a spoken reply."""
    status: Status = "completed"
    turn_id: int | None = None
    """The engine's turn, None while the item waits for one."""
    samples: int = 0
    """Length of a spoken reply, at the engine's rate."""
    said: SpokenText = field(default_factory=SpokenText)
    """The transcript of a spoken reply as it came."""

    def document(self, *, with_content: bool = True) -> Json:
        """The item as an object of the protocol."""
        is_audio = self.content_type.endswith("audio")
        content: dict[str, Any] = {"type": self.content_type}
        content |= (
            {"transcript": self.text or (None if self.role == "user" else "")}
            if is_audio
            else {"text": self.text}
        )
        return {
            "id": self.item_id,
            "object": "realtime.item",
            "type": "message",
            "status": self.status,
            "role": self.role,
            "content": [content] if with_content else [],
        }

    def truncate(self, samples: int) -> None:
        """No more than this was heard."""
        self.samples = min(self.samples, samples)
        self.said = self.said.up_to(self.samples)
        self.text = self.said.text.strip()
        self.status = "incomplete"


class ItemList:
    """All items that were not deleted."""

    def __init__(self) -> None:
        self._items: dict[str, Item] = {}

    @property
    def last_id(self) -> str | None:
        """The id of the latest item."""
        return next(reversed(self._items), None)

    def before(self, item: Item) -> str | None:
        """The id of the item before this one."""
        ids = list(self._items)
        place = ids.index(item.item_id)
        return ids[place - 1] if place else None

    def add(self, item: Item) -> None:
        """Append an item."""
        self._items[item.item_id] = item

    def get(self, item_id: str) -> Item:
        """The item; ProtocolError if there is none."""
        if item_id not in self._items:
            raise ProtocolError(
                "item_not_found",
                "There is no item {item_id} in this conversation.",
                param="item_id",
                item_id=item_id,
            )
        return self._items[item_id]

    def remove(self, item: Item) -> None:
        """Delete an item."""
        del self._items[item.item_id]

    def has(self, item_id: str) -> bool:
        """Whether there is an item of this id."""
        return item_id in self._items


@dataclass(frozen=True, slots=True)
class GivenItem:
    """An item of the client: its text, or its audio in the session's format."""

    item: Item
    audio: bytes | None = None


def read_item(document: Json, new_id: str) -> GivenItem:
    """The item of conversation.item.create. ProtocolError for what the model cannot take."""
    if document.get("type", "message") != "message":
        raise ProtocolError(
            "unsupported",
            "Items of type {type!r} are not supported.",
            param="item.type",
            type=str(document.get("type"))[:80],
        )
    role = document.get("role")
    if role != "user" and role != "assistant":
        raise ProtocolError("unsupported", "item.role has to be user or assistant.", param="item.role")
    item_id = text_of(document, "id") if document.get("id") is not None else new_id
    parts = document.get("content")
    if not isinstance(parts, list) or len(parts) != 1 or not isinstance(parts[0], dict):
        raise ProtocolError(
            "invalid_value", "item.content has to be a list of one part.", param="item.content"
        )
    part: Json = parts[0]
    if role == "user" and part.get("type") == "input_audio":
        audio = bytes_of(part, "audio")
        return GivenItem(Item(item_id, "user", "input_audio", str(part.get("transcript") or "")), audio)
    if role == "user" and part.get("type") == "input_text":
        return GivenItem(Item(item_id, "user", "input_text", _spoken(part, "text")))
    if role == "assistant" and part.get("type") == "output_text":
        return GivenItem(Item(item_id, "assistant", "output_text", _spoken(part, "text")))
    if role == "assistant" and part.get("type") == "output_audio":
        return GivenItem(Item(item_id, "assistant", "output_audio", _spoken(part, "transcript")))
    raise ProtocolError(
        "unsupported",
        "A part of a user item is input_text or input_audio, of an assistant item output_text or "
        "output_audio.",
        param="item.content",
    )


def _spoken(part: Json, name: str) -> str:
    text = text_of(part, name, longest=LONGEST_TEXT)
    if not text.strip():
        raise ProtocolError("invalid_value", "{name} is empty.", param=f"item.content.{name}", name=name)
    return text
