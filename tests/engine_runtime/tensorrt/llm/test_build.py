"""Plans of an engine; building with the double of the library, and with the library where it is installed."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine_runtime.errors import BundleError, EngineError, ExportError
from engine_runtime.lm.step import ExecutorLimits
from engine_runtime.tensorrt.checkpoint.format import (
    CONFIG,
    WEIGHTS,
    CheckpointConfig,
    Quantization,
    expected_tensors,
    read_config,
)
from engine_runtime.tensorrt.llm.build import BuildOptions, BuildReport, build_engine, plan_build
from engine_runtime.tensorrt.llm.contract import CONTRACTS
from engine_runtime.tensorrt.llm.engine_directory import EngineDirectory
from engine_runtime.tensorrt.llm.library import Library, load_library
from tests.doubles.tensorrt.model_api import builder, make_library, modeling
from tests.factories.tiny_checkpoint import convert_tiny


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
        (BuildOptions(max_seq_len=1025), "max_seq_len is 1025, but the model supports at most 1024"),
        (BuildOptions(max_seq_len=0), "max_seq_len is 0"),
        (BuildOptions(max_seq_len=64, max_num_tokens=65), "max_num_tokens is 65"),
        (BuildOptions(max_num_tokens=31), "max_num_tokens is 31. Give at least tokens_per_block"),
        (BuildOptions(max_num_tokens=64, opt_num_tokens=65), "opt_num_tokens is 65"),
        (
            BuildOptions(max_num_tokens=64, max_batch_size=65),
            "max_batch_size is 65. Give at least 1 and at most",
        ),
        (BuildOptions(max_batch_size=0), "max_batch_size is 0"),
        (BuildOptions(tokens_per_block=48), "tokens_per_block is 48. Specify a power of two"),
        (BuildOptions(tokens_per_block=0), "tokens_per_block is 0"),
    ],
)
def test_sizes_that_cannot_be_are_refused(tiny_checkpoint: Path, options: BuildOptions, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        plan_build(tiny_checkpoint, options)


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


OPTIONS = BuildOptions(max_seq_len=512, max_num_tokens=128)


def make(checkpoint: Path, directory: Path, options: BuildOptions = OPTIONS, **replaced: Any) -> BuildReport:
    return build_engine(plan_build(checkpoint, options), directory, options, make_library(**replaced))


def altered(**plugins: Any) -> Any:
    """The library's builder, which settles plugin options otherwise."""

    def build(model: Any, config: Any) -> Any:
        for name, value in plugins.items():
            setattr(config.plugin_config, name, value)
        return builder.build(model, config)

    return build


@pytest.mark.slow
def test_an_engine_and_its_report(tiny_checkpoint: Path, tmp_path: Path) -> None:
    report = make(tiny_checkpoint, tmp_path / "engines" / "tiny")
    engine = report.engine
    assert engine == EngineDirectory.open(tmp_path / "engines" / "tiny")
    assert {file.name for file in engine.path.iterdir()} == {
        "config.json",
        "moss_voice.json",
        "rank0.engine",
        "timing.cache",
    }
    assert not (tmp_path / "engines" / "tiny.part").exists()
    assert (engine.bundle_name, engine.lm_fingerprint) == ("tiny", "ab" * 32)
    assert (engine.contract, engine.library_version) == ("1.x", "1.2.1")
    assert (engine.max_seq_len, engine.max_num_tokens, engine.tokens_per_block) == (512, 128, 32)
    assert engine.provenance is not None
    assert len(engine.provenance.inputs) == 17
    assert engine.provenance.outputs == ("logits", "audio_logits")
    assert report.changed == ()
    document = report.document()
    assert json.loads(json.dumps(document)) == document
    assert document["plan_bytes"] == len(builder.PLAN)
    assert document["weights_bytes"] > 1_000_000
    assert document["cache_bytes"] == 2 * 7 * 2 * 32 * 4 * 512
    assert document["build_s"] >= 0
    outputs = [tensor for tensor in document["tensors"] if tensor["mode"] == "output"]
    assert outputs == [
        {"name": "logits", "mode": "output", "dtype": "float32", "shape": [-1, 512]},
        {"name": "audio_logits", "mode": "output", "dtype": "float32", "shape": [-1, 160]},
    ]
    text = "\n".join(report.lines())
    for part in (
        "TensorRT-LLM 1.2.1",
        "of tiny",
        "float32, K/V float32",
        "17 inputs, 2 outputs",
        "cache_indirection",
    ):
        assert part in text


@pytest.mark.slow
def test_the_inputs_are_those_of_a_step(tiny_checkpoint: Path, tmp_path: Path) -> None:
    report = make(tiny_checkpoint, tmp_path / "engine")
    limits = ExecutorLimits(512, 160, 7, 64, 32, 512, 128)
    wanted = {spec.name: (spec.dtype, len(spec.shape)) for spec in CONTRACTS[0].inputs(limits)}
    found = {t.name: (t.dtype, len(t.shape)) for t in report.tensors if t.is_input}
    assert found == wanted


@pytest.mark.slow
def test_a_timing_cache_is_read_and_written(tiny_checkpoint: Path, tmp_path: Path) -> None:
    seen = []

    def build(model: Any, config: Any) -> Any:
        seen.append(config.input_timing_cache)
        return builder.build(model, config)

    file = tmp_path / "caches" / "timings"
    options = BuildOptions(timing_cache=file)
    make(tiny_checkpoint, tmp_path / "first", options, build=build)
    make(tiny_checkpoint, tmp_path / "second", options, build=build)
    assert seen == [None, str(file)]
    assert not (tmp_path / "first" / "timing.cache").exists()


@pytest.mark.slow
def test_a_checkpoint_without_a_note(tiny_checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_checkpoint, tmp_path / "checkpoint")
    (tmp_path / "checkpoint" / "moss_voice.json").unlink()
    engine = make(tmp_path / "checkpoint", tmp_path / "engine").engine
    assert engine.lm_fingerprint is None
    (tmp_path / "checkpoint" / "moss_voice.json").write_text("{")
    with pytest.raises(BundleError, match=r"moss_voice\.json cannot be read"):
        make(tmp_path / "checkpoint", tmp_path / "other")


@pytest.mark.slow
def test_a_folder_that_is_not_empty_is_left_alone(tiny_checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    make(tiny_checkpoint, tmp_path / "engine")
    before = (tmp_path / "engine" / "moss_voice.json").read_bytes()
    with pytest.raises(ExportError, match="exists and is not empty"):
        make(tiny_checkpoint, tmp_path / "engine")
    assert (tmp_path / "engine" / "moss_voice.json").read_bytes() == before
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match="exists and is not empty"):
        make(tiny_checkpoint, tmp_path / "file")
    with pytest.raises(ExportError, match="is a file"):
        make(tiny_checkpoint, tmp_path / "file" / "engine")


@pytest.mark.slow
def test_a_full_disk_is_seen_before_the_build(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage(NamedTuple):
        free: int = 1000

    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage())
    with pytest.raises(ExportError, match=r"0\.0 GB free"):
        make(tiny_checkpoint, tmp_path / "engine")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plugins", "message"),
    [
        ({"use_paged_context_fmha": False}, "without paged-context FMHA"),
        ({"remove_input_padding": False}, "could not build the engine"),
    ],
)
def test_an_engine_that_no_conversation_can_run_on_is_refused(
    tiny_checkpoint: Path, tmp_path: Path, plugins: dict[str, bool], message: str
) -> None:
    with pytest.raises(EngineError, match=message):
        make(tiny_checkpoint, tmp_path / "engine", build=altered(**plugins))
    assert not (tmp_path / "engine").exists()


@pytest.mark.slow
def test_sizes_that_the_library_changed_are_reported(tiny_checkpoint: Path, tmp_path: Path) -> None:
    report = make(tiny_checkpoint, tmp_path / "engine", build=altered(tokens_per_block=64))
    assert report.changed == ("tokens_per_block is 64, not the requested 32",)
    assert report.engine.tokens_per_block == 64
    assert "tokens_per_block is 64, not the requested 32" in "\n".join(report.lines())


@pytest.mark.slow
def test_an_option_that_the_library_ignores_is_an_error(tiny_checkpoint: Path, tmp_path: Path) -> None:
    def lenient(**options: Any) -> builder.PluginConfig:
        return builder.PluginConfig(**{k: v for k, v in options.items() if k != "use_fp8_context_fmha"})

    with pytest.raises(EngineError, match="does not take the plugin options use_fp8_context_fmha"):
        make(tiny_checkpoint, tmp_path / "engine", PluginConfig=lenient)


def with_another_option(**options: Any) -> builder.BuildConfig:
    return builder.BuildConfig(**options | {"max_lora_rank": 8})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        ({"BuildConfig": with_another_option}, "could not take the build options"),
        ({"build": lambda model, config: 1 / 0}, r"could not build the engine \(ZeroDivisionError"),
    ],
)
def test_errors_of_the_library_become_one_sentence(
    tiny_checkpoint: Path, tmp_path: Path, replaced: dict[str, Any], message: str
) -> None:
    with pytest.raises(EngineError, match=message) as caught:
        make(tiny_checkpoint, tmp_path / "engine", **replaced)
    assert "moss-voice doctor" in caught.value.what_to_do


@pytest.mark.slow
def test_a_build_that_yields_no_plan_is_reported(tiny_checkpoint: Path, tmp_path: Path) -> None:
    class WithoutPlan(builder.Engine):
        def save(self, engine_dir: str) -> None:
            super().save(engine_dir)
            (Path(engine_dir) / "rank0.engine").unlink()

    def build(model: Any, config: Any) -> Any:
        engine = builder.build(model, config)
        return WithoutPlan(engine.network, engine.config)

    with pytest.raises(EngineError, match="TensorRT returned no engine"):
        make(tiny_checkpoint, tmp_path / "engine", build=build)


@pytest.mark.slow
def test_another_network_than_was_meant_is_refused(tiny_checkpoint: Path, tmp_path: Path) -> None:
    class OfTheTrunkOnly(modeling.PretrainedModel):
        def prepare_inputs(self, *sizes: Any, **named: Any) -> Any:
            layers, self.config.num_hidden_layers = self.config.num_hidden_layers, 3
            try:
                return super().prepare_inputs(*sizes, **named)
            finally:
                self.config.num_hidden_layers = layers

    with pytest.raises(EngineError, match=r"windows of \[3\] layers for 7"):
        make(tiny_checkpoint, tmp_path / "engine", PretrainedModel=OfTheTrunkOnly)


@pytest.mark.slow
def test_what_an_interrupted_build_left_is_cleared(tiny_checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "engine.part").mkdir()
    (tmp_path / "engine.part" / "rank1.engine").write_bytes(b"old")
    make(tiny_checkpoint, tmp_path / "engine")
    assert not (tmp_path / "engine" / "rank1.engine").exists()


@pytest.fixture(scope="module")
def real_library() -> Library:
    try:
        return load_library()
    except EngineError as error:
        pytest.skip(str(error))


@pytest.mark.cuda
def test_the_tiny_model_becomes_an_engine(tmp_path: Path, real_library: Library) -> None:
    checkpoint = convert_tiny(tmp_path, "bfloat16")
    options = BuildOptions(max_seq_len=512, max_num_tokens=128)
    report = build_engine(plan_build(checkpoint, options), tmp_path / "engine", options, real_library)
    assert report.engine == EngineDirectory.open(tmp_path / "engine")
    assert report.engine.contract == "1.x"
    assert report.engine.model.num_hidden_layers == 7
    assert [tensor.name for tensor in report.tensors if not tensor.is_input] == ["logits", "audio_logits"]
    assert report.plan_bytes > report.weights_bytes / 4
    assert report.changed == ()
