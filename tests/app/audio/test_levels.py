"""Levels of known signals."""

from __future__ import annotations

import numpy as np
import pytest

from app.audio.levels import dbfs, rms


def test_levels() -> None:
    assert rms(np.zeros(0, dtype=np.float32)) == 0.0
    assert dbfs(rms(np.full(100, 0.1, dtype=np.float32))) == pytest.approx(-20.0, abs=1e-4)
    assert dbfs(0.0) == -120.0
