"""config.json, names and shapes of a checkpoint, and the fingerprint of its language model."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine_runtime.bundle.bundle import Bundle
from engine_runtime.bundle.weights import Uninitialized
from engine_runtime.errors import BundleError
from engine_runtime.models.moss_lm import MossLM, MossLMConfig
from engine_runtime.tensorrt.checkpoint.format import (
    CheckpointConfig,
    Quantization,
    expected_tensors,
    is_checkpoint,
    linear_modules,
    lm_fingerprint,
    name_map,
    read_config,
    tensor_slices,
)
from tests.factories.tiny_lm import GOLDEN

RELEASED = MossLMConfig(4096, 12288, 32, 8, 128, 32, 4, 4, 151680, 16512, 151667)


FULL = CheckpointConfig.of(RELEASED, "bfloat16", 8192)


def _again(config: CheckpointConfig) -> CheckpointConfig:
    return CheckpointConfig.from_dict(json.loads(json.dumps(config.to_dict())), "config.json")


def test_the_released_model_in_the_words_of_the_library() -> None:
    assert FULL.to_dict() == {
        "architecture": "MossForCausalLM",
        "dtype": "bfloat16",
        "logits_dtype": "float32",
        "vocab_size": 168192,
        "hidden_size": 4096,
        "num_hidden_layers": 40,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_size": 128,
        "intermediate_size": 12288,
        "hidden_act": "silu",
        "norm_epsilon": 1e-6,
        "position_embedding_type": "rope_gpt_neox",
        "max_position_embeddings": 8192,
        "rotary_base": 1e6,
        "rotary_scaling": None,
        "qk_layernorm": True,
        "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1},
        "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
        "num_shared_layers": 32,
        "num_text_layers": 4,
        "num_audio_layers": 4,
        "text_vocab_size": 151680,
        "audio_vocab_size": 16512,
    }


def test_the_plan_for_the_trunk_in_fp8() -> None:
    mixed = replace(FULL, quantization=Quantization("FP8"))
    assert mixed.to_dict()["quantization"] == {
        "quant_algo": "FP8",
        "kv_cache_quant_algo": None,
        "exclude_modules": ["*lm_head", "*vocab_embedding", "text_layers*", "audio_layers*"],
    }


@pytest.mark.parametrize("quantization", [None, "FP8", "W8A16", "W4A16_AWQ"])
def test_what_is_written_is_read_again(quantization: Any) -> None:
    config = replace(FULL, quantization=Quantization(quantization, group_size=64))
    again = _again(config)
    assert again.quantization.algorithm == quantization
    assert again.to_dict() == config.to_dict()
    assert again.lm_config(151667) == RELEASED


def test_keys_of_the_library_are_left_alone_and_its_excludes_hold() -> None:
    values = FULL.to_dict() | {"runtime_defaults": None, "producer": {"name": "x"}}
    values["quantization"] = {"quant_algo": "W8A16", "clamp_val": None, "smoothquant_val": 0.5}
    config = CheckpointConfig.from_dict(values, "config.json")
    assert config.is_quantized("text_layers.0.mlp.fc")
    assert not config.is_quantized("audio_lm_head")


def test_a_network_without_norms_of_queries_and_keys_is_refused() -> None:
    with pytest.raises(BundleError, match=r"normalize queries and keys.*qk_norm = false"):
        CheckpointConfig.of(replace(RELEASED, qk_norm=False), "bfloat16", 8192)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "QWenForCausalLM"}, "describes a QWenForCausalLM"),
        ({"qk_layernorm": False}, "qk_layernorm"),
        ({"rotary_scaling": {"type": "yarn"}}, "rotary_scaling"),
        ({"mapping": {"world_size": 2}}, "several GPUs"),
        ({"dtype": "float8"}, "dtype = 'float8'"),
        ({"num_hidden_layers": 36}, "its parts add to 40"),
        ({"hidden_size": "4096"}, "hidden_size"),
        ({"quantization": {"quant_algo": "NVFP4"}}, "NVFP4"),
    ],
)
def test_what_this_network_is_not(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BundleError, match=message):
        CheckpointConfig.from_dict(FULL.to_dict() | changes, "config.json")


@pytest.mark.parametrize("key", ["qk_layernorm", "hidden_act"])
def test_an_absent_key_means_what_the_library_takes_it_for(key: str) -> None:
    values = FULL.to_dict()
    del values[key]
    with pytest.raises(BundleError, match=f"has {key} = (False|'gelu'), but this network has"):
        CheckpointConfig.from_dict(values, "config.json")


def test_folders_that_hold_none(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="no finished checkpoint"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(BundleError, match="cannot be read"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(BundleError, match="no JSON object"):
        read_config(tmp_path)


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


def test_the_same_model_in_another_folder_is_the_same(random_bundle: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(random_bundle, tmp_path / "copy")
    assert lm_fingerprint(Bundle.open(copy)) == lm_fingerprint(Bundle.open(random_bundle))
    (copy / "lm.safetensors").unlink()
    assert lm_fingerprint(Bundle.open(copy, verify="none")) == lm_fingerprint(Bundle.open(random_bundle))


def test_other_weights_or_sizes_are_another_model(random_bundle: Path, nano_bundle: Path) -> None:
    bundle = Bundle.open(random_bundle)
    entry = replace(bundle.files["lm.safetensors"], sha256="0" * 64)
    retrained = replace(bundle, files=bundle.files | {"lm.safetensors": entry})
    wider = replace(bundle, lm=replace(bundle.lm, config=bundle.lm.config | {"hidden_size": 128}))
    elsewhere = replace(bundle, files=bundle.files | {"flow.safetensors": entry})
    assert lm_fingerprint(elsewhere) == lm_fingerprint(bundle)
    models = (bundle, retrained, wider, Bundle.open(nano_bundle))
    assert len({lm_fingerprint(model) for model in models}) == len(models)
