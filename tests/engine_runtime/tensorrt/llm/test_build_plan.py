"""Settings passed to the library, and those rejected before."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine_runtime.errors import BundleError, EngineError
from engine_runtime.tensorrt.checkpoint.format import (
    CONFIG,
    WEIGHTS,
    CheckpointConfig,
    Quantization,
    expected_tensors,
    read_config,
)
from engine_runtime.tensorrt.llm.build import BuildOptions, plan_build


def empty_checkpoint(directory: Path, config: CheckpointConfig) -> Path:
    """Every tensor that the configuration asks for, without values worth a name."""
    directory.mkdir()
    tensors = {
        name: torch.zeros(spec.shape, dtype=spec.dtype) for name, spec in expected_tensors(config).items()
    }
    save_file(tensors, directory / WEIGHTS)
    (directory / CONFIG).write_text(json.dumps(config.to_dict()))
    return directory


def test_settings_passed_to_the_library(tiny_checkpoint: Path) -> None:
    plan = plan_build(tiny_checkpoint, BuildOptions())
    assert plan.plugins == {
        "dtype": "float32",
        "gpt_attention_plugin": "float32",
        "gemm_plugin": "float32",
        "context_fmha": True,
        "paged_kv_cache": True,
        "remove_input_padding": True,
        "tokens_per_block": 32,
        "use_paged_context_fmha": True,
        "use_fp8_context_fmha": False,
        "use_fused_mlp": True,
        "multiple_profiles": False,
    }
    assert plan.settings == {
        "max_batch_size": 1,
        "opt_batch_size": 1,
        "max_beam_width": 1,
        "max_input_len": 1024,
        "max_seq_len": 1024,  # of the model
        "max_num_tokens": 1024,
        "opt_num_tokens": 1,
        "strongly_typed": True,
    }
    assert plan.document()["memory"] == {
        "engine_bytes": plan.weights_bytes,
        "kv_bytes_of_a_conversation": 1024 * 7 * 2 * 2 * 32 * 4,
        "kv_bytes_of_a_batch": 1024 * 7 * 2 * 2 * 32 * 4,
        "logits_bytes_of_a_batch": (512 + 160) * 4,
    }
    assert plan.weights_bytes == (tiny_checkpoint / WEIGHTS).stat().st_size


def test_options_reach_the_library(tiny_checkpoint: Path) -> None:
    options = BuildOptions(
        max_seq_len=512, max_num_tokens=128, opt_num_tokens=16, tokens_per_block=64, fused_mlp=False
    )
    plan = plan_build(tiny_checkpoint, replace(options, multiple_profiles=True))
    assert (plan.plugins["tokens_per_block"], plan.plugins["use_fused_mlp"]) == (64, False)
    assert plan.plugins["multiple_profiles"] is True
    sizes = {"max_seq_len": 512, "max_num_tokens": 128, "max_input_len": 128, "opt_num_tokens": 16}
    assert sizes.items() <= plan.settings.items()


def test_an_engine_for_several_conversations(tiny_checkpoint: Path) -> None:
    """Kernels are tuned for one row of each, unless another number of rows is wanted."""
    plan = plan_build(tiny_checkpoint, BuildOptions(max_batch_size=8))
    sizes = {"max_batch_size": 8, "opt_batch_size": 8, "opt_num_tokens": 8, "max_num_tokens": 1024}
    assert sizes.items() <= plan.settings.items()
    memory, single = (
        plan_build(tiny_checkpoint, options).document()["memory"]
        for options in (BuildOptions(max_batch_size=8), BuildOptions())
    )
    assert memory["kv_bytes_of_a_conversation"] == single["kv_bytes_of_a_conversation"]
    for name in ("kv_bytes_of_a_batch", "logits_bytes_of_a_batch"):
        assert memory[name] == 8 * single[name]
    few_rows = plan_build(tiny_checkpoint, BuildOptions(max_batch_size=8, opt_num_tokens=2))
    assert (few_rows.settings["opt_batch_size"], few_rows.settings["opt_num_tokens"]) == (2, 2)


def test_a_model_made_for_long_conversations_is_not_built_for_all_of_it(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    config = replace(read_config(tiny_checkpoint), max_position_embeddings=40960)
    plan = plan_build(empty_checkpoint(tmp_path / "long", config), BuildOptions())
    assert (plan.settings["max_seq_len"], plan.settings["max_num_tokens"]) == (8192, 2048)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_seq_len": 1025}, "max_seq_len is 1025, and the model supports at most 1024"),
        ({"max_seq_len": 0}, "max_seq_len is 0"),
        ({"max_seq_len": 64, "max_num_tokens": 65}, "max_num_tokens is 65"),
        ({"max_num_tokens": 31}, "max_num_tokens is 31. Give at least tokens_per_block"),
        ({"max_num_tokens": 64, "opt_num_tokens": 65}, "opt_num_tokens is 65"),
        ({"max_num_tokens": 64, "max_batch_size": 65}, "max_batch_size is 65. Give at least 1 and at most"),
        ({"max_batch_size": 0}, "max_batch_size is 0"),
        ({"tokens_per_block": 48}, "tokens_per_block is 48. Specify a power of two"),
        ({"tokens_per_block": 0}, "tokens_per_block is 0"),
    ],
)
def test_sizes_that_cannot_be_are_refused(
    tiny_checkpoint: Path, options: dict[str, int], message: str
) -> None:
    with pytest.raises(EngineError, match=message):
        plan_build(tiny_checkpoint, BuildOptions(**options))  # type: ignore[arg-type]


@pytest.mark.parametrize("algorithm", ["FP8", "W8A16", "W4A16_AWQ"])
def test_the_mixed_plan_is_taken_in_every_format(
    tiny_checkpoint: Path, tmp_path: Path, algorithm: Any
) -> None:
    config = replace(read_config(tiny_checkpoint), quantization=Quantization(algorithm))
    plan = plan_build(empty_checkpoint(tmp_path / "quantized", config), BuildOptions())
    assert plan.config.quantization.algorithm == algorithm
    assert plan.plugins["use_fp8_context_fmha"] is False


@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        (Quantization("FP8", kv_cache="FP8"), "asks for keys and values in FP8"),
        (Quantization("W8A16", exclude_modules=("*lm_head",)), "does not exclude vocab_embedding"),
        (
            Quantization("FP8", exclude_modules=("*lm_head", "*vocab_embedding", "text_layers.*.mlp*")),
            "Whether text_layers.0.mlp.fc is quantized is read in two ways",
        ),
        (
            Quantization("FP8", exclude_modules=("*lm_head", "*vocab_embedding", "audio_layers.1.mlp.gate")),
            "Whether audio_layers.1.mlp.fc is quantized is read in two ways",
        ),
    ],
)
def test_plans_that_the_library_reads_otherwise_are_refused(
    tiny_checkpoint: Path, tmp_path: Path, quantization: Quantization, message: str
) -> None:
    config = replace(read_config(tiny_checkpoint), quantization=quantization)
    checkpoint = empty_checkpoint(tmp_path / "quantized", config)
    with pytest.raises(EngineError, match=message):
        plan_build(checkpoint, BuildOptions())
    if "two ways" in message:
        plan_build(checkpoint, BuildOptions(fused_mlp=False))


def test_a_checkpoint_that_is_not_complete_is_refused(tiny_checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"config\.json is missing"):
        plan_build(tmp_path, BuildOptions())
    tensors = load_file(tiny_checkpoint / WEIGHTS)
    del tensors["audio_layers.1.attention.q_layernorm.weight"]
    save_file(tensors, tmp_path / WEIGHTS)
    (tmp_path / CONFIG).write_bytes((tiny_checkpoint / CONFIG).read_bytes())
    with pytest.raises(BundleError, match=r"audio_layers\.1\.attention\.q_layernorm\.weight"):
        plan_build(tmp_path, BuildOptions())
