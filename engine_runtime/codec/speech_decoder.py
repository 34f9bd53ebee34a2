"""ReplyVoice: the codes of one reply to PCM, as early as possible.

In: speech codes one by one. Out: PCM that is ready to play, in order and without gaps. It runs token2mel and
the vocoder on an execution stream: a chunk is begun as soon as its last look-ahead code arrives. On the host
it is finished at once, too; on a CUDA stream it is handed out by a later call. Engine thread.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from engine_runtime.codec.execution_stream import HostExecution, NewExecutionStream, PendingCopy, Span
from engine_runtime.codec.flow.token2mel import Token2Mel
from engine_runtime.codec.vocoder.vocoder import Vocoder
from engine_runtime.errors import ExecutorError
from engine_runtime.timing import TimingBus
from engine_runtime.types import Pcm


@dataclass(frozen=True, slots=True)
class _Piece:
    """A chunk on its way. `made` is its mel: with which others it was made, and which of their frames are its
    own; None for the samples that come after the last mel."""

    chunk: int
    made: _Made | None
    vocoder: Span
    pending_copy: PendingCopy


@dataclass(frozen=True, slots=True)
class _Made:
    span: Span
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
        self._pieces: deque[_Piece] = deque()

    @property
    def has_begun(self) -> bool:
        """Whether a chunk was begun, so that more may run beside the language model from now on."""
        return self._chunk > 0

    @property
    def is_pending(self) -> bool:
        """Whether chunks are on their way."""
        return bool(self._pieces)

    def push(self, code: int) -> list[Pcm]:
        """Add a code; PCM that became ready, mostly none.

        The first chunk is waited for: somebody waits to hear it, and decode steps beside it would only make
        it late. Later ones have time.
        """
        is_first = self._chunk == 0
        with self._execution_stream.stage() as span:
            mels = self._to_mel.push_tensors(np.array([code], dtype=np.int64))
        self._vocode(mels, span)
        ready = self.take()
        return self.wait() if is_first and not ready else ready

    def finish(self) -> list[Pcm]:
        """No code follows: all PCM that is ready. The rest comes from `wait`, while `is_pending`."""
        with self._execution_stream.stage() as span:
            mels = self._to_mel.finish_tensors()
        self._vocode(mels, span)
        with self._execution_stream.stage() as span:
            pending_copy = self._execution_stream.fetch(self._to_pcm.finish_tensor())
        self._pieces.append(_Piece(self._chunk, None, span, pending_copy))
        return self.take()

    def take(self) -> list[Pcm]:
        """PCM that became ready since the last call; waits for nothing."""
        pieces = []
        while self._pieces and self._pieces[0].pending_copy.is_here():
            pieces += self._arrived(self._pieces.popleft())
        return pieces

    def wait(self) -> list[Pcm]:
        """PCM of the next chunk on its way, and of what is ready behind it."""
        if not self._pieces:
            return []
        return [*self._arrived(self._pieces.popleft()), *self.take()]

    def _vocode(self, mels: list[Tensor], made: Span) -> None:
        """Begin the vocoder of chunks that were made together."""
        all_frames, done = sum(mel.shape[1] for mel in mels), 0
        for mel in mels:
            with self._execution_stream.stage() as span:
                pending_copy = self._execution_stream.fetch(self._to_pcm.push_tensor(mel))
            part = _Made(made, done, mel.shape[1], all_frames)
            self._pieces.append(_Piece(self._chunk, part, span, pending_copy))
            self._chunk += 1
            done += mel.shape[1]

    def _arrived(self, piece: _Piece) -> list[Pcm]:
        """The samples of a piece, with its times on the bus; each mel gets its share of what was made
        together."""
        pcm = piece.pending_copy.value()
        if not np.isfinite(pcm).all():
            raise ExecutorError(
                "the speech holds values that are not finite; run the codec in float32 "
                "(--codec-dtype float32) or check its weights"
            )
        if piece.made is not None:
            made, (start_ns, duration_ns) = piece.made, piece.made.span.times()
            self._timing.emit(
                "token2mel",
                self._turn_id,
                start_ns + duration_ns * made.first_frame // made.all_frames,
                duration_ns * made.frames // made.all_frames,
                chunk=piece.chunk,
                frames=made.frames,
                audio_ms=1000.0 * made.frames / self._mel.frame_rate,
            )
        elif not pcm.size:
            return []
        start_ns, duration_ns = piece.vocoder.times()
        self._timing.emit(
            "vocoder",
            self._turn_id,
            start_ns,
            duration_ns,
            chunk=piece.chunk,
            samples=pcm.size,
            audio_ms=1000.0 * pcm.size / self._mel.sample_rate,
        )
        return [pcm] if pcm.size else []
