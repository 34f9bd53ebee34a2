"""Steps of an acceptance: their results, the order in which they are done, and what is kept of them.

In: steps, each with a name, what it depends on, and a function that does it. Out: one `StepOutcome` per step.
Finished steps are written to a file at once, so that an interrupted acceptance resumes where it stopped; a
step is repeated if its inputs, or those of a step that it needs, have changed. Main thread.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from app.export import ExportFile
from engine_runtime.errors import MossVoiceError

STATE = "state.json"
NOT_WANTED = "not wanted this time"
_FORMAT = 1
Status = Literal["passed", "failed", "skipped"]
Value = float | int | str | bool | None


@dataclass(frozen=True, slots=True)
class Figure:
    """A value that a step measured. `limit` is its limit in words; "" if the value is only reported, and
    `is_met` is None then."""

    name: str
    value: Value
    limit: str = ""
    is_met: bool | None = None


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """The outcome of a step."""

    status: Status
    figures: tuple[Figure, ...] = ()
    reason: str = ""
    """Why it failed, or was skipped."""
    next_step: str = ""
    """What to do after a failure."""
    did: tuple[str, ...] = ()
    """Commands that were run."""
    seconds: float = 0.0
    finished: str = ""
    """When, in UTC."""

    @classmethod
    def judge(cls, figures: Sequence[Figure], next_step: str, reason: str = "") -> StepOutcome:
        """Passed if every figure keeps its limit and there is no other `reason` against it."""
        broken = [figure.name for figure in figures if figure.is_met is False]
        why = "\n".join(filter(None, (reason, f"limit not kept: {', '.join(broken)}" if broken else "")))
        if why:
            return cls("failed", tuple(figures), why, next_step)
        return cls("passed", tuple(figures))

    @classmethod
    def skip(cls, reason: str) -> StepOutcome:
        """Not done, for this reason."""
        return cls("skipped", reason=reason)


@dataclass(frozen=True, slots=True)
class AcceptanceStep:
    """`what` says in a sentence what is done. `do` appends the commands that it runs to the list that it
    gets. `inputs` are values on which the result depends; a step that it `needs` must not have failed, and
    its results are inputs, too."""

    name: str
    what: str
    do: Callable[[list[str]], StepOutcome]
    needs: tuple[str, ...] = ()
    inputs: Callable[[], Any] = field(default=lambda: None)
    why_not: Callable[[], str] = field(default=lambda: "")
    """Why it cannot be done here, "" if it can."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A step that was done before; `inputs` is the hash of its inputs, `number` that of its run."""

    inputs: str
    number: int
    outcome: StepOutcome


class Journal:
    """The finished steps of a folder."""

    def __init__(self, folder: Path) -> None:
        """MossVoiceError if the file of an earlier acceptance cannot be read."""
        self._file = folder / STATE
        self._finished: dict[str, Finished] = {}
        self._runs = 0
        if self._file.is_file():
            self._read()

    def find(self, name: str) -> Finished | None:
        """The step as it was done last."""
        return self._finished.get(name)

    def keep(self, name: str, inputs: str, outcome: StepOutcome) -> None:
        """Write down what became of a step. ExportError if that is impossible."""
        self._runs += 1
        self._finished[name] = Finished(inputs, self._runs, outcome)
        steps = {key: asdict(finished) for key, finished in self._finished.items()}
        document = {"format": _FORMAT, "runs": self._runs, "steps": steps}
        with ExportFile(self._file, is_private=True) as export:
            export.write(json.dumps(document, indent=1).encode())

    def _read(self) -> None:
        try:
            document = json.loads(self._file.read_text("utf-8"))
            if document["format"] != _FORMAT:
                raise ValueError(f"its format is {document['format']}, not {_FORMAT}")
            self._runs = int(document["runs"])
            self._finished = {name: _finished(stored) for name, stored in document["steps"].items()}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise MossVoiceError(
                "{file} cannot be read ({error}).",
                "Choose another folder, or delete this file to start over.",
                file=self._file,
                error=error,
            ) from error


def _finished(stored: dict[str, Any]) -> Finished:
    outcome = stored["outcome"]
    figures = tuple(Figure(**figure) for figure in outcome["figures"])
    return Finished(
        stored["inputs"],
        stored["number"],
        StepOutcome(**outcome | {"figures": figures, "did": tuple(outcome["did"])}),
    )


@dataclass(frozen=True, slots=True)
class Choice:
    """The selected steps: `only` these if any, without `without`; those of `again` are repeated."""

    only: frozenset[str] = frozenset()
    without: frozenset[str] = frozenset()
    again: frozenset[str] = frozenset()


def hold(
    steps: Sequence[AcceptanceStep],
    journal: Journal,
    choice: Choice,
    *,
    begin: Callable[[AcceptanceStep], None],
    end: Callable[[AcceptanceStep, StepOutcome, bool], None],
) -> dict[str, StepOutcome]:
    """Do the steps in order. `begin` is called before a step is done, `end` with its outcome and whether it
    was done now. A step that raises MossVoiceError has failed; the others are done all the same."""
    outcomes: dict[str, StepOutcome] = {}
    broken: dict[str, str] = {}
    """Steps that failed or depend on a failed one, each with the name of the failed step."""
    for step in steps:
        if causes := sorted({broken[name] for name in step.needs if name in broken}):
            outcome, is_new = StepOutcome.skip(f"{' and '.join(causes)} failed"), False
            broken[step.name] = causes[0]
        else:
            outcome, is_new = _outcome_of(step, journal, choice, begin)
            if outcome.status == "failed":
                broken[step.name] = step.name
        outcomes[step.name] = outcome
        end(step, outcome, is_new)
    return outcomes


def _outcome_of(
    step: AcceptanceStep,
    journal: Journal,
    choice: Choice,
    begin: Callable[[AcceptanceStep], None],
) -> tuple[StepOutcome, bool]:
    earlier = journal.find(step.name)
    is_done = (
        earlier is not None
        and earlier.outcome.status == "passed"
        and earlier.inputs == _hash_of(step, journal)
    )
    if earlier is not None and is_done and step.name not in choice.again:
        return earlier.outcome, False
    if step.name in choice.without or (choice.only and step.name not in choice.only):
        return StepOutcome.skip(NOT_WANTED), False
    if reason := step.why_not():
        return StepOutcome.skip(reason), False
    begin(step)
    outcome = _done(step)
    if outcome.status != "skipped":
        # Not the hash from before: a step may make what it depends on, as the one that downloads the model.
        journal.keep(step.name, _hash_of(step, journal), outcome)
    return outcome, True


def _done(step: AcceptanceStep) -> StepOutcome:
    start_s, did = time.monotonic(), list[str]()
    try:
        outcome = step.do(did)
    except MossVoiceError as error:
        outcome = StepOutcome("failed", reason=error.what_is_wrong, next_step=error.what_to_do)
    except Exception as error:  # a step that breaks must not take the others with it
        outcome = StepOutcome(
            "failed",
            reason=f"unexpected {type(error).__name__}: {error}",
            next_step="This is a defect of the program: please send the report and the folder's logs.",
        )
    return replace(
        outcome,
        did=tuple(did),
        seconds=round(time.monotonic() - start_s, 1),
        finished=time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
    )


def _hash_of(step: AcceptanceStep, journal: Journal) -> str:
    """Hash of the inputs of a step and of the runs of the steps that it needs."""
    runs = [finished.number if (finished := journal.find(name)) else 0 for name in step.needs]
    text = json.dumps([step.name, step.inputs(), runs], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
