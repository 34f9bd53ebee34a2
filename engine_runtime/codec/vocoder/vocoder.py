"""Vocoder: mel to 24 kHz (the bundle's rate) PCM, whole or in chunks that join without a seam.

In: log-mel [n_mels, frames] of exactly the `MelSpec` the network was trained on. Out: mono float32 PCM,
`mel.hop` samples per frame. Two kinds: BigVGAN (windows with context, or levels with state; equal to the
one-shot call within 1e-5) and HiFT (a cross-fade after the released codec's). Holds no state of a reply; a
`VocoderStream` does. Runs in the thread of its caller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from math import prod
from typing import Any, Literal, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from engine_runtime.codec.graphed import GraphedFrames
from engine_runtime.codec.vocoder.bigvgan_stream import BigVGANStream, BigVGANWindows, Windows
from engine_runtime.codec.vocoder.cpu_bigvgan import CpuBigVGAN
from engine_runtime.codec.vocoder.cpu_bigvgan_stream import CpuBigVGANStream
from engine_runtime.codec.vocoder.hift_stream import DrawNoise, HiFTNetwork, HiFTStream
from engine_runtime.errors import BundleError, ExecutorError, MelMismatchError
from engine_runtime.models.bigvgan import receptive_field
from engine_runtime.models.bigvgan_package import BigVGAN
from engine_runtime.models.hift import HIFT_OVERLAP_FRAMES, HiFT
from engine_runtime.types import Mel, MelSpec, Pcm


class VocoderStream(Protocol):
    """One reply. `finish` gives the rest and leaves the stream as new."""

    def push(self, mel: Mel) -> Pcm:
        """Add frames [n_mels, frames]; returns the samples that are final now, maybe none."""

    def finish(self) -> Pcm:
        """The samples that were held back; nothing follows."""

    def push_tensor(self, mel: Tensor) -> Tensor:
        """As `push`, but float32 tensors on the device, which it does not wait for."""

    def finish_tensor(self) -> Tensor:
        """As `finish`, but a tensor on the device."""

    def reset(self) -> None:
        """Forget the frames and samples that are held."""


class Vocoder:
    """A vocoder network and the mel it wants.

    `left_context_frames` and `right_context_frames` default to what the kind needs: BigVGAN's receptive
    field, HiFT's overlap. Less than BigVGAN's receptive field sounds earlier and is no longer exact
    (`is_exact`). `seed` is that of HiFT's noise; every stream starts from it. `graphed` tells which chunks
    are captured, if any; `triton` lets HiFT use a kernel; `keep_state` lets the streams of an exact BigVGAN
    keep the state of its levels (`cpu_bigvgan`), on a CPU. Raises BundleError where network and mel do not
    fit.
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
    ) -> None:
        self.mel, self.sample_rate = mel, mel.sample_rate
        self.kind: Literal["bigvgan", "hift"] = "hift" if isinstance(network, HiFT) else "bigvgan"
        self._seed = seed
        network = network.to(device).eval()
        self._graphed = graphed
        self.like = torch.zeros(0, dtype=dtype, device=device)
        """Has the number format and the device of the network."""
        if isinstance(network, HiFT):
            stated = {"in_channels": mel.n_mels, "sampling_rate": mel.sample_rate, "hop": mel.hop}
            _check_network({key: getattr(network.config, key) for key in stated}, stated)
            left = right = HIFT_OVERLAP_FRAMES
        else:
            config = {**network.h, "hop_size": prod(network.h.upsample_rates)}
            _check_network(config, _bigvgan_names(mel))
            left, right = receptive_field(network.h)
        self.left_context_frames = left if left_context_frames is None else left_context_frames
        self.right_context_frames = right if right_context_frames is None else right_context_frames
        if self.kind == "hift" and self.left_context_frames != self.right_context_frames:
            raise BundleError(
                "a HiFT vocoder repeats as many frames as it holds back: make left_context_frames and "
                "right_context_frames of [vocoder] equal"
            )
        self.is_exact = self.kind == "bigvgan" and (
            self.left_context_frames >= left and self.right_context_frames >= right
        )
        self._whole: BigVGAN | HiFT
        self.network: Windows | CpuBigVGAN | HiFTNetwork
        """What streams call; engines may take its place, `vocode` does not use them."""
        if isinstance(network, HiFT):
            self._whole = network.fold().lower(dtype)
            if triton:
                from engine_runtime.codec.vocoder.triton_hift import use_kernels

                use_kernels(network)
            self.network = network
        elif keep_state and self.is_exact:
            self.network = CpuBigVGAN(network, dtype)
            self._whole = network.to(dtype)
        else:
            self._whole = network.to(dtype)
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
                f"the vocoder was not trained on this mel; they differ in {', '.join(names)}.\n"
                f"  offered: {mel}\n  vocoder: {self.mel}\nUse a vocoder made for this mel."
            )

    @torch.inference_mode()
    def vocode(self, mel: Mel) -> Pcm:
        """PCM [frames * hop] of a whole mel [n_mels, frames], in one call. Raises as `check` does."""
        self.check(torch.as_tensor(mel))
        if mel.shape[1] == 0:
            return np.zeros(0, dtype=np.float32)
        frames = torch.as_tensor(mel).to(self.like.device)[None]
        if isinstance(self._whole, HiFT):
            wave = self._whole(frames, self._draws()(mel.shape[1]))
        else:
            wave = self._whole(frames.to(self.like))[0]
        return wave[0].float().cpu().numpy()  # type: ignore[no-any-return]

    def stream(self) -> VocoderStream:
        """A new stream."""
        left, right = self.left_context_frames, self.right_context_frames
        if self.kind == "hift":
            hift = cast(HiFTNetwork, self.network)
            return HiFTStream(hift, right, self._draws, self.check, self.like, self._graphed)
        if isinstance(self.network, CpuBigVGAN):
            return CpuBigVGANStream(self.network, self.check)
        windows = cast(Windows, self.network)
        return BigVGANStream(windows, self.mel.n_mels, (left, right), self.check, self.like, self._graphed)

    def warm_up(self, frames: Sequence[int]) -> None:
        """Make a stream of packets of so many frames, for what it captures and for the libraries' choices."""
        stream = self.stream()
        for size in frames:
            stream.push_tensor(torch.zeros((self.mel.n_mels, size), device=self.like.device))
        stream.finish()

    def check(self, mel: Tensor) -> None:
        """Raise MelMismatchError for a wrong number of bands, ExecutorError for values that are not finite.

        The values are looked at on the CPU only: elsewhere that would wait for the device. `ReplyVoice` looks
        at the samples.
        """
        if mel.ndim != 2 or mel.shape[0] != self.mel.n_mels:
            raise MelMismatchError(
                f"the vocoder wants a mel of {self.mel.n_mels} bands x frames, got {list(mel.shape)}; "
                "use the flow and the vocoder of one bundle"
            )
        if mel.device.type == "cpu" and not bool(torch.isfinite(mel).all()):
            frame = int((~torch.isfinite(mel).all(dim=0)).nonzero()[0])
            raise ExecutorError(
                f"the mel for the vocoder holds values that are not finite (first in frame {frame} of "
                f"{mel.shape[1]}); run the flow in float32 or check its weights"
            )

    def _draws(self) -> DrawNoise:
        """HiFT's noise from the start of the seed."""
        network, generator = self._whole, torch.Generator(self.like.device).manual_seed(self._seed)
        assert isinstance(network, HiFT)
        return lambda frames: network.draw_noise(frames, generator)


def _bigvgan_names(mel: MelSpec) -> dict[str, float]:
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
    """Raise MelMismatchError if what a network says of its mel is not what is wanted; None says nothing."""
    wrong = [key for key, value in wanted.items() if config.get(key, value) not in (value, None)]
    if wrong:
        built, stated = ({key: values[key] for key in wrong} for values in (config, wanted))
        raise MelMismatchError(
            f"the vocoder network and its mel do not fit.\n  network:  {built}\n  manifest: {stated}\n"
            "Correct [vocoder.config] or [vocoder.mel]."
        )
