"""How fast a client may send."""

from __future__ import annotations

import pytest

from app.server.connection import RateLimit


def test_live_audio_never_waits() -> None:
    rate = RateLimit(0.0)
    assert not any(rate.wait_s(1_400, 0.02 * block) for block in range(5_000))


def test_a_flood_waits_as_long_as_it_is_ahead() -> None:
    rate = RateLimit(0.0, per_s=100.0, burst=10.0)
    waits = [rate.wait_s(0, 0.0) for _ in range(12)]
    assert waits[:10] == [0.0] * 10
    assert waits[10:] == pytest.approx([0.01, 0.02])
    assert rate.wait_s(4_096, 0.02) == pytest.approx(0.02), "a large message costs more"
    assert rate.wait_s(0, 60.0) == 0.0
