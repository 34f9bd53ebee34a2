"""What is to be accepted, and the results of the commands that the steps run.

In: the settings of the engine, and a function that runs a `moss-voice` command. Out: the words of commands,
the inputs on which a step depends, figures of what a command printed. Main thread.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any, Protocol

from app import paths
from app.commands.acceptance_steps import Figure, StepOutcome, Value
from app.commands.own_command import CommandResult
from app.progress import problem_of
from app.settings import StartSettings, serve_options
from app.version import VERSION
from engine_runtime.bundle.bundle import MANIFEST_NAME, Bundle
from engine_runtime.errors import MossVoiceError

LOG_ADVICE = "The step's files in the folder logs hold all that was printed."


class RunStepCommand(Protocol):
    """Runs `moss-voice *words` for a step, and notes it in `did`."""

    def __call__(self, did: list[str], *words: str, python: Path | None = None) -> CommandResult: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be accepted, and how thoroughly."""

    settings: StartSettings
    """Settings of the torch engine. `bundle` is a folder, or the name of a model yet to be fetched."""
    model: str
    """The bundle as the user named it."""
    out: Path
    run: RunStepCommand
    engine_python: Path | None = None
    fetch: tuple[str, ...] | None = None
    """Options of `fetch`, None if a missing model is not to be fetched."""
    wavs: Path | None = None
    duplex_minutes: float = 10.0
    headphones: bool = False
    soak_hours: float = 0.0
    runs: int = 10
    trt_format: str = "fp8"
    calibration_prompts: int = 500

    @property
    def is_random(self) -> bool:
        """Whether random weights take the place of the bundle's files."""
        return self.settings.engine.random_weights is not None

    @property
    def bundle(self) -> Path:
        """The folder of the bundle, once it is there."""
        return self.settings.bundle if self.is_random else paths.find_bundle(Path(self.model)).absolute()

    def engine_words(self) -> list[str]:
        """The options of the torch engine for a command."""
        return serve_options(replace(self.settings, bundle=self.bundle))

    def inputs(self, *more: Any) -> Callable[[], Any]:
        """The inputs of a step: program, machine, engine, the bundle's files, and `more`."""
        return lambda: [
            VERSION,
            _machine(),
            self.engine_words(),
            _files_of(self.bundle),
            *more,
        ]

    def wav_words(self) -> list[str]:
        """The option that names recordings of one's own."""
        return [] if self.wavs is None else [f"--wavs={self.wavs}"]

    def wav_inputs(self) -> list[Any]:
        """Names, sizes and times of those recordings."""
        if self.wavs is None:
            return []
        files = sorted(self.wavs.glob("*")) if self.wavs.is_dir() else []
        return [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]


def verdict_of(result: CommandResult, advice: str, table: str = "") -> StepOutcome:
    """The verdict on the rows of `verify`, or on a table in the document."""
    document = document_of(result)
    rows = document[table]["rows"] if table else document["rows"]
    figures = [
        Figure(
            row["check"],
            row["value"] if isfinite(row["value"]) else "not finite",
            "" if row["threshold"] == "-" else row["threshold"],
            None if row["aligned"] == "-" else row["aligned"] == "yes",
        )
        for row in rows
    ]
    if note := document.get("note"):
        figures.append(Figure("note", note))
    return StepOutcome.judge(figures, advice, "" if document["aligned"] else "not aligned")


def document_of(result: CommandResult) -> dict[str, Any]:
    """What the command printed. MossVoiceError, its own, if it ended without that."""
    if result.document is None:
        require_success(result)
        raise MossVoiceError(
            "moss-voice {words} printed no result.",
            "This is a defect of the program. {advice}",
            words=result.words[0],
            advice=LOG_ADVICE,
        )
    return result.document


def require_success(result: CommandResult) -> None:
    if result.problem is not None:
        raise MossVoiceError.from_problem(result.problem)


def refuse_error(document: Mapping[str, Any], result: CommandResult) -> None:
    """MossVoiceError if a command that prints its document in any case has failed early."""
    if "error" in document:
        if (problem := problem_of(document) or result.problem) is not None:
            raise MossVoiceError.from_problem(problem)
        raise MossVoiceError("{error}", error=document["error"])


def shown_command(words: Sequence[str], python: Path | None) -> str:
    """The command as a user would type it."""
    return shlex.join([*(["moss-voice"] if python is None else [str(python), "-m", "app"]), *words])


def value_text(value: Value) -> str:
    """A value of a figure for a reader."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 10_000 else f"{value:.0f}"
    return "-" if value is None else str(value)


@cache
def _machine() -> str:
    """GPUs and driver: if they change, every step is repeated."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    query = [program, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, timeout=30, check=False).stdout


def _files_of(bundle: Path) -> list[Any]:
    """The manifest, and sizes and times of the files that it names; empty for a bundle that is not there."""
    try:
        content = (bundle / MANIFEST_NAME).read_text("utf-8")
        names = Bundle.open(bundle, verify="none").files
        found = [(name, (bundle / name).stat()) for name in names if (bundle / name).is_file()]
    except (OSError, MossVoiceError):
        return []
    return [content, *((name, stat.st_size, stat.st_mtime_ns) for name, stat in found)]
