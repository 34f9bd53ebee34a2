from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine_runtime.bench.conversation import measure_exact_encoding
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.engine import Engine
from engine_runtime.types import SamplingParams

PARAMS = SamplingParams(min_new=14, max_new=16)


@pytest.mark.slow
def test_both_kinds_are_measured_and_the_change_is_counted(random_bundle: Path) -> None:
    bundle = Bundle.open(random_bundle)
    # A prior that leaves nothing of the features: each code of a short question is wrong until the commit.
    encoder = replace(bundle.speech_encoder, normalization="segment_max", ceiling_prior=16.0)
    engine = Engine.load(replace(bundle, speech_encoder=encoder))
    question = np.random.default_rng(0).normal(0, 0.1, 14_000).astype(np.float32)
    section = measure_exact_encoding(engine, question, PARAMS, repeats=2)
    assert set().union(*section.rows) <= set(section.columns)
    streamed, exact = section.rows
    assert (streamed["codes"], exact["codes"]) == ("streamed", "exact")
    assert streamed["changed_codes"] == 0
    assert 1 <= float(exact["changed_codes"] or 0) <= 10
    assert float(exact["tokens_at_commit"] or 0) > float(streamed["tokens_at_commit"] or 0)
    assert all(float(row["encode_ms"] or 0) > 0 for row in section.rows)
    assert engine.stats.used == 0
    engine.close()
