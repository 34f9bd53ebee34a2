"""Names, shapes and sizes of the checkpoint, at full size on the meta device and against the inventory."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine_runtime.bundle.weights import Uninitialized
from engine_runtime.models.moss_lm import MossLM, MossLMConfig
from engine_runtime.tensorrt.checkpoint.format import (
    CheckpointConfig,
    Quantization,
    expected_tensors,
    is_checkpoint,
    linear_modules,
    name_map,
    tensor_slices,
)
from tests.factories.tiny_lm import GOLDEN

RELEASED = MossLMConfig(4096, 12288, 32, 8, 128, 32, 4, 4, 151680, 16512, 151667)


@pytest.fixture
def full() -> CheckpointConfig:
    return CheckpointConfig.of(RELEASED, "bfloat16", 8192)


def test_the_released_model_has_365_tensors_of_18_gigabytes(full: CheckpointConfig) -> None:
    tensors = expected_tensors(full)
    inventory = json.loads((GOLDEN / "inventory_lm.json").read_text("utf-8"))
    values = sum(torch.Size(spec.shape).numel() for spec in tensors.values())
    assert len(tensors) == 365
    assert values == inventory["parameters"]
    assert {spec.dtype for spec in tensors.values()} == {torch.bfloat16}
    assert tensors["vocab_embedding.weight"].shape == (168192, 4096)
    assert tensors["shared_layers.31.attention.qkv.weight"].shape == (6144, 4096)
    assert tensors["text_layers.3.mlp.fc.weight"].shape == (12288, 4096)
    assert tensors["audio_layers.0.mlp.proj.weight"].shape == (4096, 12288)
    assert tensors["audio_layers.0.attention.k_layernorm.weight"].shape == (128,)
    assert tensors["audio_lm_head.weight"].shape == (16512, 4096)


def test_every_released_tensor_has_one_place_and_every_place_is_filled(full: CheckpointConfig) -> None:
    with torch.device("meta"), Uninitialized():
        released = {name: tuple(tensor.shape) for name, tensor in MossLM(RELEASED).state_dict().items()}
    tensors, found = expected_tensors(full), tensor_slices(full)
    assert found.keys() == released.keys()
    filled: dict[str, int] = {}
    for name, shape in released.items():
        part = found[name]
        assert (part.rows, *tensors[part.name].shape[1:]) == shape
        assert part.first == filled.get(part.name, 0) or part.rows != tensors[part.name].shape[0]
        filled[part.name] = filled.get(part.name, 0) + part.rows
    assert filled == {name: spec.shape[0] for name, spec in tensors.items()}


def test_rows_are_fused_in_the_order_of_the_library(full: CheckpointConfig) -> None:
    found, layer = tensor_slices(full), "model.shared_block.layers.3"
    assert found[f"{layer}.self_attn.q_proj.weight"] == ("shared_layers.3.attention.qkv.weight", 0, 4096)
    assert found[f"{layer}.self_attn.k_proj.weight"] == ("shared_layers.3.attention.qkv.weight", 4096, 1024)
    assert found[f"{layer}.self_attn.v_proj.weight"] == ("shared_layers.3.attention.qkv.weight", 5120, 1024)
    assert found[f"{layer}.mlp.gate_proj.weight"].name == "shared_layers.3.mlp.fc.weight"
    assert found[f"{layer}.mlp.up_proj.weight"].name == "shared_layers.3.mlp.gate.weight"
    assert found["model.audio_embed.weight"] == ("vocab_embedding.weight", 151680, 16512)
    assert name_map(full)["vocab_embedding.weight"] == (
        "model.embed_tokens.weight",
        "model.audio_embed.weight",
    )
    assert name_map(full)["lm_head.weight"] == ("text_lm_head.weight",)


def test_fp8_of_the_trunk_alone_adds_two_scales_to_each_of_its_products(full: CheckpointConfig) -> None:
    mixed = replace(full, quantization=Quantization("FP8"))
    tensors = expected_tensors(mixed)
    assert len(tensors) == 365 + 32 * 5 * 2
    name = "shared_layers.7.mlp.fc"
    assert tensors[f"{name}.weight"] == ((12288, 4096), torch.float8_e4m3fn)
    assert tensors[f"{name}.activation_scaling_factor"] == ((1,), torch.float32)
    assert tensors[f"{name}.weights_scaling_factor"] == ((1,), torch.float32)
    for plain in (
        "vocab_embedding",
        "shared_layers.0.input_layernorm",
        "text_layers.0.mlp.fc",
        "audio_layers.3.attention.qkv",
        "lm_head",
        "audio_lm_head",
    ):
        assert not mixed.is_quantized(plain)
        assert tensors[f"{plain}.weight"].dtype == torch.bfloat16
    size = sum(torch.Size(spec.shape).numel() * spec.dtype.itemsize for spec in tensors.values())
    assert 11.5e9 < size < 12.1e9


def test_int4_packs_two_outputs_a_byte_and_int8_is_left_to_the_library(full: CheckpointConfig) -> None:
    int4 = expected_tensors(replace(full, quantization=Quantization("W4A16_AWQ", exclude_modules=())))
    assert int4["audio_layers.0.mlp.proj.weight"] == ((2048, 12288), torch.int8)
    assert int4["audio_layers.0.mlp.proj.weights_scaling_factor"] == ((4096, 96), torch.bfloat16)
    assert int4["audio_layers.0.mlp.proj.prequant_scaling_factor"] == ((12288,), torch.bfloat16)
    assert expected_tensors(replace(full, quantization=Quantization("W8A16"))) == expected_tensors(full)


def test_an_fp8_cache_has_a_scale_for_each_layer(full: CheckpointConfig) -> None:
    tensors = expected_tensors(replace(full, quantization=Quantization("FP8", "FP8")))
    scales = [name for name in tensors if name.endswith("attention.kv_cache_scaling_factor")]
    assert len(scales) == 40
    assert tensors[scales[0]] == ((1,), torch.float32)


def test_products_are_five_a_layer_and_the_heads(full: CheckpointConfig) -> None:
    products = linear_modules(full)
    assert len(products) == 40 * 5 + 2
    assert products[-2:] == ["lm_head", "audio_lm_head"]


def test_a_folder_is_a_checkpoint_when_all_of_it_is_there(full: CheckpointConfig, tmp_path: Path) -> None:
    assert not is_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(full.to_dict()))
    assert not is_checkpoint(tmp_path)
    (tmp_path / "rank0.safetensors").write_bytes(b"")
    assert is_checkpoint(tmp_path)
