"""Reply audio on its way to the loudspeaker: start policy, device rate, top-up of the ring, first and last
sample, and how much was heard.

In: reply PCM as the engine makes it. Out: the playback ring, kept one second ahead. A reply starts when what
is in hand covers the time until more comes, as the last reply measured it (`start_policy`); the first one
when `start_ms` of it is there. What is complete starts at once.
Dialog thread.
"""

from __future__ import annotations

from collections import deque

from app.audio.levels import rms
from app.audio.resample import Resampler
from app.audio.streams import AudioOutput
from app.session.start_policy import Arrival, may_start, start_delay_ms
from engine_runtime.types import Pcm

_AHEAD_S = 1.0
_LONGER_AFTER_UNDERRUN_MS = 200
_SHORTER_AFTER_SUCCESS_MS = 50
_MOST_EXTRA_MS = 800


class Playback:
    """One reply at a time."""

    def __init__(self, audio_out: AudioOutput) -> None:
        self._out = audio_out
        self._ring = audio_out.ring
        """The ring that the reply goes through; a loudspeaker of another rate comes with another one."""
        self._resampler: Resampler | None = None
        self._waiting: deque[Pcm] = deque()
        self._waiting_samples = 0
        self._start_ms = 0
        self._extra_ms = 0
        """What the start of a reply waits for beyond that, learnt from under-runs."""
        self._delay_ms: float | None = None
        """How long after its first piece a reply starts, as the last one taught."""
        self._arrivals: list[Arrival] = []
        self._unseen_samples = 0
        """Samples that were pushed since the last `service`, which gives them their time."""
        self._underruns_before = 0
        self._first_index = 0
        self._metered_to = 0
        self._pushed_samples = 0
        self._left_samples = 0
        """Samples of the reply, at the device's rate, that left the loudspeaker."""
        self._has_output = False
        self._is_complete = False
        self._is_flowing = False
        self.is_active = False
        """From `begin` until the last sample was heard, or `stop`."""
        self.is_lost = False
        """The loudspeaker went away while the reply was played. Without one from the start nothing is played,
        and the reply is there to be read and to be played again."""
        self.started_ns: int | None = None
        """When the first sample reached the loudspeaker (device latency added), None before."""

    @property
    def level_ms(self) -> float:
        """Audio that is made but was not yet handed to the device."""
        if not self.is_active:
            return 0.0
        return (self._waiting_samples + self._out.ring.available) * 1000.0 / self._out.sample_rate

    def begin(self, sample_rate: int, start_ms: int) -> None:
        """A reply begins; its PCM comes at `sample_rate`."""
        self.stop()
        self._resampler = Resampler(sample_rate, self._out.sample_rate)
        self._start_ms = start_ms + self._extra_ms
        self._arrivals, self._unseen_samples = [], 0
        self._underruns_before = self._out.underruns
        self._ring = self._out.ring
        self._first_index = self._ring.written
        self._pushed_samples = self._left_samples = 0
        self._has_output = bool(self._out.name)
        self.is_lost = False
        self._is_complete = False
        self._is_flowing = False
        self.started_ns = None
        self.is_active = True

    def push(self, pcm: Pcm) -> None:
        """More of the reply."""
        if self._resampler is None:
            raise ValueError("no reply was begun")
        self._pushed_samples += len(pcm)
        self._queue(self._resampler.push(pcm))

    def finish(self) -> None:
        """The reply is complete."""
        if self._resampler is not None and not self._is_complete:
            self._queue(self._resampler.finish())
            self._is_complete = True

    def stop(self) -> None:
        """Silence, at the next block of the device."""
        self._out.is_expecting = False
        self._out.ring.discard()
        self._waiting.clear()
        self._waiting_samples = 0
        self.is_active = False

    def service(self, now_ns: int) -> None:
        """Start if it is time, keep the ring filled, notice the first and the last sample."""
        if not self.is_active:
            return
        self._note_left(now_ns)
        if not self._out.name or self._out.ring is not self._ring:
            self.is_lost = self._has_output and not self._is_heard
            self.stop()
            return
        self._note_arrival(now_ns / 1e6)
        if not self._is_flowing and (self._is_complete or self._may_start(now_ns / 1e6)):
            self._is_flowing = True
        if self._is_flowing:
            self._top_up()
        if self.started_ns is None:
            handed_ns = self._out.sample_time_ns(self._first_index)
            if handed_ns is not None:
                self.started_ns = handed_ns + round(self._out.latency_s * 1e9)
        if self._is_heard:
            self.is_active = False
            self._learn()

    def heard_samples(self, now_ns: int) -> int:
        """Samples of the reply, at its own rate, that left the loudspeaker by `now_ns`, its latency included;
        after the end or `stop`, by then."""
        if self._resampler is None:
            return 0
        if self.is_active:
            self._note_left(now_ns)
        return min(self._resampler.input_samples(self._left_samples), self._pushed_samples)

    def is_over(self, now_ns: int) -> bool:
        """Whether there is nothing more to be heard at `now_ns`: the whole reply left the loudspeaker, or is
        not played for want of one."""
        if self.is_active:
            self._note_left(now_ns)
            return self._is_heard
        return not self.is_lost

    def take_played_level(self) -> float:
        """RMS of what the device took since the last call, 0 if that was nothing."""
        ring = self._out.ring
        count, self._metered_to = ring.consumed - self._metered_to, ring.consumed
        return rms(ring.recent(count)) if count > 0 else 0.0

    def _queue(self, pcm: Pcm) -> None:
        if len(pcm):
            self._waiting.append(pcm)
            self._waiting_samples += len(pcm)
            self._unseen_samples += len(pcm)

    def _note_left(self, now_ns: int) -> None:
        """Keep how much left the loudspeaker: it never becomes less, whatever a device says of its clock."""
        taken = self._ring.consumed
        last_ns = self._out.sample_time_ns(taken - 1) if taken > self._first_index else None
        if last_ns is None:
            return
        late_ns = last_ns + round(self._out.latency_s * 1e9) - now_ns
        on_the_way = max(-(-late_ns * self._out.sample_rate // 1_000_000_000), 0)
        self._left_samples = max(self._left_samples, taken - on_the_way - self._first_index)

    def _note_arrival(self, now_ms: float) -> None:
        if self._unseen_samples:
            audio_ms = self._unseen_samples * 1000.0 / self._out.sample_rate
            self._arrivals.append(Arrival(now_ms, audio_ms))
            self._unseen_samples = 0

    def _may_start(self, now_ms: float) -> bool:
        waited_ms = now_ms - self._arrivals[0].at_ms if self._arrivals else 0.0
        delay_ms = None if self._delay_ms is None else self._delay_ms + self._extra_ms
        return may_start(self.level_ms, waited_ms, delay_ms, self._start_ms, self._start_ms + _MOST_EXTRA_MS)

    def _top_up(self) -> None:
        ring = self._out.ring
        limit = min(round(_AHEAD_S * self._out.sample_rate), ring.capacity // 2)
        while self._waiting and ring.available < limit:
            block = self._waiting.popleft()
            room = min(limit - ring.available, ring.free)
            ring.write(block[:room])
            if len(block) > room:
                self._waiting.appendleft(block[room:])
            self._waiting_samples -= min(room, len(block))
            # The ring must not be expected to hold samples before the first ones are in it.
            self._out.is_expecting = True
        if self._is_complete and not self._waiting:
            self._out.is_expecting = False

    def _learn(self) -> None:
        delay_ms = start_delay_ms(self._arrivals)
        if delay_ms is not None:
            self._delay_ms = delay_ms
        if self._out.underruns > self._underruns_before:
            self._extra_ms = min(self._extra_ms + _LONGER_AFTER_UNDERRUN_MS, _MOST_EXTRA_MS)
        else:
            self._extra_ms = max(self._extra_ms - _SHORTER_AFTER_SUCCESS_MS, 0)

    @property
    def _is_heard(self) -> bool:
        """Whether all of a complete reply left the loudspeaker; so it is with one that has no sample."""
        is_all_written = self._is_complete and not self._waiting
        return is_all_written and self._left_samples == self._ring.written - self._first_index
