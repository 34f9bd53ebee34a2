"""Memory traffic of a decode step and operations of a prefill, computed from the dimensions of the network.

In: the config of the network and its weight formats. Out: bytes and floating-point operations, from which the
benchmark computes `ratio` and `matrix_share`. Any thread.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine_runtime.cuda.gpu_memory import layer_shapes
from engine_runtime.lm.step import BOTH_TAILS, Tails
from engine_runtime.loading import Stages
from engine_runtime.models.moss_lm import MossLMConfig
from engine_runtime.options import BlockFormats, WeightFormat
from engine_runtime.quantization import bytes_of
from engine_runtime.tensorrt.checkpoint.format import CheckpointConfig, read_config
from engine_runtime.tensorrt.llm.engine_directory import EngineDirectory

_OF_ENGINES: dict[str | None, WeightFormat] = {
    None: "native",
    "FP8": "fp8",
    "W8A16": "int8",
    "W4A16_AWQ": "int4",
}


def weight_numbers(stages: Stages) -> tuple[BlockFormats, int]:
    """Weight formats, and bytes of an unquantized number. A TensorRT-LLM engine has both in its config, and a
    checkpoint that was quantized for one has the formats."""
    options, lm = stages.options, stages.bundle.lm
    if options.engine is not None:
        model = EngineDirectory.open(options.engine).model
        return formats_of(model), model.torch_dtype.itemsize
    formats = options.formats
    if lm.layout == "tensorrt-llm" and options.random_weights is None:
        model = read_config(lm.weights[0].parent)
        formats = formats if model.quantization.algorithm is None else formats_of(model)
    return formats, getattr(torch, options.lm_dtype).itemsize


def formats_of(model: CheckpointConfig) -> BlockFormats:
    """The weight formats of an engine or a checkpoint, by the modules that its quantization leaves out; of
    tails and heads those of audio, which every step of speech runs."""
    quantized = _OF_ENGINES[model.quantization.algorithm]

    def of(module: str) -> WeightFormat:
        return quantized if model.is_quantized(module) else "native"

    layer = "0.attention.qkv"
    return BlockFormats(of(f"shared_layers.{layer}"), of(f"audio_layers.{layer}"), of("audio_lm_head"))


@dataclass(frozen=True, slots=True)
class LMCosts:
    """`weight_bytes` and `kv_bytes`: bytes of one unquantized weight, and of one number in the KV cache."""

    config: MossLMConfig
    formats: BlockFormats
    weight_bytes: int
    kv_bytes: int

    @classmethod
    def of(cls, stages: Stages) -> LMCosts:
        """The formats of a loaded language model."""
        formats, weight_bytes = weight_numbers(stages)
        return cls(stages.lm_config, formats, weight_bytes, stages.lm.cache.pool.element_size())

    def step_bytes(self, cached_tokens: int, tails: Tails) -> int:
        """Bytes that one decode step must read: the weights and the keys and values of all cached rows, once
        each. Norms are not quantized."""
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
                head = bytes_of((vocab, config.hidden_size), self.formats.heads, self.weight_bytes)
                weights += count * tail_layer + head + config.hidden_size * self.weight_bytes
        per_row = 2 * config.num_key_value_heads * config.head_dim * self.kv_bytes
        embedding = config.hidden_size * self.weight_bytes
        return weights + embedding + layers * cached_tokens * per_row

    @property
    def stored_bytes(self) -> int:
        """Bytes of all weights, both embedding tables included."""
        tables = (self.config.text_vocab + self.config.audio_vocab - 1) * self.config.hidden_size
        return self.step_bytes(0, BOTH_TAILS) + tables * self.weight_bytes

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
