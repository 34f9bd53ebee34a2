from __future__ import annotations

import sys

import numpy as np
import pytest

from engine_runtime.bench.word_errors import Recognizer, word_errors


@pytest.mark.parametrize(
    ("wanted", "heard", "errors"),
    [
        ("two plus three is five", "two plus three is five", 0),
        ("Two plus three, is five.", "two plus free is five", 1),
        ("after monday comes tuesday", "after comes tuesday", 1),
        ("hello", "hello hello there", 2),
        ("hello there", "", 2),
    ],
)
def test_insertions_deletions_and_substitutions_count(wanted: str, heard: str, errors: int) -> None:
    assert word_errors([wanted], [heard]) == (errors, len(wanted.split()))


def test_errors_add_up_over_all_pairs() -> None:
    assert word_errors(["a b", "c"], ["a", "d"]) == (2, 3)
    assert word_errors([""], [""]) == (0, 1)


def test_without_pocketsphinx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pocketsphinx", None)
    with pytest.raises(ImportError):
        Recognizer(["hello"])


def test_noise_is_no_word() -> None:
    pytest.importorskip("pocketsphinx")
    ear = Recognizer(["two plus three is five", "the capital of france is paris"])
    noise = np.random.default_rng(0).normal(0, 0.1, 24_000).astype(np.float32)
    assert word_errors(["two plus three is five"], [ear.words(noise, 24_000)])[0] >= 3
