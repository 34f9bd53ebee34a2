"""What was played comes out in step with what is captured."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from app.audio.playback_reference import FRAME_SAMPLES, RATE_HZ, PlaybackReference
from app.audio.resample import Resampler
from app.audio.streams import PlayedTap
from app.audio.wav_streams import WavSpeaker
from engine_runtime.types import Pcm

MS = 1_000_000


def captured_at(sample: int) -> int:
    """A microphone whose clock is right, from time 0 on."""
    return sample * 1_000_000_000 // RATE_HZ


class Loudspeaker:
    """Takes blocks of 10 ms from a signal on a clock of its own, `skew_ppm` fast; callbacks come late."""

    def __init__(self, signal: Pcm, rate: int, skew_ppm: float = 0.0, latest_ms: float = 0.0) -> None:
        self.name = "test"
        self.sample_rate = rate
        self.played = PlayedTap(rate)
        self._signal = signal
        self._block = rate // 100
        self._skew = 1.0 + skew_ppm / 1e6
        self.late = np.random.default_rng(0).uniform(0.0, latest_ms, 200_000)
        self._blocks = 0

    def advance(self, now_ns: int) -> None:
        while True:
            first = self._blocks * self._block
            due_ns = first * 1e9 / self.sample_rate / self._skew + self.late[self._blocks] * MS
            if due_ns > now_ns:
                return
            self._blocks += 1
            self.played.write(self._signal[first : first + self._block], round(due_ns))


def noise(seconds: float, rate: int) -> Pcm:
    """Up to 6 kHz."""
    resampler = Resampler(12_000, rate)
    white = np.random.default_rng(1).standard_normal(round(seconds * 12_000)).astype(np.float32)
    return np.float32(0.1) * np.concatenate([resampler.push(white), resampler.finish()])


def at_16_khz(signal: Pcm, rate: int) -> Pcm:
    resampler = Resampler(rate, RATE_HZ)
    return np.concatenate([resampler.push(signal), resampler.finish()])


def times_settled(settled: list[bool]) -> int:
    """How often it was aligned: each time it takes a while to settle."""
    return sum(is_settled for is_settled, _ in itertools.groupby(settled))


def run(speaker: Loudspeaker, seconds: float) -> tuple[Pcm, PlaybackReference, list[bool]]:
    """Pull every 10 ms; whether it was settled is noted each time."""
    reference = PlaybackReference(speaker)  # type: ignore[arg-type]
    parts, settled = [], []
    for frame in range(round(seconds * 100)):
        speaker.advance((frame + 1) * 10 * MS)
        reference.pull(captured_at, frame + 1)
        parts.append(reference.take(reference.ready_frames))
        settled.append(reference.is_settled)
    return np.concatenate(parts), reference, settled


def misalignment_ms(reference: Pcm, signal: Pcm, at_s: float, skew_ppm: float = 0.0) -> float:
    """How much later the reference is than the signal at that place."""
    window = RATE_HZ // 2
    at = round(at_s * RATE_HZ)
    first = round(at * (1 + skew_ppm / 1e6))
    here = reference[at : at + window]
    there = signal[first - 400 : first + window + 400]
    scores = np.correlate(there, here, "valid")
    return (400 - int(scores.argmax())) * 1000 / RATE_HZ


@pytest.mark.parametrize("rate", [48_000, 44_100, 16_000, 22_050])
def test_the_reference_is_what_was_played_at_that_time(rate: int) -> None:
    signal = noise(2.0, rate)
    reference, _, _ = run(Loudspeaker(signal, rate), 2.0)
    expected = at_16_khz(signal, rate)
    count = len(reference)
    assert count > 1.9 * RATE_HZ
    error = reference[160:count] - expected[160:count]
    assert np.sqrt((error**2).mean()) < 0.03 * np.sqrt((expected**2).mean())


@pytest.mark.slow
def test_late_callbacks_and_drift_leave_it_aligned() -> None:
    rate, seconds, skew = 48_000, 150.0, 300.0
    signal = noise(seconds + 1, rate)
    speaker = Loudspeaker(signal, rate, skew, latest_ms=20.0)
    reference, state, settled = run(speaker, seconds)
    played = at_16_khz(signal, rate)
    # Callbacks come up to 20 ms late, and the latest one gives the time; the drift is 45 ms in all.
    places = [misalignment_ms(reference, played, at, skew) for at in (60.0, 100.0, 148.0)]
    assert max(places) - min(places) < 1.0
    assert 4.0 < places[0] < 11.0
    assert state.drift_ppm == pytest.approx(skew, abs=60)
    assert times_settled(settled) == 1
    assert settled[-1]


@pytest.mark.parametrize("is_lost", [False, True])
def test_late_callbacks_move_nothing_and_an_underrun_of_the_device_aligns_anew(is_lost: bool) -> None:
    """After 4 s the device asks for nothing for 250 ms. Then it makes up for that, or those samples were
    silence of its own."""
    signal = noise(9.0, 48_000)
    speaker = Loudspeaker(signal, 48_000)
    gap_ms = 250.0
    speaker.late[400 : None if is_lost else 425] = gap_ms if is_lost else 0.0
    if not is_lost:
        speaker.late[400:425] = gap_ms - 10.0 * np.arange(25)
    reference = PlaybackReference(speaker)  # type: ignore[arg-type]
    taken, settled = np.zeros(0, dtype=np.float32), list[bool]()
    for frame in range(800):
        speaker.advance((frame + 1) * 10 * MS)
        reference.pull(captured_at, frame + 1)
        if reference.has_clock:
            reference.fill(frame - 10 - len(taken) // FRAME_SAMPLES)
        taken = np.concatenate([taken, reference.take(reference.ready_frames)])
        settled.append(reference.is_settled)
    played = at_16_khz(signal, 48_000)
    assert misalignment_ms(taken, played, 3.0) == pytest.approx(0.0, abs=0.5)
    later = np.concatenate([np.zeros(round(gap_ms * 16), dtype=np.float32), played]) if is_lost else played
    assert misalignment_ms(taken, later, 6.0) == pytest.approx(0.0, abs=0.5)
    assert times_settled(settled) == (2 if is_lost else 1)
    assert settled[-1]


def test_without_a_clock_nothing_is_ready() -> None:
    speaker = Loudspeaker(noise(1.0, 48_000), 48_000)
    reference = PlaybackReference(speaker)  # type: ignore[arg-type]
    reference.pull(captured_at, 1)
    assert not reference.has_clock
    assert reference.ready_frames == 0


def test_a_ring_that_nobody_read_is_emptied_and_read_from_now_on() -> None:
    signal = noise(8.0, 48_000)
    speaker = Loudspeaker(signal, 48_000)
    speaker.advance(4_000 * MS)
    assert speaker.played.ring.free < 480
    reference = PlaybackReference(speaker)  # type: ignore[arg-type]
    reference.restart(400)
    parts, settled = [], []
    for frame in range(400, 600):
        speaker.advance((frame + 1) * 10 * MS)
        reference.pull(captured_at, frame + 1)
        parts.append(reference.take(reference.ready_frames))
        settled.append(reference.is_settled)
    taken = np.concatenate(parts)
    played = at_16_khz(signal, 48_000)
    assert len(taken) > 1.9 * RATE_HZ
    tail = taken[-RATE_HZ // 2 :]
    ends = 4 * RATE_HZ + len(taken)
    assert np.abs(tail - played[ends - len(tail) : ends]).max() < 0.02


def test_another_rate_begins_again() -> None:
    speaker = Loudspeaker(noise(2.0, 48_000), 48_000)
    _, reference, _ = run(speaker, 0.5)
    other = Loudspeaker(noise(2.0, 44_100), 44_100)
    speaker.sample_rate, speaker.played = 44_100, other.played
    frame = 50
    reference.restart(frame)
    assert not reference.has_clock
    for frame in range(50, 100):
        other.advance((frame + 1) * 10 * MS)
        reference.pull(captured_at, frame + 1)
    assert reference.has_clock
    assert reference.ready_frames * FRAME_SAMPLES > 0.4 * RATE_HZ


def test_a_loudspeaker_without_device_has_what_it_played() -> None:
    speaker = WavSpeaker(48_000)
    speaker.open(None, 0.0)
    assert speaker.played.index_at(0) is None
    speaker.service(5_000 * MS)
    signal = noise(0.1, 48_000)
    speaker.ring.write(signal)
    speaker.service(5_050 * MS)
    assert np.array_equal(speaker.played.ring.read(2_400), signal[:2_400])
    assert speaker.played.index_at(5_010 * MS) == pytest.approx(480.0)


def test_a_device_that_is_opened_again_is_aligned_anew_at_the_frame_that_is_taken_next() -> None:
    signal = noise(4.0, 48_000)
    speaker = Loudspeaker(signal, 48_000)
    reference = PlaybackReference(speaker)  # type: ignore[arg-type]
    taken = np.zeros(0, dtype=np.float32)
    for frame in range(300):
        speaker.advance((frame + 1) * 10 * MS)
        if frame == 100:
            speaker.played = PlayedTap(48_000)
            speaker.advance((frame + 3) * 10 * MS)
        reference.pull(captured_at, frame + 1)
        assert reference.has_clock
        # Some frames are always left for later, as while the microphone is behind.
        taken = np.concatenate([taken, reference.take(max(reference.ready_frames - 4, 0))])
        if frame == 101:
            assert not reference.is_settled
    assert misalignment_ms(taken, at_16_khz(signal, 48_000), 2.0) == pytest.approx(0.0, abs=0.5)
