"""A person's prompts cut together."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import pytest

from tests.assets.conftest import Recipe


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """A folder of tones, each number as many tenths of a second long as it is."""
    for name, tenths in [("hello", 5), ("goodbye", 6), ("letters/plus", 3), ("digits/minus", 4)] + [
        (f"digits/{number}", number) for number in range(1, 11)
    ]:
        file = tmp_path / f"{name}.wav"
        file.parent.mkdir(exist_ok=True)
        tone = 8_000 * np.sin(np.arange(800 * tenths) * 0.7)
        with wave.open(str(file), "wb") as out:
            out.setparams((1, 2, 8_000, 0, "NONE", ""))
            out.writeframes(tone.astype(np.int16).tobytes())
    return tmp_path


def test_sums_are_their_prompts_with_gaps(recipe: Recipe, prompts: Path) -> None:
    recordings = recipe("recordings")
    found = recordings.questions(prompts)
    assert len(found) == 2 + 100 + 55
    assert "two minus three" not in found
    wanted = 1_600 * (2 + 3 + 7) + 2 * recordings.GAP
    assert len(found["two plus seven"]) == pytest.approx(wanted, rel=0.02)
    assert np.abs(found["ten minus ten"]).max() == pytest.approx(0.6, rel=1e-3)


def test_missing_prompts_are_named(recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="asterisk-core-sounds-en-wav"):
        recipe("recordings").questions(tmp_path / "none")
