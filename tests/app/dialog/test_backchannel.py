"""The head that tells backchannels from turns: what it is given, and how it is read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from app import paths
from app.dialog.backchannel import (
    FEATURES,
    FRAME_SIZE,
    BackchannelHead,
    backchannel_file,
    features,
    load_backchannel_head,
)
from app.dialog.smart_turn import Impression, SmartTurn
from app.dialog.turn_end import TurnEndDetector
from app.duplex.clips import Clip, load_clips
from app.duplex.room import RATE
from engine_runtime.types import Pcm

HEARD = np.random.default_rng(1).standard_normal((400, FRAME_SIZE)).astype(np.float32)


def test_only_the_frames_of_the_speech_count() -> None:
    other = HEARD.copy()
    other[:-22] = 0.0
    found = features(HEARD, 0.4)
    assert found.shape == (FEATURES,)
    np.testing.assert_array_equal(found, features(other, 0.4))
    assert np.abs(found - features(other, 0.6)).max() > 0.1
    np.testing.assert_allclose(found[:FRAME_SIZE], HEARD[-22:].mean(axis=0), rtol=1e-5)
    np.testing.assert_array_equal(found[FRAME_SIZE : 2 * FRAME_SIZE], HEARD[-22:].max(axis=0))


def test_order_counts() -> None:
    mirrored = np.concatenate([HEARD[:-22], HEARD[-22:][::-1]])
    assert np.abs(features(HEARD, 0.4) - features(mirrored, 0.4))[2 * FRAME_SIZE :].max() > 0.1


@pytest.mark.parametrize("speech_s", [-1.0, 0.0, 0.001, 1.5, 60.0])
def test_any_length_has_features(speech_s: float) -> None:
    assert np.isfinite(features(HEARD, speech_s)).all()


def test_a_head_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "head.safetensors"
    weight = np.zeros(FEATURES, np.float32)
    weight[0] = 2.0
    save_file({"weight": weight, "bias": np.array([-1.0], np.float32)}, file)
    head = load_backchannel_head(file)
    assert head is not None
    ones = np.ones((400, FRAME_SIZE), np.float32)
    assert head.probability(ones, 0.4) == pytest.approx(1.0 / (1.0 + np.exp(-1.0)))
    assert 0.0 < head.probability(1e9 * ones, 0.4) <= 1.0
    assert head.probability(np.nan * ones, 0.4) == 0.5


def test_a_file_that_is_damaged_or_missing_is_no_head(tmp_path: Path) -> None:
    assert load_backchannel_head(tmp_path / "missing") is None
    file = tmp_path / "head.safetensors"
    save_file({"weight": np.zeros(3, np.float32), "bias": np.zeros(1, np.float32)}, file)
    assert load_backchannel_head(file) is None


class ScriptedEncoder:
    """Has always heard the same."""

    def __init__(self, impression: Impression) -> None:
        self._impression = impression

    def hear(self, pcm: Pcm) -> Impression:
        return self._impression


def test_without_head_or_frames_the_detector_cannot_tell() -> None:
    head = BackchannelHead(np.zeros(FEATURES, np.float32), 0.0)
    silence = np.zeros(RATE, np.float32)
    with_frames = ScriptedEncoder(Impression(0.5, None, HEARD))
    assert TurnEndDetector(with_frames, None, head).backchannel(silence, 0.4) == 0.5
    assert TurnEndDetector(with_frames, None).backchannel(silence, 0.4) is None
    assert (
        TurnEndDetector(ScriptedEncoder(Impression(0.5, None)), None, head).backchannel(silence, 0.4) is None
    )


@pytest.mark.slow
def test_short_words_are_told_apart_in_voices_it_was_not_fitted_on() -> None:
    detector = TurnEndDetector(SmartTurn(), None, load_backchannel_head(backchannel_file()))
    clips = [
        clip for clip in load_clips(paths.assets_dir() / "duplex") if clip.speaker in ("rms", "slt", "ked")
    ]
    lead = np.zeros(round(0.32 * RATE), np.float32)

    def rated(clip: Clip) -> float:
        speech = clip.pcm[round(clip.start_s * RATE) :][: round(0.9 * RATE)]
        found = detector.backchannel(np.concatenate([lead, speech]), len(speech) / RATE)
        assert found is not None
        return found

    backchannels = [rated(clip) for clip in clips if clip.kind == "backchannel"]
    turns = [rated(clip) for clip in clips if clip.kind == "interruption"]
    assert np.mean([[one > other for one in backchannels] for other in turns]) > 0.85
