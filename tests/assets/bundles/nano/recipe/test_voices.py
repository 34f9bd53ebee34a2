"""Voices: who is held out, and units on the grid of the codes."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from tests.assets.conftest import Recipe


def test_held_out_voices_are_never_drawn(recipe: Recipe) -> None:
    voices = recipe("voices")
    rng = random.Random(4)
    drawn = {voices.random_user(rng).label for _ in range(3000)} | {
        voices.seen_voice(rng).label for _ in range(300)
    }
    assert {voices.voice_group(label) for label in drawn} == {"seen"}
    held_out = {voices.held_out_voice(name).label for name in voices.HELD_OUT_VOICES}
    assert {voices.voice_group(label) for label in held_out} == {
        "flite-rms", "espeak-en-us+f4", "kokoro-af_nova", "kokoro-am_liam", "festival", "piper",
    }  # fmt: skip
    assert voices.voice_group("person-allison") == "person"


def test_without_their_files_there_are_no_neural_voices(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    voices, neural = recipe("voices"), recipe("neural_voices")
    monkeypatch.delenv("RECIPE_VOICES", raising=False)
    assert neural.engines() == set()
    assert {voices.held_out_voice(name).engine for name in voices.usable_held_out_voices()} == {
        "flite", "espeak", "festival",
    }  # fmt: skip
    monkeypatch.setenv("RECIPE_VOICES", str(tmp_path))
    (tmp_path / "kokoro.onnx").touch()
    assert neural.engines() == {"kokoro"}
    monkeypatch.delenv("RECIPE_VOICES")
    with pytest.raises(SystemExit, match="RECIPE_VOICES"):
        neural.kokoro("hello", "am_adam", 1.0)


def test_a_mix_of_two_speakers_has_the_mean_of_their_styles(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    neural = recipe("neural_voices")
    fed = []

    def run(feed: dict[str, np.ndarray]) -> np.ndarray:
        fed.append(feed)
        return np.zeros((1, 240), np.float32)

    styles = {"am_a": np.full((160, 256), 1.0, np.float16), "bf_b": np.full((160, 256), 3.0, np.float16)}
    monkeypatch.setattr(neural, "_kokoro", lambda: (run, {"h": 5, "i": 6}, styles))
    monkeypatch.setattr(neural, "_phonemes", lambda text, accent: "hi!")
    samples, rate = neural.kokoro("hi", "am_a+bf_b", 2.0)
    assert (len(samples), rate) == (240, 24_000)
    assert fed[0]["tokens"].tolist() == [[0, 5, 6, 0]]
    assert (fed[0]["style"] == 2.0).all()
    assert fed[0]["speed"] == 0.5


@pytest.mark.usefixtures("_flite")
def test_units_fill_complete_codes(recipe: Recipe) -> None:
    voices = recipe("voices")
    units = voices.render_units(["three", "the capital of france"])
    grid = voices.GRID * voices.ASSISTANT_RATE // voices.RATE
    assert all(len(unit) % grid == 0 and len(unit) >= 2 * grid for unit in units)
    assert len(units[1]) > len(units[0])
    assert all(0.2 < np.abs(unit).max() <= 0.95 for unit in units)
    assert all(unit[-1] == 0 for unit in units)


@pytest.mark.usefixtures("_flite")
def test_a_rendition_is_trimmed_and_a_warped_one_is_another_speaker_of_the_same_length(
    recipe: Recipe,
) -> None:
    voices = recipe("voices")
    plain, warped = voices.render_many(
        [("what is love", voices.Rendition("flite", "slt", 1.0, warp)) for warp in (1.0, 1.2)]
    )
    assert np.abs(plain).max() == pytest.approx(0.6, rel=1e-3)
    assert len(warped) == pytest.approx(len(plain), rel=0.1)
    assert _pitch(warped) == pytest.approx(1.2 * _pitch(plain), rel=0.1)


def _pitch(wave: np.ndarray) -> float:
    """Hertz, from the autocorrelation between 100 and 400 Hz."""
    spectrum = np.fft.rfft(wave, 2 * len(wave))
    correlation = np.fft.irfft(np.abs(spectrum) ** 2)[40:160]
    return 16_000 / (40 + int(correlation.argmax()))


def test_fit_pads_cuts_and_fades(recipe: Recipe) -> None:
    voices = recipe("voices")
    ones = np.ones(10, np.float32)
    assert voices._fit(ones, 12, 0, fade=2).tolist() == [1] * 10 + [0, 0]
    assert voices._fit(ones, 6, 2, fade=3).tolist() == [1, 1, 1, 1, 0.5, 0, 0, 0]
