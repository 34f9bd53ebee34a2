from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from engine_runtime.bench.predicted_mos import MosPredictor
from engine_runtime.bench.quality import QualityBench
from engine_runtime.bench.verdict import VerifyError
from engine_runtime.bench.word_errors import Recognizer
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.conversation.turn import Turn
from engine_runtime.engine import Engine
from engine_runtime.types import Modality, Pcm, ReplyDone, ReplyEvent, SamplingParams
from engine_runtime.work import Task

SPOKEN: Pcm = np.random.default_rng(0).normal(0, 0.1, 14_000).astype(np.float32)


@pytest.fixture(scope="module")
def engine(random_bundle: Path) -> Iterator[Engine]:
    """Its model writes what it says."""
    bundle = Bundle.open(random_bundle)
    engine = Engine.load(replace(bundle, lm=replace(bundle.lm, subtitles=True)))
    yield engine
    engine.close()


class _Predictor(MosPredictor):
    """Scores in turn; counts what it judges."""

    def __init__(self, *scores: float) -> None:
        self.scores, self.rates = list(scores), list[int]()

    def score(self, pcm: Pcm, rate: int) -> float:
        assert pcm.size > 1000
        self.rates.append(rate)
        return self.scores[(len(self.rates) - 1) % len(self.scores)]


class _Recognizer(Recognizer):
    """Hears these texts in turn."""

    def __init__(self, *texts: str) -> None:
        self.texts, self.languages = list(texts), list[str | None]()

    def words(self, pcm: Pcm, rate: int, language: str | None = None) -> str:
        self.languages.append(language)
        return self.texts[(len(self.languages) - 1) % len(self.texts)]


def _said(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """The bundle writes this as the text of each reply."""
    commit = Turn.commit

    def with_text(turn: Turn, reply: Modality, params: SamplingParams) -> Task[list[ReplyEvent]]:
        *events, done = yield from commit(turn, reply, params)
        return [*events, replace(cast(ReplyDone, done), text=text)]

    monkeypatch.setattr(Turn, "commit", with_text)


@pytest.mark.slow
def test_each_number_of_steps_is_held_against_the_most(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    _said(monkeypatch, "one two three four")
    predictor = _Predictor(4.0, 3.9, 3.0)
    recognizer = _Recognizer("one two three four", "One, two, three, five.", "nothing")
    bench = QualityBench((2, 6, 4, 6), predictor, recognizer)
    bench.add("native", engine, ["a"])
    rows = bench.section().rows
    assert [row["steps"] for row in rows] == [6, 4, 2]
    assert [row["mos"] for row in rows] == [4.0, 3.9, 3.0]
    assert [row["mos_lost"] for row in rows] == pytest.approx([0, 0.025, 0.25])
    assert [row["word_errors"] for row in rows] == [0, 0.25, 1]
    assert rows[0]["mel"] == 0
    assert 0 < float(rows[1]["mel"] or 0) < float(rows[2]["mel"] or 0)
    assert recognizer.languages == ["en"] * 3
    assert set(predictor.rates) == {24_000}
    checks = {check.name: check for check in bench.checks()}
    assert list(checks) == [
        f"native, {steps} steps: {what}"
        for steps in (4, 2)
        for what in ("mel", "MOS lost", "word errors added")
    ]
    assert [checks[f"native, {steps} steps: MOS lost"].is_aligned for steps in (4, 2)] == [True, False]
    assert not checks["native, 4 steps: word errors added"].is_aligned


@pytest.mark.slow
def test_speech_that_was_judged_already_is_not_judged_again(engine: Engine) -> None:
    predictor = _Predictor(3.0)
    bench = QualityBench((3,), predictor, None)
    bench.add("native", engine, ["a", SPOKEN, "a"])
    assert bench.section().rows[0]["replies"] == len(predictor.rates) == 2
    bench.add("fp8", engine, ["a", SPOKEN])
    assert len(predictor.rates) == 2
    native, fp8 = bench.section().rows
    assert (native["mos"], native["weights"]) == (3.0, "native")
    assert (fp8["mos"], fp8["weights"], fp8["mos_lost"]) == (3.0, "fp8", 0)
    assert [check.name for check in bench.checks()] == ["fp8, 3 steps: MOS lost"], "same steps: no other mel"


@pytest.mark.slow
def test_a_model_without_texts_is_heard_at_the_most_steps(random_bundle: Path) -> None:
    engine = Engine.load(Bundle.open(random_bundle))
    recognizer = _Recognizer("hello there", "hello where")
    bench = QualityBench((4, 2), None, recognizer)
    bench.add("native", engine, ["a"])
    section = bench.section()
    assert [row["word_errors"] for row in section.rows] == [None, 0.5]
    assert [row["words"] for row in section.rows] == [2, 2]
    assert [row["mos"] for row in section.rows] == [None, None]
    assert recognizer.languages == [None, None]
    (check,) = (check for check in bench.checks() if "word errors" in check.name)
    assert (check.name, check.value) == ("native, 2 steps: word errors added", 0.5)
    assert "words are those heard at 4 steps" in section.note


@pytest.mark.slow
def test_the_steps_of_the_engine_are_among_the_default_ones(engine: Engine) -> None:
    bench = QualityBench(None, None, None)
    bench.add("native", engine, ["a"])
    own = engine.stages.token2mel.steps
    assert [row["steps"] for row in bench.section().rows] == sorted({10, 5, own}, reverse=True)


def test_without_a_spoken_reply(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def silence(*_: object) -> Task[list[ReplyEvent]]:
        yield from ()
        return [ReplyDone(1, Modality.SPEECH, "stop", "")]

    monkeypatch.setattr(Turn, "commit", silence)
    bench = QualityBench((2,), None, None)
    with pytest.raises(VerifyError, match="none of the questions"):
        bench.add("native", engine, ["a"])
    assert bench.checks() == []
    assert bench.section().rows == []
