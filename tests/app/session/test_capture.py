"""From the ring of a source to frames with speech probabilities."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from app.audio.levels import dbfs
from app.audio.wav import write_wav
from app.audio.wav_streams import WavMicrophone
from app.session.capture import Capture, VadFrame
from tests.doubles.scripted_engine import LoudnessVad
from tests.tools.session_driver import silence, speech

MS = 1_000_000


def source(tmp_path: Path, rate: int) -> WavMicrophone:
    write_wav(tmp_path / "q.wav", np.concatenate([silence(0.5, rate), speech(0.5, rate)]), rate)
    microphone = WavMicrophone(tmp_path / "q.wav")
    microphone.open(None, 0.0)
    microphone.service(7_000 * MS)
    return microphone


def captured(
    capture: Capture, microphone: WavMicrophone, start_ms: int, end_ms: int, *, is_muted: bool = False
) -> list[VadFrame]:
    """Frames of this time, in rounds of 10 ms."""
    frames: list[VadFrame] = []
    for now in range(start_ms + 10, end_ms + 10, 10):
        microphone.service(now * MS)
        frames += capture.frames(is_muted=is_muted)
    return frames


@pytest.mark.parametrize("rate", [16_000, 48_000, 44_100])
def test_frames_carry_speech_time_and_place(tmp_path: Path, rate: int) -> None:
    microphone = source(tmp_path, rate)
    capture = Capture(LoudnessVad(), 1_000)
    capture.attach(microphone)
    frames = captured(capture, microphone, 7_000, 8_100)
    assert [frame.start for frame in frames] == [512 * index for index in range(len(frames))]
    first = next(frame for frame in frames if frame.probability > 0.5)
    assert capture.ms_of(first.start) == pytest.approx(500, abs=33)
    assert capture.spoken_at_ns(first.start) == pytest.approx(7_500 * MS, abs=33 * MS)
    assert capture.place_s(first.start) == pytest.approx(0.5, abs=0.033)
    assert capture.is_file
    level, probability = capture.take_level()
    assert dbfs(level) == pytest.approx(-16.5, abs=1.0)
    assert probability == 0.95
    assert capture.take_level() == (0.0, 0.0)


def test_a_muted_microphone_captures_silence(tmp_path: Path) -> None:
    microphone = source(tmp_path, 16_000)
    capture = Capture(LoudnessVad(), 1_000)
    capture.attach(microphone)
    frames = captured(capture, microphone, 7_000, 8_000, is_muted=True)
    assert len(frames) == 31
    assert max(frame.probability for frame in frames) < 0.1
    assert dbfs(capture.take_level()[0]) == -120.0


def test_what_was_captured_before_is_skipped(tmp_path: Path) -> None:
    microphone = source(tmp_path, 16_000)
    microphone.service(7_030 * MS)
    capture = Capture(LoudnessVad(), 1_000)
    capture.attach(microphone)
    assert list(capture.frames(is_muted=False)) == []
    frames = captured(capture, microphone, 7_030, 7_130)
    assert frames[0].start == 0
    assert capture.spoken_at_ns(0) == 7_030 * MS


def test_nothing_is_captured_without_a_source() -> None:
    capture = Capture(LoudnessVad(), 1_000)
    capture.attach(None)
    assert list(capture.frames(is_muted=False)) == []
    assert not capture.has_moved
    assert not capture.is_file
    with pytest.raises(ValueError, match="no source"):
        capture.spoken_at_ns(0)
