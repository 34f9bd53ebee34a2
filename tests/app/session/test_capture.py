"""From the ring of a source to frames with speech probabilities."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from app.audio.echo_cancellation import AudioProcessing, CaptureProcessor
from app.audio.levels import dbfs, rms
from app.audio.playback_reference import ReceivedAt
from app.audio.resample import Resampler
from app.audio.ring import Ring
from app.audio.wav import write_wav
from app.audio.wav_streams import WavMicrophone, WavSpeaker
from app.duplex.room import RATE, SPEAKER_RATE, EchoRoom
from app.session.capture import Capture
from app.session.voice_stream import VadFrame
from engine_runtime.types import Pcm
from tests.doubles.scripted_engine import LoudnessVad
from tests.doubles.scripted_microphone import ScriptedMicrophone
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
    assert capture.stream.ms_of(first.start) == pytest.approx(500, abs=33)
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


def test_sound_is_received_and_captured_a_little_after_it_was_in_the_air(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    received_ns: list[int] = []

    def process(pcm: Pcm, received_at: ReceivedAt) -> Pcm:
        received_ns.append(received_at(1_600))
        return pcm

    processor = CaptureProcessor(WavSpeaker(SPEAKER_RATE), AudioProcessing())
    monkeypatch.setattr(processor, "process", process)
    microphone = ScriptedMicrophone(speech(1.0), latency_s=0.04)
    capture = Capture(LoudnessVad(), 1_000, processor)
    microphone.open(None, 0.0)
    capture.attach(microphone)
    microphone.service(5_000 * MS)
    microphone.service(5_552 * MS)
    assert len(list(capture.frames(is_muted=False))) == 16
    assert (capture.spoken_at_ns(1_600), received_ns) == (5_100 * MS, [5_140 * MS])
    end_ns = capture.spoken_at_ns(capture.stream.utterance.end)
    behind_ms = [capture.ms_at(end_ns + late * MS) - capture.stream.end_ms for late in (-10, 30, 700)]
    assert behind_ms == [0.0, 30.0, 500.0]


class SilentClock(WavSpeaker):
    """Is open, but never plays anything, so that it has no time."""

    def service(self, now_ns: int) -> None:
        pass


def test_a_loudspeaker_without_a_clock_is_reported_once() -> None:
    speaker, microphone = SilentClock(SPEAKER_RATE), ScriptedMicrophone()
    capture = Capture(LoudnessVad(), 1_000, CaptureProcessor(speaker, AudioProcessing()))
    speaker.open(None, 0.0)
    problems, frames = [], 0
    for now_ms in range(0, 10_000, 10):
        if now_ms % 5_000 == 0:  # the microphone is opened again
            microphone.open(None, 0.0)
            capture.attach(microphone)
        microphone.service(now_ms * MS)
        frames += len(list(capture.frames(is_muted=False)))
        problems.append(capture.take_problem())
    assert [problem.what_is_wrong for problem in problems if problem is not None] == [
        "The loudspeaker does not say when it plays, so its echo cannot be cancelled."
    ]
    assert frames >= 10_000 // 32 - 2


class OtherRate:
    """The microphone of a room, at a rate of its own."""

    name = "other"
    latency_s = 0.0
    dropped_samples = 0

    def __init__(self, room: EchoRoom, sample_rate: int) -> None:
        self.sample_rate = sample_rate
        self.ring = Ring(sample_rate)
        self._room, self._resampler = room, Resampler(RATE, sample_rate)

    def service(self, now_ns: int) -> None:
        self._room.service(now_ns)
        self.ring.write(self._resampler.push(self._room.ring.read(self._room.ring.available)))

    def sample_time_ns(self, index: float) -> int:
        return self._room.sample_time_ns(index * RATE / self.sample_rate)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [8_000, 44_100, 48_000])
def test_an_echo_captured_at_another_rate_is_cancelled(rate: int) -> None:
    room = EchoRoom(6, 100)
    speaker, microphone = room.speaker, OtherRate(room, rate)
    capture = Capture(LoudnessVad(), 5_000, CaptureProcessor(speaker, AudioProcessing()))
    loud = np.sin(2 * np.pi * 3 * np.arange(5 * SPEAKER_RATE) / SPEAKER_RATE) > -0.3
    noise = Resampler(RATE // 2, SPEAKER_RATE).push(
        0.1 * np.random.default_rng(0).standard_normal(3 * RATE).astype(np.float32)
    )
    played = noise[: len(loud)] * loud[: len(noise)]
    room.open(None, 0.0)
    speaker.open(None, 0.0)
    capture.attach(microphone)  # type: ignore[arg-type]
    for now_ms in range(0, 5_000, 10):
        count = min(len(played), speaker.ring.free)
        speaker.ring.write(played[:count])
        played = played[count:]
        microphone.service(now_ms * MS)
        speaker.service(now_ms * MS)
        list(capture.frames(is_muted=False))
    assert capture.echo.state == "cancelling"
    assert capture.echo.erle_db is not None
    assert capture.echo.erle_db > 12
    assert capture.take_problem() is None
    heard = capture.stream.utterance.since(capture.stream.utterance.end - 2 * RATE)
    assert dbfs(rms(heard)) < -40
