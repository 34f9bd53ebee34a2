"""Engine options."""

from __future__ import annotations

from typing import Any

import pytest

from engine_runtime.options import MOST_FLOW_STEPS, Dtype, EngineOptions
from engine_runtime.setting import OptionsError


@pytest.mark.parametrize(
    ("device", "dtype", "wanted"),
    [
        ("cpu", None, "float32"),
        ("cuda", None, "bfloat16"),
        ("cuda:1", None, "bfloat16"),
        ("cuda", "float16", "float16"),
        ("cpu", "bfloat16", "bfloat16"),
    ],
)
def test_the_language_model_has_the_format_that_suits_the_device(
    device: str, dtype: Dtype | None, wanted: Dtype
) -> None:
    assert EngineOptions(device=device, dtype=dtype).lm_dtype == wanted


@pytest.mark.parametrize(
    ("device", "dtype", "wanted"),
    [
        ("cpu", None, "float32"),
        ("cuda", None, "float16"),
        ("cuda:1", None, "float16"),
        ("cuda", "float32", "float32"),
        ("cpu", "bfloat16", "bfloat16"),
    ],
)
def test_the_codec_has_the_format_that_suits_the_device(
    device: str, dtype: Dtype | None, wanted: Dtype
) -> None:
    assert EngineOptions(device=device, codec_dtype=dtype).voice_dtype == wanted


@pytest.mark.parametrize("text", ["7.5", "8", "8.90", "9.0a", "", "sm_89"])
def test_a_compute_capability_that_no_gpu_has_is_refused(text: str) -> None:
    with pytest.raises(
        OptionsError, match=r"compute_capability is .*\. Give one from 8\.0 on, such as 8\.9\."
    ):
        EngineOptions(compute_capability=text)
    for good in ("8.0", "8.6", "8.9", "9.0", "12.0"):
        assert EngineOptions(compute_capability=good).compute_capability == good


@pytest.mark.parametrize(
    "choice",
    [
        {"flow_steps": 0},
        {"flow_steps": -5},
        {"flow_steps": MOST_FLOW_STEPS + 1},
        {"prefill_tokens": 63},
        {"kv_blocks": 0},
        {"context_tokens": 255},
        {"conversations": 0},
        {"gpu_memory_gb": float("nan")},
        {"gpu_memory_gb": -24.0},
        {"random_weights": -1},
    ],
)
def test_numbers_that_nothing_runs_with_are_refused(choice: dict[str, Any]) -> None:
    (name,) = choice
    with pytest.raises(OptionsError, match=f"{name} is .* Give "):
        EngineOptions(**choice)
