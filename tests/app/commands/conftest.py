"""Fixtures of the command line's tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app import cli
from app.commands.acceptance_program import program_steps, soak_step
from app.commands.acceptance_steps import StepOutcome
from tests.factories.acceptance import Do, done, make_plan


@pytest.fixture(autouse=True)
def _leave_logging_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands run inside the test process here, whose log handlers and hooks belong to pytest."""
    monkeypatch.setattr(cli, "set_up_logging", lambda file, verbose: None)


@pytest.fixture
def do(random_bundle: Path, tmp_path: Path) -> Do:
    """Does one step of an acceptance."""

    def do_step(name: str, script: Any, bundle: Path = random_bundle, **more: Any) -> StepOutcome:
        plan = make_plan(tmp_path, bundle, script, **more)
        return done([*program_steps(plan), soak_step(plan)], name, tmp_path)

    return do_step
