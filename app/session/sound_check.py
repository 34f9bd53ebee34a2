"""Checks of microphone and loudspeaker: three seconds that are played back, and a chime.

In: requests for a check, the captured sound. Out: sound for `Playback`, SoundChecked. While a check runs,
nothing that is captured counts as speech. Dialog thread.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from app.session.capture import Capture
from app.session.clocks import Clock
from app.session.events import Event, SoundChecked
from app.session.playback import Playback
from engine_runtime.types import Pcm

RECORD_S = 3.0
_RATE = 24_000
_TONES_HZ = (440.0, 660.0)
_TONE_S = 0.4
_FADE_S = 0.03
_AMPLITUDE = 0.25


def chime() -> Pcm:
    """Two tones that fade in and out, at 24 kHz."""
    count, fade = round(_TONE_S * _RATE), round(_FADE_S * _RATE)
    time_s = np.arange(count) / _RATE
    gain = np.clip(np.minimum(np.arange(count), np.arange(count)[::-1]) / fade, 0.0, 1.0) * _AMPLITUDE
    tones = [gain * np.sin(2 * np.pi * hz * time_s) for hz in _TONES_HZ]
    return np.concatenate(tones).astype(np.float32)


class SoundCheck:
    """One check at a time; the caller has opened the devices and ended the turn."""

    def __init__(
        self, capture: Capture, playback: Playback, clock: Clock, emit: Callable[[Event], None]
    ) -> None:
        self._capture, self._playback, self._clock, self._emit = capture, playback, clock, emit
        self._first_sample: int | None = None
        """Of the recording."""
        self._is_playing = False

    @property
    def is_active(self) -> bool:
        """Whether a check runs."""
        return self._first_sample is not None or self._is_playing

    def record(self) -> None:
        """Record the next seconds, then play them."""
        self.cancel()
        self._first_sample = self._capture.utterance.end
        self._emit(SoundChecked("recording"))

    def play(self, pcm: Pcm, sample_rate: int) -> None:
        """Play a sound."""
        self._playback.begin(sample_rate, 0, self._clock.now_ns())
        self._playback.push(pcm)
        self._playback.finish()
        self._is_playing = True
        self._emit(SoundChecked("playing"))

    def play_chime(self) -> None:
        """Play the chime."""
        self.cancel()
        self.play(chime(), _RATE)

    def cancel(self) -> None:
        """End the check, if one runs."""
        if not self.is_active:
            return
        self._first_sample = None
        if self._is_playing:
            self._playback.stop()
        self._is_playing = False
        self._emit(SoundChecked("done"))

    def service(self) -> None:
        """Advance the check once enough was recorded, or all was played."""
        first, rate = self._first_sample, self._capture.sample_rate
        if first is not None and self._capture.utterance.end - first >= RECORD_S * rate:
            self._first_sample = None
            self.play(self._capture.utterance.since(first), rate)
        elif self._is_playing and not self._playback.is_active:
            self._is_playing = False
            self._emit(SoundChecked("done"))
