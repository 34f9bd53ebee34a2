"""Mel filters against stored matrices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from engine_runtime.codec.speech_tokenizer.mel_filters import slaney_mel_filters

GOLDEN = Path(__file__).parents[3] / "data" / "golden"


def test_filters_of_the_speech_encoder() -> None:
    stored = load_file(GOLDEN / "encoder_tiny.safetensors")["mel_filters_128"]
    np.testing.assert_allclose(
        slaney_mel_filters(16_000, 400, 128, 0.0, 8_000.0), stored, atol=1e-8, rtol=1e-6
    )


def test_filters_of_the_codec() -> None:
    stored = load_file(GOLDEN / "mel24k.safetensors")["mel_basis"]
    np.testing.assert_allclose(
        slaney_mel_filters(24_000, 1_920, 80, 0.0, 8_000.0), stored, atol=1e-8, rtol=1e-6
    )
