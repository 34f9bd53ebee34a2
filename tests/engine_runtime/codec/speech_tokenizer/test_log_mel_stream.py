"""Frames of arriving speech: what is captured, and what streams share a call for."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import pytest
import torch

from engine_runtime.codec.speech_tokenizer.features import Normalization, WhisperLogMel
from engine_runtime.codec.speech_tokenizer.log_mel_stream import WhisperLogMelStream
from engine_runtime.cuda.graphs import GraphedCalls
from engine_runtime.scheduler import Scheduler
from engine_runtime.types import Pcm
from engine_runtime.work import Task, run_alone

RATE = 16_000


class NotedCalls(GraphedCalls):
    """Notes the keys that a GPU would capture."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self.keys: set[Hashable] = set()

    def run_copied(self, key: Hashable, function: Callable[..., Any], *inputs: torch.Tensor) -> Any:
        self.keys.add(key)
        return super().run_copied(key, function, *inputs)

    def has_graph(self, key: Hashable) -> bool:
        return key in self.keys


def streams_of(
    count: int, calls: NotedCalls, normalization: Normalization = "segment_max"
) -> list[WhisperLogMelStream]:
    """Streams of one tokenizer."""
    features = WhisperLogMel(RATE, 80, normalization)
    return [WhisperLogMelStream(features, 8, calls) for _ in range(count)]


def test_after_the_warm_up_nothing_is_captured_while_a_user_speaks() -> None:
    calls = NotedCalls()
    (stream,) = streams_of(1, calls)
    stream.warm_up()
    captured = set(calls.keys)
    lengths = np.random.default_rng(0).integers(1, 5 * 1_280, 60)
    for length in lengths.tolist():
        run_alone(stream.push(np.ones(length, np.float32)))
        run_alone(stream.tail())
    stream.reset()
    run_alone(stream.push(np.ones(200, np.float32)))
    run_alone(stream.tail())
    assert calls.keys == captured
    assert len(captured) == 12


@pytest.mark.parametrize("normalization", ["segment_max", "running_max"])
def test_users_share_calls_and_get_the_frames_of_each_alone(normalization: Normalization) -> None:
    """Levels differ, so that ceilings and maxima do; the first user becomes louder, and has a revision."""
    calls = NotedCalls()
    together, alone = streams_of(3, calls, normalization), streams_of(3, NotedCalls(), normalization)
    together[0].warm_up(most_streams=4)
    captured, revisions = set(calls.keys), 0
    scheduler, choose = Scheduler(), np.random.default_rng(5)
    found: dict[int, torch.Tensor] = {}

    def push(number: int, block: Pcm) -> Task[None]:
        found[number] = yield from together[number].push(block)

    for step in range(30):
        size = choose.integers(1_000, 3_800)
        levels = (30.0 if step > 15 else 1.0, 0.1, 0.01)
        blocks = [choose.normal(0.0, 0.01 * level, size).astype(np.float32) for level in levels]
        for number, block in enumerate(blocks):
            scheduler.start(push(number, block), lambda: 0)
        while not scheduler.is_idle:
            scheduler.run_once()
        for number, block in enumerate(blocks):
            torch.testing.assert_close(
                found[number], run_alone(alone[number].push(block)), atol=1e-5, rtol=0.0
            )
            mine, other = together[number].revision(), alone[number].revision()
            revisions += mine is not None
            torch.testing.assert_close(mine, other, atol=1e-5, rtol=0.0)
            assert together[number].maximum == pytest.approx(alone[number].maximum, abs=1e-6)
    assert revisions if normalization == "segment_max" else not revisions
    assert calls.keys == captured, "nothing is captured while they speak"
    assert {size for stage, size in scheduler.times.summary() if stage == "features"} == {3}
