"""Playback of a reply: start policy, resampling, refill of the ring, first and last sample, playback
position.

In: reply PCM from the engine. Out: the playback ring, filled up to one second ahead. `start_policy` decides
when a reply starts, and when it continues after an under-run. If a loudspeaker with another rate takes over,
the reply is resampled again from the position that was heard. Dialog thread.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from app.audio.resample import Resampler
from app.audio.streams import AudioOutput
from app.session.start_policy import PlayoutStart, StartPolicy
from engine_runtime.types import Pcm

_AHEAD_S = 1.0
_AWAY_NS = 2_000_000_000
"""A loudspeaker that is lost is replaced within a second; a reply continues if it is not away for longer."""


class Playback:
    """One reply at a time."""

    def __init__(self, audio_out: AudioOutput) -> None:
        self._out = audio_out
        self._ring = audio_out.ring
        """The ring that the reply goes through; a loudspeaker of another rate has another one, where
        `_move` continues."""
        self._resampler: Resampler | None = None
        self._waiting: deque[Pcm] = deque()
        self._waiting_samples = 0
        self._policy = StartPolicy()
        self._unseen_ms = 0.0
        """Audio pushed since the last `service`, which assigns its time."""
        self._underruns = 0
        """Under-runs of the loudspeaker when it was last looked at."""
        self._first_index = 0
        self._pushed: list[Pcm] = []
        self._pushed_samples = 0
        self._moved_at = 0
        """Samples of the reply, at its own rate, before the first one that went through the present ring."""
        self._left_samples = 0
        """Samples of the present ring that left the loudspeaker."""
        self._has_output = False
        self._away_since_ns: int | None = None
        """When the loudspeaker went."""
        self._is_complete = False
        self._is_flowing = False
        self._is_paused = False
        self._is_ducked = False
        self._ducked_at: int | None = None
        """Samples of the reply, at its own rate, before it was ducked; None while that is not known."""
        self.is_active = False
        """From `begin` until the last sample was heard, or `stop`."""
        self.is_lost = False
        """The loudspeaker was lost while the reply was played. If there was none from the start, the reply is
        not played, but can be read and played again."""
        self.handed_ns: int | None = None
        """When the first sample was handed to the device, None before."""

    @property
    def level_ms(self) -> float:
        """Generated audio that was not yet handed to the device."""
        if not self.is_active:
            return 0.0
        return (self._waiting_samples + self._out.ring.available) * 1000.0 / self._out.sample_rate

    @property
    def started_ns(self) -> int | None:
        """When the first sample reached the loudspeaker (device latency added), None before."""
        return None if self.handed_ns is None else self.handed_ns + round(self._out.latency_s * 1e9)

    @property
    def start(self) -> PlayoutStart | None:
        """When the latest reply started and why, None before that."""
        return self._policy.start

    def begin(self, sample_rate: int, least_ms: int, asked_ns: int) -> None:
        """Begin a reply requested at `asked_ns`, with PCM at `sample_rate`. The first reply of all starts
        with `least_ms` buffered."""
        self.stop()
        self._resampler = Resampler(sample_rate, self._out.sample_rate)
        self._policy.begin(asked_ns / 1e6, least_ms)
        self._unseen_ms = 0.0
        self._underruns = self._out.underruns
        self._ring = self._out.ring
        self._first_index = self._ring.written
        self._pushed = []
        self._pushed_samples = self._moved_at = self._left_samples = 0
        self._has_output = bool(self._out.name)
        self._away_since_ns = None
        self.is_lost = False
        self._is_complete = False
        self._is_flowing = False
        self._is_ducked, self._ducked_at = False, None
        self.handed_ns = None
        self.is_active = True

    def push(self, pcm: Pcm) -> None:
        """More of the reply."""
        if self._resampler is None:
            raise ValueError("no reply was begun")
        self._pushed.append(pcm)
        self._pushed_samples += len(pcm)
        self._unseen_ms += self._queue(self._resampler.push(pcm))

    def push_held(self, pcm: Pcm, at_ns: int) -> None:
        """More of a reply that was held; it arrived at `at_ns`."""
        self.push(pcm)
        self._note_arrival(at_ns / 1e6)

    def release(self, now_ns: int, *, was_waiting: bool) -> None:
        """A reply that was held is confirmed; `was_waiting`: the engine makes the rest from now on."""
        self._policy.release(now_ns / 1e6, was_waiting=was_waiting)

    def finish(self) -> None:
        """The reply is complete."""
        if self._resampler is not None and not self._is_complete:
            self._unseen_ms += self._queue(self._resampler.finish())
            self._is_complete = True

    def pause(self) -> None:
        """Fade to silence from the next block of the device on, and keep the rest of the reply. What was
        heard is the part before the fade; meanwhile more of the reply may be pushed."""
        self._is_paused = True
        self._out.ring.pause()

    def duck(self) -> None:
        """Lower the volume from the next block of the device on; the reply goes on. Until `resume` only the
        part before counts as heard: the user has spoken over the rest."""
        self._is_ducked = True
        self._out.ring.duck()

    def resume(self) -> None:
        """Continue where the fade of `pause` began: what was faded out is faded in, with gains that add up to
        one. After `duck`, raise the volume; what was played meanwhile counts as heard."""
        self._is_paused = self._is_ducked = False
        self._ducked_at = None
        self._out.ring.resume()

    def stop(self) -> None:
        """Fade to silence, at the next block of the device."""
        self._is_paused = self._out.is_expecting = False
        self._out.ring.discard()
        self._waiting.clear()
        self._waiting_samples = 0
        self.is_active = False
        self._policy.learn()

    def service(self, now_ns: int) -> None:
        """Start if it is time, keep the ring filled, notice the first and the last sample."""
        if not self.is_active:
            return
        self._note_left(now_ns)
        if self._is_gone(now_ns):
            self.is_lost = self._has_output and not self._is_heard
            self.stop()
            return
        if not self._out.name:
            return
        now_ms = now_ns / 1e6
        self._note_underrun(now_ms)
        self._note_arrival(now_ms)
        if not self._is_flowing:
            self._is_flowing = self._policy.may_start(now_ms, self.level_ms, is_complete=self._is_complete)
        if self._is_flowing:
            self._top_up()
        if self.handed_ns is None:
            self.handed_ns = self._out.sample_time_ns(self._first_index)
        if self._is_heard:
            self.is_active = False
            self._policy.learn()

    def heard_samples(self, now_ns: int) -> int:
        """Samples of the reply, at its own rate, that left the loudspeaker by `now_ns`, its latency included,
        and before it was ducked; after the end or `stop`, by then."""
        if self._resampler is None:
            return 0
        if self.is_active:
            self._note_left(now_ns)
        self._note_duck(self._resampler)
        heard = self._heard(self._resampler)
        return heard if self._ducked_at is None else min(heard, self._ducked_at)

    def is_over(self, now_ns: int) -> bool:
        """Whether playback has ended at `now_ns`: the complete reply was played and not ducked, or there is
        no loudspeaker."""
        if self._is_ducked:
            return False
        if self.is_active:
            self._note_left(now_ns)
            return self._is_heard
        return not self.is_lost

    def _is_gone(self, now_ns: int) -> bool:
        """Whether there is no loudspeaker, and none took its place in time."""
        if self._out.name:
            self._away_since_ns = None
        elif self._away_since_ns is None:
            self._away_since_ns = now_ns
        away_since_ns = self._away_since_ns
        is_away = away_since_ns is not None and now_ns - away_since_ns >= _AWAY_NS
        return is_away or not (self._out.name or self._has_output)

    def _heard(self, resampler: Resampler) -> int:
        heard = self._moved_at + resampler.input_samples(self._left_samples)
        return min(heard, self._pushed_samples)

    def _note_duck(self, resampler: Resampler) -> None:
        """Update where the reply was ducked, once its ring tells."""
        index = self._ring.ducked_at
        if self._is_ducked and self._ducked_at is None and index is not None:
            self._ducked_at = self._moved_at + resampler.input_samples(max(index - self._first_index, 0))

    def _queue(self, pcm: Pcm) -> float:
        """More samples at the device's rate; returns how many ms they last."""
        if len(pcm):
            self._waiting.append(pcm)
            self._waiting_samples += len(pcm)
        return len(pcm) * 1000.0 / self._out.sample_rate

    def _move(self, resampler: Resampler) -> None:
        """Continue in the ring of another loudspeaker, at its rate, from what was heard. The old ring holds
        again what was not in the air yet."""
        self._note_duck(resampler)
        self._left_samples = max(self._left_samples, self._ring.consumed - self._first_index)
        self._moved_at, self._left_samples = self._heard(resampler), 0
        if self._is_paused:
            self._out.ring.pause()
        if self._is_ducked:
            self._out.ring.duck()
        self._ring = self._out.ring
        self._first_index = self._ring.written
        self._waiting.clear()
        self._waiting_samples = 0
        self._resampler = Resampler(resampler.in_rate, self._out.sample_rate)
        rest = np.concatenate(self._pushed)[self._moved_at :] if self._pushed else np.zeros(0, np.float32)
        self._queue(self._resampler.push(rest))
        if self._is_complete:
            self._queue(self._resampler.finish())

    def _note_left(self, now_ns: int) -> None:
        """Update the playback position. It never decreases, even if the clock of a device does. What a
        loudspeaker that went had not played yet was not heard."""
        if self._resampler is not None and self._out.ring is not self._ring:
            self._move(self._resampler)
        if not self._out.name:
            return
        heard = self._out.heard_until(now_ns)
        if heard is not None:
            self._left_samples = max(self._left_samples, heard - self._first_index)

    def _note_underrun(self, now_ms: float) -> None:
        """Report an under-run to the policy. If the ring has audio, the under-run was in the device."""
        is_dry = self._out.underruns > self._underruns and not self._ring.available
        self._underruns = self._out.underruns
        if is_dry:
            self._policy.run_dry(now_ms)
            self._is_flowing = self._out.is_expecting = False

    def _note_arrival(self, now_ms: float) -> None:
        if self._unseen_ms:
            self._policy.add(now_ms, self._unseen_ms)
            self._unseen_ms = 0.0

    def _top_up(self) -> None:
        ring = self._ring
        if self._is_paused and ring.written == self._first_index:
            return  # an empty ring has nothing to fade out
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

    @property
    def _is_heard(self) -> bool:
        """Whether all of a complete reply left the loudspeaker; so it is with one that has no sample."""
        is_all_written = self._is_complete and not self._waiting
        return is_all_written and self._left_samples == self._ring.written - self._first_index
