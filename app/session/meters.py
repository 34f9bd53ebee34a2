"""Metering: levels, playback buffer and counters twenty times a second, the echo once a second.

In: capture, playback and the devices' counters. Out: Levels, PlaybackLevel, SampleProgress, Counters and
EchoMeasured events, and the timing events playback_buffer, underrun, dropped_input and echo. Dialog thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace

from app.audio.echo_cancellation import EchoMeasurement
from app.audio.levels import dbfs, rms
from app.audio.streams import AudioInput, AudioOutput
from app.audio.wav_streams import WavMicrophone
from app.session.capture import Capture
from app.session.events import (
    Counters,
    EchoMeasured,
    Event,
    Levels,
    PlaybackLevel,
    SampleProgress,
)
from app.session.playback import Playback
from engine_runtime.timing import TimingBus

_PERIOD_NS = 50_000_000
_ECHO_PERIOD_NS = 1_000_000_000


class Meters:
    """Reports at most every 50 ms of the session's clock."""

    def __init__(
        self,
        capture: Capture,
        playback: Playback,
        audio_in: AudioInput,
        audio_out: AudioOutput,
        emit: Callable[[Event], None],
    ) -> None:
        self._capture = capture
        self._playback = playback
        self._audio_in = audio_in
        self._audio_out = audio_out
        self._emit = emit
        self._next_ns = 0
        self._was_active = False
        self._was_playing = False
        self._counters = (0, 0)
        self._echo_ns = 0
        self._echo = EchoMeasurement()

    def service(self, now_ns: int, timing: TimingBus, turn_id: int, *, is_active: bool) -> None:
        """Report if it is time; `is_active` if sound is captured or played."""
        if now_ns < self._next_ns:
            return
        self._next_ns = now_ns + _PERIOD_NS
        self._count(timing, turn_id)
        if is_active or self._was_active:
            level, probability = self._capture.take_level()
            self._emit(Levels(dbfs(level), dbfs(self._output_level()), probability))
        if isinstance(self._capture.source, WavMicrophone):
            self._emit(SampleProgress(self._capture.source.file_seconds))
        if self._playback.is_active:
            level_ms = self._playback.level_ms
            self._emit(PlaybackLevel(level_ms))
            timing.emit("playback_buffer", turn_id, time.perf_counter_ns(), 0, level_ms=level_ms)
        elif self._was_playing:
            self._emit(PlaybackLevel(0.0))
        if now_ns >= self._echo_ns:
            self._echo_ns = now_ns + _ECHO_PERIOD_NS
            self._report_echo(timing, turn_id)
        self._was_active = is_active
        self._was_playing = self._playback.is_active

    def _report_echo(self, timing: TimingBus, turn_id: int) -> None:
        echo = self._capture.echo
        known = replace(echo, frame_ms=self._echo.frame_ms, drift_ppm=self._echo.drift_ppm)
        if known == self._echo:  # these two move all the time
            return
        self._echo = echo
        self._emit(EchoMeasured(echo))
        values = {name: value for name, value in asdict(echo).items() if value is not None}
        timing.emit("echo", turn_id, time.perf_counter_ns(), 0, **values)

    def _output_level(self) -> float:
        if not self._playback.is_active:
            return 0.0
        ring, samples = self._audio_out.ring, self._audio_out.sample_rate * _PERIOD_NS // 1_000_000_000
        return rms(ring.recent(samples)) * ring.loudness * self._audio_out.gain

    def _count(self, timing: TimingBus, turn_id: int) -> None:
        counters = (self._audio_out.underruns, self._audio_in.dropped_samples)
        if counters == self._counters:
            return
        for name, before, after in zip(("underrun", "dropped_input"), self._counters, counters, strict=True):
            if after > before:
                timing.emit(name, turn_id, time.perf_counter_ns(), 0, count=after - before)
        self._counters = counters
        self._emit(Counters(*counters))
