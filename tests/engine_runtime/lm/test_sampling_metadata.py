"""Sampling that an executor supports."""

from __future__ import annotations

import pytest

from engine_runtime.lm.step import MAX_TOP_K, can_sample_on_device
from engine_runtime.types import SamplingParams


@pytest.mark.parametrize(
    ("params", "can"),
    [
        (SamplingParams(), True),
        (SamplingParams(do_sample=True, top_k=20), True),
        (SamplingParams(do_sample=True, top_k=MAX_TOP_K), True),
        (SamplingParams(do_sample=True, top_k=MAX_TOP_K + 1), False),
        (SamplingParams(do_sample=True, top_k=0), False),
    ],
)
def test_only_few_candidates_can_be_picked_from(params: SamplingParams, can: bool) -> None:
    assert can_sample_on_device(params) == can
