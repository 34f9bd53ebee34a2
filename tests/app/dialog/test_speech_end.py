"""The end of speech in the sound, where the VAD is late."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from app.audio.resample import Resampler
from app.audio.wav import read_wav
from app.dialog.speech_end import speech_end
from app.dialog.turn_events import TurnAction
from app.dialog.turn_taking import TurnTaking
from app.dialog.turn_taking_settings import TurnTakingSettings
from app.dialog.vad import SileroVad

RATE = 16_000
RNG = np.random.default_rng(7)


def noise(ms: float, level: float) -> np.ndarray:
    return (level * RNG.standard_normal(round(ms * RATE / 1000))).astype(np.float32)


@pytest.mark.parametrize("background", [0.0, 1e-4, 5e-3])
@pytest.mark.parametrize("late_ms", [0, 35, 90, 250])
def test_the_end_is_where_the_sound_stands_out_last(background: float, late_ms: int) -> None:
    sound = np.concatenate([noise(600, 0.1), noise(500, 0.0)]) + noise(1100, background)
    vad_end = round((600 + late_ms) * RATE / 1000)
    end = speech_end(sound, RATE, vad_end)
    assert abs(end - 600 * RATE // 1000) <= 10 * RATE // 1000


def test_speech_that_goes_on_ends_where_the_vad_says() -> None:
    assert speech_end(noise(500, 0.1), RATE, 8_000) == 8_000
    assert speech_end(noise(500, 0.1), RATE, 100) == 100
    assert speech_end(noise(500, 0.0), RATE, 4_000) == 4_000


def test_speech_below_the_noise_ends_where_the_vad_says() -> None:
    sound = np.concatenate([noise(500, 0.01), noise(500, 0.1)])
    assert speech_end(sound, RATE, 8_000) == 8_000


@pytest.mark.slow
def test_the_sample_questions_end_earlier_than_the_vad_finds() -> None:
    late_ms = []
    for file in sorted((Path(__file__).parents[3] / "assets" / "samples").glob("*.wav")):
        pcm, rate = read_wav(file)
        resampler = Resampler(rate, RATE)
        sound = np.concatenate([resampler.push(pcm), resampler.finish(), np.zeros(RATE, np.float32)])
        vad_end = vad_end_of(sound)
        late_ms.append((vad_end - speech_end(sound[: vad_end + RATE // 2], RATE, vad_end)) * 1000 / RATE)
    assert 30 <= np.median(late_ms) <= 100
    assert max(late_ms) <= 150


def vad_end_of(sound: np.ndarray) -> int:
    vad, turns = SileroVad(), TurnTaking(TurnTakingSettings(end_ms=700))
    for start in range(0, len(sound) - vad.frame_samples, vad.frame_samples):
        end = start + vad.frame_samples
        probability = vad.probability(sound[start:end])
        for event in turns.update(probability, start * 1000 / RATE, end * 1000 / RATE):
            if event.action is TurnAction.COMMIT:
                return round(event.speech_end_ms * RATE / 1000)
    raise AssertionError("the question was not committed")
