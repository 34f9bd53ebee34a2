"""A person's prompts."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import pytest

from tests.assets.conftest import Recipe

RATE = 8_000


def test_each_prompt_says_a_sentence_of_its_own(recipe: Recipe) -> None:
    found = recipe("prompts").transcripts()
    assert len(found) == 80
    assert len(set(found.values())) == 80
    for text in found.values():
        assert set(recipe("sentences").plain(text)) <= set(recipe("sentences").LETTERS)
        assert not any(letter.isdigit() for letter in text)


def test_prompts_are_trimmed_and_at_the_rate_of_the_ears(recipe: Recipe, tmp_path: Path) -> None:
    prompts = recipe("prompts")
    for name in prompts.transcripts():
        file = tmp_path / f"{name}.wav"
        file.parent.mkdir(exist_ok=True)
        tone = np.zeros(3 * RATE, np.int16)
        tone[RATE : 2 * RATE] = 9_000 * np.sin(np.arange(RATE) * 0.7)
        with wave.open(str(file), "wb") as out:
            out.setparams((1, 2, RATE, 0, "NONE", ""))
            out.writeframes(tone.tobytes())
    found = prompts.sentences(tmp_path)
    assert found.keys() == set(prompts.transcripts().values())
    for samples in found.values():
        assert len(samples) == pytest.approx(16_000 * 1.12, rel=0.02)
        assert np.abs(samples).max() == pytest.approx(0.6, rel=1e-3)


def test_missing_prompts_are_named(recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="asterisk-core-sounds-en-wav"):
        recipe("prompts").sentences(tmp_path / "none")
