"""The utterance buffer returns every sample of a turn once, and none that was held back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.audio.resample import Resampler
from app.audio.wav import read_wav
from app.dialog.turn_events import TurnAction
from app.dialog.turn_taking import TurnTaking
from app.dialog.turn_taking_settings import TurnTakingSettings
from app.dialog.utterance import UtteranceBuffer, speech_end
from app.dialog.vad import SileroVad


def frame(start: int, count: int = 10) -> np.ndarray:
    return np.arange(start, start + count, dtype=np.float32)


def filled(frames: int, keep: int = 40) -> UtteranceBuffer:
    buffer = UtteranceBuffer(keep)
    for index in range(frames):
        buffer.append(frame(10 * index))
    return buffer


def test_pre_roll_then_the_turn() -> None:
    buffer = filled(10)
    assert buffer.open(83) == 83
    assert buffer.take(95).tolist() == list(range(83, 95))
    buffer.append(frame(100))
    assert buffer.ready(200) == 15
    assert buffer.take(200).tolist() == list(range(95, 110))
    assert buffer.ready(200) == 0
    assert len(buffer.take(200)) == 0


def test_pre_roll_reaches_back_only_as_far_as_is_kept() -> None:
    assert filled(10).open(0) == 60
    assert UtteranceBuffer(40).open(5) == 0


def test_what_is_held_back_stays_while_the_turn_may_go_on() -> None:
    buffer = filled(10)
    buffer.open(90)
    buffer.take(95)
    for index in range(10, 40):
        buffer.append(frame(10 * index))
    assert buffer.take(400).tolist() == list(range(95, 400))


def test_a_new_turn_never_repeats_the_one_before() -> None:
    buffer = filled(10)
    buffer.open(70)
    buffer.take(95)
    buffer.close()
    assert buffer.open(80) == 95


def test_nothing_can_be_taken_without_a_turn() -> None:
    buffer = filled(3)
    assert buffer.ready(30) == 0
    with pytest.raises(ValueError, match="no turn"):
        buffer.take(10)


def test_memory_is_bounded_while_nobody_speaks() -> None:
    buffer = filled(1_000)
    assert buffer.open(0) >= 9_950, "what came before is gone"


steps = st.tuples(st.sampled_from(["append", "take", "open", "close"]), st.integers(0, 300))


@given(st.lists(steps, max_size=80))
def test_samples_come_in_order_and_once(script: list[tuple[str, int]]) -> None:
    buffer = UtteranceBuffer(50)
    taken: list[float] = []
    is_open = False
    for action, value in script:
        if action == "append":
            buffer.append(frame(buffer.end, 1 + value % 20))
        elif action == "open":
            buffer.open(value)
            is_open = True
        elif action == "close":
            buffer.close()
            is_open = False
        elif is_open:
            count = buffer.ready(value)
            new = buffer.take(value).tolist()
            assert len(new) == count
            taken += new
    assert taken == sorted(set(taken))


def test_what_was_captured_since_a_sample_taken_or_not() -> None:
    buffer = filled(10)
    assert buffer.since(85).tolist() == list(range(85, 100))  # no turn is open
    buffer.open(73)
    buffer.take(95)
    buffer.append(frame(100))
    assert buffer.since(85).tolist() == list(range(85, 110))
    assert buffer.ready(200) == 15


def test_of_a_long_turn_the_newest_part_is_kept() -> None:
    buffer = filled(10)
    buffer.open(95)
    for start in range(100, 300, 10):
        buffer.append(frame(start))
        buffer.take(start + 10)
    assert buffer.since(100).tolist() == list(range(260, 300))


RATE = 16_000


def noise(ms: float, level: float) -> np.ndarray:
    return (level * np.random.default_rng(7).standard_normal(round(ms * RATE / 1000))).astype(np.float32)


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
