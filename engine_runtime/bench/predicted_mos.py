"""Predicted mean opinion score (MOS) of speech, by Distill-MOS.

In: speech. Out: a score from 1 (bad) to 5 (excellent), as listeners would give it for sound quality; it says
nothing about the words. Stahl and Gamper, "Distillation and Pruning for Scalable Self-Supervised
Representation-Based Speech Quality Assessment" (2025). The package `distillmos` holds the network and its
weights (MIT); it is optional, and trained for English. Any thread.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from types import ModuleType

import torch

from engine_runtime import installation
from engine_runtime.codec.resample import resample
from engine_runtime.errors import MossVoiceError
from engine_runtime.types import Pcm

RATE = 16000
_UNUSED = "torchaudio"


class PredictorMissing(MossVoiceError):
    """The optional package is not installed."""


class MosPredictor:
    """The network with its weights, on the CPU. Raises PredictorMissing without the package."""

    def __init__(self) -> None:
        try:
            with _unused_module():
                from distillmos import ConvTransformerSQAModel
        except ImportError as error:
            raise PredictorMissing(
                "The predicted MOS needs Distill-MOS ({error}).",
                "{remedy}",
                error=error,
                remedy=installation.add("quality"),
            ) from error
        with contextlib.redirect_stdout(io.StringIO()):  # it prints where its weights are
            self._network = ConvTransformerSQAModel().eval()

    @torch.inference_mode()
    def score(self, pcm: Pcm, rate: int) -> float:
        """The MOS of `pcm` [n] at `rate` Hz. Its level does not matter."""
        return float(self._network(torch.from_numpy(resample(pcm, rate, RATE))[None]))


@contextlib.contextmanager
def _unused_module() -> Iterator[None]:
    """An empty torchaudio in place of the real one: Distill-MOS imports it to read files, which is not done
    here, and one that was built for another torch cannot be imported."""
    before = sys.modules.get(_UNUSED)
    sys.modules[_UNUSED] = ModuleType(_UNUSED, "Replaces the real one, see predicted_mos.")
    try:
        yield
    finally:
        if before is None:
            del sys.modules[_UNUSED]
        else:
            sys.modules[_UNUSED] = before
