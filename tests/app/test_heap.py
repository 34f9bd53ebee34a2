"""Free memory goes back to the system."""

from __future__ import annotations

import ctypes
import runpy

import numpy as np
import psutil
import pytest

from app import heap


def test_what_was_freed_between_what_is_used_goes_back() -> None:
    if not hasattr(ctypes.CDLL(None), "malloc_trim"):
        pytest.skip("the C library cannot give it back")
    blocks = [np.ones(2_000) for _ in range(10_000)]  # 16 kB each: of the heap, not mapped
    kept = blocks[::100]
    del blocks
    before = psutil.Process().memory_full_info().uss
    heap.give_back_free_memory()
    assert before - psutil.Process().memory_full_info().uss > 50_000_000
    assert len(kept) == 100


def test_another_c_library_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def library(name: object) -> object:
        asked.append(name)
        return object()

    monkeypatch.setattr(ctypes, "CDLL", library)
    fresh = runpy.run_path(heap.__file__)  # the module has found its library already
    fresh["give_back_free_memory"]()
    assert asked == [None]


def test_while_the_engine_is_busy_it_goes_back_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []
    now_s = 0.0
    monkeypatch.setattr(heap, "give_back_free_memory", lambda *, with_cycles: given.append(now_s))
    freed = heap.FreedMemory(lambda: now_s)
    freed.give_back(at_once=True)
    assert given == [], "nothing has ended"
    freed.note()
    freed.give_back(at_once=False)
    assert given == []
    freed.give_back(at_once=True)
    assert given == [0.0]
    for seconds in (10.0, 29.0, 30.0, 31.0, 59.0, 60.0):
        now_s = seconds
        freed.note()
        freed.give_back(at_once=False)
    assert given == [0.0, 30.0, 60.0]
