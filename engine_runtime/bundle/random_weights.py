"""Seeded random weights in place of a checkpoint, to measure speed and memory without the model's files.

In: a network (built on the meta device or not) and a seed. Out: the same network filled with values generated
on its device in its dtype, tensor by tensor, so that only the weights themselves take memory. The counterpart
of `weights.load_weights`. The output of such a model is meaningless; its cost equals that of the released
model.

A tensor depends only on its name, its shape, the seed, the dtype and the kind of device. Values are scaled so
that signals keep their magnitude from layer to layer: fan-in scaling for products and convolutions (LeCun et
al., "Efficient BackProp"), an eighth of it for projections into a residual stream of some 36 layers (1 /
sqrt(2 x 36) = 0.12, as in GPT-2), ones for norms and gains, small biases. Runs once when an engine is loaded,
in its thread.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from engine_runtime.bundle.weights import Progress, Uninitialized, load_weights
from engine_runtime.errors import BundleError
from engine_runtime.models.flow import FlowConfig
from engine_runtime.models.moss_lm import MossLM, MossLMConfig
from engine_runtime.options import EngineOptions
from engine_runtime.types import VoicePrompt

VOICE_SECONDS = 4.0
"""Length of the voice prompt of a model with random weights."""
_TABLES = ("embed_tokens", "audio_embed", "embed_positions", "input_embedding", "codebook")
_INTO_RESIDUAL = ("o_proj", "down_proj", "out_proj", "fc2")
_RESIDUAL_SHARE = 0.125
_BIAS_STD = 0.01
_KEPT = ("alpha", "beta")
"""Parameters of activations, initialized by the network itself."""


def random_tensor(
    name: str, shape: Sequence[int], seed: int, dtype: torch.dtype, device: torch.device | str
) -> Tensor:
    """The values of one tensor of a state dict, by its name, in this shape."""
    device = torch.device(device)
    words = name.split(".")
    last, owner = words[-1], words[-2] if len(words) > 1 else ""
    is_gain = last == "original0" or last == "weight_g" or (last == "weight" and len(shape) == 1)
    if is_gain:
        return torch.ones(tuple(shape), dtype=dtype, device=device)
    # NOTE: the CPU generator uses only the low 32 bits of its seed.
    generator = torch.Generator(device).manual_seed(zlib.crc32(f"{seed} {name}".encode()))
    values = torch.empty(tuple(shape), dtype=dtype, device=device)
    return values.normal_(0.0, _deviation(last, owner, shape), generator=generator)


def _deviation(last: str, owner: str, shape: Sequence[int]) -> float:
    if len(shape) == 1:
        return _BIAS_STD
    if owner in _TABLES:
        return 1.0
    scale = 1.0 / math.sqrt(prod(shape[1:]))
    return scale * _RESIDUAL_SHARE if owner in _INTO_RESIDUAL else scale


def random_source(
    config: MossLMConfig, seed: int, dtype: torch.dtype, device: torch.device | str
) -> Callable[[str], Tensor]:
    """Returns each tensor of the language model by name, generated on request."""
    with torch.device("meta"), Uninitialized():
        shapes = {name: tensor.shape for name, tensor in MossLM(config).state_dict().items()}
    return lambda name: random_tensor(name, shapes[name], seed, dtype, device)


def random_voice(config: FlowConfig, mel_frame_rate: float, seed: int) -> VoicePrompt:
    """A voice prompt of about VOICE_SECONDS, a multiple of the flow's chunk, with random content."""
    generator = np.random.default_rng(seed)
    chunks = max(1, round(VOICE_SECONDS * mel_frame_rate / config.chunk_frames))
    codes = chunks * config.chunk_codes
    mel = generator.normal(-5.0, 2.0, (config.n_mels, codes * config.upsample))
    return VoicePrompt(
        generator.integers(0, config.vocab_size, codes),
        mel.astype(np.float32),
        generator.normal(size=config.xvector_dim).astype(np.float32),
    )


def fill_random(
    module: nn.Module, seed: int, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> None:
    """Fill every parameter of `module` and move it to `device` and `dtype`; buffers are not changed.

    Raises BundleError if a module on the meta device has tensors that only the module itself can compute.
    """
    for prefix, owner in module.named_modules():
        for name, parameter in list(owner.named_parameters(recurse=False)):
            if name in _KEPT and not parameter.is_meta:
                continue
            full_name = f"{prefix}.{name}" if prefix else name
            values = random_tensor(full_name, parameter.shape, seed, dtype, device)
            owner._parameters[name] = nn.Parameter(values, requires_grad=False)
        if any(buffer.is_meta for buffer in owner.buffers(recurse=False)):
            raise BundleError(
                "{network} has computed tables and was built without memory for them.",
                "Build the network on the CPU to fill it with random weights.",
                network=prefix or type(module).__name__,
            )
    module.to(device=device, dtype=dtype)


def load_or_fill(
    network: nn.Module,
    files: Sequence[Path],
    device: torch.device,
    options: EngineOptions,
    progress: Progress | None,
    *,
    dtype: torch.dtype = torch.float32,
    either_weight_norm_style: bool = False,
    partial: bool = False,
) -> None:
    """Weights of the files, or random ones in their place."""
    if options.random_weights is not None:
        fill_random(network, options.random_weights, dtype, device)
        return
    load_weights(
        network,
        files,
        dtype,
        device,
        either_weight_norm_style=either_weight_norm_style,
        partial=partial,
        progress=progress,
    )
