"""Tables of the codec for several replies at once: packets of the flow, chunks of the vocoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from engine_runtime.bench.batched_codec import (
    FLOW_COLUMNS,
    VOCODER_COLUMNS,
    measure_batched_flow,
    measure_batched_vocoder,
)
from engine_runtime.codec.flow.dynamic import DynamicFlow
from engine_runtime.codec.flow.token2mel import Token2Mel
from engine_runtime.codec.vocoder.hift_stream import HiFTStream
from engine_runtime.codec.vocoder.vocoder import Vocoder
from tests.engine_runtime.codec.flow.test_token2mel import SPEC
from tests.engine_runtime.codec.vocoder.test_hift_stream import SPEC as VOCODER_SPEC
from tests.engine_runtime.codec.vocoder.test_hift_stream import hift
from tests.engine_runtime.test_table import number
from tests.factories.tiny_flow import make_flow


@pytest.fixture(scope="module")
def stage() -> Token2Mel:
    return Token2Mel(make_flow()[0], SPEC, steps=1, packet_codes=(5, 10))


def test_a_row_for_each_packet(stage: Token2Mel) -> None:
    rows = measure_batched_flow(stage, torch.device("cpu"), (1, 2), 1).rows
    assert [(row["replies"], row["packet"], row["codes"]) for row in rows] == [
        (1, 1, 5),
        (1, 2, 10),
        (2, 1, 5),
        (2, 2, 10),
    ]
    assert all(set(row) == set(FLOW_COLUMNS) for row in rows)
    assert all(
        row["error"] == 0.0 and row["ms"] == number(row["replies"]) * number(row["ms_each"]) for row in rows
    )


def test_no_more_replies_than_run_at_once(stage: Token2Mel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "most_streams", 2)
    section = measure_batched_flow(stage, torch.device("cpu"), (1, 2, 4, 8), 1)
    assert {row["replies"] for row in section.rows} == {1, 2}
    assert section.note == "not measured: 4, 8 replies; this engine runs 2 at once"


def test_no_time_of_another_mel(stage: Token2Mel, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def drifting(advance: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def run(self: Any, state: Any, count: int) -> torch.Tensor:
            nonlocal calls
            calls += 1
            return advance(self, state, count) + 0.1 * calls

        return run

    monkeypatch.setattr(DynamicFlow, "advance", drifting(DynamicFlow.advance))
    rows = measure_batched_flow(stage, torch.device("cpu"), (2,), 1).rows
    assert all("another mel" in str(row["valid"]) and "ms" not in row for row in rows)


CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def vocoder() -> Vocoder:
    return Vocoder(hift()[0], VOCODER_SPEC, streams=2)


@pytest.mark.slow
def test_a_row_for_each_chunk(vocoder: Vocoder, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, joined = [], HiFTStream.push_together

    def counted(self: HiFTStream, chunks: Sequence[Any]) -> list[torch.Tensor]:
        sizes.append(len(chunks))
        return joined(self, chunks)

    monkeypatch.setattr(HiFTStream, "push_together", counted)
    rows = measure_batched_vocoder(vocoder, [10, 12], CPU, (1, 2), 1).rows
    assert [(row["replies"], row["chunk"], row["frames"]) for row in rows] == [
        (1, 1, 10),
        (1, 2, 12),
        (2, 1, 10),
        (2, 2, 12),
    ]
    assert all(set(row) == set(VOCODER_COLUMNS) for row in rows)
    assert all(
        number(row["error"]) <= 1e-3 and row["ms"] == number(row["replies"]) * number(row["ms_each"])
        for row in rows
    )
    assert max(sizes) == 2


@pytest.mark.slow
def test_no_time_of_other_samples(vocoder: Vocoder, monkeypatch: pytest.MonkeyPatch) -> None:
    joined = HiFTStream.push_together

    def exchanged(self: HiFTStream, chunks: Sequence[Any]) -> list[torch.Tensor]:
        return joined(self, chunks)[::-1]

    monkeypatch.setattr(HiFTStream, "push_together", exchanged)
    rows = measure_batched_vocoder(vocoder, [10], CPU, (2,), 1).rows
    assert all("other samples" in str(row["valid"]) and "ms" not in row for row in rows)
