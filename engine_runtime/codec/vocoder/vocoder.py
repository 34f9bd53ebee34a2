"""Vocoder: mel to 24 kHz (the bundle's rate) PCM, one-shot or in seamless chunks.

In: log-mel [n_mels, frames] of exactly the `MelSpec` the network was trained on. Out: mono float32 PCM,
`mel.hop` samples per frame. Two kinds: BigVGAN (windows with context, or levels with state; equal to the
one-shot call within 1e-5) and HiFT (a cross-fade as in the released codec). Stateless; a `VocoderStream`
holds the state of a reply. Runs in the thread of its caller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from math import prod
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from engine_runtime.codec.vocoder.bigvgan_stream import BigVGANStream, BigVGANWindows, Windows
from engine_runtime.codec.vocoder.cpu_bigvgan import CpuBigVGAN
from engine_runtime.codec.vocoder.cpu_bigvgan_stream import CpuBigVGANStream
from engine_runtime.codec.vocoder.hift_stream import MOST_STREAMS, DrawNoise, HiFTNetwork, HiFTStream
from engine_runtime.codec.vocoder.stream import GraphedFrames, VocoderStream
from engine_runtime.cuda.graphs import padded_size
from engine_runtime.errors import BundleError, ExecutorError, MelMismatchError
from engine_runtime.models.bigvgan import receptive_field
from engine_runtime.models.bigvgan_package import BigVGAN
from engine_runtime.models.hift import HIFT_OVERLAP_FRAMES, HiFT
from engine_runtime.types import Mel, MelSpec, Pcm


class Vocoder:
    """A vocoder network and its mel.

    `left_context_frames` and `right_context_frames` default to the needs of the kind: BigVGAN's receptive
    field, HiFT's overlap. Less than BigVGAN's receptive field lowers latency but is not exact (`is_exact`).
    `seed` is that of HiFT's noise; every stream starts from it. `graphed` selects the chunk sizes to capture,
    if any; `triton` enables a kernel in HiFT; `keep_state` makes the streams of an exact BigVGAN keep the
    state of its levels (`cpu_bigvgan`), on a CPU. `streams` is the number of replies at once at most; HiFT
    runs equal chunks of up to 16 of them in one call. Raises BundleError if network and mel do not match.
    """

    def __init__(
        self,
        network: BigVGAN | HiFT,
        mel: MelSpec,
        *,
        left_context_frames: int | None = None,
        right_context_frames: int | None = None,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        graphed: GraphedFrames | None = None,
        triton: bool = False,
        keep_state: bool = False,
        streams: int = 1,
    ) -> None:
        self.mel, self.sample_rate = mel, mel.sample_rate
        self.kind: Literal["bigvgan", "hift"] = "hift" if isinstance(network, HiFT) else "bigvgan"
        self._seed = seed
        network = network.to(device).eval()
        self._graphed = graphed
        joins = min(MOST_STREAMS, padded_size(streams))
        self.most_streams = joins if isinstance(network, HiFT) else 1
        """Streams of one call."""
        self.like = torch.zeros(0, dtype=dtype, device=device)
        """A tensor with the dtype and device of the network."""
        if isinstance(network, HiFT):
            stated = {"in_channels": mel.n_mels, "sampling_rate": mel.sample_rate, "hop": mel.hop}
            _check_network({key: getattr(network.config, key) for key in stated}, stated)
            left = right = HIFT_OVERLAP_FRAMES
        else:
            config = {**network.h, "hop_size": prod(network.h.upsample_rates)}
            _check_network(config, bigvgan_names(mel))
            left, right = receptive_field(network.h)
        self.left_context_frames = left if left_context_frames is None else left_context_frames
        self.right_context_frames = right if right_context_frames is None else right_context_frames
        if self.kind == "hift" and self.left_context_frames != self.right_context_frames:
            raise BundleError(
                "a HiFT vocoder recomputes as many frames as it holds back: make left_context_frames and "
                "right_context_frames of [vocoder] equal"
            )
        self.is_exact = self.kind == "bigvgan" and (
            self.left_context_frames >= left and self.right_context_frames >= right
        )
        self._network: BigVGAN | HiFT
        self.network: Windows | CpuBigVGAN | HiFTNetwork
        """The network that streams call; engines may replace it, but `vocode` does not use them."""
        if isinstance(network, HiFT):
            self._network = network.fold().lower(dtype)
            if triton:
                from engine_runtime.codec.vocoder.triton_hift import use_kernels

                use_kernels(network)
            self.network = network
        elif keep_state and self.is_exact:
            self.network = CpuBigVGAN(network, dtype)
            self._network = network.to(dtype)
        else:
            self._network = network.to(dtype)
            self.network = BigVGANWindows(network)

    def require(self, mel: MelSpec) -> None:
        """Raise MelMismatchError, showing both, unless `mel` is the mel that this vocoder was trained on."""
        names = [
            field.name
            for field in fields(MelSpec)
            if getattr(mel, field.name) != getattr(self.mel, field.name)
        ]
        if names:
            raise MelMismatchError(
                "the vocoder was not trained on this mel; they differ in {names}.\n  offered: {mel}\n  "
                "vocoder: {trained_on}.",
                "Use a vocoder made for this mel.",
                names=", ".join(names),
                mel=mel,
                trained_on=self.mel,
            )

    @torch.inference_mode()
    def vocode(self, mel: Mel) -> Pcm:
        """PCM [frames * hop] of a complete mel [n_mels, frames], in one call. Raises as `check` does."""
        self.check(torch.as_tensor(mel))
        if mel.shape[1] == 0:
            return np.zeros(0, dtype=np.float32)
        frames = torch.as_tensor(mel).to(self.like.device)[None]
        if isinstance(self._network, HiFT):
            wave = self._network(frames, self._draws()(mel.shape[1]))
        else:
            wave = self._network(frames.to(self.like))[0]
        return wave[0].float().cpu().numpy()  # type: ignore[no-any-return]

    def stream(self) -> VocoderStream:
        """A new stream."""
        left, right = self.left_context_frames, self.right_context_frames
        if self.kind == "hift":
            hift = cast(HiFTNetwork, self.network)
            return HiFTStream(
                hift, right, self._draws, self.check, self.like, self._graphed, self.most_streams
            )
        if isinstance(self.network, CpuBigVGAN):
            return CpuBigVGANStream(self.network, self.check)
        windows = cast(Windows, self.network)
        return BigVGANStream(windows, self.mel.n_mels, (left, right), self.check, self.like, self._graphed)

    def warm_up(self, packets: Sequence[int], tails: Sequence[int] = ()) -> None:
        """Run every number of streams with packets of these sizes in frames, and one stream also with the
        tails, to capture graphs and to let libraries choose algorithms."""
        count = self.most_streams
        while count:
            streams = [self.stream() for _ in range(count)]
            for size in packets if count > 1 else (*packets, *tails):
                mel = torch.zeros((self.mel.n_mels, size), device=self.like.device)
                works = [stream.push_work(mel) for stream in streams]
                works[0].run_together(works)
            count //= 2
        streams[0].finish()

    def check(self, mel: Tensor) -> None:
        """Raise MelMismatchError for a wrong number of bands, ExecutorError for values that are not finite.

        Values are checked on the CPU only, because elsewhere that would synchronize with the device.
        `ReplyVoice` checks the samples.
        """
        if mel.ndim != 2 or mel.shape[0] != self.mel.n_mels:
            raise MelMismatchError(
                "the vocoder needs a mel of {n_mels} bands x frames, got {shape}; use the flow and the "
                "vocoder of one bundle",
                n_mels=self.mel.n_mels,
                shape=list(mel.shape),
            )
        if mel.device.type == "cpu" and not bool(torch.isfinite(mel).all()):
            frame = int((~torch.isfinite(mel).all(dim=0)).nonzero()[0])
            raise ExecutorError(
                "the mel for the vocoder contains values that are not finite (first in frame {frame} of "
                "{shape}); run the flow in float32 or check its weights",
                frame=frame,
                shape=mel.shape[1],
            )

    def _draws(self) -> DrawNoise:
        """HiFT's noise from the start of the seed."""
        network, generator = self._network, torch.Generator(self.like.device).manual_seed(self._seed)
        assert isinstance(network, HiFT)
        return lambda frames: network.draw_noise(frames, generator)


def bigvgan_names(mel: MelSpec) -> dict[str, float]:
    """The mel in the names of BigVGAN's configs."""
    return {
        "num_mels": mel.n_mels,
        "sampling_rate": mel.sample_rate,
        "n_fft": mel.n_fft,
        "hop_size": mel.hop,
        "win_size": mel.win,
        "fmin": mel.fmin,
        "fmax": mel.fmax,
    }


def _check_network(config: Mapping[str, Any], wanted: Mapping[str, float]) -> None:
    """Raise MelMismatchError if a network's mel differs from the expected one; None means unspecified."""
    wrong = [key for key, value in wanted.items() if config.get(key, value) not in (value, None)]
    if wrong:
        built, stated = ({key: values[key] for key in wrong} for values in (config, wanted))
        raise MelMismatchError(
            "the vocoder network and its mel do not match.\n  network:  {built}\n  manifest: {stated}.",
            "Correct [vocoder.config] or [vocoder.mel].",
            built=built,
            stated=stated,
        )
