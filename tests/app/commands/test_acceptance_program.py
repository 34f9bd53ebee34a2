"""The steps in their order, and that each is one of the program."""

from __future__ import annotations

from pathlib import Path

from app.commands.acceptance_program import program_steps, soak_step
from tests.factories.acceptance import Script, make_plan


def test_the_steps_come_from_the_machine_to_the_sound(random_bundle: Path, tmp_path: Path) -> None:
    plan = make_plan(tmp_path, random_bundle, Script())
    steps = [*program_steps(plan), soak_step(plan)]
    assert [step.name for step in steps] == [
        "environment", "files", "tensors", "memory", "kernels", "verify", "bench", "duplex", "soak"
    ]  # fmt: skip
    names = {step.name for step in steps}
    assert all(set(step.needs) <= names for step in steps)
    assert [step.name for step in steps if step.why_not()] == ["soak"]
    assert all(step.what for step in steps)
