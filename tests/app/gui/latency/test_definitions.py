"""Figures in words."""

from __future__ import annotations

from app.gui.latency.definitions import tooltip
from app.gui.latency.metrics import Metric, SeriesSummary


def test_a_unit_agrees_with_its_number() -> None:
    text = tooltip(
        Metric.PREFILL_TOKENS, SeriesSummary(1, last=1.0, mean=1.2, p50=2.0, p95=12.0, maximum=1.0)
    )
    assert "last 1 token, mean 1 token, p50 2 tokens, p95 12 tokens, maximum 1 token" in text
    assert "values in the last 40 turns: 1" in text
    assert "last 1.0 ms" in tooltip(Metric.PREFILL, SeriesSummary(1, 1.0, 1.0, 1.0, 1.0, 1.0))
