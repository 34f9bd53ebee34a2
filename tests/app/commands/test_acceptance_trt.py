"""The steps of TensorRT-LLM with the doubles of the library and of TensorRT: the small model, then the
model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app import paths
from app.audio.wav import read_wav, write_wav
from app.commands.acceptance_steps import AcceptanceStep, Choice, Journal, StepOutcome, hold
from app.commands.acceptance_trt import trt_steps
from app.commands.own_command import CommandResult
from app.settings import StartSettings
from engine_runtime.bundle.released import assembly, layout
from engine_runtime.errors import Problem
from engine_runtime.tensorrt.llm import library
from tests.doubles.tensorrt.model_api import builder, make_library
from tests.factories.acceptance import Script, make_plan, run_here
from tests.factories.engine_folder import EngineWorld

QUESTION = Path(__file__).resolve().parents[2] / "data" / "speech" / "question.wav"
SHORTER = {
    "quantize": ("--questions", "wavs", "--reply-tokens=3"),
    "verify": ("--wavs=wavs", "--tokens=6"),
    "bench": ("--warm-up=0", "--repeats=1", "--targets", "ttfa=1e9", "first_chunk=1e9", "rtf=1e9"),
}
"""What a command gets in addition, so that it takes seconds, and passes on a machine that is as slow as can
be."""
STEPS = ["trt-tiny", "trt-convert", "trt-quantize", "trt-build", "trt-inspect", "trt-verify", "trt-bench"]


class World:
    """A machine with the library, as far as the commands can tell; and what it was asked to run."""

    def __init__(self) -> None:
        self.words: list[tuple[str, ...]] = []

    def run(self, did: list[str], *words: str, python: Path | None = None) -> CommandResult:
        self.words.append(words)
        name = words[1] if words[0] == "trt" else words[0]
        return run_here(did, *words, *SHORTER.get(name, ()), python=python)


@pytest.fixture
def world(
    engine_world: EngineWorld,
    released_folder: Path,
    random_bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> World:
    monkeypatch.chdir(tmp_path)
    released = layout.find_released(*layout.locate(released_folder))
    bundle = assembly.assemble(released, tmp_path / "bundle").path
    manifest = bundle / "bundle.toml"  # replies of random weights would not end by themselves
    manifest.write_text(manifest.read_text().replace("max_new = 500", "max_new = 16"))
    shutil.copytree(random_bundle, tmp_path / "bundles" / "nano")
    monkeypatch.setattr(paths, "bundles_dir", lambda: tmp_path / "bundles")
    # The most likely ids of random networks are hardly likelier than others.
    monkeypatch.setattr("engine_runtime.bench.teacher_forcing.LEAST_TOP1", 0.5)
    monkeypatch.setattr(library, "installed_version", lambda name: "1.2.1")
    monkeypatch.setattr(library, "load_library", lambda: make_library(build=engine_world.build_network))
    pcm, rate = read_wav(QUESTION)
    (tmp_path / "wavs").mkdir()
    write_wav(tmp_path / "wavs" / "q.wav", pcm, rate)
    write_wav(tmp_path / "me.wav", np.resize(pcm, 5 * rate), rate)
    return World()


def run(steps: list[AcceptanceStep], out: Path) -> dict[str, StepOutcome]:
    """All steps; those of the program count as passed."""
    given = [AcceptanceStep(name, "", lambda did: StepOutcome("passed")) for name in ("files", "tensors")]
    return hold([*given, *steps], Journal(out), Choice(), begin=lambda _: None, end=lambda *_: None)


@pytest.mark.slow
def test_every_step_with_the_doubles(world: World, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    settings = StartSettings(bundle, voice=tmp_path / "me.wav")
    plan = make_plan(
        tmp_path / "out", bundle, world.run, settings, wavs=tmp_path / "wavs", runs=1, calibration_prompts=4
    )
    plan.out.mkdir()
    outcomes = run(trt_steps(plan), plan.out)
    failures = {name: (outcome.reason, outcome.next_step) for name, outcome in outcomes.items()}
    assert not {name: why for name, why in failures.items() if any(why)}
    assert {outcomes[name].status for name in STEPS} == {"passed"}
    commands = [words[1] for words in world.words if words[0] == "trt"]
    tiny = ["convert", "quantize", "build", "inspect", "build", "inspect", "verify"]
    assert commands == [*tiny, "convert", "quantize", "build", "inspect", "verify"]
    verified = {figure.name: figure for figure in outcomes["trt-verify"].figures}
    assert verified["turn 2 decode audio top-1"].is_met is True
    assert any(figure.name.startswith("target ") for figure in outcomes["trt-bench"].figures)
    assert json.loads((plan.out / "trt" / "checkpoint-fp8" / "config.json").read_text())
    before = len(world.words)
    run(trt_steps(plan), plan.out)
    assert len(world.words) == before


@pytest.mark.slow
def test_an_engine_of_other_weights_is_not_passed(
    world: World, engine_world: EngineWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The builder makes another network than the checkpoint's."""

    def build(model: Any, config: Any) -> builder.Engine:
        head = model.audio_lm_head.weight
        head.value = head.raw_value.flip(0).contiguous()
        return engine_world.build_network(model, config)

    monkeypatch.setattr(library, "load_library", lambda: make_library(build=build))
    plan = make_plan(tmp_path / "out", tmp_path / "bundle", world.run)
    plan.out.mkdir()
    outcomes = run(trt_steps(plan), plan.out)
    assert outcomes["trt-tiny"].status == "failed"
    assert "TENSORRT.md" in outcomes["trt-tiny"].next_step
    assert {outcomes[name].reason for name in STEPS[1:]} == {"trt-tiny failed"}


def test_without_the_library_they_are_skipped(tmp_path: Path, random_bundle: Path) -> None:
    outcomes = run(trt_steps(make_plan(tmp_path, random_bundle, Script())), tmp_path)
    assert {outcomes[name].status for name in STEPS} == {"skipped"}
    assert "--engine-python" in outcomes["trt-build"].reason


def test_another_environment_runs_them(tmp_path: Path, random_bundle: Path) -> None:
    script = Script(trt_convert=Problem("There is no room.", "Free some space."))
    plan = make_plan(tmp_path, random_bundle, script, engine_python=Path("/env/bin/python"))
    outcomes = run(trt_steps(plan), tmp_path)
    assert script.pythons == [Path("/env/bin/python")]
    assert outcomes["trt-tiny"].reason == "There is no room."
    assert outcomes["trt-tiny"].next_step == "Free some space."
    assert outcomes["trt-tiny"].did[0].startswith("/env/bin/python -m app trt convert ")
