"""moss-voice acceptance: try everything on this machine, step by step, and write one report.

The steps are commands of this program: doctor, fetch, inspect, devices, verify, bench, console, trt. What is
finished is kept in the folder --out, so that the same command goes on after an interruption; a step is done
again if its inputs have changed. During the step duplex the program talks to itself aloud and nobody may
speak. Exit status 0 if no step failed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from app import paths, process
from app.audio.sound_server import current_devices
from app.commands.acceptance_plan import Plan, shown_command
from app.commands.acceptance_program import program_steps, soak_step
from app.commands.acceptance_report import Names, document, summary_line, write_reports
from app.commands.acceptance_steps import NOT_WANTED, AcceptanceStep, Choice, Journal, StepOutcome, hold
from app.commands.acceptance_trt import GROUP, trt_steps
from app.commands.own_command import CommandResult, run_command
from app.commands.shared_options import LARGEST_COUNT, add_engine_options, integer, number, start_settings
from app.commands.talk import UsageError
from app.commands.trt_quantize import FORMATS
from app.installed_models import RELEASED
from app.progress import say
from engine_runtime.errors import ExportError

LOGS = "logs"
_LOCK = "lock"
_LINE_S, _TERMINAL_LINE_S = 30.0, 1.0
"""Shortest interval between progress lines; on a terminal one line is updated in place."""
_MOST_HOURS, _MOST_MINUTES = 24 * 14, 24 * 60


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the subcommand."""
    parser = commands.add_parser(
        "acceptance", help="try everything on this machine and write one report", description=__doc__
    )
    add_engine_options(parser)
    parser.add_argument(
        "--out",
        type=paths.user_path,
        metavar="DIR",
        help="folder for the report, finished steps, logs, checkpoints and engines",
    )
    parser.add_argument(
        "--fetch", action="store_true", help="download the model of --bundle if it is missing"
    )
    parser.add_argument(
        "--from",
        dest="source",
        type=paths.user_path,
        metavar="DIR",
        help="make the bundle from this checkpoint instead of downloading (see `moss-voice fetch`)",
    )
    parser.add_argument(
        "--wavs",
        type=paths.user_path,
        metavar="DIR",
        help="folder of spoken questions, for calibration and comparison (default: the shipped ones)",
    )
    parser.add_argument(
        "--engine-python",
        type=paths.user_path,
        metavar="FILE",
        default=argparse.SUPPRESS,
        help="interpreter of an environment with TensorRT-LLM, where it is not installed in this one",
    )
    parser.add_argument(
        "--trt-format", choices=FORMATS, default="fp8", help="weight format of its engine (default: fp8)"
    )
    parser.add_argument(
        "--calibration-prompts",
        type=integer(1, LARGEST_COUNT),
        default=500,
        metavar="N",
        help="prompts to calibrate that format with (default: 500)",
    )
    parser.add_argument(
        "--runs",
        type=integer(1, LARGEST_COUNT),
        default=10,
        metavar="N",
        help="replies that the bench measures (default: 10)",
    )
    parser.add_argument(
        "--duplex-minutes",
        type=number(0.1, _MOST_MINUTES),
        default=10.0,
        metavar="M",
        help="how long replies are played while the microphone listens (default: 10)",
    )
    parser.add_argument(
        "--headphones",
        action="store_true",
        help="the microphone cannot hear the loudspeaker, so no echo has to be found",
    )
    parser.add_argument(
        "--soak-hours",
        type=number(0, _MOST_HOURS),
        default=0.0,
        metavar="H",
        help="at the end, conversations without a pause for H hours (default: none; 24 are recommended)",
    )
    for name, text in (
        ("--only", "do these steps alone"),
        ("--skip", "leave these steps out"),
        ("--again", "do these steps again although they are finished"),
    ):
        parser.add_argument(
            name, nargs="+", default=[], metavar="STEP", help=f"{text}; trt means all its steps"
        )
    parser.add_argument("--list", action="store_true", help="list the steps, do nothing")
    parser.add_argument(
        "--json", action="store_true", help="end the output with the report as one JSON document"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Do the steps that are not finished, and write the report after each."""
    settings = start_settings(arguments)
    if settings.engine.backend != "torch":
        raise UsageError(
            "An acceptance run builds an engine of its own and tries it.", "Leave out --backend and --engine."
        )
    if arguments.out is None and not arguments.list:
        raise UsageError("No folder is given for the report.", "Give one with --out DIR.")
    if arguments.source is not None and arguments.fetch:
        raise UsageError("--from replaces --fetch.", "Leave one of them out.")
    if (arguments.source is not None or arguments.fetch) and arguments.bundle is None:
        raise UsageError(
            "--fetch and --from make a model: name it with --bundle {released}.", released=RELEASED
        )
    progress = _Progress()
    plan = _plan(arguments, progress)
    steps = [*program_steps(plan), *trt_steps(plan), soak_step(plan)]
    given = (arguments.only, arguments.skip, arguments.again)
    choice = Choice(*(_chosen(names, steps) for names in given))
    if arguments.list:
        print("\n".join(f"{step.name:<14}{step.what}" for step in steps))
        return 0
    _make_folder(plan.out)
    with (plan.out / _LOCK).open("wb") as lock:
        if not process.take_lock(lock.fileno()):
            raise ExportError(
                "Another acceptance run uses {out}.",
                "Wait until it ends, or choose another folder.",
                out=plan.out,
            )
        found = _hold(plan, steps, choice, progress)
    counts = ", ".join(f"{found[status]} {status}" for status in ("passed", "failed", "skipped"))
    print(f"\n{found['result']}: {counts}; the report is in {plan.out}.")
    if arguments.json:
        print(json.dumps(found))
    return 1 if found["failed"] else 0


def _hold(plan: Plan, steps: list[AcceptanceStep], choice: Choice, progress: _Progress) -> dict[str, Any]:
    """Do the steps and return the report, which is written after each step, whatever happens."""
    outcomes: dict[str, StepOutcome] = {}
    names = Names(plan.out, [file for file in (plan.settings.voice, plan.wavs) if file is not None])

    def end(step: AcceptanceStep, outcome: StepOutcome, is_new: bool) -> None:
        progress.end()
        outcomes[step.name] = outcome
        names.add_devices(current_devices())
        write_reports(plan.out, steps, outcomes, names)
        if outcome == StepOutcome.skip(NOT_WANTED):
            return
        shown = document([step], {step.name: outcome}, names)["steps"][0]
        done = " (finished before)" if not is_new and outcome.status == "passed" else ""
        print(summary_line(shown) + done, flush=True)
        if outcome.status == "failed" and outcome.next_step:
            print(f"         -> {outcome.next_step}", flush=True)

    try:
        hold(steps, Journal(plan.out), choice, begin=progress.begin, end=end)
    except KeyboardInterrupt:
        progress.end()
        say(f"Interrupted. What is finished is kept in {plan.out}: the same command goes on.")
        raise
    return document(steps, outcomes, names)


def _plan(arguments: argparse.Namespace, progress: _Progress) -> Plan:
    settings = start_settings(arguments)
    absolute = replace(
        settings,
        voice=settings.voice and settings.voice.absolute(),
        engine=replace(
            settings.engine, vocoder=settings.engine.vocoder and settings.engine.vocoder.absolute()
        ),
        bundle=settings.bundle.absolute() if settings.bundle.is_dir() else settings.bundle,
    )
    out: Path = (arguments.out or Path()).absolute()
    fetch = None
    if arguments.fetch or arguments.source is not None:
        fetch = () if arguments.source is None else (f"--from={arguments.source.absolute()}",)

    def run_for_step(did: list[str], *words: str, python: Path | None = None) -> CommandResult:
        did.append(shown_command(words, python))
        log = out / LOGS / f"{progress.step}-{len(did)}"
        return run_command(words, log, progress.show, python)

    return Plan(
        settings=absolute,
        model=str(absolute.bundle),
        out=out,
        run=run_for_step,
        engine_python=arguments.engine_python and arguments.engine_python.absolute(),
        fetch=fetch,
        wavs=arguments.wavs and arguments.wavs.absolute(),
        duplex_minutes=arguments.duplex_minutes,
        headphones=arguments.headphones,
        soak_hours=arguments.soak_hours,
        runs=arguments.runs,
        trt_format=arguments.trt_format,
        calibration_prompts=arguments.calibration_prompts,
    )


def _chosen(words: list[str], steps: list[AcceptanceStep]) -> frozenset[str]:
    """The steps of these names, and those of the group. UsageError for any other name."""
    known = {step.name for step in steps}
    if wrong := [word for word in words if word not in known and word != GROUP]:
        raise UsageError(
            "There is no step {wrong}.",
            "Choose from: {steps}.",
            wrong=wrong[0],
            steps=", ".join(step.name for step in steps),
        )
    of_group = {name for name in known if name.startswith(f"{GROUP}-")} if GROUP in words else set()
    return frozenset({*words, *of_group} - {GROUP})


def _make_folder(out: Path) -> None:
    try:
        (out / LOGS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ExportError(
            "{out} cannot be created: {reason}.",
            "Choose another folder with --out.",
            out=out,
            reason=error.strerror,
        ) from error


class _Progress:
    """Reports the step in progress: on a terminal in one line that is updated in place, elsewhere in a new
    line now and then."""

    def __init__(self) -> None:
        self.step = ""
        self._is_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._shown_s = 0.0
        self._width = 0

    def begin(self, step: AcceptanceStep) -> None:
        """Begin the line of a step."""
        self.step = step.name
        say(f"{step.name}: {step.what} ...")
        self._shown_s = time.monotonic()

    def show(self, seconds: float, line: str) -> None:
        """The step has taken `seconds` so far; `line` is the latest one of its command."""
        now_s = time.monotonic()
        if now_s - self._shown_s < (_TERMINAL_LINE_S if self._is_terminal else _LINE_S):
            return
        self._shown_s = now_s
        minutes, rest = divmod(round(seconds), 60)
        text = f"  {self.step} {minutes}:{rest:02}  {line}"
        if not self._is_terminal:
            say(text)
            return
        text = text[: os.get_terminal_size(sys.stderr.fileno()).columns - 1]
        sys.stderr.write("\r" + text.ljust(self._width))
        sys.stderr.flush()
        self._width = len(text)

    def end(self) -> None:
        """End the step's line."""
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            self._width = 0
