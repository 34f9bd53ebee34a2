from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from engine_runtime.bench.heads import measure_heads
from engine_runtime.bench.measuring import BenchError
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.engine import Engine
from engine_runtime.lm.step import StepOutput
from engine_runtime.types import Pcm


@pytest.fixture(scope="module")
def engine(random_bundle: Path) -> Iterator[Engine]:
    engine = Engine.load(Bundle.open(random_bundle))
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def question() -> Pcm:
    return np.random.default_rng(0).normal(0, 0.1, 8_000).astype(np.float32)


@pytest.mark.slow
def test_the_statistics_are_those_of_the_logits_that_the_ids_were_sampled_from(
    engine: Engine, question: Pcm
) -> None:
    greedy = replace(engine.bundle.lm.sampling_speech, do_sample=False, repetition_penalty=1.0)
    section = measure_heads(engine, question, greedy, positions=4)
    assert [(row["position"], row["head"]) for row in section.rows] == [
        (position, head) for position in range(4) for head in ("text", "audio")
    ]
    spoken = [row for row in section.rows if row["head"] == "audio"]
    special = engine.bundle.lm.special_ids
    for row in spoken:  # the end of the speech is banned while the reply is too short
        assert row["sampled"] == row["top1"] or int(row["top1"] or 0) >= special.eosp
    assert sum(row["sampled"] == row["top1"] for row in spoken) >= 3
    for row in section.rows:
        assert float(row["min"] or 0) < float(row["mean"] or 0) < float(row["max"] or 0)
    vocab = engine.stages.lm_config.audio_vocab
    assert spoken[0]["sum"] == pytest.approx(float(spoken[0]["mean"] or 0) * vocab)
    first = f"{section.rows[0]['sampled']}/{spoken[0]['sampled']}"
    assert section.note.startswith(f"ids of the reply, text/audio: {first}, ")
    assert engine.stats.used == 0


@pytest.mark.slow
def test_no_statistics_of_logits_that_cannot_be_a_result(
    engine: Engine, question: Pcm, monkeypatch: pytest.MonkeyPatch
) -> None:
    constant = StepOutput(torch.ones(8), torch.ones(8))
    prefill = engine.stages.lm.prefill
    monkeypatch.setattr(
        engine.stages.lm, "prefill", lambda *words, **more: prefill(*words, **more) and constant
    )
    with pytest.raises(BenchError, match="all equal"):
        measure_heads(engine, question, None, positions=1)
    assert engine.stats.used == 0
