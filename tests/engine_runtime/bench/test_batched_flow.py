"""The table of the flow's packets for several replies at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from engine_runtime.bench.batched_flow import COLUMNS, measure_batched_flow
from engine_runtime.codec.flow.dynamic import DynamicFlow
from engine_runtime.codec.flow.token2mel import Token2Mel
from tests.engine_runtime.codec.flow.test_token2mel import SPEC
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
    assert all(set(row) == set(COLUMNS) for row in rows)
    assert all(row["error"] == 0.0 and row["ms"] == row["replies"] * row["ms_each"] for row in rows)


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
