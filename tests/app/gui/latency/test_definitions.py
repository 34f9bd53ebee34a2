"""Figures in words."""

from __future__ import annotations

import itertools

from app.gui.common.turn_times import LatencyStage
from app.gui.latency.definitions import define, stage_name, stage_sentence, tooltip
from app.gui.latency.metrics import Metric, SeriesSummary


def test_a_unit_agrees_with_its_number() -> None:
    text = tooltip(
        Metric.TOKENS_AT_COMMIT, SeriesSummary(1, last=1.0, mean=1.2, p50=2.0, p95=12.0, maximum=1.0)
    )
    assert "last 1 token, mean 1 token, p50 2 tokens, p95 12 tokens, maximum 1 token" in text
    assert "values in the last 40 turns: 1" in text
    assert "last 1.0 ms" in tooltip(Metric.PREFILL_AT_COMMIT, SeriesSummary(1, 1.0, 1.0, 1.0, 1.0, 1.0))


def test_a_name_of_a_stage_is_that_of_a_figure_only_if_both_are_one_number() -> None:
    figures = {define(metric).name: metric for metric in Metric}
    assert len(figures) == len(Metric)
    shared = {stage: figures[stage_name(stage)] for stage in LatencyStage if stage_name(stage) in figures}
    assert shared == {
        LatencyStage.ENDPOINTING: Metric.ENDPOINTING,
        LatencyStage.PREFILL: Metric.PREFILL_AT_COMMIT,
    }


def test_every_stage_has_one_sentence_of_its_own() -> None:
    sentences = [stage_sentence(stage) for stage in LatencyStage]
    assert all(sentence.count(".") == 1 and sentence.endswith(".") for sentence in sentences)
    assert all(first != second for first, second in itertools.combinations(sentences, 2))
