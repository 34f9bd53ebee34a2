from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from engine_runtime.bench.word_errors import Recognizer, language_of, word_errors, words_of
from engine_runtime.whisper import WhisperError


@pytest.mark.parametrize(
    ("wanted", "heard", "errors"),
    [
        ("two plus three is five", "two plus three is five", 0),
        ("Two plus three, is five.", "two plus free is five", 1),
        ("after monday comes tuesday", "after comes tuesday", 1),
        ("hello", "hello hello there", 2),
        ("hello there", "", 2),
        ("I don\u2019t", "i don't", 0),
    ],
)
def test_insertions_deletions_and_substitutions_count(wanted: str, heard: str, errors: int) -> None:
    assert word_errors([wanted], [heard]) == (errors, len(wanted.split()))


def test_errors_add_up_over_all_pairs() -> None:
    assert word_errors(["a b", "c"], ["a", "d"]) == (2, 3)
    assert word_errors([""], [""]) == (0, 1)


def test_chinese_counts_by_characters() -> None:
    assert words_of("三加四等于几？OK") == [*"三加四等于几", "ok"]
    assert word_errors(["三加四"], ["三加五"]) == (1, 3)
    assert [language_of(text) for text in ("Hello.", "三加四 plus")] == ["en", "zh"]


class _Whisper:
    """Records how it was called."""

    def __init__(self, folder: str, **options: object) -> None:
        self.folder, self.options, self.calls = folder, options, list[dict[str, Any]]()
        vocabulary = {"seven": 1, "7": 2, "Ġ12": 3, "<|0.04|>": 4, "<|en|>": 5}
        self.hf_tokenizer = SimpleNamespace(get_vocab=lambda: vocabulary)

    def transcribe(self, pcm: np.ndarray[Any, Any], **options: object) -> tuple[list[SimpleNamespace], None]:
        self.calls.append({"samples": len(pcm), **options})
        return [SimpleNamespace(text=" Hello"), SimpleNamespace(text=" there.")], None


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that looks like a Whisper model, for a library that is a double."""
    library = ModuleType("faster_whisper")
    library.__dict__["WhisperModel"] = _Whisper
    library.__spec__ = ModuleSpec("faster_whisper", None)
    monkeypatch.setitem(sys.modules, "faster_whisper", library)
    for name in ("model.bin", "config.json", "tokenizer.json"):
        (tmp_path / name).touch()
    return tmp_path


def test_numbers_are_written_in_words_and_the_result_is_reproducible(folder: Path) -> None:
    recognizer = Recognizer(folder)
    assert recognizer.words(np.zeros(24_000, np.float32), 24_000, "en") == "Hello there."
    (call,) = recognizer._model.calls
    assert call["samples"] == 16_000
    assert call["suppress_tokens"] == [-1, 2, 3]
    assert (call["language"], call["temperature"]) == ("en", 0.0)


@pytest.mark.parametrize("name", ["model.bin", "tokenizer.json"])
def test_a_folder_without_a_model(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(WhisperError, match=f"has no {name}. Give the folder of a Whisper model"):
        Recognizer(folder)


def test_a_model_that_cannot_be_loaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("model.bin is incomplete")

    monkeypatch.setattr(sys.modules["faster_whisper"], "WhisperModel", refuse)
    with pytest.raises(WhisperError, match="incomplete"):
        Recognizer(folder)


def test_without_the_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "faster_whisper", None)
    with pytest.raises(WhisperError, match=r"\[quality\].*--no-deps distillmos"):
        Recognizer(tmp_path)
