"""Layout of the checkpoint that TensorRT-LLM builds an engine from, and its mapping to our state dict.

In: config.json. Out: names, shapes and dtypes of rank0.safetensors, and the mapping from our state dict and
back. Only config.json is read. Any thread.

The decoder forks: `shared_layers`, then `text_layers` and `audio_layers` in parallel; the KV cache numbers
all layers in this order. Names and layouts are those of TensorRT-LLM's checkpoint format
(docs/source/architecture/checkpoint.md, ModelWeightsLoader of 1.x): weights [out, in], q, k and v
concatenated by rows, both embedding tables concatenated, and in the MLP `fc` for gate_proj of Qwen3, `gate`
for up_proj, `proj` for down_proj.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch

from engine_runtime.errors import BundleError
from engine_runtime.tensorrt.checkpoint.config import (
    ARCHITECTURE,
    CONFIG,
    HEADS,
    LINEARS,
    Algorithm,
    CheckpointConfig,
    Quantization,
    read_config,
)

__all__ = [
    "ABOUT",
    "ARCHITECTURE",
    "CONFIG",
    "HEADS",
    "LAYERS",
    "LINEARS",
    "WEIGHTS",
    "Algorithm",
    "CheckpointConfig",
    "CheckpointTensor",
    "Quantization",
    "TensorSlice",
    "expected_tensors",
    "is_checkpoint",
    "linear_modules",
    "modules",
    "name_map",
    "read_config",
    "tensor_slices",
]

WEIGHTS = "rank0.safetensors"
ABOUT = "moss_voice.json"
"""Our additional file: identifies the bundle whose language model this is."""

LAYERS = {"shared_layers": "shared_block", "text_layers": "text_block", "audio_layers": "audio_block"}
"""The three stacks: their name in the checkpoint, and ours below `model.`."""
_OF_LAYER = {
    "input_layernorm": ("input_layernorm",),
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.dense": ("self_attn.o_proj",),
    "attention.q_layernorm": ("self_attn.q_norm",),
    "attention.k_layernorm": ("self_attn.k_norm",),
    "post_layernorm": ("post_attention_layernorm",),
    "mlp.fc": ("mlp.gate_proj",),
    "mlp.gate": ("mlp.up_proj",),
    "mlp.proj": ("mlp.down_proj",),
}
_AROUND_LAYERS = {
    "vocab_embedding": ("model.embed_tokens", "model.audio_embed"),
    "text_norm": ("model.text_norm",),
    "audio_norm": ("model.audio_norm",),
    "lm_head": ("text_lm_head",),
    "audio_lm_head": ("audio_lm_head",),
}


class CheckpointTensor(NamedTuple):
    """Shape and dtype of a tensor in rank0.safetensors."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class TensorSlice(NamedTuple):
    """Location of one of our tensors: rows [first, first + rows) of the tensor `name`."""

    name: str
    first: int
    rows: int


def is_checkpoint(directory: Path) -> bool:
    """Whether a folder holds a finished checkpoint of this network."""
    try:
        read_config(directory)
    except BundleError:
        return False
    return (directory / WEIGHTS).is_file()


def modules(config: CheckpointConfig) -> dict[str, tuple[str, ...]]:
    """Our source modules of each module of the checkpoint, in the order of its rows."""
    counts = (config.num_shared_layers, config.num_text_layers, config.num_audio_layers)
    sources = {"vocab_embedding": _AROUND_LAYERS["vocab_embedding"]}
    for (stack, ours), count in zip(LAYERS.items(), counts, strict=True):
        for index in range(count):
            for name, parts in _OF_LAYER.items():
                sources[f"{stack}.{index}.{name}"] = tuple(
                    f"model.{ours}.layers.{index}.{part}" for part in parts
                )
    return sources | _AROUND_LAYERS


def linear_modules(config: CheckpointConfig) -> list[str]:
    """All linear layers: those of the decoder layers, then the heads."""
    return [name for name in modules(config) if name.endswith((*LINEARS, *HEADS))]


def name_map(config: CheckpointConfig) -> dict[str, tuple[str, ...]]:
    """Our source tensors of each weight of the checkpoint, in the order of its rows."""
    return {
        f"{name}.weight": tuple(f"{part}.weight" for part in parts) for name, parts in modules(config).items()
    }


def tensor_slices(config: CheckpointConfig) -> dict[str, TensorSlice]:
    """Location of each tensor of our state dict in an unquantized checkpoint: the inverse mapping."""
    head, kv = (config.head_size * n for n in (config.num_attention_heads, config.num_key_value_heads))
    found = {}
    for name, parts in name_map(config).items():
        rows: tuple[int, ...] = (_weight_shape(config, name.removesuffix(".weight"))[0],)
        if len(parts) == 3:
            rows = (head, kv, kv)
        elif len(parts) == 2:
            rows = (config.text_vocab_size, config.audio_vocab_size)
        first = 0
        for part, count in zip(parts, rows, strict=True):
            found[part] = TensorSlice(name, first, count)
            first += count
    return found


def expected_tensors(config: CheckpointConfig) -> dict[str, CheckpointTensor]:
    """All tensors of rank0.safetensors, in the order of the network.

    Unquantized: 9 tensors per layer and 5 others, 365 for the released model. W8A16 is stored unquantized,
    since the library quantizes it when loading; FP8 and W4A16_AWQ have scales.
    """
    tensors: dict[str, CheckpointTensor] = {}
    for module in modules(config):
        shape = _weight_shape(config, module)
        if config.is_quantized(module):
            tensors |= _quantized(config, module, *shape)
        else:
            tensors[f"{module}.weight"] = CheckpointTensor(shape, config.torch_dtype)
        if module.endswith("attention.qkv") and config.quantization.kv_cache is not None:
            name = f"{module.removesuffix('qkv')}kv_cache_scaling_factor"
            tensors[name] = CheckpointTensor((1,), torch.float32)
    return tensors


def _quantized(
    config: CheckpointConfig, module: str, outputs: int, inputs: int
) -> dict[str, CheckpointTensor]:
    weight = f"{module}.weight"
    if config.quantization.algorithm == "FP8":
        return {
            weight: CheckpointTensor((outputs, inputs), torch.float8_e4m3fn),
            f"{module}.activation_scaling_factor": CheckpointTensor((1,), torch.float32),
            f"{module}.weights_scaling_factor": CheckpointTensor((1,), torch.float32),
        }
    if config.quantization.algorithm == "W4A16_AWQ":
        groups = -(-inputs // config.quantization.group_size)
        return {
            # Two outputs a byte, the even one in the low half.
            weight: CheckpointTensor((outputs // 2, inputs), torch.int8),
            f"{module}.weights_scaling_factor": CheckpointTensor((outputs, groups), config.torch_dtype),
            f"{module}.prequant_scaling_factor": CheckpointTensor((inputs,), config.torch_dtype),
        }
    return {weight: CheckpointTensor((outputs, inputs), config.torch_dtype)}


def _weight_shape(config: CheckpointConfig, module: str) -> tuple[int, ...]:
    """Shape of the weight in plain numbers, [out, in] for a product."""
    hidden, ffn = config.hidden_size, config.intermediate_size
    head, kv = (config.head_size * n for n in (config.num_attention_heads, config.num_key_value_heads))
    shapes: dict[str, tuple[int, ...]] = {
        "vocab_embedding": (config.vocab_size, hidden),
        "lm_head": (config.text_vocab_size, hidden),
        "audio_lm_head": (config.audio_vocab_size, hidden),
        "attention.qkv": (head + 2 * kv, hidden),
        "attention.dense": (hidden, head),
        "attention.q_layernorm": (config.head_size,),
        "attention.k_layernorm": (config.head_size,),
        "mlp.fc": (ffn, hidden),
        "mlp.gate": (ffn, hidden),
        "mlp.proj": (hidden, ffn),
    }
    last = module.split(".", 2)[-1]
    return shapes.get(last, (hidden,))
