"""How an engine is told to run."""

from __future__ import annotations

import pytest

from engine_runtime.options import EngineOptions


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
def test_the_language_model_has_the_format_that_suits_the_device(device, dtype, wanted) -> None:
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
def test_the_codec_has_the_format_that_suits_the_device(device, dtype, wanted) -> None:
    assert EngineOptions(device=device, codec_dtype=dtype).voice_dtype == wanted
