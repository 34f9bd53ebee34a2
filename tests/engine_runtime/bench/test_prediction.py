from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine_runtime.bench.ceilings import Ceilings
from engine_runtime.bench.costs import LMCosts
from engine_runtime.bench.gpu_spec import GPU_SPECS, GPUSpec
from engine_runtime.bench.language_model import LMBench
from engine_runtime.bench.measuring import summarize
from engine_runtime.bench.prediction import OVER_BOOST, Prediction, impossible, memory_section
from engine_runtime.bench.replies import BenchReport, MeasuredReply, TimesFromCommit
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.bundle.released.full_size import describe
from engine_runtime.engine import Engine
from engine_runtime.models.moss_lm import MossLMConfig
from engine_runtime.options import EngineOptions
from engine_runtime.table import Section

H100, RTX_4090 = GPU_SPECS["H100"], GPU_SPECS["4090"]


class FullSize(LMBench):
    """The costs of the released model."""

    @property
    def costs(self) -> LMCosts:
        loaded, released = LMCosts.of(self.stages), describe("moss-speech").lm.config
        return replace(loaded, config=MossLMConfig.from_dict(released), weight_bytes=2, kv_bytes=2)


@pytest.fixture(scope="module")
def engine(random_bundle: Path) -> Iterator[Engine]:
    engine = Engine.load(Bundle.open(random_bundle))
    yield engine
    engine.close()


def _predict(
    engine: Engine,
    spec: GPUSpec,
    own: GPUSpec | None,
    *,
    step_ms: float | None = 5.5,
    copy: float = 3.0e12,
    product: float = 8e14,
) -> Section:
    options = EngineOptions(dtype="bfloat16")
    bench = FullSize(
        replace(engine.stages, options=options), Ceilings(copy, product, 1, 1, "bfloat16"), repeats=1
    )
    to_first = TimesFromCommit(80.0, {"prefill": 10.0, "step": 40.0}, steps=7)
    complete = TimesFromCommit(800.0, {"prefill": 10.0, "step": 350.0, "vocoder": 100.0}, steps=63)
    reply = MeasuredReply((), np.zeros(0, np.float32), {}, to_first, complete)
    metrics = {"tokens_at_commit": summarize([8.0]), "reply_s": summarize([5.0])}
    tables: dict[str, Any] = {
        "prefill": {"rows": [{"tokens": 2048, "ms": 60.0}]},
        "decode step": {"rows": [{"cached_tokens": 512, "ms": step_ms}]},
    }
    return Prediction(spec, own, bench, tables, BenchReport(metrics, [], 1, 64, [reply])).section()


def _rows(section: Section) -> dict[str, dict[str, Any]]:
    return {str(row["figure"]): dict(row) for row in section.rows}


def test_on_its_own_sheet_each_time_has_its_share_of_what_is_possible(engine: Engine) -> None:
    section = _predict(engine, H100, H100)
    rows = _rows(section)
    assert list(rows) == ["copy", "matrices", "prefill 2048", "step 512", "TTFA", "RTF"]
    assert rows["copy"]["share"] == pytest.approx(100 * 3.0 / 3.35)
    # 14.03 GB without the text tail, and 36 of the 40 layers' keys and values.
    read = 14.03e9 + 512 * 163_840 * 36 / 40
    assert rows["step 512"]["floor"] == pytest.approx(read / 3.35e12 * 1000, rel=1e-3)
    assert rows["step 512"]["share"] == pytest.approx(100 * rows["step 512"]["floor"] / 5.5)
    flops = 2 * 2048 * 36 * 192_937_984
    assert rows["prefill 2048"]["floor"] == pytest.approx(flops / (OVER_BOOST * H100.bf16) * 1000, rel=5e-2)
    assert rows["TTFA"]["floor"] == pytest.approx(8 * 14.03e9 / 3.35e12 * 1000, rel=1e-3)
    assert rows["RTF"]["measured"] == pytest.approx(0.16)
    assert rows["TTFA"]["expected"] == pytest.approx(80.0)
    assert impossible(section) == []


def test_another_gpu_is_expected_by_the_ratio_of_the_floors_and_not_judged(engine: Engine) -> None:
    section = _predict(engine, RTX_4090, H100)
    rows, slower = _rows(section), 3350 / 1008
    assert rows["step 512"]["expected"] == pytest.approx(5.5 * slower)
    assert rows["step 512"]["floor"] > 5.5
    assert rows["step 512"]["share"] is None
    assert rows["prefill 2048"]["expected"] == pytest.approx(60 * H100.bf16 / RTX_4090.bf16)
    # 30 ms of TTFA and 440 ms of the reply are not the language model's.
    assert rows["TTFA"]["expected"] == pytest.approx(30 + 50 * slower)
    assert rows["RTF"]["expected"] == pytest.approx((440 + 360 * slower) / 5000)
    assert impossible(section) == []
    assert "--compute-capability 8.9" in section.note
    assert "24 GiB, 1008 GB/s, 128 multiprocessors" in section.note


def test_without_a_sheet_of_this_gpu_there_are_floors_alone(engine: Engine) -> None:
    rows = _rows(_predict(engine, RTX_4090, None, step_ms=None))
    assert "step 512" not in rows
    assert rows["TTFA"]["floor"] == pytest.approx(8 * 14.03e9 / 1.008e12 * 1000, rel=1e-3)
    assert rows["TTFA"]["expected"] is None


@pytest.mark.parametrize(
    ("wrong", "figure"),
    [({"step_ms": 2.0}, "step 512"), ({"copy": 3.4e12}, "copy"), ({"product": 1.3e15}, "matrices")],
)
def test_what_no_gpu_can_reach_is_named(engine: Engine, wrong: dict[str, float], figure: str) -> None:
    assert impossible(_predict(engine, H100, H100, **wrong)) == [figure]


@pytest.mark.slow
def test_the_memory_plan_says_what_is_left_in_words(engine: Engine) -> None:
    bundle = describe("moss-speech")
    config = MossLMConfig.from_dict(bundle.lm.config)
    stages = replace(engine.stages, bundle=bundle, lm_config=config, options=EngineOptions(random_weights=0))
    section = memory_section(stages, RTX_4090)
    rows = {row["weights"]: row for row in section.rows}
    native, smaller = rows["native"], rows["fp8, smaller"]
    assert 20 < float(native["needs_gb"] or 0) < 25
    assert float(native["needs_gb"] or 0) + float(native["left_gb"] or 0) == pytest.approx(24 * 2**30 / 1e9)
    assert 10 < float(smaller["needs_gb"] or 0) < 15
    assert section.note.startswith(
        f"native: {native['left_gb']:.1f} GB left = {native['positions']:,} positions"
    )
