"""Computation of a TensorRT-LLM engine of the language model, from its bound memory only.

It follows the GPT attention plugin, not our runtime: rotations come from `sequence_length` and not from
`position_ids`, K and V are addressed each by its own offset in units of a block of one layer, the layer adds
its own term, sizes of grids come from the host and lengths from the device, the row for the heads is counted
from 1. Sequences of a step are packed: those up to the first generation request are context requests with the
rows that the host says, each one after it has one row. `compute` checks nothing; what the plugin checks is in
`packing_fault`. Weights are those of the plain network; or the network is one that the Model API described.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from engine_runtime.models.moss_lm import Block, Layer, MossLM, rotary_tables, rotate
from tests.doubles.tensorrt.model_api.graph import Network
from tests.doubles.tensorrt.paged_cache import attend


@dataclass
class Build:
    """How an engine was built.

    Attributes:
        has_pools: 1.x: block tables with a pool axis, a pool mapping, context progress.
        paged_context_fmha: a prefill reads the cache; without, only its own rows.
        gathers_last_row: heads see the last row only.
        layer_indices: the index that each layer was given, trunk, text, audio; None: 0, 1, 2 ...
        linearised: the share of the text tail that leaks into the audio tail's input.
        dtype: of keys and values.
        network: what the Model API described, to be evaluated in place of the model, of which only the
            sizes count then.
    """

    model: MossLM
    tokens_per_block: int
    has_pools: bool = True
    paged_context_fmha: bool = True
    gathers_last_row: bool = True
    layer_indices: list[int] | None = None
    linearised: float = 0.0
    dtype: torch.dtype = torch.float32
    network: Network | None = None
    table: Tensor = field(init=False)

    def __post_init__(self) -> None:
        network = self.model.model
        self.table = torch.cat((network.embed_tokens.weight, network.audio_embed.weight)).detach()
        if self.layer_indices is None:
            self.layer_indices = list(range(self.model.config.num_layers))


@dataclass
class _Call:
    """One call: views of device memory, and values of the host as they were when it was enqueued."""

    device: Mapping[str, Tensor]
    host: Mapping[str, Tensor]
    slots: Tensor
    """[K or V blocks of a layer each, kv_heads, tokens_per_block, head_dim], all that the pool has."""


def compute(
    build: Build, device: Mapping[str, Tensor], host: Mapping[str, Tensor], slots: Tensor
) -> dict[str, Tensor]:
    """Run the rows: K and V into `slots`, logits of both heads as the result."""
    if build.network is not None:
        pool = int(host["host_kv_cache_pool_pointers"][0, 0])
        return build.network.evaluate({**device, **host}, {pool: slots})
    call, network = _Call(device, host, slots), build.model.model
    indices = iter(build.layer_indices or ())
    x = F.embedding(device["input_ids"].long(), build.table)
    for layer in _layers(network.shared_block):
        x = _layer(build, layer, next(indices), x, call)
    text = audio = x
    for layer in _layers(network.text_block):
        text = _layer(build, layer, next(indices), text, call)
    audio = audio + build.linearised * text
    for layer in _layers(network.audio_block):
        audio = _layer(build, layer, next(indices), audio, call)
    if build.gathers_last_row:
        last = device["last_token_ids"].long() - 1
        text, audio = text.index_select(0, last), audio.index_select(0, last)
    return {
        "logits": build.model.text_lm_head(network.text_norm(text)),
        "audio_logits": build.model.audio_lm_head(network.audio_norm(audio)),
    }


def _layers(block: Block) -> Iterator[Layer]:
    return (layer for layer in block.layers if isinstance(layer, Layer))


def _layer(build: Build, layer: Layer, index: int, x: Tensor, call: _Call) -> Tensor:
    x = x + layer.self_attn.o_proj(_attention(build, layer, index, layer.input_layernorm(x), call))
    out: Tensor = x + layer.mlp(layer.post_attention_layernorm(x))
    return out


def _attention(build: Build, layer: Layer, index: int, h: Tensor, call: _Call) -> Tensor:
    attention, config = layer.self_attn, build.model.config
    num_rows, dim = h.shape[0], config.head_dim
    q = attention.q_norm(attention.q_proj(h).view(num_rows, -1, dim))
    k = attention.k_norm(attention.k_proj(h).view(num_rows, -1, dim))
    v = attention.v_proj(h).view(num_rows, -1, dim)
    out, start = torch.zeros_like(q), 0
    past, types = call.host["host_past_key_value_lengths"].tolist(), call.host["host_request_types"].tolist()
    num_context = _num_context(types)
    for sequence in range(len(types)):
        is_context = sequence < num_context
        rows = slice(
            start, start + int(call.host["host_context_lengths"][sequence]) if is_context else start + 1
        )
        # one launch for all of a kind: its grid has the size of the longest
        longest = max(past[:num_context]) if is_context else max(past[num_context:]) + 1
        segment = _Segment(sequence, is_context, longest)
        out[rows] = _attend(build, index, segment, (q[rows], k[rows], v[rows]), call)
        start = rows.stop
    return out.reshape(num_rows, -1)


@dataclass
class _Segment:
    """The rows of one sequence."""

    sequence: int
    is_context: bool
    longest: int
    """Rows of the cache that the grid covers."""


def _num_context(types: list[int]) -> int:
    return types.index(1) if 1 in types else len(types)


def _attend(
    build: Build, index: int, segment: _Segment, rows: tuple[Tensor, Tensor, Tensor], call: _Call
) -> Tensor:
    device, host, sequence = call.device, call.host, segment.sequence
    q, k, v = rows
    lengths = device["context_lengths"][sequence]
    total = device["sequence_length"][sequence]
    num_queries = lengths if segment.is_context else torch.ones_like(lengths)
    positions = total - num_queries + torch.arange(len(q), device=q.device)
    cos, sin = rotary_tables(build.model.config, positions)
    q, k = (rotate(x.transpose(0, 1), cos, sin).transpose(0, 1) for x in (q, k))
    table = device["kv_cache_block_offsets"]
    return attend(
        (q, k, v),
        call.slots,
        table.view(-1, 2, table.shape[-1])[sequence].long(),
        first=2 * (int(host["host_kv_cache_pool_mapping"][index, 1]) if build.has_pools else index),
        positions=positions,
        total=total,
        longest=segment.longest,
        window=int(host["host_max_attention_window_sizes"][index]),
        reads_cache=build.paged_context_fmha or not segment.is_context,
    )


def packing_fault(host: Mapping[str, Tensor], num_rows: int) -> str | None:
    """What the plugin finds wrong with the values on the host, None if it would run."""
    types, lengths = host["host_request_types"].tolist(), host["host_context_lengths"].tolist()
    num_context = _num_context(types)
    if any(kind != 1 for kind in types[num_context:]):
        return "Assertion failed: reqTypes[seqIdx] == RequestType::kGENERATION"
    num_generation, rows = len(types) - num_context, num_rows - sum(lengths[:num_context])
    if rows != num_generation:
        if num_generation and rows % num_generation == 0:
            return "Only speculative decoding mode supports input length > 1 in the generation phase"
        return f"Assertion failed: {rows} tokens of {num_generation} generation requests"
    return None


def check_written_blocks(build: Build, device: Mapping[str, Tensor], host: Mapping[str, Tensor]) -> None:
    """Undefined behaviour on a GPU: a sequence writes to a block that another one uses."""
    table = device["kv_cache_block_offsets"]
    used: list[set[int]] = []
    written: list[set[int]] = []
    types, lengths = host["host_request_types"].tolist(), host["host_context_lengths"].tolist()
    totals = device["sequence_length"].tolist()
    for offsets, kind, length, total in zip(
        table.view(-1, 2, table.shape[-1]), types, lengths, totals, strict=True
    ):
        first, end = total - (length if kind == 0 else 1), -(-total // build.tokens_per_block)
        used.append(set(offsets[0, :end].tolist()))
        written.append(set(offsets[0, max(first, 0) // build.tokens_per_block : end].tolist()))
    for one, its in enumerate(written):
        for other, theirs in enumerate(used):
            assert one == other or not its & theirs, f"sequences {one} and {other} share a written block"
