"""The table of the vocoder's chunks for several replies at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from engine_runtime.bench.batched_vocoder import COLUMNS, measure_batched_vocoder
from engine_runtime.codec.vocoder.hift_stream import HiFTStream
from engine_runtime.codec.vocoder.vocoder import Vocoder
from tests.engine_runtime.codec.vocoder.test_hift_stream import SPEC, hift

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def vocoder() -> Vocoder:
    return Vocoder(hift()[0], SPEC, streams=2)


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
    assert all(set(row) == set(COLUMNS) for row in rows)
    assert all(row["error"] <= 1e-3 and row["ms"] == row["replies"] * row["ms_each"] for row in rows)
    assert max(sizes) == 2


@pytest.mark.slow
def test_no_time_of_other_samples(vocoder: Vocoder, monkeypatch: pytest.MonkeyPatch) -> None:
    joined = HiFTStream.push_together

    def exchanged(self: HiFTStream, chunks: Sequence[Any]) -> list[torch.Tensor]:
        return joined(self, chunks)[::-1]

    monkeypatch.setattr(HiFTStream, "push_together", exchanged)
    rows = measure_batched_vocoder(vocoder, [10], CPU, (2,), 1).rows
    assert all("other samples" in str(row["valid"]) and "ms" not in row for row in rows)
