"""Limits of the numbers in network configs: the least and the most of every key, and the check against them.

In: the config of a network as read from a manifest. Out: nothing, or a BundleError that names the key. The
limits lie well beyond any model that this program could run: a slip of the hand or a damaged file becomes an
error before anything is built or computed whose size follows from that number. No torch here, like all that
reads a manifest.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine_runtime.errors import BundleError

_SHOWN = 60
"""Characters of a value that an error repeats."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number from `least` to `most`."""

    least: int
    most: int

    def holds(self, value: object) -> bool:
        """Whether the value is one."""
        return type(value) is int and self.least <= value <= self.most

    def __str__(self) -> str:
        return f"a whole number from {self.least} to {self.most}"


@dataclass(frozen=True, slots=True)
class Real:
    """A number from `least` to `most`; neither NaN nor infinity."""

    least: float
    most: float

    def holds(self, value: object) -> bool:
        """Whether the value is one."""
        return type(value) in (int, float) and self.least <= typing.cast(float, value) <= self.most

    def __str__(self) -> str:
        return f"a number from {self.least:g} to {self.most:g}"


@dataclass(frozen=True, slots=True)
class Wholes:
    """A list of at most `count` whole numbers from `least` to `most`, or (`depth` 2) of such lists."""

    least: int
    most: int
    count: int
    depth: int = 1

    def holds(self, value: object) -> bool:
        """Whether the value is one."""
        if not isinstance(value, (list, tuple)) or len(value) > self.count:
            return False
        each = Whole(self.least, self.most)
        inner = each if self.depth == 1 else Wholes(self.least, self.most, self.count, self.depth - 1)
        return all(inner.holds(item) for item in value)

    def __str__(self) -> str:
        what = "a list of" + " lists of" * (self.depth - 1)
        return f"{what} whole numbers from {self.least} to {self.most}, at most {self.count}"


Limits = Mapping[str, Whole | Real | Wholes]
"""What the numbers of a table may be, by key."""


def shown(value: object) -> str:
    """A value as an error repeats it: not all of one that fills the screen."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, a list of very many lists
        return "a value too long to be shown"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def check_config(values: Mapping[str, Any], limits: Limits, name: str) -> None:
    """Refuse a number of a network's config that is of another type or size than `limits` say."""
    for key, limit in limits.items():
        if key in values and not limit.holds(values[key]):
            raise BundleError(
                f"[{name}] has {key} = {shown(values[key])}, which must be {limit}. "
                "Correct the bundle's manifest."
            )


CODES = Whole(1, 1_000)
RATE = Whole(8_000, 192_000)
ID = Whole(0, (1 << 22) - 1)
_VOCABULARY = Whole(1, 1 << 22)
_LAYERS = Whole(1, 512)
_KERNELS = Wholes(1, 256, count=16)
_DILATIONS = Wholes(1, 256, count=16, depth=2)

LM_CONFIG: Limits = {
    "hidden_size": Whole(1, 65_536),
    "intermediate_size": Whole(1, 262_144),
    "num_attention_heads": Whole(1, 1_024),
    "num_key_value_heads": Whole(1, 1_024),
    "head_dim": Whole(2, 1_024),
    "shared_layers": _LAYERS,
    "text_layers": _LAYERS,
    "audio_layers": _LAYERS,
    "text_vocab": _VOCABULARY,
    "audio_vocab": _VOCABULARY,
    "modality_pad": ID,
    "rope_theta": Real(1.0, 1e12),
    "rms_norm_eps": Real(0.0, 1.0),
}
SPEECH_ENCODER_CONFIG: Limits = {
    "num_mel_bins": Whole(1, 512),
    "d_model": Whole(2, 16_384),
    "heads": Whole(1, 256),
    "ffn": Whole(1, 65_536),
    "layers": Whole(1, 256),
    "max_positions": Whole(1, 16_384),
    "codebook_size": Whole(1, 1 << 20),
    "pool": Whole(1, 64),
}
FLOW_CONFIG: Limits = {
    "vocab_size": Whole(1, 1 << 20),
    "n_mels": Whole(1, 512),
    "xvector_dim": Whole(1, 8_192),
    "encoder_dim": Whole(2, 8_192),
    "encoder_heads": Whole(1, 256),
    "encoder_ffn": Whole(1, 65_536),
    "encoder_blocks": Whole(0, 128),
    "encoder_up_blocks": Whole(0, 128),
    "encoder_dropout": Real(0.0, 1.0),
    "upsample": Whole(1, 64),
    "look_ahead_codes": Whole(0, 100),
    "chunk_codes": CODES,
    "channels": Whole(1, 8_192),
    "n_blocks": Whole(1, 64),
    "mid_blocks": Whole(0, 128),
    "heads": Whole(1, 256),
    "head_dim": Whole(1, 1_024),
    "sigma_min": Real(0.0, 1.0),
    "train_cfg_rate": Real(0.0, 1.0),
    "cfg_rate": Real(0.0, 100.0),
    "steps": Whole(1, 1_000),
    "max_frames": Whole(1, 200_000),
}
MEL: Limits = {
    "sample_rate": RATE,
    "n_mels": Whole(1, 512),
    "n_fft": Whole(2, 65_536),
    "hop": Whole(1, 8_192),
    "win": Whole(2, 65_536),
    "fmin": Real(0.0, 96_000.0),
    "fmax": Real(0.0, 96_000.0),
}
HIFT_CONFIG: Limits = {
    "in_channels": MEL["n_mels"],
    "base_channels": Whole(1, 8_192),
    "nb_harmonics": Whole(0, 64),
    "sampling_rate": RATE,
    "nsf_alpha": Real(0.0, 10.0),
    "nsf_sigma": Real(0.0, 10.0),
    "nsf_voiced_threshold": Real(0.0, 10_000.0),
    "upsample_rates": Wholes(1, 64, count=16),
    "upsample_kernel_sizes": _KERNELS,
    "n_fft": Whole(2, 4_096),
    "hop_len": Whole(1, 1_024),
    "resblock_kernel_sizes": _KERNELS,
    "resblock_dilation_sizes": _DILATIONS,
    "source_resblock_kernel_sizes": _KERNELS,
    "source_resblock_dilation_sizes": _DILATIONS,
    "lrelu_slope": Real(0.0, 1.0),
    "audio_limit": Real(1e-3, 1.0),
    "f0_channels": Whole(1, 8_192),
}
BIGVGAN_CONFIG: Limits = {
    "upsample_rates": Wholes(1, 64, count=16),
    "upsample_kernel_sizes": _KERNELS,
    "upsample_initial_channel": Whole(1, 16_384),
    "resblock_kernel_sizes": _KERNELS,
    "resblock_dilation_sizes": _DILATIONS,
    "num_mels": MEL["n_mels"],
    "n_fft": MEL["n_fft"],
    "hop_size": MEL["hop"],
    "win_size": MEL["win"],
    "sampling_rate": RATE,
}
