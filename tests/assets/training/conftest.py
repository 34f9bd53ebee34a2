"""Recordings to train a vocoder on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from app.audio.wav import read_wav, write_wav

SPEECH = Path(__file__).resolve().parents[2] / "data" / "speech" / "question.wav"


@pytest.fixture(scope="session")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a spoken question, four times, each begun at another place; one is in a folder below."""
    folder = tmp_path_factory.mktemp("recordings")
    pcm, rate = read_wav(SPEECH)
    (folder / "more").mkdir()
    for index, name in enumerate(("a.wav", "b.wav", "C.WAV", "more/d.wav")):
        write_wav(folder / name, np.roll(pcm, index * rate // 4), rate)
    return folder
