"""Reading an engine folder: ours, one of trtllm-build, one of 0.13, and incomplete ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine_runtime.errors import EngineError
from engine_runtime.tensorrt.checkpoint.format import CheckpointConfig, Quantization
from engine_runtime.tensorrt.llm.engine_directory import EngineDirectory, Provenance, describe_precision

SIZES = CheckpointConfig(
    dtype="bfloat16",
    hidden_size=64,
    intermediate_size=160,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_size=32,
    num_shared_layers=3,
    num_text_layers=2,
    num_audio_layers=2,
    text_vocab_size=512,
    audio_vocab_size=160,
    max_position_embeddings=1024,
    rotary_base=1e6,
    norm_epsilon=1e-6,
)
MODEL = CheckpointConfig.from_dict(SIZES.to_dict(), "config.json")  # as read back
PROVENANCE = Provenance(
    bundle="tiny",
    lm_fingerprint="ab" * 32,
    contract="1.x",
    precision=describe_precision(MODEL),
    build_seconds=61.5,
    plan_bytes=4,
    tokens_per_block=32,
    max_seq_len=8192,
    max_num_tokens=2048,
    inputs=("input_ids",),
    outputs=("logits", "audio_logits"),
)


def write(
    directory: Path, *, version: str = "1.2.1", build: dict[str, Any] | None = None, **top: Any
) -> Path:
    """An engine folder as the library writes it; `build` replaces keys of build_config."""
    plugins = {"tokens_per_block": 32, "use_paged_context_fmha": True, "remove_input_padding": True}
    sizes = {"max_input_len": 2048, "max_seq_len": 8192, "max_num_tokens": 2048, "max_batch_size": 1}
    config = {
        "version": version,
        "pretrained_config": MODEL.to_dict() | {"runtime_defaults": None, "rotary_embedding_dim": 32},
        "build_config": sizes | {"kv_cache_type": "PAGED", "plugin_config": plugins} | (build or {}),
    }
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config | top))
    (directory / "rank0.engine").write_bytes(b"plan")
    return directory


def test_an_engine_of_ours(tmp_path: Path) -> None:
    PROVENANCE.write(write(tmp_path / "engine"))
    engine = EngineDirectory.open(tmp_path / "engine")
    assert engine.model == MODEL
    assert engine.library_version == "1.2.1"
    assert (engine.tokens_per_block, engine.max_seq_len, engine.max_num_tokens) == (32, 8192, 2048)
    assert (engine.max_input_len, engine.max_batch_size) == (2048, 1)
    assert engine.has_paged_context_fmha
    assert engine.has_paged_kv_cache
    assert engine.removes_input_padding
    assert engine.provenance == PROVENANCE
    assert (engine.bundle_name, engine.lm_fingerprint) == ("tiny", "ab" * 32)
    assert (engine.contract, engine.build_seconds) == ("1.x", 61.5)
    assert EngineDirectory.open(tmp_path / "engine" / "rank0.engine") == engine


def test_an_engine_of_trtllm_build_has_no_provenance(tmp_path: Path) -> None:
    engine = EngineDirectory.open(write(tmp_path / "engine"))
    assert engine.provenance is None
    assert engine.bundle_name is engine.lm_fingerprint is engine.contract is engine.build_seconds is None
    assert engine.precision == "bfloat16, K/V bfloat16"


@pytest.mark.parametrize(("version", "tokens", "fmha"), [("0.13.0", 64, False), ("1.2.1", 32, True)])
def test_absent_keys_mean_what_that_release_defaults_to(
    tmp_path: Path, version: str, tokens: int, fmha: bool
) -> None:
    engine = EngineDirectory.open(write(tmp_path / "engine", version=version, build={"plugin_config": {}}))
    assert (engine.tokens_per_block, engine.has_paged_context_fmha) == (tokens, fmha)


@pytest.mark.parametrize(
    ("build", "attribute"),
    [
        ({"kv_cache_type": "KVCacheType.CONTINUOUS"}, "has_paged_kv_cache"),
        ({"plugin_config": {"paged_kv_cache": False}}, "has_paged_kv_cache"),
        ({"plugin_config": {"use_paged_context_fmha": False}}, "has_paged_context_fmha"),
        ({"plugin_config": {"remove_input_padding": False}}, "removes_input_padding"),
    ],
)
def test_what_the_runtime_cannot_use_is_seen(tmp_path: Path, build: dict[str, Any], attribute: str) -> None:
    assert getattr(EngineDirectory.open(write(tmp_path / "engine", build=build)), attribute) is False


def test_folders_that_are_not_complete_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"rank0\.engine is missing"):
        EngineDirectory.open(tmp_path)
    (tmp_path / "rank0.engine").write_bytes(b"plan")
    with pytest.raises(EngineError, match=r"config\.json is missing"):
        EngineDirectory.open(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(EngineError, match="cannot be read"):
        EngineDirectory.open(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(MODEL.to_dict()))
    with pytest.raises(EngineError, match="no table build_config"):
        EngineDirectory.open(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pretrained_config": MODEL.to_dict() | {"architecture": "LlamaForCausalLM"}}, "LlamaForCausalLM"),
        ({"build": {"max_seq_len": None}}, "max_seq_len = None"),
        ({"build": {"max_num_tokens": True}}, "max_num_tokens = True"),
    ],
)
def test_an_engine_of_something_else_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    with pytest.raises(EngineError, match=message) as caught:
        EngineDirectory.open(write(tmp_path / "engine", **change))
    assert "moss-voice trt build" in caught.value.what_to_do


def test_a_plan_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    directory = write(tmp_path / "engine")
    PROVENANCE.write(directory)
    (directory / "rank0.engine").write_bytes(b"pla")
    with pytest.raises(EngineError, match="has 3 bytes instead of 4"):
        EngineDirectory.open(directory)


def test_files_of_two_builds_are_refused(tmp_path: Path) -> None:
    directory = write(tmp_path / "engine")
    replace(PROVENANCE, max_seq_len=4096).write(directory)
    with pytest.raises(EngineError, match=r"8192 in config\.json and 4096 in moss_voice\.json"):
        EngineDirectory.open(directory)


def test_a_note_of_a_checkpoint_is_not_one_of_an_engine(tmp_path: Path) -> None:
    directory = write(tmp_path / "engine")
    (directory / "moss_voice.json").write_text('{"bundle": "tiny", "lm_fingerprint": "ab"}')
    with pytest.raises(EngineError, match="does not describe an engine"):
        EngineDirectory.open(directory)


def test_precision_counts_the_products_that_are_quantized() -> None:
    assert describe_precision(MODEL) == "bfloat16, K/V bfloat16"
    mixed = replace(MODEL, quantization=Quantization("FP8"))
    # 3 shared layers of 5 products; 4 layers of the tails and 2 heads stay plain.
    assert describe_precision(mixed) == "FP8 in 15 of 37 products, bfloat16 elsewhere, K/V bfloat16"
