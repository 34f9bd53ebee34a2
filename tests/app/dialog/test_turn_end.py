"""What prosody and the head make of the network's answer."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from app import paths
from app.audio.wav import read_wav
from app.dialog.end_of_turn import DEFAULT_EAGERNESS, POLICIES, Stage
from app.dialog.smart_turn import Impression, SmartTurn
from app.dialog.turn_end import SUMMARY_SIZE, Head, TurnEndDetector, head_file, load_head, measure_prosody
from engine_runtime.types import Pcm

RATE = 16_000


def voice(pitch_hz: float, end_hz: float, end_gain: float = 1.0, pause_s: float = 0.16) -> Pcm:
    """1.2 s at one pitch, 0.2 s at another, a pause; with harmonics, over faint noise."""
    counts = [round(seconds * RATE) for seconds in (1.2, 0.2)]
    hertz = np.repeat([pitch_hz, end_hz], counts)
    gain = np.repeat([0.1, 0.1 * end_gain], counts)
    phase = 2 * np.pi * np.cumsum(hertz) / RATE
    sound = gain * sum(np.sin(harmonic * phase) / harmonic for harmonic in range(1, 9))
    sound = np.concatenate([sound, np.zeros(round(pause_s * RATE))])
    return (sound + 5e-4 * np.random.default_rng(0).standard_normal(len(sound))).astype(np.float32)


@pytest.mark.parametrize(
    ("pitch_hz", "end_hz", "fall_st"), [(200, 150, 4.98), (110, 90, 3.47), (240, 240, 0)]
)
def test_a_fall_of_the_pitch_is_measured_in_semitones(pitch_hz: float, end_hz: float, fall_st: float) -> None:
    found = measure_prosody(voice(pitch_hz, end_hz))
    assert found is not None
    assert found.pitch_fall_st == pytest.approx(fall_st, abs=0.25)


def test_a_fall_of_the_level_is_measured_in_decibels() -> None:
    found = measure_prosody(voice(200, 200, end_gain=0.25))
    assert found is not None
    assert found.level_fall_db == pytest.approx(12, abs=1)


def test_a_rise_is_no_fall() -> None:
    found = measure_prosody(voice(150, 220, end_gain=2.0))
    assert found is not None
    assert found.pitch_fall_st == 0.0
    assert found.level_fall_db < 1.0


def test_neither_loudness_nor_the_length_of_the_pause_matters() -> None:
    found = measure_prosody(voice(200, 160, 0.5))
    louder, later = (
        measure_prosody(3 * voice(200, 160, 0.5)),
        measure_prosody(voice(200, 160, 0.5, pause_s=0.4)),
    )
    assert found is not None
    assert louder is not None
    assert later is not None
    for other in (louder, later):
        assert other.pitch_fall_st == pytest.approx(found.pitch_fall_st, abs=0.1)
        assert other.level_fall_db == pytest.approx(found.level_fall_db, abs=0.3)


@pytest.mark.parametrize("count", [0, 100, RATE])
def test_silence_and_noise_have_none(count: int) -> None:
    assert measure_prosody(np.zeros(count, dtype=np.float32)) is None
    noise = 0.1 * np.random.default_rng(1).standard_normal(count)
    assert measure_prosody(noise.astype(np.float32)) is None


SILENT = np.zeros(16_000, dtype=np.float32)
LEVEL = voice(200, 200)
FALLEN = voice(200, 150, 0.3)
LAST_WORD_S = {
    "02-who-are-you": 0.44,
    "03-three-plus-four": 1.30,
    "05-after-monday": 1.16,
    "06-capital-of-france": 1.33,
    "09-count-down": 1.38,
    "10-repeat": 2.01,
}
"""Where the last word of some sample questions begins."""
PAUSE = np.zeros(round(0.16 * 16_000), np.float32)


class ScriptedEncoder:
    """Has always heard the same."""

    def __init__(self, probability: float, summary: NDArray[np.float32] | None = None) -> None:
        self._impression = Impression(probability, summary)

    def hear(self, pcm: Pcm) -> Impression:
        return self._impression


def along(place: int, value: float) -> NDArray[np.float32]:
    vector = np.zeros(SUMMARY_SIZE, np.float32)
    vector[place] = value
    return vector


HEAD = Head(along(3, 2.0), bias=-1.0)


def rated(network: float, pcm: Pcm, heard: float | None = None) -> float:
    """By a network of this opinion, with a head too if it `heard` something at place 3."""
    summary = None if heard is None else along(3, heard)
    return TurnEndDetector(ScriptedEncoder(network, summary), HEAD).probability(pcm)


@pytest.mark.parametrize("heard", [None, 1.0])
@pytest.mark.parametrize("pcm", [SILENT, LEVEL, FALLEN], ids=["silent", "level", "fallen"])
def test_a_surer_network_is_a_surer_answer(pcm: Pcm, heard: float | None) -> None:
    answers = [rated(network, pcm, heard) for network in (0.0, 0.01, 0.3, 0.9, 0.99)]
    assert all(0.0 < low < high < 1.0 for low, high in pairwise(answers))
    assert rated(1.0, pcm, heard) < 1.0


@pytest.mark.parametrize("network", [0.05, 0.5, 0.95])
def test_a_voice_that_has_fallen_has_rather_finished(network: float) -> None:
    assert rated(network, FALLEN) > rated(network, LEVEL)
    assert rated(network, FALLEN, 0.5) > rated(network, LEVEL, 0.5)


def test_neither_the_network_nor_prosody_decides_alone() -> None:
    policy = POLICIES[DEFAULT_EAGERNESS]
    assert policy is not None
    finished = voice(200, 140, 0.15)
    assert policy.stage(rated(0.99, finished)) is Stage.LIKELY
    assert policy.stage(rated(0.01, finished)) is not Stage.LIKELY
    assert policy.stage(rated(0.99, LEVEL)) is Stage.UNLIKELY


def test_a_turn_without_prosody_is_rated_by_the_network() -> None:
    assert rated(0.99, SILENT) > 0.7
    assert rated(0.01, SILENT) < 0.1


def test_the_head_has_half_of_the_say() -> None:
    """An opinion of the head moves the log-odds by half of it."""
    odds = [answer / (1.0 - answer) for answer in (rated(0.5, LEVEL, 0.5), rated(0.5, LEVEL, 1.5))]
    assert np.log(odds[1] / odds[0]) == pytest.approx(1.0)
    alone = rated(0.5, LEVEL)
    assert np.log(odds[0]) == pytest.approx(np.log(alone / (1.0 - alone)) / 2)


@pytest.mark.parametrize(("heard", "score"), [(1e9, 20.0), (-1e9, -20.0), (np.nan, 0.0), (1.0, 1.0)])
def test_the_head_says_nothing_endless(heard: float, score: float) -> None:
    assert HEAD.score(along(3, heard)) == score


def test_without_a_whole_head_there_is_none(tmp_path: Path) -> None:
    file = tmp_path / "head.safetensors"
    assert load_head(file) is None
    file.write_bytes(b"no tensors")
    assert load_head(file) is None
    for weight in (np.ones(5, np.float32), along(7, np.inf)):
        save_file({"weight": weight, "bias": np.zeros(1, np.float32)}, file)
        assert load_head(file) is None
    save_file({"weight": along(3, 2.0)}, file)
    assert load_head(file) is None


def test_a_head_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "head.safetensors"
    save_file({"weight": along(3, 2.0), "bias": np.array([-1.0], np.float32)}, file)
    head = load_head(file)
    assert head is not None
    assert head.score(along(3, 4.0)) == HEAD.score(along(3, 4.0)) == 7.0


@pytest.mark.slow
def test_questions_are_told_from_their_beginnings() -> None:
    """In synthetic voices that the head was not fitted on."""
    head = load_head(head_file())
    assert head is not None
    detector = TurnEndDetector(SmartTurn(), head)
    finished, cut = [], []
    for name, last_word_s in LAST_WORD_S.items():
        pcm, rate = read_wav(paths.assets_dir() / "samples" / f"{name}.wav")
        assert rate == 16_000
        loud = np.flatnonzero(np.abs(pcm) > 0.01)
        finished.append(detector.probability(np.concatenate([pcm[: loud[-1]], PAUSE])))
        cut.append(detector.probability(np.concatenate([pcm[: round(last_word_s * 16_000)], PAUSE])))
    pairs = [whole > part for whole in finished for part in cut]
    assert np.mean(pairs) > 0.8, (finished, cut)
