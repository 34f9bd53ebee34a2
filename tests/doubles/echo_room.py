"""A microphone in the same room as the loudspeaker: it hears the user, and what is played, late.

Both sides advance with the clock of the session. The loudspeaker's blocks come in through `hear`; the
microphone's samples are made in `service`. Its sample clock may be off by some parts per million.
"""

from __future__ import annotations

import numpy as np

from app.audio.resample import Resampler
from app.audio.ring import Ring
from app.audio.wav_streams import WavSpeaker
from engine_runtime.types import Pcm

RATE = 16_000
SPEAKER_RATE = 48_000
_REVERBERATION_S = 0.15
_NOISE = 10 ** (-62 / 20)
_MARGIN = 4
"""Samples around the place where the echo is interpolated."""


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


class EchoRoom:
    """The microphone of the room; `speaker` is its loudspeaker."""

    def __init__(self, loss_db: float, delay_ms: float, skew_ppm: float = 0.0, seed: int = 0) -> None:
        self.sample_rate = RATE
        self.ring = Ring(2 * RATE)
        self.name = ""
        self.latency_s = 0.0
        self.dropped_samples = 0
        self.speaker = WavSpeaker(SPEAKER_RATE, self.hear)
        self.response = impulse_response(loss_db, delay_ms, seed)
        self.echo_gain = 1.0
        """0 while the user wears headphones."""
        self.captured: list[Pcm] = []
        """What the microphone captured."""
        self._step = 1.0 + skew_ppm / 1e6
        self._resampler = Resampler(SPEAKER_RATE, RATE, "LQ")
        self._played = np.zeros(len(self.response) + _MARGIN, dtype=np.float32)
        """From the length of the response before time 0 on, at RATE."""
        self._speech = np.zeros(0, dtype=np.float32)
        self._noise = np.random.default_rng(seed + 1)
        self._origin_ns: int | None = None
        self._count = 0

    def hear(self, block: Pcm) -> None:
        """The loudspeaker played this."""
        self._played = np.concatenate([self._played, self._resampler.push(block)])

    def speak(self, speech: Pcm, after_s: float = 0.0) -> None:
        """The user says this at RATE, `after_s` from now, or after what is still to be said."""
        pause = np.zeros(round(after_s * RATE), dtype=np.float32)
        self._speech = np.concatenate([self._speech, pause, speech])

    def open(self, device: str | None, latency_s: float) -> None:
        self.name = "room"

    def close(self) -> None:
        self.name = ""

    def is_lost(self) -> bool:
        return False

    def service(self, now_ns: int) -> None:
        """Capture up to now."""
        if not self.name:
            return
        if self._origin_ns is None:
            self._origin_ns = now_ns
        due = int((now_ns - self._origin_ns) * RATE / self._step / 1e9) - self._count
        if due <= 0:
            return
        block = _NOISE * self._noise.standard_normal(due)
        block += self.echo_gain * self._echo(due)
        said, self._speech = self._speech[:due], self._speech[due:]
        block[: len(said)] += said
        captured = block.astype(np.float32)
        self.ring.write(captured)
        self.captured.append(captured)
        self._count += due

    def sample_time_ns(self, index: float) -> int:
        return (self._origin_ns or 0) + round(index * 1e9 * self._step / RATE)

    def _echo(self, count: int) -> Pcm:
        """The next `count` samples of the echo, on the microphone's clock."""
        length = len(self.response)
        at = self._step * (self._count + np.arange(count))
        first, end = int(at[0]) - 1, int(at[-1]) + 3
        # Sample t of the echo needs the played ones from t - length + 1 to t; those not yet played weigh
        # nothing, since the response begins with its delay.
        start = first + _MARGIN + 1
        played = self._played[start : start + end - first + length - 1]
        played = np.concatenate([played, np.zeros(end - first + length - 1 - len(played), dtype=np.float32)])
        echo = np.convolve(played, self.response, "valid")
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
