from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine_runtime.bench.verify import Check, Verdict, VerifyError, verify, verify_heads
from engine_runtime.bench.verify_encoder import all_lead_ins
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.conversation.turn import Turn
from engine_runtime.engine import Engine
from engine_runtime.options import EngineOptions
from engine_runtime.types import Modality, Pcm, ReplyDone, ReplyEvent, SamplingParams

NATIVE = EngineOptions()


@pytest.fixture(scope="module")
def questions() -> dict[str, Pcm]:
    generator = np.random.default_rng(0)
    return {name: generator.normal(0, 0.1, 14_000).astype(np.float32) for name in ("a", "b")}


def _verify(bundle: Path, tested: EngineOptions, questions: dict[str, Pcm]) -> dict[str, Check]:
    verdict = verify(
        lambda: Engine.load(Bundle.open(bundle), NATIVE),
        lambda: Engine.load(Bundle.open(bundle), tested),
        questions,
        all_lead_ins(0.32, 0.16),
    )
    assert "has no subtitles" in verdict.notes[0]
    return {check.name: check for check in verdict.checks}


@pytest.mark.slow
def test_an_engine_agrees_with_itself(random_bundle: Path, questions: dict[str, Pcm]) -> None:
    checks = _verify(random_bundle, NATIVE, questions)
    for head in ("text head", "audio head"):
        assert checks[f"{head} top-1"].value == 1
        assert checks[f"{head} worst"].value == pytest.approx(1)
        assert checks[f"{head} top-1"].count >= 2 * 14
    assert checks["codes, none, 0 dB"].value == checks["codes, zeros, -20 dB"].value == 1
    assert checks["codes, none, 0 dB"].count == 2 * 11
    assert 0 < checks["mel at 10 / 5"].value < 3


@pytest.mark.slow
@pytest.mark.parametrize("weight_format", ["fp8", "int8", "int4"])
def test_a_format_is_near_and_not_equal(
    random_bundle: Path, questions: dict[str, Pcm], weight_format: str
) -> None:
    tested = replace(NATIVE, weight_format=weight_format, kv_dtype="fp8")  # type: ignore[arg-type]
    checks = _verify(random_bundle, tested, questions)
    assert 0.9 < checks["audio head worst"].value < 0.999999
    assert checks["audio head cosine"].value > 0.97


@pytest.mark.slow
def test_other_weights_are_not_aligned(random_bundle: Path, questions: dict[str, Pcm]) -> None:
    checks = _verify(random_bundle, replace(NATIVE, random_weights=1), questions)
    assert checks["audio head top-1"].value < 0.3
    assert not checks["audio head top-1"].is_aligned
    assert not checks["audio head cosine"].is_aligned


@pytest.mark.slow
@pytest.mark.parametrize("compare", [verify, verify_heads])
def test_one_engine_is_gone_before_the_other_is_loaded(
    random_bundle: Path, questions: dict[str, Pcm], compare: Callable[..., Verdict]
) -> None:
    weights: list[weakref.ref[object]] = []

    def load() -> Engine:
        assert not any(reference() for reference in weights)
        engine = Engine.load(Bundle.open(random_bundle), NATIVE)
        weights.append(weakref.ref(engine.stages.lm.executor))
        return engine

    gc.disable()
    try:
        verdict = compare(load, load, questions)
    finally:
        gc.enable()
    assert len(weights) == 2
    assert [check.name for check in verdict.checks[:2]] == ["text head top-1", "text head cosine"]
    assert compare is verify or len(verdict.checks) == 6


@pytest.mark.slow
def test_questions_without_a_reply_are_left_out(
    random_bundle: Path, questions: dict[str, Pcm], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load() -> Engine:
        return Engine.load(Bundle.open(random_bundle), NATIVE)

    silent = iter([True, False, True, True])
    commit = Turn.commit

    def commit_or_say_nothing(turn: Turn, reply: Modality, params: SamplingParams) -> Iterator[ReplyEvent]:
        if next(silent):
            return iter([ReplyDone(1, reply, "stop", "")])
        return commit(turn, reply, params)

    monkeypatch.setattr(Turn, "commit", commit_or_say_nothing)
    verdict = verify_heads(load, load, questions)
    assert verdict.checks[0].value == 1
    assert verdict.notes == ["left out, because the native engine replies nothing: a"]
    with pytest.raises(VerifyError, match="none of the questions"):
        verify_heads(load, load, questions)


def test_a_verdict_is_that_of_all_checks() -> None:
    good, actual = Check("a", 0.95, 0.9, 10), Check("b", 0.1, None, 10)
    bad = Check("c", 0.2, 0.1, 10, is_least=False)
    assert Verdict([good, actual]).is_aligned
    verdict = Verdict([good, actual, bad], ["one thing left out"])
    assert not verdict.is_aligned
    rows = verdict.section("any").rows
    assert [row["aligned"] for row in rows] == ["yes", "-", "no"]
    assert [row["threshold"] for row in rows] == [">= 0.9", "-", "<= 0.1"]
    assert not Check("d", float("nan"), 0.9, 1).is_aligned
    assert not Check("e", float("nan"), 0.9, 1, is_least=False).is_aligned


def test_without_questions_there_is_nothing_to_say(random_bundle: Path) -> None:
    with pytest.raises(VerifyError, match="--wavs"):
        verify(lambda: Engine.load(Bundle.open(random_bundle)), lambda: None, {})  # type: ignore[arg-type, return-value]
