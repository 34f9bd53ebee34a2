"""Calibration prompts: number, variations, determinism."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from app.audio.wav import write_wav
from app.commands.calibration_prompts import SOFTEST_DB, SPEEDS, prompts
from app.commands.questions import read_texts
from engine_runtime.errors import AudioInputError
from engine_runtime.types import Modality

RATE = 16_000


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    made = []
    for number, seconds in enumerate((0.5, 1.0)):
        time = np.arange(int(RATE * seconds)) / RATE
        made.append(tmp_path / f"{number}.wav")
        write_wav(made[-1], np.sin(2 * np.pi * 440 * time).astype(np.float32) * 0.5, RATE)
    return made


def test_the_first_round_is_as_recorded_and_later_ones_are_varied(files: list[Path]) -> None:
    made = list(prompts(files, [], RATE, 12))
    assert len(made) == 12
    spoken = [prompt.question for prompt in made]
    assert [prompt.reply for prompt in made[:4]] == [Modality.SPEECH] * 3 + [Modality.TEXT]
    for number, pcm in enumerate(spoken):
        assert not isinstance(pcm, str)
        length = (0.5, 1.0)[number % 2] * RATE
        if number < 2:
            assert len(pcm) == length
            continue
        assert length / SPEEDS[1] - 2 <= len(pcm) <= length / SPEEDS[0] + 2
        assert len(pcm) != length
        gain = float(np.abs(pcm).max()) / 0.5
        assert 10 ** (SOFTEST_DB / 20) * 0.95 < gain < 1.05
    assert len({len(pcm) for pcm in spoken}) > 9
    again = [prompt.question for prompt in prompts(files, [], RATE, 12)]
    assert all(np.array_equal(a, b) for a, b in zip(spoken, again, strict=True))


def test_texts_come_in_between(files: list[Path], tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("what is this\n\n  and that \n", encoding="utf-8")
    assert read_texts(file) == ["what is this", "and that"]
    made = list(prompts(files, read_texts(file), RATE, 9))
    assert [prompt.question for prompt in made[2::3]] == ["what is this", "and that", "what is this"]
    assert sum(isinstance(prompt.question, str) for prompt in made) == 3


def test_a_file_without_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n \n")
    for name, words in (("empty.txt", "holds no text"), ("none.txt", "cannot be read")):
        with pytest.raises(AudioInputError, match=words):
            read_texts(tmp_path / name)
