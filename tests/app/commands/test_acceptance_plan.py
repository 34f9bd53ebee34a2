"""On what steps depend, and figures for a reader."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.commands.acceptance_plan import Plan, value_text
from app.commands.acceptance_program import program_steps
from engine_runtime.options import EngineOptions
from tests.factories.acceptance import Script, make_plan


def test_what_a_step_depends_on(random_bundle: Path, tmp_path: Path) -> None:
    def inputs(plan: Plan, name: str) -> Any:
        (step,) = [step for step in program_steps(plan) if step.name == name]
        return step.inputs()

    bundle = Path(shutil.copytree(random_bundle, tmp_path / "bundle"))
    wavs = tmp_path / "wavs"
    wavs.mkdir()
    plan = make_plan(tmp_path, bundle, Script())
    before = {name: inputs(plan, name) for name in ("files", "kernels", "verify", "bench", "duplex")}
    assert {name: inputs(plan, name) for name in before} == before
    with_wavs = replace(plan, wavs=wavs)
    empty = inputs(with_wavs, "verify")
    (wavs / "q.wav").write_bytes(b"x")
    assert inputs(with_wavs, "verify") != empty
    assert inputs(replace(plan, runs=3), "bench") != before["bench"]
    assert inputs(replace(plan, headphones=True), "duplex") != before["duplex"]
    fp8 = replace(plan.settings, engine=EngineOptions(weight_format="fp8"))
    assert inputs(replace(plan, settings=fp8), "kernels") != before["kernels"]
    manifest = bundle / "bundle.toml"
    manifest.write_text(manifest.read_text() + "\n# changed\n")
    assert all(inputs(plan, name) != before[name] for name in before)
    changed = inputs(plan, "files")
    os.utime(bundle / "flow.safetensors", (1, 1))
    assert inputs(plan, "files") != changed
    assert inputs(plan, "environment") != inputs(plan, "environment")


def test_values_are_for_a_reader() -> None:
    assert [value_text(value) for value in (True, None, 0.123456, 12345.6, 7, "x")] == [
        "yes", "-", "0.1235", "12346", "7", "x"
    ]  # fmt: skip
