"""WAV files as microphone and loudspeaker, with a clock controlled by the test."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from app.audio.wav import read_wav, write_wav
from app.audio.wav_streams import WavMicrophone, WavSpeaker
from engine_runtime.errors import AudioInputError

RATE = 8_000
MS = 1_000_000


@pytest.fixture
def ramp(tmp_path: Path) -> Path:
    write_wav(tmp_path / "ramp.wav", np.linspace(0.1, 0.9, RATE).astype(np.float32), RATE)
    return tmp_path / "ramp.wav"


def test_the_file_comes_at_the_pace_of_the_clock(ramp: Path) -> None:
    microphone = WavMicrophone(ramp)
    microphone.service(0)
    assert microphone.ring.available == 0
    microphone.open(None, 0.0)
    microphone.service(5_000 * MS)
    assert microphone.ring.available == 0
    microphone.service(5_010 * MS)
    assert microphone.ring.available == 80
    microphone.service(5_010 * MS)
    assert microphone.ring.available == 80
    assert microphone.sample_time_ns(80) == 5_010 * MS
    assert not microphone.is_lost()


def test_after_the_file_comes_silence(ramp: Path) -> None:
    heard: list[np.ndarray] = []
    microphone = WavMicrophone(ramp, heard.append)
    microphone.open(None, 0.0)
    for now in range(0, 1_501, 10):
        microphone.service(now * MS)
        microphone.ring.read(RATE)
    pcm = np.concatenate(heard)
    assert len(pcm) == RATE * 3 // 2
    assert (pcm[:RATE] > 0.09).all()
    assert not pcm[RATE:].any()
    assert microphone.is_finished
    assert microphone.file_seconds == microphone.seconds == 1.0


def run(microphone: WavMicrophone, start_ms: int, end_ms: int) -> None:
    """Service it every 10 ms."""
    for now in range(start_ms, end_ms + 10, 10):
        microphone.service(now * MS)


def test_a_held_file_waits_and_nothing_is_captured_meanwhile(ramp: Path) -> None:
    heard: list[np.ndarray] = []
    microphone = WavMicrophone(ramp, heard.append)
    microphone.open(None, 0.0)
    run(microphone, 0, 100)
    microphone.is_held = True
    run(microphone, 110, 300)
    microphone.is_held = False
    run(microphone, 310, 400)
    pcm = microphone.ring.read(RATE)
    ramp_pcm, _ = read_wav(ramp)
    assert np.array_equal(pcm, ramp_pcm[:1_600])
    assert microphone.sample_time_ns(800) == 300 * MS
    places = [microphone.file_position_s(index) for index in (0, 400, 800, 1_200)]
    assert places == [pytest.approx(place) for place in (0.0, 0.05, 0.1, 0.15)]
    listened = np.concatenate(heard)
    assert len(listened) == 3_200
    assert not listened[800:2_400].any()


def test_a_late_call_delays_the_file_and_loses_nothing(ramp: Path) -> None:
    microphone = WavMicrophone(ramp)
    microphone.open(None, 0.0)
    microphone.service(0)
    captured = []
    for _ in range(100):
        microphone.service(5_000 * MS)
        captured.append(microphone.ring.read(RATE))
    assert max(map(len, captured)) < RATE * 0.032
    ramp_pcm, _ = read_wav(ramp)
    assert np.array_equal(np.concatenate(captured)[:RATE], ramp_pcm)
    assert microphone.dropped_samples == 0
    assert microphone.sample_time_ns(80) == 10 * MS
    assert microphone.file_position_s(2 * RATE) == 1.0


def test_a_bad_file_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(AudioInputError):
        WavMicrophone(tmp_path / "missing.wav")


def test_the_speaker_plays_at_the_pace_of_the_clock() -> None:
    heard: list[np.ndarray] = []
    speaker = WavSpeaker(RATE, heard.append)
    speaker.open(None, 0.0)
    speaker.ring.write(np.ones(120, dtype=np.float32))
    speaker.service(0)
    assert speaker.sample_time_ns(0) is None
    speaker.service(10 * MS)
    assert speaker.sample_time_ns(0) == 0
    assert speaker.sample_time_ns(80) is None
    speaker.service(20 * MS)
    assert speaker.sample_time_ns(80) == 10 * MS
    assert np.concatenate(heard).tolist() == [1.0] * 120 + [0.0] * 40
    assert speaker.underruns == 0


def test_an_empty_ring_is_an_under_run_only_while_a_reply_is_expected() -> None:
    speaker = WavSpeaker(RATE)
    speaker.open(None, 0.0)
    speaker.is_expecting = True
    for now in (0, 10, 20, 30):
        speaker.service(now * MS)
    assert speaker.underruns == 1  # one gap, however long
    speaker.ring.write(np.ones(80, dtype=np.float32))
    speaker.service(40 * MS)
    speaker.service(50 * MS)
    assert speaker.underruns == 2
    speaker.is_expecting = False
    speaker.service(60 * MS)
    assert speaker.underruns == 2


def test_closed_streams_do_nothing(ramp: Path) -> None:
    heard: list[np.ndarray] = []
    microphone, speaker = WavMicrophone(ramp, heard.append), WavSpeaker(RATE, heard.append)
    microphone.open(None, 0.0)
    microphone.close()
    speaker.open(None, 0.0)
    speaker.close()
    for now in (0, 100):
        microphone.service(now * MS)
        speaker.service(now * MS)
    assert heard == []
