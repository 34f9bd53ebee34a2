"""The report of an acceptance: one table of steps with their figures, as text and as JSON.

In: steps and outcomes. Out: two files. Neither holds a name of the user, of the machine or of a sound device,
nor a path of the home folder; the folder of the acceptance is OUT, recordings of the user are FILE. Main
thread.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from platform import node, python_version
from typing import Any

from app.audio.devices import DeviceList
from app.commands.acceptance_plan import value_text
from app.commands.acceptance_steps import AcceptanceStep, StepOutcome
from app.commands.doctor_report import anonymous
from app.export import ExportFile
from app.version import VERSION
from engine_runtime.errors import redact

TEXT, JSON = "report.txt", "report.json"
_MARKS = {"passed": "passed ", "failed": "FAILED ", "skipped": "skipped"}
_NO_NAME = re.compile(r"[a-z0-9]*")
"""Device names that sound systems use on every machine, such as default or surround51."""
_WIDTH = 100
_HEADER = """\
Report of moss-voice acceptance. It holds what each step did, its figures with their limits, and what to do
about a failure. It holds no sound, nothing that was said, and no name of yours: the folder of the acceptance
is OUT, your home folder ~, your user name USER, the machine HOST, your sound devices DEVICE, your recordings
FILE. The folder logs beside it is not part of it: it holds names and paths. Look through this file before you
send it.
"""


class Names:
    """Private names, and what stands for them."""

    def __init__(self, out: Path, files: Sequence[Path]) -> None:
        self._stand_ins = {str(out): "OUT"} | {str(file): "FILE" for file in files}

    def add_devices(self, found: DeviceList) -> None:
        """The sound devices that are there now."""
        devices = (*found.inputs, *found.outputs)
        names = [name for device in devices for name in (device.name, device.description)]
        self._stand_ins |= {name: "DEVICE" for name in names if not _NO_NAME.fullmatch(name)}

    def hide(self, text: str) -> str:
        """`text` without them."""
        for name in sorted(self._stand_ins, key=len, reverse=True):
            text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", self._stand_ins[name], text)
        host = node()
        if host:
            text = re.sub(rf"(?<![\w-]){re.escape(host)}(?![\w-])", "HOST", text)
        return redact(anonymous(text))

    def hide_all(self, value: Any) -> Any:
        """A document without them."""
        if isinstance(value, str):
            return self.hide(value)
        if isinstance(value, Mapping):
            return {key: self.hide_all(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide_all(item) for item in value]
        return value


def document(
    steps: Sequence[AcceptanceStep], outcomes: Mapping[str, StepOutcome], names: Names
) -> dict[str, Any]:
    """Everything as plain values."""
    counts = {status: sum(found.status == status for found in outcomes.values()) for status in _MARKS}
    result = result_of(outcomes)
    if result != "failed" and len(outcomes) < len(steps):
        result = "unfinished"
    return {
        "program": VERSION,
        "python": python_version(),
        "result": result,
        **counts,
        "steps": [
            names.hide_all({"name": step.name, "what": step.what} | asdict(outcomes[step.name]))
            for step in steps
            if step.name in outcomes
        ],
    }


def result_of(outcomes: Mapping[str, StepOutcome]) -> str:
    """The result of all steps together. Nothing was accepted if every step was skipped."""
    statuses = {outcome.status for outcome in outcomes.values()}
    if "failed" in statuses:
        return "failed"
    return "passed" if "passed" in statuses else "skipped"


def lines(steps: Sequence[AcceptanceStep], outcomes: Mapping[str, StepOutcome], names: Names) -> list[str]:
    """The report for a reader: first an overview, then each step."""
    found = document(steps, outcomes, names)
    overview = [
        f"moss-voice {found['program']}: {found['result']} ({found['passed']} passed, "
        f"{found['failed']} failed, {found['skipped']} skipped)",
        "",
    ]
    details = []
    undone = [step.name for step in steps if step.name not in outcomes]
    for step in found["steps"]:
        overview.append(summary_line(step))
        details += ["", *_details(step)]
    if undone:
        overview.append(f"not done yet: {', '.join(undone)}")
    return [*overview, *details]


def summary_line(step: Mapping[str, Any]) -> str:
    """One step in one line."""
    mark, time = _MARKS[step["status"]], f"{step['seconds']:.0f} s" if step["seconds"] else ""
    reason = step["reason"].splitlines()[0] if step["reason"] else ""
    return f"{mark}  {step['name']:<14}{time:>8}  {reason or step['what']}".rstrip()


def _details(step: Mapping[str, Any]) -> list[str]:
    found = [f"== {step['name']}: {step['status']}", f"# {step['what']}"]
    found += [f"$ {command}" for command in step["did"]]
    figures = step["figures"]
    width = min(max((len(figure["name"]) for figure in figures), default=0), 60)
    for figure in figures:
        verdict = {True: "  kept", False: "  NOT KEPT", None: ""}[figure["is_met"]]
        limit = f"  limit {figure['limit']}" if figure["limit"] else ""
        found.append(f"  {figure['name']:<{width}}  {value_text(figure['value'])}{limit}{verdict}")
    for label, text in (("reason", step["reason"]), ("next step", step["next_step"])):
        if text:
            found += [f"{label}:", *(line for part in text.splitlines() for line in _wrapped(part))]
    return found


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="  ", subsequent_indent="  ", break_long_words=False)


def write_reports(
    folder: Path, steps: Sequence[AcceptanceStep], outcomes: Mapping[str, StepOutcome], names: Names
) -> tuple[Path, Path]:
    """Write both files. ExportError if that is impossible."""
    text = "\n".join([_HEADER, *lines(steps, outcomes, names), ""])
    as_json = json.dumps(document(steps, outcomes, names), indent=1) + "\n"
    files = folder / TEXT, folder / JSON
    for file, content in zip(files, (text, as_json), strict=True):
        with ExportFile(file) as export:
            export.write(content.encode(errors="backslashreplace"))
    return files
