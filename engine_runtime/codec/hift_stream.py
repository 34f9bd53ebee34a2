"""HiFT chunk by chunk, with the protocol of the released codec (CosyVoice 2).

In: mel chunks. Out: samples, the last ones of each chunk held back for a cross-fade. HiFT has no exact
window: its phase is a running sum from the start of each call. So every call repeats the last frames, keeps
the excitation it had there, and fades from the old samples to the new ones with a Hamming window (its
halves add up to 1.08, as upstream). Runs in the thread of its caller.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from engine_runtime.models.hift import HiFT
from engine_runtime.types import Mel, Pcm

DrawNoise = Callable[[int], Tensor]
"""Noise of the excitation for a number of frames, [1, samples, harmonics + 1]; called once per network
call."""


class HiFTStream:
    """One reply. `overlap` frames are worked on twice and faded; the same number is held back."""

    def __init__(
        self,
        network: HiFT,
        overlap: int,
        new_noise: Callable[[], DrawNoise],
        check: Callable[[Mel], None],
        like: Tensor,
    ) -> None:
        self._network, self._overlap, self._new_noise, self._check = network, overlap, new_noise, check
        self._empty = like.new_zeros((1, network.config.in_channels, 0))
        samples = overlap * network.config.hop
        window = torch.hamming_window(2 * samples, periodic=False, dtype=torch.float32, device=like.device)
        self._fade_in, self._fade_out = window[:samples], window[samples:]
        self.reset()

    def reset(self) -> None:
        """Forget everything and start the noise anew."""
        self._frames = self._empty
        self._source = self._speech = self._fade_in[:0]
        self._noise = self._new_noise()

    def push(self, mel: Mel) -> Pcm:
        """Add frames [n_mels, frames]; returns the samples that are final now, maybe none."""
        self._check(mel)
        if mel.shape[1] == 0:
            return np.zeros(0, dtype=np.float32)
        self._frames = torch.cat((self._frames, torch.as_tensor(mel).to(self._empty)[None]), dim=2)
        if self._frames.shape[2] <= self._overlap:  # all of it would be held back
            return np.zeros(0, dtype=np.float32)
        speech = self._run()
        held = len(self._fade_in)
        self._frames = self._frames[:, :, self._frames.shape[2] - self._overlap :]
        self._speech = speech[len(speech) - held :]
        return speech[: len(speech) - held].cpu().numpy()

    def finish(self) -> Pcm:
        """The samples that were held back; the stream is as new afterwards."""
        if len(self._speech) == 0 and self._frames.shape[2] > 0:  # too short for a single call so far
            self._speech = self._run()
        pcm = self._speech.cpu().numpy()
        self.reset()
        return pcm

    @torch.inference_mode()
    def _run(self) -> Tensor:
        """Samples of the kept frames, faded in over what was held back before. Keeps the excitation."""
        frames, held = self._frames, len(self._fade_in)
        noise = self._noise(frames.shape[2]).to(frames)
        source = self._network.source(frames, noise)[0].float()
        source[: len(self._source)] = self._source
        self._source = source[len(source) - held :] if len(source) > held else source
        speech = self._network.decode(frames, source[None].to(frames.dtype))[0]
        if len(self._speech):
            speech[:held] = speech[:held] * self._fade_in + self._speech * self._fade_out
        return speech
