"""What a way to run the model needs is known from shapes, and said when there is too little."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine_runtime.cuda.memory import _RESERVE, Demand, require
from engine_runtime.cuda.network import BlockFormats, build_network
from engine_runtime.cuda.quantise import FP8
from engine_runtime.hardware import AcceleratorError
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.models.moss_lm import MossLMConfig
from tests.tiny_lm import load_tiny

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
FULL = Demand(RELEASED, native_bytes=2, kv_bytes=2, kv_rows=8192, codec_bytes=2_000_000_000)


@pytest.mark.parametrize("weight_format", ["native", "fp8", "int8", "int4"])
def test_the_need_is_what_a_network_then_takes(weight_format: str) -> None:
    model, _ = load_tiny()
    network = build_network(
        model.config,
        model.state_dict().__getitem__,
        formats=BlockFormats(weight_format),
        dtype=torch.bfloat16,
        device=torch.device("cpu"),
        max_seq_len=64,
    )
    cache = KVCache(model.config, 10, 16, dtype=torch.bfloat16, kv_dtype=FP8)
    embedding = network.embedding.numel() * 2
    taken = network.step_bytes(text=True, audio=True) + embedding + cache.bytes
    scratch = network.largest_rounded * 2
    demand = Demand(model.config, native_bytes=2, kv_bytes=1, kv_rows=160, codec_bytes=0)
    # Norms are left out of the reckoning.
    assert demand.bytes(weight_format) == pytest.approx(taken + scratch + _RESERVE, abs=100)


def test_the_released_model_in_the_sizes_that_are_promised() -> None:
    assert FULL.bytes("native") < 24e9
    smaller = replace(FULL, kv_bytes=1)
    assert smaller.bytes("fp8") < 16e9
    assert FULL.bytes("int4") < FULL.bytes("int8") <= FULL.bytes("fp8") < FULL.bytes("native")


def test_too_little_memory_names_what_would_fit() -> None:
    require(FULL, "native", int(24e9))
    with pytest.raises(AcceleratorError, match=r"native needs 2\d\.\d GB. Use --weights (int8|fp8)") as error:
        require(FULL, "native", int(18e9))
    for weight_format in ("native", "fp8", "int8", "int4"):
        assert f"{weight_format} " in str(error.value)
    with pytest.raises(AcceleratorError, match="None of them fits"):
        require(FULL, "int4", int(4e9))
