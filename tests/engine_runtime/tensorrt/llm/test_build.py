"""Building with the double of the library: contents of the engine folder, and all errors."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from engine_runtime.errors import BundleError, EngineError, ExportError
from engine_runtime.lm.step import ExecutorLimits
from engine_runtime.tensorrt.llm.build import BuildOptions, BuildReport, build_engine, plan_build
from engine_runtime.tensorrt.llm.contract import CONTRACTS
from engine_runtime.tensorrt.llm.engine_directory import EngineDirectory
from tests.doubles.tensorrt.model_api import builder, make_library, modeling

pytestmark = pytest.mark.slow

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


def test_the_inputs_are_those_of_a_step(tiny_checkpoint: Path, tmp_path: Path) -> None:
    report = make(tiny_checkpoint, tmp_path / "engine")
    limits = ExecutorLimits(512, 160, 7, 64, 32, 512, 128)
    wanted = {spec.name: (spec.dtype, len(spec.shape)) for spec in CONTRACTS[0].inputs(limits)}
    found = {t.name: (t.dtype, len(t.shape)) for t in report.tensors if t.is_input}
    assert found == wanted


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


def test_a_checkpoint_without_a_note(tiny_checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_checkpoint, tmp_path / "checkpoint")
    (tmp_path / "checkpoint" / "moss_voice.json").unlink()
    engine = make(tmp_path / "checkpoint", tmp_path / "engine").engine
    assert engine.lm_fingerprint is None
    (tmp_path / "checkpoint" / "moss_voice.json").write_text("{")
    with pytest.raises(BundleError, match=r"moss_voice\.json cannot be read"):
        make(tmp_path / "checkpoint", tmp_path / "other")


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


def test_a_full_disk_is_seen_before_the_build(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage(NamedTuple):
        free: int = 1000

    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage())
    with pytest.raises(ExportError, match=r"0\.0 GB free"):
        make(tiny_checkpoint, tmp_path / "engine")
    assert not list(tmp_path.iterdir())


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


def test_sizes_that_the_library_changed_are_reported(tiny_checkpoint: Path, tmp_path: Path) -> None:
    report = make(tiny_checkpoint, tmp_path / "engine", build=altered(tokens_per_block=64))
    assert report.changed == ("tokens_per_block is 64, not the requested 32",)
    assert report.engine.tokens_per_block == 64
    assert "tokens_per_block is 64, not the requested 32" in "\n".join(report.lines())


def test_an_option_that_the_library_ignores_is_an_error(tiny_checkpoint: Path, tmp_path: Path) -> None:
    def lenient(**options: Any) -> builder.PluginConfig:
        return builder.PluginConfig(**{k: v for k, v in options.items() if k != "use_fp8_context_fmha"})

    with pytest.raises(EngineError, match="does not take the plugin options use_fp8_context_fmha"):
        make(tiny_checkpoint, tmp_path / "engine", PluginConfig=lenient)


@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        ({"BuildConfig": partial(builder.BuildConfig, max_lora_rank=8)}, "could not take the build options"),
        ({"build": lambda model, config: 1 / 0}, r"could not build the engine \(ZeroDivisionError"),
    ],
)
def test_errors_of_the_library_become_one_sentence(
    tiny_checkpoint: Path, tmp_path: Path, replaced: dict[str, Any], message: str
) -> None:
    with pytest.raises(EngineError, match=message) as caught:
        make(tiny_checkpoint, tmp_path / "engine", **replaced)
    assert "moss-voice doctor" in caught.value.what_to_do


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


def test_what_an_interrupted_build_left_is_cleared(tiny_checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "engine.part").mkdir()
    (tmp_path / "engine.part" / "rank1.engine").write_bytes(b"old")
    make(tiny_checkpoint, tmp_path / "engine")
    assert not (tmp_path / "engine" / "rank1.engine").exists()
