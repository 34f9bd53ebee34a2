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

from engine_runtime.codec.execution_stream import HostExecution, NewExecutionStream, PendingCopy, StageTimer
from engine_runtime.codec.flow.token2mel import Token2Mel
from engine_runtime.codec.vocoder.vocoder import Vocoder
from engine_runtime.errors import ExecutorError
from engine_runtime.timing import TimingBus
from engine_runtime.types import Pcm


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


class ReplyVoice:
    """The streams of one reply."""

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

    def push(self, code: int) -> list[Pcm]:
        """Add a code; returns PCM that became ready, usually none.

        Waits for the first chunk, because concurrent decode steps would only delay the time to first audio.
        Later chunks are not waited for.
        """
        is_first = self._chunk == 0
        with self._execution_stream.stage() as span:
            mels = self._to_mel.push_tensors(np.array([code], dtype=np.int64))
        self._vocode(mels, span)
        ready = self.take()
        return self.wait() if is_first and not ready else ready

    def finish(self) -> list[Pcm]:
        """End of the codes; returns all PCM that is ready. `wait` returns the rest while `is_pending`."""
        with self._execution_stream.stage() as span:
            mels = self._to_mel.finish_tensors()
        self._vocode(mels, span)
        with self._execution_stream.stage() as span:
            pending_copy = self._execution_stream.fetch(self._to_pcm.finish_tensor())
        self._pending.append(_PendingChunk(self._chunk, None, span, pending_copy))
        return self.take()

    def take(self) -> list[Pcm]:
        """PCM that became ready since the last call; does not wait."""
        chunks = []
        while self._pending and self._pending[0].pending_copy.is_here():
            chunks += self._arrived(self._pending.popleft())
        return chunks

    def wait(self) -> list[Pcm]:
        """Wait for the next pending chunk; returns its PCM and that of the chunks ready after it."""
        if not self._pending:
            return []
        return [*self._arrived(self._pending.popleft()), *self.take()]

    def _vocode(self, mels: list[Tensor], made: StageTimer) -> None:
        """Start the vocoder on chunks that were computed together."""
        all_frames, done = sum(mel.shape[1] for mel in mels), 0
        for mel in mels:
            with self._execution_stream.stage() as span:
                pending_copy = self._execution_stream.fetch(self._to_pcm.push_tensor(mel))
            part = _Made(made, done, mel.shape[1], all_frames)
            self._pending.append(_PendingChunk(self._chunk, part, span, pending_copy))
            self._chunk += 1
            done += mel.shape[1]

    def _arrived(self, pending: _PendingChunk) -> list[Pcm]:
        """The samples of a chunk; reports its times on the bus, where each mel gets its share of a joint
        computation."""
        pcm = pending.pending_copy.value()
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
