"""Speaker encoder: speech to its x-vector, by CAM++ on onnxruntime.

In: mono PCM at `sample_rate`. Out: one speaker embedding. The features are Kaldi's filter banks (25 ms
windows every 10 ms, Povey window, no dither, samples in [-1, 1] as in torchaudio) with their mean over time
subtracted, as the released codec computes them. Runs on the CPU, once per voice. Any thread.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from engine_runtime import installation
from engine_runtime.errors import BundleError, MossVoiceError
from engine_runtime.onnx_runtime import OnnxModelError, create_session
from engine_runtime.types import Pcm


class SpeakerEncoder:
    """The network of `file` with its features."""

    def __init__(self, file: Path, sample_rate: int, n_mels: int) -> None:
        """Raises BundleError if the file is not a network with one input and one output of vectors."""
        self.sample_rate, self.n_mels, self._file = sample_rate, n_mels, file
        try:
            self._session: Any = create_session(file, purpose="choose a voice")
        except OnnxModelError as error:
            raise BundleError(
                "{file} is not a valid speaker encoder: {error}.",
                "Copy or download the bundle again.",
                file=file,
                error=error,
            ) from error

    def xvector(self, pcm: Pcm) -> NDArray[np.float32]:
        """The vector [dim] of speech [n]."""
        features = self.features(pcm)
        name = self._session.get_inputs()[0].name
        try:
            vector = np.asarray(self._session.run(None, {name: features[None]})[0], dtype=np.float32).ravel()
        except Exception as error:
            raise BundleError(
                "{file} does not accept features of {n_mels} bands: {error}.",
                "Use the speaker encoder of the same release as the flow.",
                file=self._file,
                n_mels=self.n_mels,
                error=error,
            ) from error
        if not np.isfinite(vector).all():
            raise BundleError(
                "{file} returned values that are not finite.", "Download the bundle again.", file=self._file
            )
        return vector

    def features(self, pcm: Pcm) -> NDArray[np.float32]:
        """Filter banks [frames, n_mels] without their mean over time."""
        try:
            import kaldi_native_fbank as knf
        except ImportError as error:
            raise MossVoiceError(
                "A voice cannot be chosen: kaldi-native-fbank is missing.",
                "{remedy}",
                remedy=installation.add("released"),
            ) from error
        options = knf.FbankOptions()
        options.frame_opts.samp_freq = self.sample_rate
        options.frame_opts.dither = 0.0
        options.mel_opts.num_bins = self.n_mels
        fbank = knf.OnlineFbank(options)
        fbank.accept_waveform(self.sample_rate, pcm.tolist())
        fbank.input_finished()
        frames = [fbank.get_frame(index) for index in range(fbank.num_frames_ready)]
        features = np.stack(frames).astype(np.float32)
        return cast(NDArray[np.float32], features - features.mean(axis=0))
