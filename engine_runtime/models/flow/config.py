"""Dimensions of the causal flow, for the tiny, the nano and the released size.

In: the `[flow.config]` table of a bundle. Out: a frozen `FlowConfig` whose fields are checked against each
other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from engine_runtime.errors import BundleError
from engine_runtime.models.limits import FLOW_CONFIG, check_config


@dataclass(frozen=True, slots=True)
class FlowConfig:
    """Every dimension of `CausalFlow`. The defaults are those of the released codec (`flow-chunk-5.pt`)."""

    vocab_size: int = 20480
    n_mels: int = 80
    xvector_dim: int = 192

    encoder_dim: int = 512
    encoder_heads: int = 8
    encoder_ffn: int = 2048
    encoder_blocks: int = 6
    encoder_up_blocks: int = 4
    encoder_dropout: float = 0.1
    upsample: int = 4
    """Mel frames per code."""
    look_ahead_codes: int = 3
    chunk_codes: int = 5
    """Codes per attention chunk: a position attends to all earlier chunks and to its complete own chunk."""

    channels: int = 256
    n_blocks: int = 4
    """Transformer blocks after each residual block."""
    mid_blocks: int = 12
    heads: int = 8
    head_dim: int = 64

    sigma_min: float = 1e-6
    train_cfg_rate: float = 0.2
    """Share of training samples without conditioning."""
    cfg_rate: float = 0.7
    """Strength of the classifier-free guidance at inference; 0 skips the unconditional half."""
    steps: int = 10
    max_frames: int = 15000
    """Length of the fixed noise buffer, prompt included."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            smallest = (
                0 if field.name in {"encoder_dropout", "sigma_min", "train_cfg_rate", "cfg_rate"} else 1
            )
            if field.name in {"mid_blocks", "encoder_blocks", "encoder_up_blocks", "look_ahead_codes"}:
                smallest = 0
            if value < smallest:
                raise BundleError(
                    "flow config: {field} = {value} is below {smallest}; check [flow.config]",
                    field=field.name,
                    value=value,
                    smallest=smallest,
                )
        if self.encoder_dim % self.encoder_heads or self.encoder_dim % 2:
            raise BundleError(
                "flow config: encoder_dim {encoder_dim} must be even and divisible by encoder_heads "
                "{encoder_heads}",
                encoder_dim=self.encoder_dim,
                encoder_heads=self.encoder_heads,
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> FlowConfig:
        """Build from a table of a manifest. Raises BundleError for an unknown key or a wrong type."""
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise BundleError(
                "flow config: unknown key(s) {unknown}; known are {known}",
                unknown=", ".join(unknown),
                known=", ".join(sorted(known)),
            )
        check_config(values, FLOW_CONFIG, "flow.config")
        return cls(**values)  # type: ignore[arg-type]

    @property
    def chunk_frames(self) -> int:
        """Mel frames of one attention chunk."""
        return self.chunk_codes * self.upsample
