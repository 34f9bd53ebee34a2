"""Checks of microphone and loudspeaker: three seconds that are played back, and a chime.

In: requests for a check, the captured sound. Out: sound for `Playback`, SoundChecked with a verdict on the
microphone. While a check runs, nothing that is captured counts as speech. Dialog thread.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from app.audio.levels import dbfs, rms
from app.dialog.utterance import UtteranceBuffer
from app.session.capture import Capture
from app.session.clocks import Clock
from app.session.events import Event, MicrophoneVerdict, SoundChecked
from app.session.playback import Playback
from engine_runtime.types import Pcm

RECORD_S = 3.0
_RATE = 24_000
_TONES_HZ = (440.0, 660.0)
_TONE_S = 0.4
_FADE_S = 0.03
_AMPLITUDE = 0.25

_SILENT_SHARE = 0.9
"""The first blocks of a device that was just opened may hold something else."""
_LOUDEST_S = 0.1
_QUIET_DBFS = -50.0
"""Level of the loudest `_LOUDEST_S`: from about -55 dBFS on the voice activity detection misses words."""
_FULL_SCALE, _CLIPPED_SHARE = 0.98, 0.001
"""Speech that just reaches full scale has a tenth of this share of samples there; 3 dB more have up to
0.02."""
_SPEECH = 0.5


def chime() -> Pcm:
    """Two tones that fade in and out, at 24 kHz."""
    count, fade = round(_TONE_S * _RATE), round(_FADE_S * _RATE)
    time_s = np.arange(count) / _RATE
    gain = np.clip(np.minimum(np.arange(count), np.arange(count)[::-1]) / fade, 0.0, 1.0) * _AMPLITUDE
    tones = [gain * np.sin(2 * np.pi * hz * time_s) for hz in _TONES_HZ]
    return np.concatenate(tones).astype(np.float32)


def rate_recording(
    pcm: Pcm, sample_rate: int, probability: float, *, is_silent: bool
) -> tuple[MicrophoneVerdict, float]:
    """What the recording `pcm` [n] says about its microphone, and the level of its loudest tenth of a second
    in dBFS. `probability` is the highest one of speech in it; `is_silent`: the device delivered no sound at
    all, whatever the processing made of it."""
    size = max(round(_LOUDEST_S * sample_rate), 1)
    level_dbfs = dbfs(max((rms(pcm[at : at + size]) for at in range(0, len(pcm), size // 2)), default=0.0))
    if is_silent:
        return "silent", level_dbfs
    if float(np.mean(np.abs(pcm) >= _FULL_SCALE)) >= _CLIPPED_SHARE:
        return "clipping", level_dbfs
    if level_dbfs < _QUIET_DBFS:
        return "quiet", level_dbfs
    return ("good" if probability >= _SPEECH else "no_speech"), level_dbfs


class SoundCheck:
    """One check at a time; the caller has opened the devices and ended the turn."""

    def __init__(
        self, capture: Capture, playback: Playback, clock: Clock, emit: Callable[[Event], None]
    ) -> None:
        self._stream = capture.stream
        self._capture, self._playback, self._clock, self._emit = capture, playback, clock, emit
        self._first_sample: int | None = None
        """First sample of the recording."""
        self._utterance: UtteranceBuffer | None = None
        """The buffer with the recording; another microphone gets another one."""
        self._probability = 0.0
        self._is_playing = False

    @property
    def is_active(self) -> bool:
        """Whether a check runs."""
        return self._first_sample is not None or self._is_playing

    def record(self) -> None:
        """Record the next seconds, then play them."""
        self.cancel()
        self._utterance = self._stream.utterance
        self._first_sample, self._probability = self._utterance.end, 0.0
        self._emit(SoundChecked("recording"))

    def hear(self, probability: float) -> None:
        """The next frame is speech with this probability."""
        self._probability = max(self._probability, probability)

    def _play(self, pcm: Pcm, sample_rate: int, event: SoundChecked) -> None:
        self._playback.begin(sample_rate, 0, self._clock.now_ns())
        self._playback.push(pcm)
        self._playback.finish()
        self._is_playing = True
        self._emit(event)

    def play_chime(self) -> None:
        """Play the chime."""
        self.cancel()
        self._play(chime(), _RATE, SoundChecked("playing"))

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
        first, rate, utterance = self._first_sample, self._stream.sample_rate, self._stream.utterance
        if first is not None and utterance is not self._utterance:
            self.cancel()  # the microphone went, or another one takes its place
        elif first is not None and utterance.end - first >= RECORD_S * rate:
            self._first_sample, recording = None, utterance.since(first)
            is_silent = self._capture.silent_s >= _SILENT_SHARE * RECORD_S
            verdict, level_dbfs = rate_recording(recording, rate, self._probability, is_silent=is_silent)
            if verdict == "silent":
                self._emit(SoundChecked("done", verdict, level_dbfs))
            else:
                self._play(recording, rate, SoundChecked("playing", verdict, level_dbfs))
        elif self._is_playing and not self._playback.is_active:
            self._is_playing = False
            self._emit(SoundChecked("done"))
