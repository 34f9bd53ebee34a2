"""Limits of the values in network configs: minimum and maximum of every number, and their check.

In: the config of a network as read from a manifest. Out: nothing, or a BundleError that names the key. The
limits are far beyond any model that this program can run: a typing error or a damaged file is reported before
anything of that size is allocated. No torch import, as in everything that reads a manifest.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine_runtime.errors import BundleError

_SHOWN = 60
"""Maximum characters of a value in an error message."""


@dataclass(frozen=True, slots=True)
class Integer:
    """An integer from `least` to `most`."""

    least: int
    most: int

    def holds(self, value: object) -> bool:
        """Whether the value is one."""
        return type(value) is int and self.least <= value <= self.most

    def __str__(self) -> str:
        return f"an integer from {self.least} to {self.most}"


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
class Integers:
    """A list of at most `count` integers from `least` to `most`, or (`depth` 2) of such lists."""

    least: int
    most: int
    count: int
    depth: int = 1

    def holds(self, value: object) -> bool:
        """Whether the value is one."""
        if not isinstance(value, (list, tuple)) or len(value) > self.count:
            return False
        each = Integer(self.least, self.most)
        inner = each if self.depth == 1 else Integers(self.least, self.most, self.count, self.depth - 1)
        return all(inner.holds(item) for item in value)

    def __str__(self) -> str:
        what = "a list of" + " lists of" * (self.depth - 1)
        return f"{what} integers from {self.least} to {self.most}, at most {self.count}"


@dataclass(frozen=True, slots=True)
class Switch:
    """True or false; numbers are neither."""

    def holds(self, value: object) -> bool:
        """Whether the value is one."""
        return type(value) is bool

    def __str__(self) -> str:
        return "true or false"


Limits = Mapping[str, Integer | Real | Integers | Switch]
"""What the values of a table may be, by key."""


def shown(value: object) -> str:
    """A value for an error message, truncated if it is long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer with thousands of digits, or a deeply nested list
        return "a value too long to be shown"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def check_config(values: Mapping[str, Any], limits: Limits, name: str) -> None:
    """Raise BundleError if a value of a network's config violates `limits`."""
    for key, limit in limits.items():
        if key in values and not limit.holds(values[key]):
            raise BundleError(
                "[{name}] has {key} = {values}, which must be {limit}.",
                "Correct the bundle's manifest.",
                name=name,
                key=key,
                values=shown(values[key]),
                limit=limit,
            )


CODES = Integer(1, 1_000)
RATE = Integer(8_000, 192_000)
ID = Integer(0, (1 << 22) - 1)
_VOCABULARY = Integer(1, 1 << 22)
_LAYERS = Integer(1, 512)
_KERNELS = Integers(1, 256, count=16)
_DILATIONS = Integers(1, 256, count=16, depth=2)

LM_CONFIG: Limits = {
    "hidden_size": Integer(1, 65_536),
    "intermediate_size": Integer(1, 262_144),
    "num_attention_heads": Integer(1, 1_024),
    "num_key_value_heads": Integer(1, 1_024),
    "head_dim": Integer(2, 1_024),
    "shared_layers": _LAYERS,
    "text_layers": _LAYERS,
    "audio_layers": _LAYERS,
    "text_vocab": _VOCABULARY,
    "audio_vocab": _VOCABULARY,
    "modality_pad": ID,
    "rope_theta": Real(1.0, 1e12),
    "rms_norm_eps": Real(0.0, 1.0),
    "qk_norm": Switch(),
}
SPEECH_ENCODER_CONFIG: Limits = {
    "num_mel_bins": Integer(1, 512),
    "d_model": Integer(2, 16_384),
    "heads": Integer(1, 256),
    "ffn": Integer(1, 65_536),
    "layers": Integer(1, 256),
    "max_positions": Integer(1, 16_384),
    "codebook_size": Integer(1, 1 << 20),
    "pool": Integer(1, 64),
}
FLOW_CONFIG: Limits = {
    "vocab_size": Integer(1, 1 << 20),
    "n_mels": Integer(1, 512),
    "xvector_dim": Integer(1, 8_192),
    "encoder_dim": Integer(2, 8_192),
    "encoder_heads": Integer(1, 256),
    "encoder_ffn": Integer(1, 65_536),
    "encoder_blocks": Integer(0, 128),
    "encoder_up_blocks": Integer(0, 128),
    "encoder_dropout": Real(0.0, 1.0),
    "upsample": Integer(1, 64),
    "look_ahead_codes": Integer(0, 100),
    "chunk_codes": CODES,
    "channels": Integer(1, 8_192),
    "n_blocks": Integer(1, 64),
    "mid_blocks": Integer(0, 128),
    "heads": Integer(1, 256),
    "head_dim": Integer(1, 1_024),
    "sigma_min": Real(0.0, 1.0),
    "train_cfg_rate": Real(0.0, 1.0),
    "cfg_rate": Real(0.0, 100.0),
    "steps": Integer(1, 1_000),
    "max_frames": Integer(1, 200_000),
}
MEL: Limits = {
    "sample_rate": RATE,
    "n_mels": Integer(1, 512),
    "n_fft": Integer(2, 65_536),
    "hop": Integer(1, 8_192),
    "win": Integer(2, 65_536),
    "fmin": Real(0.0, 96_000.0),
    "fmax": Real(0.0, 96_000.0),
}
HIFT_CONFIG: Limits = {
    "in_channels": MEL["n_mels"],
    "base_channels": Integer(1, 8_192),
    "nb_harmonics": Integer(0, 64),
    "sampling_rate": RATE,
    "nsf_alpha": Real(0.0, 10.0),
    "nsf_sigma": Real(0.0, 10.0),
    "nsf_voiced_threshold": Real(0.0, 10_000.0),
    "upsample_rates": Integers(1, 64, count=16),
    "upsample_kernel_sizes": _KERNELS,
    "n_fft": Integer(2, 4_096),
    "hop_len": Integer(1, 1_024),
    "resblock_kernel_sizes": _KERNELS,
    "resblock_dilation_sizes": _DILATIONS,
    "source_resblock_kernel_sizes": _KERNELS,
    "source_resblock_dilation_sizes": _DILATIONS,
    "lrelu_slope": Real(0.0, 1.0),
    "audio_limit": Real(1e-3, 1.0),
    "f0_channels": Integer(1, 8_192),
}
BIGVGAN_CONFIG: Limits = {
    "upsample_rates": Integers(1, 64, count=16),
    "upsample_kernel_sizes": _KERNELS,
    "upsample_initial_channel": Integer(1, 16_384),
    "resblock_kernel_sizes": _KERNELS,
    "resblock_dilation_sizes": _DILATIONS,
    "num_mels": MEL["n_mels"],
    "n_fft": MEL["n_fft"],
    "hop_size": MEL["hop"],
    "win_size": MEL["win"],
    "sampling_rate": RATE,
}
