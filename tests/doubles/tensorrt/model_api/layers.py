"""Layers with the parameters of the library: any other name or argument is an error."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.doubles.tensorrt.model_api.graph import DTYPES, Tensor
from tests.doubles.tensorrt.model_api.module import Module, Parameter

FP8_MAX = torch.finfo(torch.float8_e4m3fn).max


class Embedding(Module):
    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        dtype: str | None = None,
        tp_size: int = 1,
        tp_group: list[int] | None = None,
        sharding_dim: int = 0,
        tp_rank: int | None = None,
    ) -> None:
        super().__init__()
        assert tp_size == 1
        self.dtype = dtype
        self.weight = Parameter(shape=(num_embeddings, embedding_dim), dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        assert x.dtype == "int32"
        return Tensor.made_by(
            lambda ids, table: table[ids.long()],
            x,
            self.weight.value,
            dtype=self.weight.dtype,
            shape=(*x.shape, self.weight.shape[1]),
        )


class RmsNorm(Module):
    def __init__(
        self,
        normalized_shape: int | tuple[int, ...],
        num_groups: int = 1,
        eps: float = 1e-06,
        elementwise_affine: bool = True,
        dtype: str | None = None,
    ) -> None:
        super().__init__()
        assert num_groups == 1
        assert elementwise_affine
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.weight, self.eps = Parameter(shape=shape, dtype=dtype), eps

    def forward(self, x: Tensor, normalized_shape: None = None) -> Tensor:
        assert normalized_shape is None
        assert x.shape[-1:] == self.weight.shape, (x.shape, self.weight.shape)
        assert x.dtype == self.weight.dtype
        return Tensor.made_by(
            lambda value, weight: F.rms_norm(value.float(), weight.shape, weight.float(), self.eps).to(
                value.dtype
            ),
            x,
            self.weight.value,
            dtype=x.dtype,
            shape=x.shape,
        )


class Linear(Module):
    """x @ weight^T, computed in float32 and rounded to the dtype."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        dtype: str | None = None,
        tp_group: list[int] | None = None,
        tp_size: int = 1,
        gather_output: bool = True,
        prefer_managed_weight: bool = True,
        is_qkv: bool = False,
    ) -> None:
        super().__init__()
        assert not bias, "this network has no biases"
        assert tp_size == 1
        assert dtype is not None
        self.in_features, self.out_features, self.dtype = in_features, out_features, dtype
        self.weight = Parameter(shape=(out_features, in_features), dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[-1] == self.in_features, (x.shape, self.in_features)
        assert x.dtype == self.dtype
        constants = [parameter.value for parameter in vars(self).values() if isinstance(parameter, Parameter)]
        return Tensor.made_by(
            lambda value, *weights: self.product(value, *weights).to(DTYPES[self.dtype]),
            x,
            *constants,
            dtype=self.dtype,
            shape=(*x.shape[:-1], self.out_features),
        )

    def product(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x.float() @ weight.float().t()


class ColumnLinear(Linear):
    pass


class RowLinear(Linear):
    pass


class FP8Linear(Linear):
    """Inputs and weights rounded to e4m3, each under one scale."""

    def __init__(self, plain: Linear) -> None:
        super().__init__(plain.in_features, plain.out_features, bias=False, dtype=plain.dtype)
        self.weight = Parameter(shape=self.weight.shape, dtype="fp8")
        self.activation_scaling_factor = Parameter(shape=(1,), dtype="float32")
        self.weights_scaling_factor = Parameter(shape=(1,), dtype="float32")

    def product(  # type: ignore[override]
        self, x: torch.Tensor, weight: torch.Tensor, activation: torch.Tensor, scale: torch.Tensor
    ) -> torch.Tensor:
        rounded = (x.float() / activation).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
        return (rounded.float() * activation) @ (weight.float() * scale).t()


class WeightOnlyLinear(Linear):
    """Weights quantized to int8 with one scale per output, as the library does when loading. The largest maps
    to 128 and is clamped to 127 (symmetric_quantize of its weight-only kernels).
    """

    def __init__(self, plain: Linear) -> None:
        super().__init__(plain.in_features, plain.out_features, bias=False, dtype=plain.dtype)

    def product(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        scale = weight.float().abs().amax(dim=1, keepdim=True) / 128
        return x.float() @ ((weight.float() / scale).round().clamp(-128, 127) * scale).t()


class WeightOnlyGroupwiseLinear(Linear):
    """Weights in int4, two outputs a byte, a scale for each group of inputs, and one that the input is
    multiplied by."""

    def __init__(self, plain: Linear, group_size: int) -> None:
        super().__init__(plain.in_features, plain.out_features, bias=False, dtype=plain.dtype)
        outputs, inputs = plain.out_features, plain.in_features
        self.group_size = group_size
        self.weight = Parameter(shape=(outputs // 2, inputs), dtype="int8")
        self.weights_scaling_factor = Parameter(shape=(outputs, -(-inputs // group_size)), dtype=plain.dtype)
        self.prequant_scaling_factor = Parameter(shape=(inputs,), dtype=plain.dtype)

    def product(  # type: ignore[override]
        self, x: torch.Tensor, packed: torch.Tensor, scale: torch.Tensor, prequant: torch.Tensor
    ) -> torch.Tensor:
        low, high = (packed << 4) >> 4, packed >> 4
        levels = torch.stack((low, high), dim=1).flatten(0, 1)
        wide = levels.float() * scale.float().repeat_interleave(self.group_size, 1)[:, : self.in_features]
        return (x * prequant).float() @ wide.t()


class GatedMLP(Module):
    """proj(silu(fc(x)) * gate(x))."""

    def __init__(
        self,
        hidden_size: int,
        ffn_hidden_size: int,
        hidden_act: str,
        bias: bool = True,
        dtype: str | None = None,
        tp_group: list[int] | None = None,
        tp_size: int = 1,
        quant_mode: object = None,
        inner_layernorm: bool = False,
        eps: float = 1e-05,
        is_expert: bool = False,
    ) -> None:
        super().__init__()
        assert hidden_act == "silu"
        assert not inner_layernorm
        self.fc: Linear = ColumnLinear(hidden_size, ffn_hidden_size, bias=bias, dtype=dtype)
        self.gate: Linear = ColumnLinear(hidden_size, ffn_hidden_size, bias=bias, dtype=dtype)
        self.proj: Linear = RowLinear(ffn_hidden_size, hidden_size, bias=bias, dtype=dtype)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.proj.forward(_silu(self.fc(hidden_states)) * self.gate(hidden_states))


class FusedGatedMLP(Module):
    """The same with one product: its rows are those of gate, then of fc."""

    def __init__(self, fused_fc: Linear, proj: Linear) -> None:
        super().__init__()
        self.fused_fc, self.proj = fused_fc, proj

    def forward(self, hidden_states: Tensor) -> Tensor:
        both = self.fused_fc(hidden_states)
        half = both.shape[-1] // 2
        gate, fc = (
            Tensor.made_by(
                lambda x, first=first: x[..., first : first + half],
                both,
                dtype=both.dtype,
                shape=(*both.shape[:-1], half),
            )
            for first in (0, half)
        )
        return self.proj.forward(_silu(fc) * gate)


def _silu(x: Tensor) -> Tensor:
    return Tensor.made_by(
        lambda value: F.silu(value.float()).to(value.dtype), x, dtype=x.dtype, shape=x.shape
    )
