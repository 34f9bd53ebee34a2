"""The judge: which answers the ear recognizes as synthesized, and for which replies that counts."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from tests.assets.conftest import Recipe

pytest.importorskip("pocketsphinx", reason="pocketsphinx is not installed")

Asked = tuple[int, int, tuple[str, ...]]
"""Samples, their rate and the units of an answer."""
RIGHT, MISHEARD = ("three", "plus four", "is seven"), ("B", "O", "A", "T")


@pytest.fixture
def evaluate(recipe: Recipe) -> ModuleType:
    """The module, with nothing cached."""
    module = recipe("evaluate")
    module.is_recognized_as_synthesized.cache_clear()
    return module


@pytest.fixture
def asked_of_the_ear(evaluate: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[Asked]:
    """The answers whose speech was given to an ear that hears one sum in all of it."""
    asked = []

    def recognize(pcm: np.ndarray, rate: int, units: tuple[str, ...], afresh: bool) -> str:
        assert afresh
        asked.append((len(pcm), rate, units))
        return "three plus four is seven"

    monkeypatch.setattr(evaluate.recognizer, "recognize", recognize)
    rendered = [np.ones(1_000, np.float32), np.ones(2_000, np.float32), np.ones(3_000, np.float32)]
    monkeypatch.setattr(evaluate.voices, "render_units", lambda units: rendered[: len(units)])
    return asked


def test_an_original_is_its_units_and_some_silence(evaluate: ModuleType) -> None:
    wave = evaluate.original(("a", "b", "a"), {"a": np.ones(2, np.float32), "b": np.full(3, 2, np.float32)})
    assert wave[:7].tolist() == [1, 1, 2, 2, 2, 1, 1]
    assert len(wave) == 7 + 6_000
    assert not wave[7:].any()


def test_the_ear_is_asked_once_for_each_answer(evaluate: ModuleType, asked_of_the_ear: list[Asked]) -> None:
    found = [evaluate.is_recognized_as_synthesized(units) for units in (RIGHT, ("hello",), RIGHT)]
    assert found == [True, False, True]
    assert asked_of_the_ear == [(12_000, 24_000, RIGHT), (7_000, 24_000, ("hello",))]


@pytest.mark.parametrize(
    ("mode", "units", "is_counted"),
    [("s2s", RIGHT, True), ("t2s", RIGHT, True), ("s2t", RIGHT, False), ("s2s", ("hello",), False)],
)
def test_only_spoken_replies_count(
    evaluate: ModuleType,
    domain: ModuleType,
    asked_of_the_ear: list[Asked],
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    units: tuple[str, ...],
    is_counted: bool,
) -> None:
    judge = object.__new__(evaluate.Judge)
    judge.judged, judge.wrong = [], []
    monkeypatch.setattr(judge, "_reply", lambda *_: ("", ""))
    dialogue = domain.Dialogue("plus", (domain.Turn("q", units),), "f", plain=True)
    judge.ask(mode, "seen", dialogue, evaluate.voices.ASSISTANT)
    assert [judgement.original_is_recognized for judgement in judge.judged] == [is_counted]
    assert bool(asked_of_the_ear) == (mode != "s2t")


@pytest.mark.slow
@pytest.mark.usefixtures("_flite")
def test_of_speech_of_the_synthesizer_some_is_misheard(evaluate: ModuleType) -> None:
    assert evaluate.is_recognized_as_synthesized(RIGHT)
    assert not evaluate.is_recognized_as_synthesized(MISHEARD)
