"""config.json: writing, reading, rejected values."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine_runtime.errors import BundleError
from engine_runtime.models.moss_lm import MossLMConfig
from engine_runtime.tensorrt.checkpoint.format import (
    CheckpointConfig,
    Quantization,
    read_config,
)

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
