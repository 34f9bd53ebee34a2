"""Changes of the conversation that a client asks for: items created, deleted, truncated.

In: client events. Out: the changed list of items, jobs for the engine's history, server events. Items are
added at the end only. Event loop.
"""

from __future__ import annotations

from app.audio.wire_format import AudioFormat
from app.server.identifiers import Identifiers
from app.server.items import Item, ItemList, read_item
from app.server.pending_exchange import PendingExchange
from app.server.protocol import ItemCreate, ItemTruncate, Json, ProtocolError
from app.server.response import Emit
from app.server.response_control import ResponseControl
from app.server.voice_input import VoiceInput
from app.session.engine_jobs import JobQueue, Remove
from engine_runtime.types import Pcm


class ItemEdits:
    """See the module."""

    def __init__(
        self,
        ids: Identifiers,
        items: ItemList,
        turn: PendingExchange,
        voice: VoiceInput,
        responses: ResponseControl,
        jobs: JobQueue,
        engine_rate: int,
        emit: Emit,
    ) -> None:
        """`engine_rate` is that of reply audio, in Hz."""
        self._ids, self._items, self._turn, self._voice = ids, items, turn, voice
        self._responses = responses
        self._jobs = jobs
        self._engine_rate = engine_rate
        self._emit = emit

    def add(self, item: Item) -> None:
        """Append a complete item, and report it."""
        previous = self._items.last_id
        self._items.add(item)
        for kind in ("conversation.item.added", "conversation.item.done"):
            self._emit({"type": kind, "previous_item_id": previous, "item": item.document()})

    def create(self, action: ItemCreate, known: AudioFormat) -> None:
        """conversation.item.create; audio is in the format `known`."""
        previous, last = action.previous_item_id, self._items.last_id
        if previous is not None and previous != (last or "root"):
            raise ProtocolError("unsupported", "An item can be added at the end only.", "previous_item_id")
        given = read_item(action.item, self._ids.new("item"))
        item = given.item
        if self._items.has(item.item_id):
            raise ProtocolError("duplicate_item", f"There is an item {item.item_id} already.", "item.id")
        if self._responses.active is not None:
            raise ProtocolError("response_in_progress", "Items can be added when the response is done.")
        if item.role == "assistant":
            self._turn.answer(item)
        elif given.audio is not None:
            self._turn.add(item, self._voice.converted(samples_of(given.audio, known, "item.content.audio")))
        else:
            self._turn.add(item, None)
        self.add(item)

    def delete(self, item: Item) -> None:
        """conversation.item.delete. The model's history loses the exchange that the item belongs to."""
        active = self._responses.active
        if active is not None and item.turn_id == active.turn_id:
            raise ProtocolError(
                "response_in_progress", "The item is part of the response in progress.", "item_id"
            )
        if item.turn_id is None:
            self._turn.withdraw(item)
        elif item.turn_id != self._turn.turn_id:
            self._jobs.submit(Remove(item.turn_id))
        elif self._items.of_turn(item.turn_id) == [item] and not self._turn.is_speaking:
            self._turn.cut(item.turn_id, 0)
        else:
            raise ProtocolError(
                "unsupported", "One of several items of a spoken turn cannot be deleted.", "item_id"
            )
        self._items.remove(item)
        self._emit({"type": "conversation.item.deleted", "item_id": item.item_id})

    def truncate(self, action: ItemTruncate) -> None:
        """conversation.item.truncate: cut item and history to what was heard."""
        item = self._items.get(action.item_id)
        if item.content_type != "output_audio" or action.content_index != 0:
            raise ProtocolError("invalid_value", "Only part 0 of a spoken reply can be truncated.", "item_id")
        samples = action.audio_end_ms * self._engine_rate // 1000
        if samples > item.samples:
            length_ms = item.samples * 1000 // self._engine_rate
            raise ProtocolError(
                "invalid_value",
                f"The item has {length_ms} ms of audio, less than audio_end_ms.",
                "audio_end_ms",
            )
        if item.turn_id is None or not self._turn.can_cut(item.turn_id):
            raise ProtocolError("item_too_old", "Only a recent reply can be truncated.", "item_id")
        active = self._responses.active
        if active is not None and active.item is item:
            self._responses.stop("client_cancelled")
        item.truncate(samples)
        self._turn.cut(item.turn_id, samples)
        self._responses.end_playback()
        truncated: Json = {"type": "conversation.item.truncated", "item_id": item.item_id}
        self._emit(truncated | {"content_index": 0, "audio_end_ms": action.audio_end_ms})


def samples_of(audio: bytes, known: AudioFormat, param: str) -> Pcm:
    """Samples [n] of bytes of the wire. ProtocolError if there are none, or not whole ones."""
    if not audio or len(audio) % known.sample_bytes:
        raise ProtocolError(
            "invalid_value",
            f"{param} has to be whole samples of {known.type}, {known.sample_bytes} bytes each.",
            param,
        )
    return known.decode(audio)
