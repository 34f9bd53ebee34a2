from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine_runtime.bench.quality import QualityBench
from engine_runtime.bench.reference import LayerwiseReference, ReferenceOptions, reference_of
from engine_runtime.bench.verdict import Check, Verdict, VerifyError
from engine_runtime.bench.verify import Verification
from engine_runtime.bench.verify_encoder import all_lead_ins
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.engine import Engine
from engine_runtime.hardware import AcceleratorError
from engine_runtime.options import EngineOptions, WeightFormat
from engine_runtime.types import Pcm

NATIVE = EngineOptions()


@pytest.fixture(scope="module")
def questions() -> dict[str, Pcm]:
    generator = np.random.default_rng(0)
    return {name: generator.normal(0, 0.1, 14_000).astype(np.float32) for name in ("a", "b")}


def _verification(bundle: Path, questions: dict[str, Pcm]) -> Verification:
    reference = reference_of(Bundle.open(bundle), NATIVE, ReferenceOptions())
    lead_ins = all_lead_ins(0.32, 0.16)[:2]
    return Verification(reference, questions, ["what is that"], QualityBench((4, 2), None, None), lead_ins)


def _verify(bundle: Path, tested: EngineOptions, questions: dict[str, Pcm]) -> dict[str, Check]:
    verification = _verification(bundle, questions)
    verification.add("x", lambda: Engine.load(Bundle.open(bundle), tested))
    return _by_name(verification.finish())


def _by_name(verdict: Verdict) -> dict[str, Check]:
    return {check.name: check for check in verdict.checks}


@pytest.mark.slow
def test_an_engine_agrees_with_the_reference(random_bundle: Path, questions: dict[str, Pcm]) -> None:
    checks = _verify(random_bundle, NATIVE, questions)
    for head in ("text head", "audio head"):
        assert checks[f"x {head} top-1"].value == 1
        assert checks[f"x {head} worst"].value == pytest.approx(1, abs=1e-5)
        assert checks[f"x {head} top-1"].count >= 3 * 14
    assert checks["codes, none, 0 dB"].value == checks["codes, zeros, -20 dB"].value == 1
    assert checks["codes, none, 0 dB"].count == 2 * 11
    assert 0 < checks["x, 2 steps: mel"].value < 3


@pytest.mark.slow
@pytest.mark.parametrize("weight_format", ["fp8", "int8", "int4"])
def test_a_format_is_near_and_not_equal(
    random_bundle: Path, questions: dict[str, Pcm], weight_format: WeightFormat
) -> None:
    tested = replace(NATIVE, weight_format=weight_format, kv_dtype="fp8")
    checks = _verify(random_bundle, tested, questions)
    assert 0.9 < checks["x audio head worst"].value < 0.999999
    assert checks["x audio head cosine"].value > 0.97


@pytest.mark.slow
def test_other_weights_are_not_aligned(random_bundle: Path, questions: dict[str, Pcm]) -> None:
    checks = _verify(random_bundle, replace(NATIVE, random_weights=1), questions)
    assert checks["x audio head top-1"].value < 0.3
    assert not checks["x audio head top-1"].is_aligned
    assert not checks["x audio head cosine"].is_aligned


@pytest.mark.slow
def test_each_engine_is_gone_before_the_next_model_is_loaded(
    random_bundle: Path, questions: dict[str, Pcm]
) -> None:
    executors: list[weakref.ref[object]] = []

    def assert_alone() -> None:
        assert not any(executor() is not None for executor in executors)

    def load() -> Engine:
        assert_alone()
        engine = Engine.load(Bundle.open(random_bundle), NATIVE)
        executors.append(weakref.ref(engine.stages.lm.executor))
        return engine

    verification = _verification(random_bundle, questions)
    original = verification.open_reference

    def open_alone() -> tuple[LayerwiseReference, str]:
        assert_alone()
        return original()

    verification.open_reference = open_alone
    gc.disable()
    try:
        verification.add("one", load)
        verification.add("two", load)
    finally:
        gc.enable()
    assert len(executors) == 2
    verdict = verification.finish()
    checks = _by_name(verdict)
    assert checks["one audio head top-1"].value == checks["two audio head top-1"].value == 1
    assert len([name for name in checks if name.startswith("codes")]) == 4, "the encoder is compared once"
    assert [table.title for table in verdict.tables] == ["streamed speech codes", "quality"]
    assert [row["weights"] for row in verdict.tables[1].rows] == ["one", "one", "two", "two"]
    assert verdict.notes.count(verdict.notes[-1]) == 1


def test_one_of_several_that_does_not_fit(random_bundle: Path, questions: dict[str, Pcm]) -> None:
    verification = _verification(random_bundle, questions)
    verification.fail("native", AcceleratorError("The GPU has 12 GB.", "Use another format."))
    verdict = verification.finish()
    assert not verdict.is_aligned
    assert "native: The GPU has 12 GB" in verdict.notes[0]


def test_without_questions_there_is_nothing_to_say(random_bundle: Path) -> None:
    with pytest.raises(VerifyError, match="--wavs"):
        _verification(random_bundle, {}).add("x", lambda: pytest.fail("loaded"))
