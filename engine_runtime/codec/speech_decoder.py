"""ReplyVoice: codes of one reply to PCM, with the lowest possible latency.

In: speech codes one by one. Out: PCM that is ready to play, in order and without gaps. It runs token2mel and
the vocoder on an execution stream: a chunk is started as soon as its last look-ahead code arrives. With host
execution the same call returns its PCM; with a CUDA stream a later call does. Engine thread.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from engine_runtime.codec.execution_stream import (
    ArrivalWork,
    HostExecution,
    NewExecutionStream,
    PendingCopy,
    StageTimer,
    StreamWork,
)
from engine_runtime.codec.flow.token2mel import Token2Mel
from engine_runtime.codec.vocoder.vocoder import Vocoder
from engine_runtime.errors import ExecutorError
from engine_runtime.timing import TimingBus
from engine_runtime.types import Pcm
from engine_runtime.work import Outcome, Task, within


@dataclass(frozen=True, slots=True)
class _PendingChunk:
    """A pending chunk. `made` is its mel: the chunks computed together with it, and its own frames among
    theirs; None for the samples after the last mel."""

    chunk: int
    made: _Made | None
    vocoder: StageTimer
    pending_copy: PendingCopy


@dataclass(frozen=True, slots=True)
class _Made:
    span: StageTimer
    first_frame: int
    frames: int
    all_frames: int


@dataclass(frozen=True, slots=True)
class _JointTimer:
    """Times of works that follow one another: their sum, from the start of the first."""

    timers: tuple[StageTimer, ...]

    def times(self) -> tuple[int, int]:
        times = [timer.times() for timer in self.timers]
        return times[0][0], sum(duration_ns for _, duration_ns in times)


class ReplyVoice:
    """The streams of one reply. What uses a device is work of a task (work.py)."""

    def __init__(
        self,
        token2mel: Token2Mel,
        vocoder: Vocoder,
        timing: TimingBus,
        turn_id: int,
        new_execution_stream: NewExecutionStream = HostExecution,
    ) -> None:
        self._mel, self._timing, self._turn_id = token2mel.mel, timing, turn_id
        self._execution_stream = new_execution_stream(timing.clock_ns)
        with self._execution_stream.stage():
            self._to_mel, self._to_pcm = token2mel.stream(), vocoder.stream()
        self._chunk = 0
        self._pending: deque[_PendingChunk] = deque()

    @property
    def has_begun(self) -> bool:
        """Whether a chunk was started, so that the codec may run concurrently with the language model from
        now on."""
        return self._chunk > 0

    @property
    def is_pending(self) -> bool:
        """Whether chunks are pending."""
        return bool(self._pending)

    def push(self, code: int) -> Task[list[Pcm]]:
        """Add a code; returns PCM that became ready, usually none.

        Waits for the first chunk, because concurrent decode steps would only delay the time to first audio.
        Later chunks are not waited for.
        """
        is_first = self._chunk == 0
        self._to_mel.add(np.array([code], dtype=np.int64))
        if self._to_mel.is_ready:
            yield from self._make(self._to_mel.packets())
        ready = self.take()
        return (yield from self.wait()) if is_first and not ready else ready

    def finish(self) -> Task[list[Pcm]]:
        """End of the codes; returns all PCM that is ready. `wait` returns the rest while `is_pending`."""
        yield from self._make(self._to_mel.finish())
        last = StreamWork(self._to_pcm.finish_work(), self._execution_stream, is_fetched=True)
        pending_copy, timer = yield last
        self._pending.append(_PendingChunk(self._chunk, None, timer, pending_copy))
        return self.take()

    def take(self) -> list[Pcm]:
        """PCM that became ready since the last call; does not wait."""
        chunks = []
        while self._pending and self._pending[0].pending_copy.is_here():
            pending = self._pending.popleft()
            chunks += self._arrived(pending, pending.pending_copy.value())
        return chunks

    def wait(self) -> Task[list[Pcm]]:
        """Wait for the next pending chunk; returns its PCM and that of the chunks ready after it."""
        if not self._pending:
            return []
        pcm = yield ArrivalWork(self._pending[0].pending_copy)
        return [*self._arrived(self._pending.popleft(), pcm), *self.take()]

    def _make(self, to_mel: Task[list[Tensor]]) -> Task[None]:
        """Run the flow, and start the vocoder on the chunks that it completed together."""
        timers: list[StageTimer] = []
        mels = yield from within(self._execution_stream.current, self._measured(to_mel, timers))
        if mels and not timers:  # what was held back is complete without more work
            with self._execution_stream.stage() as timer:
                timers.append(timer)
        made = _JointTimer(tuple(timers))
        all_frames, done = sum(mel.shape[1] for mel in mels), 0
        for mel in mels:
            work = StreamWork(self._to_pcm.push_work(mel), self._execution_stream, is_fetched=True)
            pending_copy, timer = yield work
            part = _Made(made, done, mel.shape[1], all_frames)
            self._pending.append(_PendingChunk(self._chunk, part, timer, pending_copy))
            self._chunk += 1
            done += mel.shape[1]

    def _measured(self, task: Task[list[Tensor]], timers: list[StageTimer]) -> Task[list[Tensor]]:
        """The task with its work on the execution stream; adds the times of the work."""
        outcome = Outcome()
        while True:
            try:
                work = StreamWork(outcome.resume(task), self._execution_stream)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            value, timer = yield work
            timers.append(timer)
            outcome = Outcome(value)

    def _arrived(self, pending: _PendingChunk, pcm: Pcm) -> list[Pcm]:
        """The samples of a chunk; reports its times on the bus, where each mel gets its share of a joint
        computation."""
        if not np.isfinite(pcm).all():
            raise ExecutorError(
                "the speech contains values that are not finite; run the codec in float32 "
                "(--codec-dtype float32) or check its weights"
            )
        if pending.made is not None:
            made, (start_ns, duration_ns) = pending.made, pending.made.span.times()
            self._timing.emit(
                "token2mel",
                self._turn_id,
                start_ns + duration_ns * made.first_frame // made.all_frames,
                duration_ns * made.frames // made.all_frames,
                chunk=pending.chunk,
                frames=made.frames,
                audio_ms=1000.0 * made.frames / self._mel.frame_rate,
            )
        elif not pcm.size:
            return []
        start_ns, duration_ns = pending.vocoder.times()
        self._timing.emit(
            "vocoder",
            self._turn_id,
            start_ns,
            duration_ns,
            chunk=pending.chunk,
            samples=pcm.size,
            audio_ms=1000.0 * pcm.size / self._mel.sample_rate,
        )
        return [pcm] if pcm.size else []
