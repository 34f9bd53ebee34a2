"""The speech encoder as all stages see it: its sizes, the mels, and waveforms -> codes once it is trained."""

from __future__ import annotations

from pathlib import Path

import stage
import torch
from torch import Tensor

from engine_runtime.codec.speech_tokenizer.features import WhisperLogMel
from engine_runtime.models.whisper_vq import WhisperVQ, WhisperVQConfig
from engine_runtime.types import MelSpec

RATE = 16_000
# Whisper-tiny's sizes, with whose weights training starts (whisper_weights.py), without its last layer, for
# which the bundle has no room.
ENCODER = WhisperVQConfig(
    num_mel_bins=80, d_model=384, heads=6, ffn=1536, layers=3, max_positions=752, codebook_size=2048
)
# The codec's mel, of which flow and vocoder make speech again: 50 frames, that is 4 of each code, a second.
MEL = MelSpec(sample_rate=24_000, n_mels=80, n_fft=1920, hop=480, win=1920, fmin=0.0, fmax=8000.0)
FRAMES_PER_CODE = 4


def log_mel(device: str) -> WhisperLogMel:
    """The speech encoder's mel. With a running maximum a stream gives the codes of the whole recording."""
    return WhisperLogMel(RATE, ENCODER.num_mel_bins, "running_max").to(device)


class SpeechCoder:
    """The trained speech encoder with its mel."""

    def __init__(self, path: Path, device: str) -> None:
        self.model = WhisperVQ(ENCODER)
        self.model.load_state_dict(stage.read_weights(path))
        self.model = self.model.to(device).eval()
        self.log_mel = log_mel(device)

    @torch.no_grad()
    def codes(self, wave: Tensor) -> Tensor:
        """16 kHz windows [B, n] float32 -> codes [B, n / 1280] int64."""
        return self.mel_codes(self.log_mel(wave))

    @torch.no_grad()
    def mel_codes(self, mel: Tensor) -> Tensor:
        """Log-mels [B, bands, T] -> codes [B, T / 8] int64."""
        return self.model(mel)
