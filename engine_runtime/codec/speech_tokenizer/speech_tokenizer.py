"""Speech tokenizer: microphone PCM to speech codes, one-shot or streaming.

In: mono PCM at `sample_rate`. Out: codes, one per `samples_per_code` samples. Engine thread; a stream belongs
to one user turn at a time.

Samples are split into segments of 30 s (the size of the position table). Each is encoded separately:
positions, caches, padded edges and the maximum of the normalization restart. The last segment is zero-padded
to complete codes: ceil(samples / samples_per_code) codes.

A stream returns a code as soon as its samples have arrived: 2.5 ms (half an STFT window less a hop) after its
last sample, or at once at the end of a segment. It keeps the STFT overlap, both convolution caches and the
keys and values of each layer, so that no sample is encoded twice except in a revision.

With "running_max" normalization, `push` in chunks of any size and then `tail` yield the codes of `encode`
(hidden states differ by fp32 rounding, 1e-5, far below the distance between two code boundaries). With
"segment_max" the maximum of a segment is unknown before its end: codes are computed with an estimate and
change when it proves wrong (features.py describes when), so `codes` is authoritative, not the return values
of `push`. The first segment starts from the maximum passed to `reset`, a later one from that of the segment
before. The codes differ from `encode` only after the last revision; `encode_streamed` computes the same codes
from the complete signal. `moss-voice verify` reports how many agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine_runtime.codec.speech_tokenizer.encoder_pool import (
    JOINT_CODES,
    MOST_STREAMS,
    EncoderPool,
    stream_bytes,
)
from engine_runtime.codec.speech_tokenizer.encoder_steps import GraphedEncoder, step_batch
from engine_runtime.codec.speech_tokenizer.encoder_streams import CodesArrival, EncoderStreams, PendingValues
from engine_runtime.codec.speech_tokenizer.features import Normalization, WhisperLogMel
from engine_runtime.codec.speech_tokenizer.log_mel_stream import WhisperLogMelStream
from engine_runtime.codec.speech_tokenizer.spoken_pcm import check_pcm
from engine_runtime.cuda.graphs import GraphedCalls
from engine_runtime.errors import ExecutorError
from engine_runtime.models.whisper_vq import EncoderState, WhisperVQ
from engine_runtime.types import Codes, Pcm
from engine_runtime.work import Stage, Task, Work

MOST_BATCHED_CODES = JOINT_CODES[-1]
"""Codes per stream of a call for several; more keep the device busy alone."""

Step = Callable[[Tensor, EncoderState], tuple[Tensor, EncoderState]]
"""mel [1, n_mels, T] and the caches of a segment -> hidden states [1, T / frames_per_code, d], new caches."""


class SpeechTokenizer:
    """The encoder network with its features; stateless.

    The network is moved to `device` and `dtype`; the features are computed in fp32 on the same device.
    `calls` captures a stream's step of one code.
    """

    def __init__(
        self,
        model: WhisperVQ,
        sample_rate: int,
        normalization: Normalization = "segment_max",
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        calls: GraphedCalls | None = None,
        prior: float | None = None,
    ) -> None:
        """`normalization` and `prior` as in `WhisperLogMel`."""
        self.calls = calls or GraphedCalls(device, enabled=False)
        self.model = model.to(device=device, dtype=dtype).eval()
        self.features = WhisperLogMel(sample_rate, model.config.num_mel_bins, normalization, prior).to(device)
        self.dtype = dtype
        self.step: Step = (
            GraphedEncoder(self.model, self.calls) if self.calls.is_capturing else self.model.step_hidden
        )
        """Encodes the next frames of a segment; may be replaced by a TensorRT engine or an onnxruntime
        session."""
        self._own_step = self.step
        self.backend = "torch"
        """Name of the backend of `step`, for reports."""
        self.pool: EncoderPool | None = None
        """Common buffers of the streams created from now on, for captured calls of several."""
        self.streams: EncoderStreams | None = None
        """If the encoder runs beside the language model."""
        self.feature_calls = self.calls
        self._latest: PendingValues | None = None

    @property
    def sample_rate(self) -> int:
        """Sample rate of the input PCM in Hz."""
        return self.features.sample_rate

    @property
    def samples_per_code(self) -> int:
        """Samples per code."""
        return self.features.hop * self.model.config.frames_per_code

    @property
    def segment_samples(self) -> int:
        """Samples of a full segment."""
        return self.features.hop * self.model.config.segment_frames

    @property
    def codebook_size(self) -> int:
        """Codes are 0 .. codebook_size - 1."""
        return self.model.config.codebook_size

    @property
    def is_revised(self) -> bool:
        """Whether a stream estimates the normalization, so that its codes may change and differ from
        `encode`."""
        return self.features.is_revised

    @torch.inference_mode()
    def encode(self, pcm: Pcm) -> Codes:
        """Codes of a complete signal [n], as the model was trained. AudioInputError as in `check_pcm`.

        Raises ExecutorError if hidden states or codebook contain values that are not finite; so does a
        stream.
        """
        codes = [_no_codes()]
        for segment in self._segments(check_pcm(pcm)):
            codes.append(self.encode_mel(self.features(self._filled(segment))))
        return np.concatenate(codes)

    @torch.inference_mode()
    def encode_streamed(self, pcm: Pcm, prior: float | None = None) -> Codes:
        """Final codes of a stream after `reset(prior)`: its reference implementation."""
        codes = [_no_codes()]
        look_ahead = self.features.n_fft // 2 - self.features.hop
        for segment in self._segments(check_pcm(pcm)):
            pushed = max(segment.size - look_ahead, 0) // self.samples_per_code
            start, frames = self.features.start_ceiling(prior), self.model.config.frames_per_code
            mel, prior = self.features.streamed(self._filled(segment), start, frames, pushed)
            codes.append(self.encode_mel(mel))
        return np.concatenate(codes)

    def _segments(self, pcm: Pcm) -> Iterator[Pcm]:
        for start in range(0, pcm.size, self.segment_samples):
            yield pcm[start : start + self.segment_samples]

    def _filled(self, segment: Pcm) -> Tensor:
        filled = np.pad(segment, (0, -segment.size % self.samples_per_code))
        return torch.from_numpy(filled).to(self.features.window.device)

    def encode_mel(self, mel: Tensor) -> Codes:
        """Codes of the frames of one segment, [n_mels, T]."""
        return _to_codes(self.model(mel.to(self.dtype)[None]))

    @torch.inference_mode()
    def encode_step(self, mel: Tensor, state: EncoderState) -> tuple[Codes, EncoderState]:
        """Codes of the next frames of a segment [n_mels, T], and its new caches."""
        if self._is_pooled(mel, [state]):
            ((codes, state),) = self.encode_batch([mel], [state])
            return codes, state
        hidden, state = self.step(mel.to(self.dtype)[None], state)
        if hidden.shape[1] > 1:
            return _to_codes(self.model.quantize(hidden)), state
        return _to_codes(self.calls.run_copied("codes", self.model.quantize, hidden)), state

    @property
    def takes_batches(self) -> bool:
        """Whether several streams can be encoded in one call: not by an engine or onnxruntime."""
        return self.step is self._own_step

    @torch.inference_mode()
    def encode_batch(
        self, mels: Sequence[Tensor], states: Sequence[EncoderState]
    ) -> list[tuple[Codes, EncoderState]]:
        """Like `encode_step`, for the next frames of several segments: equally many, but in a pool."""
        codes, following = self._encode_all(mels, states)
        sizes = [len(one) for one in codes]
        found = torch.cat(codes).cpu().split(sizes)
        return [(_checked(one.numpy()), state) for one, state in zip(found, following, strict=True)]

    def start_batch(
        self, mels: Sequence[Tensor], states: Sequence[EncoderState]
    ) -> list[tuple[CodesArrival, EncoderState]]:
        """Like `encode_batch` or, for one stream, `encode_step`, without waiting for the codes."""
        with self.beside(), torch.inference_mode():
            codes, following = self._encode_all(mels, states)
            self._latest = pending = PendingValues(torch.cat(codes), mels)
        ends = list(accumulate(len(one) for one in codes))
        places = [slice(end - len(one), end) for end, one in zip(ends, codes, strict=True)]
        return [(CodesArrival(pending, at), state) for at, state in zip(places, following, strict=True)]

    def _encode_all(
        self, mels: Sequence[Tensor], states: Sequence[EncoderState]
    ) -> tuple[list[Tensor], list[EncoderState]]:
        if self.pool is not None and all(self._is_pooled(mel, states) for mel in mels):
            return self.pool.step([mel.to(self.dtype) for mel in mels], states)
        mel = torch.stack(list(mels)).to(self.dtype)
        if len(mels) == 1:
            codes, state = self._encode_many(mel, states[0])
            return [codes[0]], [state]
        hidden, following = step_batch(self.model, mel, states)
        return list(self.model.quantize(hidden)), following

    def _encode_many(self, mel: Tensor, state: EncoderState) -> tuple[Tensor, EncoderState]:
        if self.pool is not None and self.takes_batches and state.slot >= 0:
            found = self.pool.step_many(mel, state)
            if found is not None:
                return found
        hidden, state = self.step(mel, state)
        return self.model.quantize(hidden), state

    @property
    def is_free(self) -> bool:
        """Whether the device has done all calls that were started."""
        return self._latest is None or self._latest.is_here

    def beside(self) -> AbstractContextManager[object]:
        """Context manager around the encoder."""
        return nullcontext() if self.streams is None else self.streams.encoder()

    def before(self) -> AbstractContextManager[object]:
        """Context manager around the features."""
        return nullcontext() if self.streams is None else self.streams.features()

    def _is_pooled(self, mel: Tensor, states: Sequence[EncoderState]) -> bool:
        is_short = mel.shape[1] <= MOST_BATCHED_CODES * self.model.config.frames_per_code
        return self.takes_batches and is_short and all(state.slot >= 0 for state in states)

    def use_pool(self, slots: int, most_streams: int, *, triton: bool = False) -> None:
        """Keep the caches of up to `slots` streams in common buffers, and capture calls of up to
        `most_streams`, with Triton kernels if `triton`. For streams created afterwards."""
        calls, device = self.calls, self.calls.device
        if calls.is_capturing:
            self.streams = streams = EncoderStreams(device)
            # Features and encoder are captured apart: graphs of one GraphedCalls wait for each other.
            self.feature_calls = GraphedCalls(device, stream=streams.feature_stream)
            calls = GraphedCalls(device, stream=streams.encoder_stream)
        self.pool = EncoderPool(self.model, slots, calls, triton=triton)
        if calls.is_capturing:
            torch.cuda.synchronize(device)  # its buffers are filled on another stream
        self.mel_stream().warm_up(most_streams)
        with self.beside():
            self.pool.warm_up(most_streams)

    def clear_captures(self) -> None:
        """Drop all captured graphs."""
        self.calls.clear()
        self.feature_calls.clear()
        if self.pool is not None:
            self.pool.calls.clear()

    @property
    def stream_bytes(self) -> int:
        """Bytes of the caches of a stream."""
        return stream_bytes(self.model.config)

    def mel_stream(self) -> WhisperLogMelStream:
        """A stream of the features."""
        frames = self.model.config.frames_per_code
        return WhisperLogMelStream(self.features, frames, self.feature_calls, self.before)

    def stream(self) -> SpeechTokenizerStream:
        """A stream with its own caches, 2 * layers * max_positions * d_model values: `reset` it to reuse
        it."""
        return SpeechTokenizerStream(self)


@dataclass(frozen=True, slots=True, eq=False)
class EncodeWork(Work[tuple[Codes | CodesArrival, EncoderState]]):
    """The next frames of a segment [n_mels, T]; its result is their codes and the new caches."""

    tokenizer: SpeechTokenizer
    mel: Tensor
    state: EncoderState

    @property
    def stage(self) -> Stage:
        return "encode"

    @property
    def batch_key(self) -> Hashable:
        is_short = self.mel.shape[1] <= MOST_BATCHED_CODES * self.tokenizer.model.config.frames_per_code
        if not (is_short and self.tokenizer.takes_batches):
            return None
        # In a pool each stream can have its own number of codes.
        size = 0 if self.state.slot >= 0 else self.mel.shape[1]
        return "encode", id(self.tokenizer), size

    @property
    def is_ready(self) -> bool:
        """While the device encodes, the next frames gather."""
        return self.tokenizer.is_free

    def fits(self, batch: Sequence[EncodeWork]) -> bool:
        return len(batch) < MOST_STREAMS

    def run(self) -> tuple[Codes | CodesArrival, EncoderState]:
        if self.tokenizer.streams is None:
            return self.tokenizer.encode_step(self.mel, self.state)
        return self.tokenizer.start_batch([self.mel], [self.state])[0]

    def run_together(self, batch: Sequence[EncodeWork]) -> list[Any]:
        tokenizer = self.tokenizer
        start = tokenizer.encode_batch if tokenizer.streams is None else tokenizer.start_batch
        return list(start([work.mel for work in batch], [work.state for work in batch]))


class SpeechTokenizerStream:
    """Incremental codes of arriving speech (see the module docstring)."""

    @torch.inference_mode()
    def __init__(self, tokenizer: SpeechTokenizer) -> None:
        self._tokenizer = tokenizer
        self._mel = tokenizer.mel_stream()
        # Steps write to its buffers but never change the state object, so each segment starts from it.
        pooled = None if tokenizer.pool is None else tokenizer.pool.state(self)
        self._segment_start = pooled or tokenizer.model.initial_state()
        self.reset()

    @property
    def codes(self) -> list[int]:
        """All codes since the last `reset`, after the latest revision."""
        return [*self._closed, *self._open]

    @property
    def maximum(self) -> float | None:
        """Maximum of the segment so far, or of the one before: the best `prior` for the next signal. None
        before the first code."""
        maximum = self._mel.maximum
        return maximum if math.isfinite(maximum) else self._previous

    def reset(self, prior: float | None = None) -> None:
        """Clear the state: the next sample is the first of a new signal. `prior` is the maximum of an earlier
        signal of the same microphone; None selects the bundle's prior."""
        self._closed: list[int] = []  # codes of earlier segments
        self._previous: float | None = None
        self.revisions = 0
        """Number of revisions since the last `reset`."""
        self._start_segment(prior)

    def _start_segment(self, prior: float | None) -> None:
        self._mel.reset(prior)
        self._open: list[int] = []  # codes of this segment
        self._state = self._segment_start
        self._room = self._tokenizer.segment_samples

    def push(self, pcm: Pcm) -> Task[Codes]:
        """Add samples [n], any n; returns the new codes. Earlier codes may change: see `codes`.
        AudioInputError as in `check_pcm`."""
        pcm = check_pcm(pcm)
        before = len(self._closed) + len(self._open)
        while pcm.size:
            part, pcm = pcm[: self._room], pcm[self._room :]
            self._room -= part.size
            yield from self._extend((yield from self._mel.push(part)))
            revised = self._mel.revision()
            if revised is not None:
                self.revisions += 1
                # Every code of the segment was made with the wrong loudness: all of it is encoded again, from
                # its start.
                self._open, self._state = [], self._segment_start
                yield from self._extend(revised)
            if self._room == 0:
                yield from self._extend((yield from self._mel.tail()))
                self._closed += self._open
                self._previous = self.maximum
                # The same microphone and voice: the loudest moment so far is the best estimate for the next
                # segment.
                self._start_segment(self._previous)
        return np.array(self.codes[before:], np.int64)

    def tail(self) -> Task[Codes]:
        """Codes of the pending samples, as if the speech ended here. The stream is not changed."""
        codes, _ = yield from self._advance((yield from self._mel.tail()))
        return codes

    def _extend(self, mel: Tensor) -> Task[None]:
        codes, self._state = yield from self._advance(mel)
        self._open += codes.tolist()

    def _advance(self, mel: Tensor) -> Task[tuple[Codes, EncoderState]]:
        if mel.shape[1] == 0:
            return _no_codes(), self._state
        codes, state = yield EncodeWork(self._tokenizer, mel, self._state)
        if isinstance(codes, CodesArrival):
            codes = _checked((yield codes).numpy())
        return codes, state


class StreamPool:
    """Streams that are reused from turn to turn, because each holds caches of fixed size to which captured
    graphs of a GPU refer."""

    def __init__(self, tokenizer: SpeechTokenizer) -> None:
        self._tokenizer = tokenizer
        self._free: list[SpeechTokenizerStream] = []

    def acquire(self, prior: float | None = None) -> SpeechTokenizerStream:
        """A stream that was reset; `prior` as in `SpeechTokenizerStream.reset`."""
        stream = self._free.pop() if self._free else self._tokenizer.stream()
        stream.reset(prior)
        return stream

    def release(self, stream: SpeechTokenizerStream) -> None:
        """Return a stream to the pool and clear its audio."""
        stream.reset()
        self._free.append(stream)

    def clear(self) -> None:
        """Drop the free streams."""
        self._free.clear()


def _no_codes() -> Codes:
    return np.zeros(0, np.int64)


def _to_codes(codes: Tensor) -> Codes:
    return _checked(codes[0].cpu().numpy())


def _checked(found: Codes) -> Codes:
    if found.min(initial=0) < 0:
        raise ExecutorError(
            "The speech encoder returned values that are not finite.",
            "Check its weights: copy or download the bundle again.",
        )
    return found
