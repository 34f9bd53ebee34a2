"""Spectral features: Whisper log-mel of the speech encoder, and the codec mel between flow and vocoder.

In: mono PCM tensors [..., samples]. Out: log-mels [..., n_mels, frames], on the device of the input,
differentiable, fp32. Plain modules without state, so training runs them on CUDA batches, in any thread;
`WhisperLogMelStream` (log_mel_stream.py) computes the Whisper log-mel incrementally, in the engine thread.

Edges of the Whisper log-mel. The STFT is centred: frame t covers samples t*hop - n_fft/2 .. t*hop + n_fft/2 -
1 of its segment. The start of the segment has reflect padding (the edge sample is not repeated). So has its
end, *after* the segment was zero-padded to complete codes; the frame centred on the end itself is dropped, so
n samples yield n / hop frames, and only the last frame covers reflected samples of the end, n_fft/2 - hop of
them (2.5 ms). Hence frame t is final as soon as t*hop + n_fft/2 samples of the segment have arrived, or the
segment is full; only the last frame of a signal that stops earlier depends on where it stops. The stream
waits for those samples and reflects only at the true end: that, and a running maximum, make streamed frames
equal to those of the complete segment.

Normalization: log10 power is floored at 8 below a ceiling, then (x + 4) / 4. "segment_max" uses the maximum
of the complete segment as ceiling, as the released model was trained; "running_max" uses the maximum over the
frames up to and including the current one, so no frame depends on later ones (`torch.cummax` over frames).
Neither is ever below `prior`, the initial value of a stream: after leading silence, a maximum that starts at
minus infinity would put the floor below the silence itself, which yields values that "segment_max" never
produces.

A stream with "segment_max" cannot know the maximum in advance. Its ceiling starts at the prior, rises with
the maximum so far, and is corrected by a revision: once the maximum has moved away from the ceiling used for
most of the segment, the segment is rescaled (`Ceiling`). So the prior matters only up to the first revision.
"running_max" needs no revision: streaming computes the same values as training.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine_runtime.codec.speech_tokenizer.mel_filters import slaney_mel_filters
from engine_runtime.types import MelSpec

Normalization = Literal["segment_max", "running_max"]

SPEECH_CEILING = 1.0
"""Maximum of the log10 mel power of close speech; of 3 s of the stored speech it is 0.92 to 1.42."""
FIRST_REVISION = 12
"""Codes (0.96 s) after which a stream first compares its ceiling with the maximum so far."""
LEAST_BETWEEN_REVISIONS = 6
"""Minimum distance of two revisions in codes (0.48 s), so that a rising level causes one revision and not
many."""
MOST_DRIFT = 0.1
"""Difference of ceiling and maximum, in decades of power (1 dB), that is tolerated without a revision."""

POWER_FLOOR = 1e-10
DYNAMIC_RANGE = 8.0  # decades of power below the maximum
MAGNITUDE_FLOOR = 1e-5
MAGNITUDE_EPSILON = 1e-9


def _fourier(size: int) -> Tensor:
    """Real and imaginary parts of the transform of real values [size], as a matrix [size, 2 * bins]."""
    index, bins = torch.arange(size), torch.arange(size // 2 + 1)
    angle = (index[:, None] * bins % size).double() * (2 * math.pi / size)
    return torch.cat((angle.cos(), angle.sin()), dim=1).float()


class WhisperLogMel(nn.Module):
    """Log-mel of the speech encoder: window 25 ms, hop 10 ms, full band."""

    window: Tensor
    filters: Tensor
    fourier: Tensor

    def __init__(
        self,
        sample_rate: int,
        n_mels: int,
        normalization: Normalization = "segment_max",
        prior: float | None = None,
    ) -> None:
        """`prior` is the initial ceiling of a stream. None means SPEECH_CEILING with "segment_max", and no
        lower bound with "running_max"."""
        super().__init__()
        if normalization not in get_args(Normalization):
            raise ValueError(f"normalization {normalization!r} is not one of {get_args(Normalization)}")
        self.sample_rate = sample_rate
        self.n_mels = n_mels
        self.n_fft = sample_rate // 40
        self.hop = sample_rate // 100
        self.normalization = normalization
        self.is_revised = normalization == "segment_max"
        """Whether a stream estimates the ceiling, and so may have to revise it."""
        self.prior = prior if prior is not None else SPEECH_CEILING if self.is_revised else -math.inf
        filters = slaney_mel_filters(sample_rate, self.n_fft, n_mels, 0.0, sample_rate / 2)
        self.register_buffer("window", torch.hann_window(self.n_fft), persistent=False)
        self.register_buffer("filters", torch.from_numpy(filters).float(), persistent=False)
        self.register_buffer("fourier", _fourier(self.n_fft), persistent=False)

    def forward(self, pcm: Tensor) -> Tensor:
        """One segment: [..., samples] -> [..., n_mels, samples / hop].

        samples: a multiple of hop above n_fft / 2, else ValueError.
        """
        samples = pcm.shape[-1]
        if samples % self.hop or samples <= self.n_fft // 2:
            raise ValueError(f"{samples} samples: a multiple of {self.hop} above {self.n_fft // 2} is needed")
        log_power = self.log_power(self.mirror(pcm, start=True, end=True))
        if self.normalization == "running_max":
            return self.scale(log_power, self.running_maximum(log_power).clamp_min(self.prior))
        return self.scale(log_power, log_power.amax(dim=(-2, -1))[..., None])

    def start_ceiling(self, estimate: float | None) -> float:
        """Initial ceiling of a stream, given an estimate of the segment's maximum; "running_max" ignores the
        estimate, because it was trained with the bundle's prior."""
        return estimate if estimate is not None and self.is_revised else self.prior

    def streamed(self, pcm: Tensor, prior: float, code_frames: int, codes: int) -> tuple[Tensor, float]:
        """One segment [samples] as scaled by a stream that received all of it, and the stream's maximum: the
        reference implementation of `WhisperLogMelStream`.

        prior: the initial ceiling. codes: number of codes of `code_frames` returned by `push`; those of
            `tail` do not change the ceiling. Samples as in `forward`.
        """
        log_power = self.log_power(self.mirror(pcm, start=True, end=True))
        maxima = self.running_maximum(log_power)
        ceiling, ends = Ceiling(prior), maxima[code_frames - 1 :: code_frames][:codes].tolist()
        if self.is_revised:
            ceiling.revise(ends)
        return self.scale(log_power, maxima.clamp_min(ceiling.value)), max(ends, default=-math.inf)

    def continued(
        self, pcm: Tensor, ceiling: Tensor, maximum: Tensor, *, start: bool, end: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Frames within segments: scaled, their log power, and the maximum of the segment up to each.

        pcm: [B, samples], including half a window before the first frame, except at the start of the segment.
            ceiling: [B], lower bound of the ceiling. maximum: [B], of the frames before.
        """
        log_power = self.log_power(self.mirror(pcm, start=start, end=end))
        maxima = self.running_maximum(log_power, maximum)
        return self.scale(log_power, torch.maximum(maxima, ceiling[:, None])), log_power, maxima

    def mirror(self, pcm: Tensor, *, start: bool, end: bool) -> Tensor:
        """Add the reflect padding of the first and the last frame of a segment."""
        before = self.n_fft // 2
        after = self.n_fft // 2 - self.hop
        parts = [pcm]
        if start:
            parts.insert(0, pcm[..., 1 : before + 1].flip(-1))
        if end:
            parts.append(pcm[..., -after - 1 : -1].flip(-1))
        return torch.cat(parts, dim=-1)

    def log_power(self, samples: Tensor) -> Tensor:
        """log10 mel power of each complete window in [..., n]: [..., n_mels, (n - n_fft) // hop + 1]."""
        with torch.autocast(samples.device.type, enabled=False):
            windows = samples.float().unfold(-1, self.n_fft, self.hop) * self.window
            power = self.power(windows)
            mel_power: Tensor = power @ self.filters.T
            return mel_power.clamp_min(POWER_FLOOR).log10().transpose(-1, -2)

    def power(self, windows: Tensor) -> Tensor:
        """Power spectra of [..., n_fft]: [..., n_fft / 2 + 1]."""
        if windows.is_cuda:
            return self.power_by_product(windows)
        spectrum: Tensor = torch.fft.rfft(windows)
        return spectrum.real.square() + spectrum.imag.square()

    def power_by_product(self, windows: Tensor) -> Tensor:
        """The same as a product with the matrix of the transform, as exact."""
        # In place of cuFFT, with which a process that shares the GPU now and then ended in an illegal memory
        # access at the first transform on a stream of its own (9 of 179 loads; none of 128 with the product).
        real, imaginary = (windows @ self.fourier).chunk(2, dim=-1)
        return real.square() + imaginary.square()

    @staticmethod
    def running_maximum(log_power: Tensor, before: Tensor | None = None) -> Tensor:
        """Maximum over bands and frames so far: [..., n_mels, T] -> [..., T].

        before: [...], the maximum of earlier frames.
        """
        peak = log_power.amax(dim=-2)
        if before is not None:
            peak = torch.maximum(peak, before[..., None])
        return peak.cummax(dim=-1).values

    @staticmethod
    def scale(log_power: Tensor, ceiling: Tensor) -> Tensor:
        """Clamp [..., n_mels, T] to the dynamic range below a ceiling that broadcasts to [..., T], and scale
        it to about [-1, 1]."""
        floored = torch.maximum(log_power, (ceiling - DYNAMIC_RANGE)[..., None, :])
        return (floored + 4.0) / 4.0


@dataclass(slots=True)
class Ceiling:
    """Decides when a stream rescales its segment, and with which ceiling (see the module docstring)."""

    value: float
    """Frames are scaled with the greater of this value and the maximum of the frames so far."""
    codes: int = 0
    revised_at: int = 0

    def revise(self, maxima: Iterable[float]) -> bool:
        """Update with the maximum of the segment up to the end of each new code; returns whether `value`
        changed."""
        moves = False
        for maximum in maxima:
            self.codes += 1
            is_due = self.codes >= max(FIRST_REVISION, self.revised_at + LEAST_BETWEEN_REVISIONS)
            if is_due and abs(maximum - self.value) > MOST_DRIFT:
                self.value, self.revised_at, moves = maximum, self.codes, True
        return moves


class CodecMel(nn.Module):
    """Log-mel between flow and vocoder: magnitudes, natural logarithm, frames = samples // hop."""

    window: Tensor
    filters: Tensor

    def __init__(self, spec: MelSpec) -> None:
        super().__init__()
        self.spec = spec
        filters = slaney_mel_filters(spec.sample_rate, spec.n_fft, spec.n_mels, spec.fmin, spec.fmax)
        self.register_buffer("window", torch.hann_window(spec.win), persistent=False)
        self.register_buffer("filters", torch.from_numpy(filters).float(), persistent=False)

    def forward(self, pcm: Tensor) -> Tensor:
        """[..., samples] -> [..., n_mels, samples // hop], with reflect padding at both ends.

        samples: more than (n_fft - hop) / 2, else ValueError.
        """
        spec = self.spec
        pad = (spec.n_fft - spec.hop) // 2
        if pcm.shape[-1] <= pad:
            raise ValueError(f"{pcm.shape[-1]} samples: more than {pad} are needed for the codec mel")
        flat = pcm.float().reshape(-1, pcm.shape[-1])
        with torch.autocast(pcm.device.type, enabled=False):
            spectrum = torch.stft(
                F.pad(flat[:, None], (pad, pad), mode="reflect")[:, 0],
                spec.n_fft,
                hop_length=spec.hop,
                win_length=spec.win,
                window=self.window,
                center=False,
                return_complex=True,
            )
            magnitude = (spectrum.real.square() + spectrum.imag.square() + MAGNITUDE_EPSILON).sqrt()
            mel = (self.filters @ magnitude).clamp_min(MAGNITUDE_FLOOR).log()
        return mel.reshape(*pcm.shape[:-1], *mel.shape[-2:])
