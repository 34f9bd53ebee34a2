"""The ring against a plain list, and across two threads."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.audio.ring import Ring

Step = tuple[str, int]
steps = st.lists(
    st.tuples(st.sampled_from(["write", "read"]), st.integers(min_value=0, max_value=40)),
    max_size=60,
)


@given(steps)
def test_ring_behaves_like_a_bounded_queue(script: list[Step]) -> None:
    ring = Ring(32)
    expected: list[float] = []
    next_value = 0
    dropped = 0
    for action, count in script:
        if action == "write":
            block = np.arange(next_value, next_value + count, dtype=np.float32)
            accepted = ring.write(block)
            assert accepted == min(count, 32 - len(expected))
            expected += block[:accepted].tolist()
            dropped += count - accepted
            next_value += count
        else:
            out = ring.read(count)
            assert out.tolist() == expected[: len(out)]
            assert len(out) == min(count, len(expected))
            del expected[: len(out)]
        assert ring.available == len(expected)
        assert ring.free == 32 - len(expected)
    assert ring.dropped == dropped


def test_read_into_leaves_the_rest_untouched() -> None:
    ring = Ring(8)
    ring.write(np.ones(3, dtype=np.float32))
    out = np.full(5, -1.0, dtype=np.float32)
    assert ring.read_into(out) == 3
    assert out.tolist() == [1, 1, 1, -1, -1]


def test_capacity_is_rounded_up_and_checked() -> None:
    assert Ring(1000).capacity == 1024
    assert Ring(1024).capacity == 1024
    with pytest.raises(ValueError, match="at least one"):
        Ring(0)


@pytest.mark.slow
def test_two_threads_lose_and_reorder_nothing() -> None:
    ring = Ring(1 << 10)
    total = 300_000

    def produce() -> None:
        sent = 0
        while sent < total:
            count = min(ring.free, 480, total - sent)
            ring.write(np.arange(sent, sent + count, dtype=np.float32))
            sent += count

    producer = threading.Thread(target=produce)
    producer.start()
    received = 0
    while received < total:
        block = ring.read(333)
        assert np.array_equal(block, np.arange(received, received + len(block), dtype=np.float32))
        received += len(block)
    producer.join()
    assert ring.written == ring.consumed == total
    assert ring.dropped == 0
