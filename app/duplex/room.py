"""A microphone in the same room as the loudspeaker: it hears the user, noise, and a delayed echo of what is
played.

Both sides advance with the clock of the session. The loudspeaker's blocks come in through `hear`; the
microphone's samples are made in `service`. Its sample clock may be off by some parts per million. Times are
seconds since the microphone was opened. Dialog thread.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from app.audio.resample import Resampler
from app.audio.ring import Ring
from app.audio.wav_streams import PcmListener, WavSpeaker
from engine_runtime.types import Pcm

RATE = 16_000
SPEAKER_RATE = 48_000
_REVERBERATION_S = 0.15
_FLOOR = 10 ** (-62 / 20)
"""RMS of the microphone's own noise."""
_MARGIN = 4
"""Samples around the place where the echo is interpolated."""
_NOISE_S = 11.0


def impulse_response(loss_db: float, delay_ms: float, seed: int = 0) -> Pcm:
    """A direct path `delay_ms` late and a decaying tail 6 dB below it; white noise comes back `loss_db`
    lower."""
    rng = np.random.default_rng(seed)
    count = round(_REVERBERATION_S * RATE)
    room = rng.standard_normal(count) * np.exp(-6.9 * np.arange(count) / count)
    room *= 0.5 / np.sqrt(np.sum(room**2))
    room[0] = 1.0
    room *= 10 ** (-loss_db / 20) / np.sqrt(np.sum(room**2))
    return np.concatenate([np.zeros(round(delay_ms * RATE / 1000)), room]).astype(np.float32)


def pink_noise(rms: float, seed: int) -> Pcm:
    """Noise of equal power per octave above 50 Hz, as of a street or a fan, to be repeated."""
    count = round(_NOISE_S * RATE)
    spectrum = np.fft.rfft(np.random.default_rng(seed).standard_normal(count))
    spectrum /= np.sqrt(np.maximum(np.fft.rfftfreq(count, 1 / RATE), 50.0))
    noise = np.fft.irfft(spectrum, count)
    return np.asarray(noise * (rms / np.sqrt(np.mean(noise**2))), dtype=np.float32)


class EchoRoom:
    """The microphone of the room; `speaker` is its loudspeaker."""

    def __init__(
        self,
        loss_db: float | None,
        delay_ms: float = 0.0,
        skew_ppm: float = 0.0,
        seed: int = 0,
        *,
        noise_rms: float = 0.0,
        listener: PcmListener | None = None,
    ) -> None:
        """`loss_db` is the echo return loss, None with headphones; `listener` gets what is played, at
        RATE."""
        self.sample_rate = RATE
        self.ring = Ring(2 * RATE)
        self.name = ""
        self.latency_s = 0.0
        self.speaker = WavSpeaker(SPEAKER_RATE, self.hear)
        self.response = impulse_response(np.inf if loss_db is None else loss_db, delay_ms, seed)
        self.echo_gain = 0.0 if loss_db is None else 1.0
        """0 while the user wears headphones."""
        self.on_round: Callable[[float], None] | None = None
        """Called in each round with the time, before the microphone captures."""
        self._delay = round(delay_ms * RATE / 1000)
        self._step = 1.0 + skew_ppm / 1e6
        self._resampler = Resampler(SPEAKER_RATE, RATE, "LQ")
        self._listener = listener
        self._played = np.zeros(len(self.response) + _MARGIN, dtype=np.float32)
        """From sample `_played_from` on, at RATE."""
        self._played_from = -len(self._played)
        self._speech = np.zeros(0, dtype=np.float32)
        self._noise = pink_noise(noise_rms, seed + 2) if noise_rms else np.zeros(1, dtype=np.float32)
        self._floor = np.random.default_rng(seed + 1)
        self._origin_ns: int | None = None
        self._count = 0

    @property
    def origin_s(self) -> float:
        """When it was opened, by the session's clock."""
        return (self._origin_ns or 0) / 1e9

    @property
    def dropped_samples(self) -> int:
        """Captured samples that nobody fetched in time."""
        return self.ring.dropped

    def hear(self, block: Pcm) -> None:
        """The loudspeaker played this."""
        played = self._resampler.push(block)
        if self._listener is not None:
            self._listener(played)
        self._played = np.concatenate([self._played, played])

    def speak(self, speech: Pcm, after_s: float = 0.0) -> float:
        """Make the user say this, at RATE, `after_s` from now or after the speech that is still queued.
        Returns when it begins, in seconds."""
        pause = np.zeros(round(after_s * RATE), dtype=np.float32)
        begins = self._count + len(self._speech) + len(pause)
        self._speech = np.concatenate([self._speech, pause, speech])
        return begins * self._step / RATE

    def open(self, device: str | None, latency_s: float) -> None:
        """Start to capture; the arguments are ignored."""
        self.name = "room"

    def close(self) -> None:
        """Stop."""
        self.name = ""

    def is_lost(self) -> bool:
        """Never."""
        return False

    def service(self, now_ns: int) -> None:
        """Capture up to now."""
        if not self.name:
            return
        if self._origin_ns is None:
            self._origin_ns = now_ns
        if self.on_round is not None:
            self.on_round((now_ns - self._origin_ns) / 1e9)
        due = int((now_ns - self._origin_ns) * RATE / self._step / 1e9) - self._count
        if due <= 0:
            return
        block = _FLOOR * self._floor.standard_normal(due)
        block += self._noise[np.arange(self._count, self._count + due) % len(self._noise)]
        if self.echo_gain:
            block += self.echo_gain * self._echo(due)
        said, self._speech = self._speech[:due], self._speech[due:]
        block[: len(said)] += said
        self._count += due
        self._forget_played()
        self.ring.write(block.astype(np.float32))

    def sample_time_ns(self, index: float) -> int:
        """When sample `index` was captured."""
        return (self._origin_ns or 0) + round(index * 1e9 * self._step / RATE)

    def _echo(self, count: int) -> Pcm:
        """The next `count` samples of the echo, on the microphone's clock."""
        room = self.response[self._delay :]
        at = self._step * (self._count + np.arange(count))
        first, end = int(at[0]) - 1, int(at[-1]) + 3
        # Sample t of the echo needs the played ones from t - delay - len(room) + 1 to t - delay; those not
        # yet played are only needed to interpolate where there is no delay.
        start = first - self._delay - len(room) + 1 - self._played_from
        needed = end - first + len(room) - 1
        played = self._played[start : start + needed]
        played = np.concatenate([played, np.zeros(needed - len(played), dtype=np.float32)])
        echo = np.convolve(played, room, "valid")
        if self._step == 1.0:
            return echo[1 : 1 + count]
        part = at - np.floor(at)
        place = np.floor(at).astype(int) - first
        before, here, next_one, after = (echo[place + offset] for offset in (-1, 0, 1, 2))
        return np.asarray(
            here
            + 0.5 * part * (next_one - before)
            + part**2 * (before - 2.5 * here + 2 * next_one - 0.5 * after)
            + 0.5 * part**3 * (3 * (here - next_one) + after - before)
        )

    def _forget_played(self) -> None:
        """Drop samples that no later echo needs, once they are many."""
        needed_from = int(self._step * self._count) - len(self.response) - _MARGIN
        spare = needed_from - self._played_from
        if spare > RATE:
            self._played = self._played[spare:]
            self._played_from = needed_from
