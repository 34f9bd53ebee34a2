"""The tiny language model with stored weights, plain and under the paged runtime."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import torch
from safetensors.torch import load_file

from engine_runtime.bundle.bundle import SpecialIds
from engine_runtime.executors.cuda.executor import CudaExecutor
from engine_runtime.executors.cuda.weights import build_network
from engine_runtime.executors.fused_weights import FusedNetwork
from engine_runtime.executors.torch.executor import TorchExecutor
from engine_runtime.executors.torch.linear import Linear
from engine_runtime.lm.block_manager import BlockManager
from engine_runtime.lm.generation import Token, merged_id
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.lm.paged_lm import PagedLM
from engine_runtime.models.moss_lm import Block, Layer, MossLM, MossLMConfig
from engine_runtime.options import BlockFormats, WeightFormat

if TYPE_CHECKING:
    from engine_runtime.executors.cuda.triton_linear import ConfigKey, KernelConfig

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
LOGIT_TOLERANCE = 3e-4
RELEASED = MossLMConfig(
    hidden_size=4096,
    intermediate_size=12288,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    shared_layers=32,
    text_layers=4,
    audio_layers=4,
    text_vocab=151680,
    audio_vocab=16512,
    modality_pad=151667,
)
"""The sizes of the released model, for tests of shapes."""


class CudaOptions(TypedDict, total=False):
    """Keyword arguments of a CudaExecutor, for kernels and captures."""

    uses_triton: bool
    kernel_configs: Mapping[ConfigKey, KernelConfig] | None
    uses_graphs: bool
    multiplies_fp8: bool | None
    uses_persistent_kernel: bool
    graphed_rows: bool | None
    max_batch_size: int


def load_meta() -> dict[str, Any]:
    """Config, special ids and case list of the stored vectors."""
    meta: dict[str, Any] = json.loads((GOLDEN / "lm_tiny.json").read_text())
    return meta


def load_special_ids() -> SpecialIds:
    """Special ids of the tiny model."""
    stored = load_meta()["special_ids"]
    return SpecialIds(**{name: stored[name] for name in SpecialIds.__slots__ if name in stored})


def load_tiny() -> tuple[MossLM, dict[str, torch.Tensor]]:
    """The tiny model with its stored weights, and the case tensors."""
    meta = load_meta()
    tensors = load_file(GOLDEN / "lm_tiny.safetensors")
    model = MossLM(
        MossLMConfig.from_dict({**meta["config"], "modality_pad": meta["special_ids"]["modality_pad"]})
    )
    cases = {key: value for key, value in tensors.items() if key.startswith(("a.", "c.", "gen."))}
    model.load_state_dict({key: value for key, value in tensors.items() if key not in cases}, strict=True)
    return model.eval(), cases


def layers_of(block: Block) -> list[Layer]:
    """The layers of a block, which torch knows as modules only."""
    layers = [layer for layer in block.layers if isinstance(layer, Layer)]
    assert len(layers) == len(block.layers)
    return layers


def make_thin() -> MossLM:
    """A random model of the same sizes, one layer in each part: Triton's interpreter is slow."""
    config = replace(load_tiny()[0].config, shared_layers=1, text_layers=1, audio_layers=1)
    torch.manual_seed(0)
    model = MossLM(config)
    model.reset_parameters(std=0.2)
    return model.eval()


def make_llama(layers: int = 2) -> MossLM:
    """A random model like Llama, with the vocabularies of the tiny one: queries and keys are not normalized,
    three query heads share a K/V head, no size but the heads' is a power of two. `layers` of the trunk."""
    config = MossLMConfig(72, 88, 6, 2, 16, layers, 1, 1, 512, 160, modality_pad=503, qk_norm=False)
    torch.manual_seed(0)
    model = MossLM(config)
    model.reset_parameters(std=0.2)
    return model.eval()


def make_paged(
    model: MossLM | FusedNetwork[Linear],
    *,
    num_blocks: int = 64,
    tokens_per_block: int = 16,
    max_seq_len: int = 1024,
    chunk: int = 512,
    weight_format: WeightFormat = "native",
    kv_dtype: torch.dtype | None = None,
) -> PagedLM:
    """The model with a new KV pool."""
    cache = KVCache(model.config, num_blocks, tokens_per_block, kv_dtype=kv_dtype)
    executor = TorchExecutor(
        model, cache, max_seq_len=max_seq_len, max_num_tokens=chunk, formats=BlockFormats(weight_format)
    )
    return PagedLM(executor, cache, BlockManager(num_blocks, tokens_per_block))


def make_cuda_paged(
    model: MossLM,
    *,
    num_blocks: int = 64,
    tokens_per_block: int = 16,
    max_seq_len: int = 1024,
    chunk: int = 512,
    formats: BlockFormats | None = None,
    dtype: torch.dtype = torch.float32,
    kv_dtype: torch.dtype | None = None,
    device: str = "cpu",
    **options: Unpack[CudaOptions],
) -> PagedLM:
    """The model on the executor for GPUs, by default on the CPU."""
    on = torch.device(device)
    network = build_network(
        model.config,
        model.state_dict().__getitem__,
        formats=formats or BlockFormats(),
        dtype=dtype,
        device=on,
        max_seq_len=max_seq_len,
    )
    cache = KVCache(model.config, num_blocks, tokens_per_block, dtype=dtype, kv_dtype=kv_dtype, device=on)
    executor = CudaExecutor(network, cache, max_seq_len=max_seq_len, max_num_tokens=chunk, **options)
    return PagedLM(executor, cache, BlockManager(num_blocks, tokens_per_block))


def as_tokens(tensor: torch.Tensor) -> list[Token]:
    """Rows of a stored [n, 2] tensor."""
    return [Token(*pair) for pair in tensor.tolist()]


def as_ids(tensor: torch.Tensor, model: MossLM) -> list[int]:
    """Merged ids of a stored [n, 2] tensor."""
    special = load_special_ids()
    return [merged_id(row, special, model.config.text_vocab) for row in as_tokens(tensor)]
