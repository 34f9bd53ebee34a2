"""Speech tokenizer: microphone PCM to speech codes, whole or while the user is still speaking.

In: mono PCM at `sample_rate`. Out: codes, one per `samples_per_code` samples. Engine thread; a stream belongs
to one user turn at a time.

Samples are cut into segments of 30 s (what the position table holds). Each is encoded alone: positions,
caches, mirrored edges and the maximum of the normalization start anew. The last segment is filled up with
zeros to whole codes: ceil(samples / samples_per_code) codes.

A stream gives a code as soon as its samples are there: 2.5 ms (half an STFT window less a hop) after its last
sample, or at once at the end of a segment. It keeps the STFT overlap, both convolution caches and the keys
and values of each layer, so that no sample is encoded twice but for a revision.

`push` of everything, then `tail`, gives the codes of `encode` for any chunks with "running_max" normalization
(hidden states differ by fp32 rounding, 1e-5, far below the distance between two code borders). With
"segment_max" the stream cannot know the maximum of a segment before its end: codes are made with an estimate
and change when that turns out wrong (features.py says when), so that `codes` counts and not what `push` gave.
The first segment starts from the maximum that `reset` is given, a later one from that of the segment before.
What is left to `encode` is what happens after the last revision; `encode_streamed` computes the same codes
from the whole signal. `moss-voice verify` shows how many agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from engine_runtime.codec.speech_tokenizer.features import Normalization, WhisperLogMel, WhisperLogMelStream
from engine_runtime.codec.speech_tokenizer.graphed_encoder import GraphedEncoder
from engine_runtime.cuda.graphs import GraphedCalls
from engine_runtime.errors import AudioInputError, ExecutorError
from engine_runtime.models.whisper_vq import EncoderState, WhisperVQ
from engine_runtime.types import Codes, Pcm

PEAK_LIMIT = 100.0
"""Louder samples (40 dB over full scale) are integers that nobody scaled, or garbage."""


Step = Callable[[Tensor, EncoderState], tuple[Tensor, EncoderState]]
"""mel [1, n_mels, T] and the caches of a segment -> hidden states [1, T / frames_per_code, d], new caches."""


class SpeechTokenizer:
    """The encoder network with its features; holds no state of a turn.

    The network is moved to `device` and `dtype`; the features are computed in fp32 on the same device.
    `calls` captures what a stream does with one code.
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
        """What continues a segment; an engine or a session of onnxruntime may take its place."""
        self.backend = "torch"
        """What runs `step`, for reports."""

    @property
    def sample_rate(self) -> int:
        """Samples per second of the PCM that goes in."""
        return self.features.sample_rate

    @property
    def samples_per_code(self) -> int:
        """Samples that one code stands for."""
        return self.features.hop * self.model.config.frames_per_code

    @property
    def segment_samples(self) -> int:
        """Samples of a whole segment."""
        return self.features.hop * self.model.config.segment_frames

    @property
    def codebook_size(self) -> int:
        """Codes are 0 .. codebook_size - 1."""
        return self.model.config.codebook_size

    @property
    def is_revised(self) -> bool:
        """Whether a stream estimates what `encode` knows, so that its codes may change and differ."""
        return self.features.is_revised

    @torch.inference_mode()
    def encode(self, pcm: Pcm) -> Codes:
        """Codes of a whole signal [n], as the model was trained. AudioInputError as in `check_pcm`.

        Raises ExecutorError if hidden states or codebook hold values that are not finite; a stream as well.
        """
        codes = [_no_codes()]
        for segment in self._segments(check_pcm(pcm)):
            codes.append(self.encode_mel(self.features(self._filled(segment))))
        return np.concatenate(codes)

    @torch.inference_mode()
    def encode_streamed(self, pcm: Pcm, prior: float | None = None) -> Codes:
        """Codes that a stream ends up with after `reset(prior)`: its plain reference implementation."""
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

    def stream(self) -> SpeechTokenizerStream:
        """A stream with its own caches, 2 * layers * max_positions * d_model values: `reset` and reuse it."""
        return SpeechTokenizerStream(self)


class SpeechTokenizerStream:
    """Codes while speech arrives (see the module docstring for when)."""

    @torch.inference_mode()
    def __init__(self, tokenizer: SpeechTokenizer) -> None:
        self._tokenizer = tokenizer
        self._model = tokenizer.model
        self._mel = WhisperLogMelStream(
            tokenizer.features, tokenizer.model.config.frames_per_code, tokenizer.calls
        )
        # Steps write into its buffers but never change the state itself, so each segment starts from it.
        self._segment_start = tokenizer.model.initial_state()
        self.reset()

    @property
    def codes(self) -> list[int]:
        """All codes that `push` gave since the last `reset`, as they are after the latest revision."""
        return [*self._closed, *self._open]

    @property
    def maximum(self) -> float | None:
        """Maximum of the segment so far, or of the one before: the best `prior` for the next signal. None as
        long as no code was made."""
        maximum = self._mel.maximum
        return maximum if math.isfinite(maximum) else self._previous

    def reset(self, prior: float | None = None) -> None:
        """Forget everything: the next sample is the first of a new signal. `prior` is the maximum of an
        earlier signal of the same microphone; None stands for the bundle's prior."""
        self._closed: list[int] = []  # codes of the segments before this one
        self._previous: float | None = None
        self.revisions = 0
        """How often a segment was encoded anew since."""
        self._start_segment(prior)

    def _start_segment(self, prior: float | None) -> None:
        self._mel.reset(prior)
        self._open: list[int] = []  # codes of this segment
        self._state = self._segment_start
        self._room = self._tokenizer.segment_samples

    @torch.inference_mode()
    def push(self, pcm: Pcm) -> Codes:
        """Take samples [n], any n; give the new codes. Earlier ones may change, too: see `codes`.
        AudioInputError as in `check_pcm`."""
        pcm = check_pcm(pcm)
        before = len(self._closed) + len(self._open)
        while pcm.size:
            part, pcm = pcm[: self._room], pcm[self._room :]
            self._room -= part.size
            self._extend(self._mel.push(part))
            revised = self._mel.revision()
            if revised is not None:
                self.revisions += 1
                self._open, self._state = [], self._segment_start
                self._extend(revised)
            if self._room == 0:
                self._extend(self._mel.tail())
                self._closed += self._open
                self._previous = self.maximum
                self._start_segment(self._previous)
        return np.array(self.codes[before:], np.int64)

    @torch.inference_mode()
    def tail(self) -> Codes:
        """Codes of the samples not yet covered if the speech ended here. The stream stays as it was."""
        before = self._state
        codes = self._advance(self._mel.tail())
        self._state = before
        return codes

    def _extend(self, mel: Tensor) -> None:
        self._open += self._advance(mel).tolist()

    def _advance(self, mel: Tensor) -> Codes:
        if mel.shape[1] == 0:
            return _no_codes()
        hidden, self._state = self._tokenizer.step(mel.to(self._tokenizer.dtype)[None], self._state)
        if hidden.shape[1] > 1:
            return _to_codes(self._model.quantize(hidden))
        return _to_codes(self._tokenizer.calls.run_copied("codes", self._model.quantize, hidden))


def check_pcm(pcm: Pcm) -> Pcm:
    """Samples [n] as fp32; AudioInputError if not mono, not float, not finite or far too loud."""
    if pcm.ndim != 1:
        raise AudioInputError(
            f"Speech must be one channel of samples, got an array of shape {pcm.shape}. Pass one channel."
        )
    if not np.issubdtype(pcm.dtype, np.floating):
        raise AudioInputError(
            f"Speech samples must be floating point in [-1, 1], got {pcm.dtype}. Scale integers first."
        )
    peak = float(np.abs(pcm).max(initial=0.0))
    if not np.isfinite(peak):
        raise AudioInputError(
            "Speech samples contain NaN or infinity. Check the recording or the driver of the input device."
        )
    if peak > PEAK_LIMIT:
        raise AudioInputError(
            f"Speech samples reach {peak:.6g}, but full scale is 1.0. Scale integers first."
        )
    return np.ascontiguousarray(pcm, dtype=np.float32)


def _no_codes() -> Codes:
    return np.zeros(0, np.int64)


def _to_codes(codes: Tensor) -> Codes:
    found: Codes = codes[0].cpu().numpy()
    if found.min(initial=0) < 0:
        raise ExecutorError(
            "The speech encoder gave values that are not finite, so that nothing was understood. "
            "Check its weights: copy or download the bundle again."
        )
    return found
