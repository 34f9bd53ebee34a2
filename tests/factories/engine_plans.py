"""Engines for the double of TensorRT: build settings, and the resulting list of tensors.

The list is that of the library's prepare_inputs for beam 1, written down from its documents and sources and
not from our code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from engine_runtime.models.moss_lm import MossLM
from engine_runtime.tensorrt.checkpoint.format import CheckpointConfig
from tests.doubles.tensorrt.gpt_attention import Build
from tests.doubles.tensorrt.model_api.graph import Network
from tests.doubles.tensorrt.runtime import DataType, Shape

VERSION = "10.14.1"
OUTPUTS = ("logits", "audio_logits")
OF_EACH_SEQUENCE = (
    "sequence_length",
    "context_lengths",
    "host_context_lengths",
    "host_past_key_value_lengths",
    "host_request_types",
)
"""Inputs with a dimension of one name, batch_size_beam_width, as the block tables have; last_token_ids and
cache_indirection have dimensions of their own."""


@dataclass
class PlannedTensor:
    dtype: DataType
    shape: Shape
    least: Shape = ()
    most: Shape = ()
    is_host: bool = False


@dataclass
class Plan:
    """The content of an engine file."""

    build: Build
    max_seq_len: int = 1024
    max_num_tokens: int = 512
    max_batch_size: int = 1
    rows_of_profiles: Sequence[tuple[int, int]] = ()
    logits: DataType = DataType.FLOAT
    version: str = VERSION

    def tensors(self) -> dict[str, PlannedTensor]:
        """Inputs and outputs, as the library's prepare_inputs declares them for beam 1."""
        build, config = self.build, self.build.model.config
        i32, i64 = DataType.INT32, DataType.INT64
        layers = max(build.layer_indices or [0]) + 1
        blocks = -(-self.max_seq_len // build.tokens_per_block)
        most = self.max_batch_size
        each: tuple[Shape, Shape, Shape] = ((-1,), (1,), (most,))
        rows: tuple[Shape, Shape, Shape] = ((-1,), (1,), (self.max_num_tokens,))
        pointers: Shape = (1, 2) if build.has_pools else (2,)
        table: tuple[Shape, Shape, Shape] = ((-1, 2, -1), (1, 2, 1), (most, 2, blocks))
        if build.has_pools:
            table = ((1, *table[0]), (1, *table[1]), (1, *table[2]))
        tensors = {
            "input_ids": PlannedTensor(i32, *rows),
            "position_ids": PlannedTensor(i32, *rows),
            "last_token_ids": PlannedTensor(i32, *each),
            "sequence_length": PlannedTensor(i32, *each),
            "context_lengths": PlannedTensor(i32, *each),
            "host_context_lengths": PlannedTensor(i32, *each, is_host=True),
            "host_past_key_value_lengths": PlannedTensor(i32, *each, is_host=True),
            "host_request_types": PlannedTensor(i32, *each, is_host=True),
            "kv_cache_block_offsets": PlannedTensor(i32, *table),
            "host_kv_cache_block_offsets": PlannedTensor(i32, *table, is_host=True),
            "host_kv_cache_pool_pointers": PlannedTensor(i64, pointers, is_host=True),
            "host_max_attention_window_sizes": PlannedTensor(i32, (layers,), is_host=True),
            "host_sink_token_length": PlannedTensor(i32, (1,), is_host=True),
            "cache_indirection": PlannedTensor(i32, (-1, -1, -1), (1, 1, 1), (most, 1, self.max_seq_len)),
            "host_runtime_perf_knobs": PlannedTensor(i64, (16,), is_host=True),
        }
        if build.has_pools:
            tensors["host_kv_cache_pool_mapping"] = PlannedTensor(i32, (layers, 2), is_host=True)
            tensors["host_context_progress"] = PlannedTensor(i64, (1,), is_host=True)
        batch = -1
        tensors["logits"] = PlannedTensor(self.logits, (batch, config.text_vocab))
        tensors["audio_logits"] = PlannedTensor(self.logits, (batch, config.audio_vocab))
        return tensors


def plan_of(model: MossLM, contract: str = "1.x", **choices: Any) -> Plan:
    """An engine of this model by one of the contracts; the other words are those of Build or of Plan."""
    of_build = {name: choices.pop(name) for name in list(choices) if name in Build.__dataclass_fields__}
    of_build.setdefault("tokens_per_block", 16)
    return Plan(Build(model, has_pools=contract == "1.x", **of_build), **choices)


def plan_of_network(network: Network, config: CheckpointConfig, **choices: Any) -> Plan:
    """An engine that evaluates a network as the Model API described it."""
    with torch.device("meta"):
        model = MossLM(config.lm_config(modality_pad=0))
    return plan_of(model, network=network, dtype=config.torch_dtype, **choices)
