"""Limits of the settings of a session."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.session.session_settings import SessionSettings
from engine_runtime.setting import OptionsError


@pytest.mark.parametrize(
    ("name", "allowed", "refused"),
    [
        ("volume", 1.0, 1.01),
        ("volume", 0.0, -0.01),
        ("device_latency_s", 0.001, 0.0009),
        ("playback_start_ms", 0, -1),
        ("max_text_chars", 1, 0),
    ],
)
def test_a_value_beyond_its_limits_is_refused(name: str, allowed: Any, refused: Any) -> None:
    settings = SessionSettings()
    assert getattr(replace(settings, **{name: allowed}), name) == allowed
    with pytest.raises(OptionsError, match=f"{name} is {refused}"):
        replace(settings, **{name: refused})
