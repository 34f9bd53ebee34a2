"""A plan of an acceptance whose commands are answered by a script, or run in this process."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from app.cli import main
from app.commands.acceptance_plan import Plan, shown_command
from app.commands.acceptance_steps import AcceptanceStep, Choice, Figure, Journal, StepOutcome, hold
from app.commands.own_command import CommandResult, result_of
from app.settings import StartSettings
from engine_runtime.errors import Problem

Do = Callable[..., StepOutcome]
"""Does one step by its name, with a script, of a bundle or with other choices of `Plan`."""


def run_here(did: list[str], *words: str, python: Path | None = None) -> CommandResult:
    """Run a command in this process, doubles and all."""
    did.append(shown_command(words, python))
    out, err, start_s = io.StringIO(), io.StringIO(), time.monotonic()
    with redirect_stdout(out), redirect_stderr(err):
        status = main(words)
    return result_of(words, status, out.getvalue(), err.getvalue(), time.monotonic() - start_s)


def figure(outcome: StepOutcome, name: str) -> Figure:
    """The figure of this name."""
    (found,) = [figure for figure in outcome.figures if figure.name == name]
    return found


class Script:
    """Answers to commands by the first words of them: a document, or the error that they end with."""

    def __init__(self, **answers: dict[str, Any] | Problem) -> None:
        self.answers = answers
        self.words: list[tuple[str, ...]] = []
        self.pythons: list[Path | None] = []
        self.status = 0
        """Of answers that are documents."""

    def __call__(self, did: list[str], *words: str, python: Path | None = None) -> CommandResult:
        did.append(shown_command(words, python))
        self.words.append(words)
        self.pythons.append(python)
        name = "_".join(words[:2]) if words[0] == "trt" else words[0]
        answer = self.answers[name]
        if isinstance(answer, Problem):
            return CommandResult(words, 1, None, answer, 0.1)
        return CommandResult(words, self.status, answer, Problem("it failed") if self.status else None, 0.1)


def make_plan(
    out: Path,
    bundle: Path,
    run: Callable[..., CommandResult],
    settings: StartSettings | None = None,
    **more: Any,
) -> Plan:
    """A plan for a bundle."""
    return Plan(settings or StartSettings(bundle), str(bundle), out, run, **more)


def done(steps: list[AcceptanceStep], name: str, out: Path) -> StepOutcome:
    """What becomes of one step alone."""
    (step,) = [step for step in steps if step.name == name]
    alone = AcceptanceStep(step.name, step.what, step.do, (), step.inputs, step.why_not)
    return hold(
        [alone], Journal(out), Choice(again=frozenset({name})), begin=lambda _: None, end=lambda *_: None
    )[name]
