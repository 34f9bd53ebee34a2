"""Start policy, refill of the ring, and first and last sample of a reply."""

from __future__ import annotations

import numpy as np
import pytest

from app.audio.ring import FADE_S
from app.audio.wav_streams import WavSpeaker
from app.session.playback import Playback
from app.session.start_policy import MARGIN_MS, PlayoutStart

RATE = 8_000
MS = 1_000_000


class Rig:
    """A playback with a loudspeaker whose clock is controlled by the test."""

    def __init__(self) -> None:
        self.heard: list[np.ndarray] = []
        self.speaker = WavSpeaker(RATE, self.heard.append)
        self.speaker.open(None, 0.0)
        self.playback = Playback(self.speaker)
        self.now_ms = 0
        self.speaker.service(0)

    def begin(self, least_ms: int, rate: int = RATE) -> None:
        self.playback.begin(rate, least_ms, self.now_ms * MS)

    def run(self, ms: int) -> None:
        for _ in range(0, ms, 10):
            self.playback.service(self.now_ms * MS)
            self.now_ms += 10
            self.speaker.service(self.now_ms * MS)
        self.playback.service(self.now_ms * MS)

    @property
    def pcm(self) -> np.ndarray:
        return np.concatenate(self.heard)


def sound(ms: int, value: float = 0.5) -> np.ndarray:
    return np.full(RATE * ms // 1_000, value, dtype=np.float32)


def test_nothing_is_played_before_there_is_enough() -> None:
    rig = Rig()
    rig.begin(200)
    rig.playback.push(sound(150))
    rig.run(100)
    assert not rig.pcm.any()
    assert rig.playback.level_ms == pytest.approx(150)
    rig.playback.push(sound(110))  # lasts twice 100 ms and the margin
    rig.run(50)
    assert rig.playback.started_ns == 100 * MS
    rig.playback.finish()
    rig.run(300)
    assert not rig.playback.is_active
    assert np.trim_zeros(rig.pcm).tolist() == [0.5] * (RATE * 260 // 1_000)
    assert rig.speaker.underruns == 0


def test_a_short_reply_is_played_when_it_is_complete() -> None:
    rig = Rig()
    rig.begin(500)
    rig.playback.push(sound(60))
    rig.run(200)
    assert not rig.pcm.any()
    rig.playback.finish()
    rig.run(100)
    assert not rig.playback.is_active
    assert np.count_nonzero(rig.pcm) == RATE * 60 // 1_000


def test_a_long_reply_passes_a_small_ring() -> None:
    rig = Rig()
    rig.begin(0)
    samples = np.linspace(0.1, 0.9, RATE * 20).astype(np.float32)
    rig.playback.push(samples)
    rig.playback.finish()
    rig.run(21_000)
    assert np.array_equal(np.trim_zeros(rig.pcm), samples)
    assert rig.speaker.ring.dropped == 0
    assert rig.speaker.underruns == 0


def test_a_reply_that_comes_too_late_is_an_under_run() -> None:
    rig = Rig()
    rig.begin(0)
    rig.playback.push(sound(50))
    rig.run(150)
    assert rig.speaker.underruns == 1
    rig.playback.push(sound(50))
    rig.playback.finish()
    rig.run(100)
    assert rig.speaker.underruns == 1
    assert not rig.playback.is_active


def test_stop_fades_to_silence_within_twenty_milliseconds() -> None:
    rig = Rig()
    rig.begin(0)
    rig.playback.push(sound(5_000))
    rig.run(100)
    rig.playback.stop()
    length = len(rig.pcm)
    rig.run(100)
    fade = round(FADE_S * rig.speaker.sample_rate)
    heard = rig.pcm[length : length + fade]
    assert heard[0] > 0.4
    assert (np.diff(heard) < 0).all()
    assert not rig.pcm[length + fade :].any()
    assert rig.speaker.underruns == 0
    rig.begin(0)
    rig.playback.push(sound(20, 0.25))
    rig.playback.finish()
    rig.run(50)
    assert set(np.unique(rig.pcm[length + fade :])) == {0.0, 0.25}
    assert rig.playback.started_ns is not None


def test_the_rate_is_that_of_the_device() -> None:
    rig = Rig()
    rig.begin(0, 24_000)
    tone = (0.5 * np.sin(2 * np.pi * 440 * np.arange(24_000) / 24_000)).astype(np.float32)
    for start in range(0, 24_000, 1_000):
        rig.playback.push(tone[start : start + 1_000])
    rig.playback.finish()
    rig.run(1_200)
    pcm = np.trim_zeros(rig.pcm)
    assert len(pcm) == pytest.approx(RATE, abs=4)
    assert np.sqrt((pcm**2).mean()) == pytest.approx(0.5 / np.sqrt(2), abs=0.01)


def test_device_latency_counts() -> None:
    rig = Rig()
    rig.speaker.latency_s = 0.05
    rig.begin(0)
    rig.playback.push(sound(20))
    rig.playback.finish()
    rig.run(50)
    assert rig.playback.started_ns == 50 * MS
    assert rig.playback.is_active  # still on its way through the device
    rig.run(50)
    assert not rig.playback.is_active


def test_without_a_loudspeaker_there_is_no_playback() -> None:
    rig = Rig()
    rig.begin(0)
    rig.playback.push(sound(500))
    rig.run(50)
    rig.speaker.close()
    rig.run(3_000)
    assert not rig.playback.is_active
    assert rig.playback.level_ms == 0.0


def test_an_empty_reply_ends_at_once() -> None:
    rig = Rig()
    rig.begin(200)
    rig.playback.finish()
    rig.run(10)
    assert not rig.playback.is_active
    assert rig.playback.started_ns is None


def test_push_needs_a_reply() -> None:
    with pytest.raises(ValueError, match="no reply"):
        Playback(WavSpeaker(RATE)).push(sound(10))


def spoken(rig: Rig, gap_ms: int, least_ms: int = 200) -> float:
    """Ten packets of 100 ms, `gap_ms` apart; when the first was heard, in ms."""
    begun_ms = rig.now_ms
    rig.begin(least_ms)
    for _ in range(10):
        rig.playback.push(sound(100))
        rig.run(gap_ms)
    rig.playback.finish()
    rig.run(2_000)
    assert not rig.playback.is_active
    assert rig.playback.started_ns is not None
    return rig.playback.started_ns / MS - begun_ms


def test_the_next_reply_starts_as_early_as_the_last_ones_showed_to_be_safe() -> None:
    rig = Rig()
    assert spoken(rig, gap_ms=20) == 20  # the second packet makes 200 ms
    assert rig.playback.start is not None
    assert rig.playback.start.reason == "first_reply"
    assert spoken(rig, gap_ms=20) == 0
    assert rig.playback.start.reason == "at_once"
    assert rig.speaker.underruns == 0


def test_a_reply_that_came_too_slowly_makes_the_next_one_wait() -> None:
    rig = Rig()
    assert spoken(rig, gap_ms=150, least_ms=100) == 0
    dry = rig.speaker.underruns
    assert dry > 0
    # The last packet came 1,350 ms after the first, when 900 ms had been made.
    assert spoken(rig, gap_ms=150, least_ms=100) == pytest.approx(450 + MARGIN_MS, abs=20)
    start = rig.playback.start
    assert start is not None
    assert start.delay_ms == pytest.approx(450 + MARGIN_MS, abs=20)
    assert start == PlayoutStart(start.delay_ms, "lateness", 450 + MARGIN_MS)
    assert rig.speaker.underruns == dry
    starts = [spoken(rig, gap_ms=20) for _ in range(20)]
    assert starts[0] > 150  # when the reply is complete
    assert starts[-1] == 0  # fast again


def test_an_under_run_is_one_pause() -> None:
    rig = Rig()
    rig.begin(0)
    for gap_ms in (20, 300, 300, 80, 80):
        rig.playback.push(sound(120))
        rig.run(gap_ms)
    rig.playback.finish()
    rig.run(1_000)
    # Under-run while the second packet of 300 ms is generated; then playback waits until 300 ms are buffered.
    assert rig.speaker.underruns == 1
    assert not rig.playback.is_active
    silence = np.flatnonzero(np.diff(np.flatnonzero(rig.pcm)) > 1)
    assert len(silence) == 1


def test_a_gap_of_the_device_does_not_hold_what_is_in_hand() -> None:
    rig = Rig()
    rig.begin(0)
    rig.playback.push(sound(1_000))
    rig.run(100)
    rig.speaker.underruns += 1  # as a device counts that asked too late
    rig.playback.push(sound(100))
    rig.playback.finish()
    rig.run(1_200)
    assert len(np.trim_zeros(rig.pcm)) == np.count_nonzero(rig.pcm) == RATE * 1_100 // 1_000
    assert spoken(rig, gap_ms=20) == 0


def heard_ms(rig: Rig, rate: int = RATE) -> float:
    return rig.playback.heard_samples(rig.now_ms * MS) * 1_000 / rate


def test_what_was_heard_is_what_left_the_device() -> None:
    rig = Rig()
    rig.speaker.latency_s = 0.13
    rig.begin(0)
    assert heard_ms(rig) == 0
    rig.playback.push(sound(1_000))
    rig.playback.finish()
    for _ in range(12):
        rig.run(100)
        assert heard_ms(rig) == pytest.approx(min(max(rig.now_ms - 130, 0), 1_000), abs=0.2)
        assert rig.playback.is_over(rig.now_ms * MS) is (rig.now_ms >= 1_130)
    assert not rig.playback.is_active
    assert heard_ms(rig) == 1_000
    rig.run(500)
    assert heard_ms(rig) == 1_000


def test_what_was_heard_does_not_grow_after_a_stop() -> None:
    rig = Rig()
    rig.speaker.latency_s = 0.05
    rig.begin(0)
    rig.playback.push(sound(5_000))
    rig.run(300)
    heard = heard_ms(rig)
    rig.playback.stop()
    rig.run(300)  # the device drops what was left in the ring, and that is not heard
    assert heard == heard_ms(rig) == pytest.approx(250, abs=0.2)
    rig.begin(0)
    assert heard_ms(rig) == 0
    rig.playback.push(sound(5_000))
    rig.run(200)
    assert heard_ms(rig) == pytest.approx(150, abs=0.2)


def test_a_gap_in_the_playback_is_not_heard_speech() -> None:
    rig = Rig()
    rig.speaker.latency_s = 0.08
    rig.begin(0)
    rig.playback.push(sound(100))
    rig.run(400)  # 100 ms of speech, then nothing for 300 ms
    assert heard_ms(rig) == 100
    rig.playback.push(sound(1_000))
    rig.run(20)
    assert heard_ms(rig) == 100  # the playback position does not decrease while new speech is in flight
    rig.run(260)
    assert heard_ms(rig) == pytest.approx(100 + 200, abs=0.2)


@pytest.mark.parametrize("reply_rate", [24_000, 16_000, 22_050])
@pytest.mark.parametrize("device_rate", [48_000, 44_100, 8_000])
def test_what_was_heard_counts_in_samples_of_the_reply(reply_rate: int, device_rate: int) -> None:
    """The reply is a staircase: the last played value is the playback position."""
    heard: list[np.ndarray] = []
    speaker = WavSpeaker(device_rate, heard.append)
    speaker.open(None, 0.0)
    playback = Playback(speaker)
    speaker.service(0)
    step_ms, count = 50, 20
    playback.begin(reply_rate, 0, 0)
    for step in range(1, count + 1):
        playback.push(np.full(reply_rate * step_ms // 1_000, step / count, dtype=np.float32))
    playback.finish()
    now_ms = 0
    for stop_ms in range(25, step_ms * count, step_ms * 3):
        while now_ms < stop_ms:
            playback.service(now_ms * MS)
            now_ms += 5
            speaker.service(now_ms * MS)
        samples = playback.heard_samples(now_ms * MS)
        stairs = round(float(heard[-1][-1]) * count)
        assert samples / reply_rate * 1_000 == pytest.approx((stairs - 0.5) * step_ms, abs=1)
    while playback.is_active:
        playback.service(now_ms * MS)
        now_ms += 5
        speaker.service(now_ms * MS)
    total, ratio = reply_rate * step_ms // 1_000 * count, reply_rate / device_rate
    assert total - ratio <= playback.heard_samples(now_ms * MS) <= total


def test_a_loudspeaker_that_goes_away_cuts_the_reply() -> None:
    rig = Rig()
    rig.begin(0)
    rig.playback.push(sound(500))
    rig.playback.finish()
    rig.run(200)
    rig.speaker.close()
    rig.run(1_900)
    assert rig.playback.is_active
    rig.run(200)
    assert not rig.playback.is_active
    assert rig.playback.is_lost
    assert not rig.playback.is_over(rig.now_ms * MS)
    assert heard_ms(rig) == pytest.approx(200, abs=0.2)


def test_a_loudspeaker_that_is_replaced_in_time_goes_on_with_the_reply() -> None:
    rig = Rig()
    rig.begin(0)
    rig.playback.push(sound(500))
    rig.playback.finish()
    rig.run(200)
    rig.speaker.close()
    rig.run(1_000)
    assert heard_ms(rig) == pytest.approx(200, abs=0.2)
    rig.speaker.open(None, 0.0)
    rig.run(400)
    assert not rig.playback.is_active
    assert rig.playback.is_over(rig.now_ms * MS)
    assert np.count_nonzero(rig.pcm) == RATE * 500 // 1_000


def change_loudspeaker(rig: Rig, rate: int) -> None:
    """To one of another rate. What was handed to the one before, but was not in the air yet, is kept."""
    latency_s = rig.speaker.latency_s
    rig.speaker.ring.rewind(round(rig.speaker.sample_rate * latency_s))
    WavSpeaker.__init__(rig.speaker, rate, rig.heard.append)
    rig.speaker.latency_s = latency_s
    rig.speaker.open(None, 0.0)
    rig.speaker.service(rig.now_ms * MS)


@pytest.mark.parametrize("rates", [(2 * RATE,), (11_025,), (2 * RATE, RATE), (RATE // 2, 3 * RATE)])
@pytest.mark.parametrize("is_complete", [True, False])
def test_a_loudspeaker_of_another_rate_goes_on_with_the_reply(
    rates: tuple[int, ...], is_complete: bool
) -> None:
    rig = Rig()
    rig.speaker.latency_s = 0.05
    ramp = np.linspace(0.1, 0.9, RATE).astype(np.float32)
    rig.begin(0)
    rig.playback.push(ramp if is_complete else ramp[: RATE * 7 // 10])
    if is_complete:
        rig.playback.finish()
    rig.run(250)
    began_ms = 250
    for rate in rates:
        change_loudspeaker(rig, rate)
        rig.heard.clear()
        began_ms -= 50
        assert heard_ms(rig) == pytest.approx(began_ms, abs=0.5)
        rig.run(150)
        seconds = began_ms / 1_000 + np.arange(len(rig.pcm)) / rate
        likeness = rig.pcm - np.interp(seconds, np.arange(RATE) / RATE, ramp)
        assert np.abs(likeness[rate // 50 :]).max() < 0.01  # after the filter has settled
        began_ms += 150
    if not is_complete:
        rig.playback.push(ramp[RATE * 7 // 10 :])
        rig.playback.finish()
    rig.run(1_000)
    assert heard_ms(rig) == pytest.approx(1_000, abs=0.3)
    assert len(np.trim_zeros(rig.pcm)) / rates[-1] == pytest.approx(1.15 - began_ms / 1_000, abs=0.001)
    assert rig.playback.is_over(rig.now_ms * MS)
    assert not rig.playback.is_lost
    assert rig.speaker.underruns == 0


@pytest.mark.parametrize("resumes_at_once", [True, False])
def test_a_paused_reply_stays_paused_at_another_rate(resumes_at_once: bool) -> None:
    rig = Rig()
    rig.begin(0)
    rig.playback.push(sound(500))
    rig.playback.finish()
    rig.run(200)
    rig.playback.pause()
    rig.run(100)
    change_loudspeaker(rig, 2 * RATE)
    rig.heard.clear()
    if not resumes_at_once:
        rig.run(100)
        assert not rig.pcm.any()
        assert heard_ms(rig) == pytest.approx(200, abs=0.2)
    rig.playback.resume()
    rig.run(400)
    assert rig.playback.is_over(rig.now_ms * MS)
    assert np.count_nonzero(rig.pcm) == pytest.approx(2 * RATE * 300 // 1_000, abs=2)


def test_without_a_loudspeaker_from_the_start_nothing_is_cut() -> None:
    rig = Rig()
    rig.speaker.close()
    rig.begin(0)
    rig.playback.push(sound(500))
    rig.run(100)
    assert not rig.playback.is_active
    assert not rig.playback.is_lost
    assert rig.playback.is_over(rig.now_ms * MS)
