"""Memory traffic of a decode step and operations of a prefill, computed from the dimensions of the network.

In: the config of the network and its weight formats. Out: bytes and floating-point operations, from which the
benchmark computes `ratio` and `matrix_share`. Any thread.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine_runtime.cuda.gpu_memory import layer_shapes
from engine_runtime.executors.trtllm.engine_directory import EngineDirectory
from engine_runtime.lm.step import Tails
from engine_runtime.models.moss_lm import MossLMConfig
from engine_runtime.options import BlockFormats, EngineOptions, WeightFormat
from engine_runtime.quantization import bytes_of

_OF_ENGINES: dict[str | None, WeightFormat] = {
    None: "native",
    "FP8": "fp8",
    "W8A16": "int8",
    "W4A16_AWQ": "int4",
}


def weight_numbers(options: EngineOptions) -> tuple[BlockFormats, int]:
    """Weight formats, and bytes of an unquantized number. For a TensorRT-LLM engine both come from its
    config."""
    if options.engine is not None:
        model = EngineDirectory.open(options.engine).model
        return BlockFormats(_OF_ENGINES[model.quantization.algorithm]), model.torch_dtype.itemsize
    return options.formats, getattr(torch, options.lm_dtype).itemsize


@dataclass(frozen=True, slots=True)
class LMCosts:
    """`weight_bytes` and `kv_bytes`: bytes of one unquantized weight, and of one number in the KV cache."""

    config: MossLMConfig
    formats: BlockFormats
    weight_bytes: int
    kv_bytes: int

    def step_bytes(self, cached_rows: int, tails: Tails) -> int:
        """Bytes that one decode step must read: the weights and the keys and values of all cached rows, once
        each. Heads and norms are not quantized."""
        config = self.config
        layers = config.shared_layers
        weights = config.shared_layers * self._layer_bytes(self.formats.trunk)
        tail_layer = self._layer_bytes(self.formats.tails)
        for is_run, count, vocab in (
            (tails.text, config.text_layers, config.text_vocab),
            (tails.audio, config.audio_layers, config.audio_vocab),
        ):
            if is_run:
                layers += count
                weights += count * tail_layer + (vocab + 1) * config.hidden_size * self.weight_bytes
        per_row = 2 * config.num_key_value_heads * config.head_dim * self.kv_bytes
        embedding = config.hidden_size * self.weight_bytes
        return weights + embedding + layers * cached_rows * per_row

    def prefill_flops(self, rows: int, tails: Tails) -> int:
        """Operations of a prefill of `rows` rows without history: two per weight and row, plus causal
        attention.

        The heads run on the last row only.
        """
        config = self.config
        layers = config.shared_layers
        heads = 0
        if tails.text:
            layers, heads = layers + config.text_layers, heads + config.text_vocab
        if tails.audio:
            layers, heads = layers + config.audio_layers, heads + config.audio_vocab
        products = 2 * rows * sum(out * into for out, into in layer_shapes(config))
        seen = rows * (rows + 1) // 2
        attention = 4 * seen * config.num_attention_heads * config.head_dim
        return layers * (products + attention) + 2 * heads * config.hidden_size

    def _layer_bytes(self, weight_format: WeightFormat) -> int:
        config = self.config
        norms = (2 * config.hidden_size + 2 * config.head_dim) * self.weight_bytes
        return norms + sum(
            bytes_of(shape, weight_format, self.weight_bytes) for shape in layer_shapes(config)
        )
