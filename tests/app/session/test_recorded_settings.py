"""Settings survive a recording; values of another version fall back to the default."""

from __future__ import annotations

from app.session.record_writer import plain
from app.session.recorded_settings import settings_of
from app.session.session_settings import SessionSettings
from engine_runtime.types import Modality


def test_settings_are_read_back() -> None:
    given = SessionSettings(reply=Modality.TEXT, seed=5, playback_start_ms=120, device_latency_s=0.08)
    assert settings_of(plain(given), SessionSettings()) == given


def test_what_makes_no_sense_is_the_default() -> None:
    default = SessionSettings()
    broken = {"reply": "smell", "seed": [], "turn_taking": {"pause_ms": 10_000}, "unknown": 1}
    assert settings_of(broken, default) == default
    assert settings_of(None, default) == default
