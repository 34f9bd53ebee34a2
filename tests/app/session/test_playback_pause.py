"""A reply that is paused or ducked, and resumed: the record of the output is the reply with gaps, or at
another level, sample by sample."""

from __future__ import annotations

import numpy as np
import pytest

from app.audio.ring import DUCK_DB, DUCK_S, FADE_S
from app.audio.wav_streams import WavSpeaker
from app.session.playback import Playback
from engine_runtime.types import Pcm
from tests.doubles.sound_card import AudibleOutput

RATE = 8_000
MS = 1_000_000
FADE = round(FADE_S * RATE)
FALL = np.cos((np.arange(FADE) + 0.5) / FADE * np.pi / 2).astype(np.float32) ** 2


class Rig:
    """A playback with a loudspeaker on a clock of its own, and what has to be heard of `reply`."""

    def __init__(self, seconds: float, rng: np.random.Generator) -> None:
        self.reply = (0.3 * rng.standard_normal(round(seconds * RATE))).astype(np.float32)
        self.heard: list[Pcm] = []
        self.speaker = WavSpeaker(RATE, self.heard.append)
        self.speaker.open(None, 0.0)
        self.playback = Playback(self.speaker)
        self.speaker.service(0)
        self.playback.begin(RATE, 0, 0)
        self.expected: list[Pcm] = []
        self.now_ms = self.pushed = self.played = 0
        self.rises = False

    def push(self, count: int) -> None:
        """The engine made this much more."""
        self.playback.push(self.reply[self.pushed : self.pushed + count])
        self.pushed += count
        if self.pushed >= len(self.reply):
            self.playback.finish()

    def run(self, ms: int) -> None:
        for _ in range(0, ms, 10):
            self.playback.service(self.now_ms * MS)
            self.now_ms += 10
            self.speaker.service(self.now_ms * MS)
        self.playback.service(self.now_ms * MS)

    def play(self, ms: int) -> None:
        """The reply goes on for so long."""
        part = self.reply[self.played : self.played + ms * RATE // 1_000].copy()
        if self.rises:
            part[:FADE] *= FALL[::-1]
        self.expected += [part]
        self.played += len(part)
        self.rises = False
        self.run(ms)

    def pause(self, ms: int) -> None:
        """It is paused for so long."""
        self.playback.pause()
        fading = self.reply[self.played : self.played + FADE] * FALL
        self.expected += [fading, np.zeros(ms * RATE // 1_000 - FADE, dtype=np.float32)]
        self.run(ms)
        self.playback.resume()
        self.rises = True

    @property
    def record(self) -> Pcm:
        return np.concatenate(self.heard)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_the_record_is_the_reply_with_gaps(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rig = Rig(20.0, rng)
    gaps = 0
    rig.push(RATE)
    while rig.played < len(rig.reply) - 2 * RATE:
        rig.push(int(rng.integers(RATE // 2, RATE)))
        rig.play(10 * int(rng.integers(4, 50)))
        if rig.pushed - rig.played > RATE // 4:
            gaps += 1
            rig.pause(10 * int(rng.integers(2, 120)))
    rig.push(len(rig.reply) - rig.pushed)
    rig.play(3_000)
    assert gaps > 10
    assert rig.speaker.underruns == 0
    assert not rig.playback.is_active
    expected = np.concatenate(rig.expected)
    assert rig.record[: len(expected)] == pytest.approx(expected, abs=1e-6)
    assert not rig.record[len(expected) :].any()
    assert rig.playback.heard_samples(rig.now_ms * MS) == len(rig.reply)


def test_without_gaps_and_fades_the_record_is_the_reply() -> None:
    rig = Rig(3.0, np.random.default_rng(7))
    rig.push(len(rig.reply))
    rig.play(500)
    rig.pause(700)
    rig.play(2_600)
    record = rig.record
    gap = np.flatnonzero(record == 0.0)
    start, end = gap[0], gap[0] + 700 * RATE // 1_000 - FADE
    assert not record[start:end].any()
    # The faded samples sound twice; both times together they are as loud as they were.
    whole = np.concatenate([record[: start - FADE], record[start - FADE : start] + record[end : end + FADE]])
    whole = np.concatenate([whole, record[end + FADE :]])
    assert np.array_equal(whole[: start - FADE], rig.reply[: start - FADE])
    assert whole[start - FADE : start] == pytest.approx(rig.reply[start - FADE : start], abs=1e-6)
    assert np.array_equal(whole[start : len(rig.reply)], rig.reply[start:])


def test_the_fade_is_smooth_and_short() -> None:
    rig = Rig(1.0, np.random.default_rng(0))
    rig.reply[:] = 0.5
    rig.push(RATE)
    rig.run(200)
    rig.playback.pause()
    rig.run(100)
    fall = rig.record[200 * RATE // 1_000 :]
    assert not fall[FADE:].any()
    assert np.abs(np.diff(fall)).max() < 0.5 * np.pi / 2 / FADE * 1.01
    assert FADE_S <= 0.06


def test_what_was_heard_is_the_part_before_the_fade() -> None:
    rig = Rig(5.0, np.random.default_rng(0))
    rig.speaker.latency_s = 0.05
    rig.push(len(rig.reply))
    rig.run(300)
    rig.playback.pause()
    rig.run(30)
    assert rig.playback.heard_samples(rig.now_ms * MS) == pytest.approx(0.28 * RATE, abs=2)
    rig.run(500)
    assert rig.playback.heard_samples(rig.now_ms * MS) == pytest.approx(0.30 * RATE, abs=2)
    rig.playback.stop()
    assert rig.playback.heard_samples(rig.now_ms * MS) == pytest.approx(0.30 * RATE, abs=2)
    length = len(rig.record)
    rig.run(100)
    assert not rig.record[length:].any()


def test_a_paused_reply_is_not_over_and_what_comes_meanwhile_is_kept() -> None:
    rig = Rig(2.0, np.random.default_rng(0))
    rig.push(RATE // 2)
    rig.run(300)
    rig.playback.pause()
    rig.run(1_000)
    rig.push(len(rig.reply) - rig.pushed)
    rig.run(1_000)
    assert rig.playback.is_active
    assert rig.playback.level_ms == pytest.approx(1_700, abs=1)
    rig.playback.resume()
    rig.run(1_800)
    assert not rig.playback.is_active
    assert rig.speaker.underruns == 0


def test_a_reply_that_was_played_to_its_end_has_nothing_to_resume() -> None:
    rig = Rig(0.2, np.random.default_rng(0))
    rig.speaker.latency_s = 0.05
    rig.push(len(rig.reply))
    rig.run(210)
    rig.playback.pause()
    rig.run(60)
    assert not rig.playback.is_active
    assert rig.playback.is_over(rig.now_ms * MS)


def test_the_next_reply_starts_although_this_one_was_paused() -> None:
    rig = Rig(2.0, np.random.default_rng(0))
    rig.push(RATE)
    rig.run(300)
    rig.playback.pause()
    rig.run(100)
    rig.playback.begin(RATE, 0, rig.now_ms * MS)
    length = len(rig.record)
    rig.playback.push(np.full(RATE // 10, 0.5, dtype=np.float32))
    rig.playback.finish()
    rig.run(200)
    assert np.trim_zeros(rig.record[length:]).tolist() == [0.5] * (RATE // 10)


class LostOutput:
    """A playback whose device has latency, and is lost in the reply."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, latency_s: float) -> None:
        self.out = AudibleOutput(latency_s)
        self.out.card.replace_sounddevice(monkeypatch)
        self.out.open(None, 0.0)
        self.playback = Playback(self.out)

    @property
    def now_ns(self) -> int:
        return self.out.card.now_ns

    def begin(self, seconds: float) -> None:
        self.reply_rate = self.out.sample_rate
        self.playback.begin(self.reply_rate, 0, self.now_ns)
        self.playback.push(np.full(round(seconds * self.reply_rate), 0.5, dtype=np.float32))
        self.playback.finish()

    def run(self, ms: int) -> None:
        for _ in range(0, ms, 10):
            self.playback.service(self.now_ns)
            self.out.service(self.now_ns + 10 * MS)
        self.playback.service(self.now_ns)

    @property
    def heard_s(self) -> float:
        return self.playback.heard_samples(self.now_ns) / self.reply_rate

    def close(self) -> float:
        """Close the device; how many seconds of sound were in the air since it was opened."""
        self.out.close()
        return np.count_nonzero(self.out.air[-1]) / self.out.sample_rate


@pytest.mark.parametrize("latency_s", [0.0, 0.5])
@pytest.mark.parametrize("pause_ms", [30, 490, 2_000])
@pytest.mark.parametrize("after_ms", [10, 200, 700])
@pytest.mark.parametrize("rate", [48_000, 16_000])
def test_a_device_that_is_lost_after_a_pause_repeats_nothing(
    monkeypatch: pytest.MonkeyPatch, latency_s: float, pause_ms: int, after_ms: int, rate: int
) -> None:
    rig = LostOutput(monkeypatch, latency_s)
    rig.begin(2.0)
    rig.run(600)
    rig.playback.pause()
    rig.run(pause_ms)
    rig.playback.resume()
    rig.run(after_ms)
    heard_s = rig.heard_s
    faded_s = min(max((pause_ms + after_ms) / 1e3 - latency_s, 0.0), FADE_S)
    aired_s = rig.close() - faded_s  # the samples that fade out are not heard before they fade in
    assert heard_s == pytest.approx(aired_s, abs=1e-4)
    rig.run(500)
    rig.out.card.rate = rate
    rig.out.open(None, 0.0)
    rig.run(2_600)
    assert rig.playback.is_over(rig.now_ns)
    assert aired_s + rig.close() == pytest.approx(2.0, abs=1e-4 if rate == 48_000 else 2e-3)


def ducked() -> Rig:
    """A second of a reply, then it is ducked for another one."""
    rig = Rig(3.0, np.random.default_rng(0))
    rig.push(len(rig.reply))
    rig.run(1_000)
    rig.playback.duck()
    rig.run(1_000)
    return rig


def test_a_ducked_reply_goes_on_and_nothing_of_it_is_lost() -> None:
    rig = ducked()
    rig.playback.resume()
    rig.run(1_500)
    ratio = np.abs(rig.record[: len(rig.reply)] / rig.reply)
    assert ratio[:RATE] == pytest.approx(1.0)
    assert 20 * np.log10(ratio[RATE + round(0.05 * RATE) : 2 * RATE]) == pytest.approx(-DUCK_DB, abs=1e-3)
    assert ratio[2 * RATE + round((DUCK_S + 0.01) * RATE) :] == pytest.approx(1.0)
    # What the loudspeaker was given is what the echo canceller gets.
    played = rig.speaker.played.read()[0]
    assert len(played) >= 2 * RATE
    assert played == pytest.approx(rig.record[: len(played)], abs=0)
    assert not rig.playback.is_active
    assert rig.playback.heard_samples(rig.now_ms * MS) == len(rig.reply)


def test_what_was_heard_of_a_ducked_reply_ends_where_it_was_ducked() -> None:
    rig = ducked()
    assert rig.playback.heard_samples(rig.now_ms * MS) == RATE
    rig.playback.stop()
    assert rig.playback.heard_samples(rig.now_ms * MS) == RATE


def test_a_reply_that_ends_while_it_is_ducked_was_not_heard_to_its_end() -> None:
    rig = ducked()
    rig.run(1_500)
    assert not rig.playback.is_active
    assert not rig.playback.is_over(rig.now_ms * MS)
    assert rig.playback.heard_samples(rig.now_ms * MS) == RATE
    rig.playback.resume()
    assert rig.playback.is_over(rig.now_ms * MS)
    assert rig.playback.heard_samples(rig.now_ms * MS) == len(rig.reply)


def test_another_loudspeaker_goes_on_softly() -> None:
    rig = ducked()
    other = WavSpeaker(2 * RATE)
    rig.speaker.ring, rig.speaker.sample_rate = other.ring, other.sample_rate
    rig.playback.service(rig.now_ms * MS)
    assert rig.playback.heard_samples(rig.now_ms * MS) == RATE
    block = np.zeros(2 * RATE // 2, dtype=np.float32)
    other.ring.play_into(block)
    reply = rig.reply[2 * RATE : 2 * RATE + RATE // 2]
    later = slice(RATE // 5, -RATE // 10)
    ratio = np.std(block[::2][later]) / np.std(reply[later])
    assert 20 * np.log10(ratio) < -DUCK_DB + 4
