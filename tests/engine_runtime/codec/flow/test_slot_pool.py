"""Slots under one budget: allocation, reuse, eviction."""

from __future__ import annotations

import pytest

from engine_runtime.codec.flow.slot_pool import SlotPool
from engine_runtime.errors import FlowCacheError


class Owner:
    """A stream."""


def pool(budget: int) -> tuple[SlotPool[str], list[str]]:
    """Slots of as many bytes as steps, named in their order; and the names of those dropped."""
    made, dropped = [], list[str]()

    def make(steps: int) -> str:
        made.append(steps)
        return f"{steps}#{len(made)}"

    return SlotPool(budget, size_of=lambda steps: steps, make=make, drop=dropped.append), dropped


def test_a_slot_serves_again_once_its_owner_is_gone() -> None:
    slots, _ = pool(25)
    owners = [Owner(), Owner()]
    taken = [slots.take(10) for _ in owners]
    for owner, slot in zip(owners, taken, strict=True):
        slots.lend(10, slot, owner)
    assert (taken, slots.held, slots.taken) == (["10#1", "10#2"], 20, 2)
    with pytest.raises(FlowCacheError, match=r"active replies \(2\) leave too little"):
        slots.take(10)
    del owner
    owners.pop()
    assert (slots.take(10), slots.held, slots.taken) == ("10#2", 20, 2)


def test_prepared_slots_count_and_are_taken_first() -> None:
    slots, _ = pool(30)
    slots.reserve(10, 2)
    assert (slots.held, slots.taken) == (20, 0)
    assert [slots.take(10) for _ in range(3)] == ["10#2", "10#1", "10#3"]


def test_idle_slots_of_other_steps_make_room_and_used_ones_do_not() -> None:
    slots, dropped = pool(25)
    slots.reserve(10, 2)
    used = slots.take(10)
    assert slots.take(12) == "12#3"
    assert (dropped, slots.held) == (["10#1"], 22)
    with pytest.raises(FlowCacheError, match="leave too little"):
        slots.take(5)
    slots.put_back(10, used)
    assert slots.take(5) == "5#4"
    assert (dropped, slots.held) == (["10#1", "10#2"], 17)


def test_what_fits_beside_nothing_is_refused_too() -> None:
    slots, _ = pool(9)
    with pytest.raises(FlowCacheError) as refused:
        slots.take(10)
    assert "interrupt" in refused.value.what_to_do
    assert (slots.held, slots.taken) == (0, 0)
