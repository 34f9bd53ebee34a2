"""A checkpoint, plain or quantized, in the torch executor: the reference implementation of the engine.

In: a checkpoint folder. Out: a `FusedNetwork`, or the language model behind the paged runtime. Tensors are
copied from the file to the device one by one. Linear layers may be wrapped, which lets calibration observe
their inputs.

Linear layers round as the engine does. FP8 quantizes the input to e4m3 with its calibrated scale, multiplies
the quantized values and scales the sum; int4 multiplies the input by the AWQ factor first; int8 uses the
weights that the library quantizes at load. Values that the engine rounds to the checkpoint's dtype before a
product are rounded here as well, whatever the compute dtype. Size and speed are those of unquantized weights:
it shows the accuracy of a format, not its savings. Called once, on the thread that will use the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine_runtime.bundle.sections import LMSection
from engine_runtime.errors import BundleError
from engine_runtime.executors.fused_weights import FusedLayer, FusedNetwork, FusedTail
from engine_runtime.executors.torch.executor import TorchExecutor
from engine_runtime.executors.torch.linear import DenseLinear, Linear, packed_linear
from engine_runtime.lm.block_manager import BlockManager
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.lm.paged_lm import PagedLM
from engine_runtime.models.moss_lm import MossLMConfig
from engine_runtime.options import PREFILL_TOKENS
from engine_runtime.tensorrt.checkpoint.format import CheckpointConfig
from engine_runtime.tensorrt.checkpoint.reading import Checkpoint, ReadTensor
from engine_runtime.tensorrt.checkpoint.scales import fp8_levels, int4_dense, int8_rounded, unpack_int4


@dataclass(frozen=True, slots=True)
class Fp8Linear:
    """e4m3 times e4m3.

    Attributes:
        levels: [in, out], e4m3 values in a dtype that torch can multiply on every device.
        input_scale: [1] float32, dequantization scale of the input.
        weight_scale: [1] float32, dequantization scale of `levels`.
    """

    levels: Tensor
    input_scale: Tensor
    weight_scale: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """[n, in] -> [n, out]."""
        rounded = fp8_levels(x, self.input_scale).to(self.levels.dtype)
        return ((rounded @ self.levels).float() * (self.input_scale * self.weight_scale)).to(x.dtype)

    def added_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """The product of x [n, in], added to `residual` [n, out]."""
        return residual + self(x)


@dataclass(frozen=True, slots=True)
class SmoothedLinear:
    """An unquantized weight whose input is multiplied by a factor [in]."""

    dense: DenseLinear
    factor: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """[n, in] -> [n, out]."""
        return self.dense(x * self.factor)

    def added_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """The product of x [n, in], added to `residual` [n, out]."""
        return self.dense.added_to(residual, x * self.factor)


def read_linear(
    config: CheckpointConfig,
    read: ReadTensor,
    modules: Sequence[str],
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> Linear:
    """The fused linear layer of modules that share their input, outputs concatenated, to run in `dtype`.

    `read` returns tensors of the checkpoint by name.
    """

    def each(suffix: str) -> list[Tensor]:
        return [read(f"{module}.{suffix}").to(device) for module in modules]

    algorithm = config.quantization.algorithm
    if not config.is_quantized(modules[0]) or algorithm == "W8A16":
        weight = torch.cat(each("weight"))
        rounded = int8_rounded(weight) if config.is_quantized(modules[0]) else weight
        return DenseLinear(_columns(rounded.to(dtype)))
    if algorithm == "FP8":
        return _fp8(each("weight"), each("weights_scaling_factor"), each("activation_scaling_factor"), dtype)
    levels = [unpack_int4(packed) for packed in each("weight")]
    parts = zip(levels, each("weights_scaling_factor"), strict=True)
    weight = torch.cat([int4_dense(level, scale) for level, scale in parts])
    factors = each("prequant_scaling_factor")
    if not all(torch.equal(factor, factors[0]) for factor in factors):
        raise BundleError(
            "{modules} have different prequant_scaling_factors, but one input.",
            "Quantize the checkpoint with `moss-voice trt quantize`.",
            modules=" and ".join(modules),
        )
    return SmoothedLinear(DenseLinear(_columns(weight.to(dtype))), factors[0].to(dtype))


def _fp8(
    weights: list[Tensor], scales: list[Tensor], input_scales: list[Tensor], dtype: torch.dtype
) -> Fp8Linear:
    """Fused as the engine fuses a gated MLP: with the largest scale, to which the other weights are
    requantized."""
    scale = torch.stack(scales).amax(dim=0)
    levels = [
        weight if torch.equal(own, scale) else fp8_levels(weight.float() * own, scale)
        for weight, own in zip(weights, scales, strict=True)
    ]
    # NOTE: sums of unscaled levels reach 448 * 448 * in, which overflows float16.
    wide = torch.float32 if dtype == torch.float16 else dtype
    joined = torch.cat([level.to(wide) for level in levels])
    return Fp8Linear(_columns(joined), torch.stack(input_scales).amax(dim=0), scale)


def _columns(weight: Tensor) -> Tensor:
    # Always a copy: a memory-mapped tensor would change with its file.
    return weight.t().contiguous()


Wrap = Callable[[str, Linear], Linear]
"""Receives the module name and the linear layer; returns the layer to use."""

PRODUCTS = {
    "attention.qkv": ("attention.qkv",),
    "attention.dense": ("attention.dense",),
    "mlp.fc": ("mlp.fc", "mlp.gate"),
    "mlp.proj": ("mlp.proj",),
}
"""The linear layers of a decoder layer, each named after the first of the modules that share its input."""


def load_paged(
    checkpoint: Checkpoint,
    section: LMSection,
    config: MossLMConfig,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    num_blocks: int | None = None,
    prefill_tokens: int | None = None,
    wrap: Wrap | None = None,
) -> PagedLM:
    """The language model of a checkpoint with a KV pool as configured in the bundle's section.

    `dtype` None is that of the checkpoint, `num_blocks` None that of the section. Raises BundleError if the
    checkpoint is of another model than `config`.
    """
    checkpoint.require(config)
    network = read_network(checkpoint, config, device, dtype, wrap)
    num_blocks, size = num_blocks or section.kv_blocks, section.tokens_per_block
    cache = KVCache(config, num_blocks, size, dtype=network.embedding.dtype, device=device)
    most = prefill_tokens or PREFILL_TOKENS
    executor = TorchExecutor(network, cache, max_seq_len=section.context_tokens, max_num_tokens=most)
    return PagedLM(executor, cache, BlockManager(num_blocks, size))


def read_network(
    checkpoint: Checkpoint,
    config: MossLMConfig,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    wrap: Wrap | None = None,
) -> FusedNetwork[Linear]:
    """All weights, on the device."""
    read, dtype = checkpoint.reader(), dtype or checkpoint.config.torch_dtype

    def plain(name: str) -> Tensor:
        return read(f"{name}.weight").to(device, dtype, copy=True)

    def product(prefix: str, name: str) -> Linear:
        modules = [f"{prefix}.{module}" for module in PRODUCTS[name]]
        linear = read_linear(checkpoint.config, read, modules, dtype, device)
        return wrap(modules[0], linear) if wrap else linear

    def layers(stack: str, count: int, first: int) -> tuple[FusedLayer[Linear], ...]:
        return tuple(layer(f"{stack}.{index}", first + index) for index in range(count))

    def layer(prefix: str, index: int) -> FusedLayer[Linear]:
        return FusedLayer(
            index=index,
            input_norm=plain(f"{prefix}.input_layernorm"),
            qkv=product(prefix, "attention.qkv"),
            q_norm=plain(f"{prefix}.attention.q_layernorm"),
            k_norm=plain(f"{prefix}.attention.k_layernorm"),
            o=product(prefix, "attention.dense"),
            post_norm=plain(f"{prefix}.post_layernorm"),
            gate_up=product(prefix, "mlp.fc"),
            down=product(prefix, "mlp.proj"),
        )

    def tail(output: str, name: str, head: str, count: int, first: int) -> FusedTail[Linear]:
        linear = packed_linear([plain(head)], "native")
        return FusedTail(output, layers(f"{name}_layers", count, first), plain(f"{name}_norm"), linear)

    shared, text = config.shared_layers, config.text_layers
    with torch.inference_mode():
        return FusedNetwork(
            config=config,
            embedding=plain("vocab_embedding"),
            trunk=layers("shared_layers", shared, 0),
            text=tail("logits", "text", "lm_head", text, shared),
            audio=tail("audio_logits", "audio", "audio_lm_head", config.audio_layers, shared + text),
        )
