"""The steps of an acceptance that concern the program itself: machine, files, kernels, quality, speed, sound.

In: the settings of the engine, and a function that runs a `moss-voice` command. Out: a list of
`AcceptanceStep`s. Every step is a command that can be run by hand, so that its figures are those of one
implementation. Main thread.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any, Protocol

from app.commands.acceptance_steps import AcceptanceStep, Figure, StepOutcome, Value
from app.commands.doctor_report import driver_lines
from app.commands.own_command import CommandResult
from app.other_python import examination, inherited_variables
from app.settings import StartSettings, serve_options
from app.version import program_version
from engine_runtime.bundle.bundle import MANIFEST_NAME
from engine_runtime.cuda.triton_launcher import has_launcher
from engine_runtime.errors import MossVoiceError
from engine_runtime.installation import COMPILER_REMEDY

_LONGEST_LIST = 20
"""Differences that are listed in a reason; the log has all of them."""
_LOOP_MS = 384.0
"""Delay up to which an echo is found (app/audio/echo_monitor.py)."""
_QUIETEST_DBFS = -90.0
"""Of the loudest moment: an open microphone has more noise than this."""
_EXAMINATION_S = 60
_LOG_ADVICE = "The step's files in the folder logs hold all that was printed."


class RunStepCommand(Protocol):
    """Runs `moss-voice *words` for a step, and notes it in `did`."""

    def __call__(self, did: list[str], *words: str, python: Path | None = None) -> CommandResult: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be accepted, and how thoroughly."""

    settings: StartSettings
    """Of the torch engine. `bundle` is a folder, or the name of a model that is yet to be fetched."""
    model: str
    """The bundle as it was named."""
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
        """The folder, once it is there."""
        from app import paths

        return self.settings.bundle if self.is_random else paths.find_bundle(Path(self.model)).absolute()

    def engine_words(self) -> list[str]:
        """The options of the torch engine for a command."""
        return serve_options(replace(self.settings, bundle=self.bundle))

    def inputs(self, *more: Any) -> Callable[[], Any]:
        """The inputs of a step: program, engine, manifest, and `more`."""
        return lambda: [
            program_version(),
            _machine(),
            self.engine_words(),
            _hash_of(self.bundle / MANIFEST_NAME),
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


def program_steps(plan: Plan) -> list[AcceptanceStep]:
    """All of them, in order, but for the soak. What changes without this program, such as the free memory, is
    looked at each time."""
    wavs = plan.wav_inputs()

    def no_files() -> str:
        return "random weights take the place of the files" if plan.is_random else ""

    return [
        AcceptanceStep(
            "environment",
            "driver, GPU, compiler, libraries, sound devices",
            lambda did: _environment(plan, did),
            inputs=time.time_ns,
        ),
        AcceptanceStep(
            "files",
            "the model's files, their sizes and hashes",
            lambda did: _files(plan, did),
            inputs=plan.inputs(),
            why_not=no_files,
        ),
        AcceptanceStep(
            "tensors",
            "name, shape and dtype of each tensor",
            lambda did: _tensors(plan, did),
            inputs=plan.inputs(),
            why_not=no_files,
        ),
        AcceptanceStep(
            "memory",
            "weight formats that fit into the free memory",
            lambda did: _memory(plan, did),
            ("files",),
            time.time_ns,
        ),
        AcceptanceStep(
            "kernels",
            "kernels against plain torch on the same weights",
            lambda did: _kernels(plan, did),
            ("files", "tensors"),
            plan.inputs(wavs),
        ),
        AcceptanceStep(
            "verify",
            "weight format, flow steps and streamed codes with spoken questions",
            lambda did: _verify(plan, did),
            ("files", "tensors"),
            plan.inputs(wavs),
            lambda: "random weights give no replies to compare" if plan.is_random else "",
        ),
        AcceptanceStep(
            "bench",
            "latency and throughput against their targets",
            lambda did: bench(plan, did, plan.engine_words()),
            ("files", "tensors"),
            plan.inputs(plan.runs),
        ),
        AcceptanceStep(
            "duplex",
            "replies aloud through the sound devices: echo, loop latency, self-interruptions",
            lambda did: _duplex(plan, did),
            ("files", "tensors"),
            plan.inputs(plan.duplex_minutes, plan.headphones),
        ),
    ]


def soak_step(plan: Plan) -> AcceptanceStep:
    """Hours without a pause."""
    return AcceptanceStep(
        "soak",
        "conversations without a pause: memory and cache blocks",
        lambda did: _soak(plan, did),
        ("files", "tensors"),
        plan.inputs(plan.soak_hours),
        lambda: "" if plan.soak_hours else "on request only: --soak-hours 24",
    )


# ---- the machine ----


def _environment(plan: Plan, did: list[str]) -> StepOutcome:
    """Not kept for long: what is installed changes without this program."""
    document = document_of(plan.run(did, "doctor", "--json"))
    findings: list[dict[str, str]] = document["findings"]
    missing = [finding for finding in findings if finding["status"] == "missing"]
    has_gpu = any(finding["what"] == "GPU" and finding["status"] == "ok" for finding in findings)
    wants_gpu, can_start = plan.settings.engine.device != "cpu", has_launcher()
    figures = [
        Figure("missing", len(missing), "0", not missing),
        Figure("GPU that torch can use", has_gpu, "yes" if wants_gpu else "", has_gpu if wants_gpu else None),
        Figure(
            "C compiler, or none needed",
            can_start,
            "yes" if wants_gpu else "",
            can_start if wants_gpu else None,
        ),
        Figure("free disk, GB", round(shutil.disk_usage(plan.out).free / 1e9, 1)),
    ]
    figures += [
        Figure(f"driver ({number})", line) for number, line in enumerate(driver_lines(), 1) if wants_gpu
    ]
    figures += [Figure(f"{finding['what']}: {finding['status']}", finding["detail"]) for finding in findings]
    reasons = [f"{finding['what']}: {finding['detail']}" for finding in missing]
    advice = [finding["what_to_do"] for finding in missing]
    if wants_gpu and not has_gpu:
        advice += [finding["what_to_do"] for finding in findings if finding["what"] == "GPU"]
    if wants_gpu and not can_start:
        advice.append(COMPILER_REMEDY)
    if plan.engine_python is not None:
        more, reason = _other_environment(plan, plan.engine_python, did)
        figures += more
        reasons += [reason] if reason else []
        if reason or any(figure.is_met is False for figure in more):
            advice.append("Set that environment up as packaging/TENSORRT.md says.")
    return StepOutcome.judge(figures, " ".join(filter(None, advice)), "; ".join(reasons))


def _other_environment(plan: Plan, python: Path, did: list[str]) -> tuple[list[Figure], str]:
    """What --engine-python has, what its own doctor says of TensorRT-LLM, and why it cannot be used."""
    try:
        done = subprocess.run(
            examination(str(python)),
            capture_output=True,
            text=True,
            timeout=_EXAMINATION_S,
            check=False,
            env=inherited_variables(),
        )
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
        return [], f"the interpreter of --engine-python cannot be used ({type(error).__name__})"
    version, name = program_version(), "engine environment"
    figures = [
        Figure(f"{name}: Python", found["python"]),
        Figure(f"{name}: moss-voice", found["moss-voice"], version, found["moss-voice"] == version),
        Figure(f"{name}: TensorRT-LLM", found["tensorrt-llm"], "installed", bool(found["tensorrt-llm"])),
        Figure(f"{name}: missing packages", len(found["missing"]), "0", not found["missing"]),
    ]
    if found["moss-voice"] is not None:
        document = document_of(plan.run(did, "doctor", "--json", python=python))
        of_library = [finding for finding in document["findings"] if finding["what"] == "TensorRT-LLM"]
        clashes = [finding["detail"] for finding in of_library if finding["status"] != "ok"]
        figures.append(Figure(f"{name}: clashes", "; ".join(clashes) or "none", "none", not clashes))
    return figures, f"{', '.join(found['missing'])} missing there" if found["missing"] else ""


# ---- the model's files ----


def _files(plan: Plan, did: list[str]) -> StepOutcome:
    if not (plan.bundle / MANIFEST_NAME).is_file():
        if plan.fetch is None:
            raise MossVoiceError(
                f"There is no model {plan.model} on this machine.",
                f"Add --fetch, which downloads it, or run: moss-voice fetch {plan.model}",
            )
        fetched = plan.run(did, "fetch", plan.model, "--json", *plan.fetch)
        require_success(fetched)
    document = document_of(plan.run(did, "inspect", str(plan.bundle), "--json"))
    figures = [
        Figure("model", document["name"]),
        Figure("files", len(document["files"])),
        Figure("size, GB", round(document["bytes"] / 1e9, 3)),
        Figure("hashes of the manifest", "equal", "equal", True),
        *(
            Figure(f"parameters of {name}, M", round(count / 1e6, 3))
            for name, count in document["parameters"].items()
        ),
    ]
    return StepOutcome.judge(figures, "")


def _tensors(plan: Plan, did: list[str]) -> StepOutcome:
    document = document_of(plan.run(did, "inspect", str(plan.bundle), "--tensors", "--json"))
    differences = [
        f"{network['network']}: {line}" for network in document["networks"] for line in network["differences"]
    ]
    figures = [
        Figure(
            f"{network['network']} ({network['dtype']})",
            f"{network['found']} of {network['expected']}",
            "all, none other",
            not network["differences"],
        )
        for network in document["networks"]
    ]
    more = len(differences) - _LONGEST_LIST
    reason = "\n".join(differences[:_LONGEST_LIST]) + (f"\nand {more} more" if more > 0 else "")
    advice = "Use the weights and the bundle.toml of one model; download again what differs."
    return StepOutcome.judge(figures, advice, reason)


def _memory(plan: Plan, did: list[str]) -> StepOutcome:
    model = plan.model if plan.is_random else str(plan.bundle)
    document = document_of(plan.run(did, "devices", model, "--json"))
    options = plan.settings.engine
    wanted = "cuda:0" if options.device == "cuda" else options.device
    saves = options.rounds_tails and options.kv_dtype == "fp8"
    figures, fitting, found = list[Figure](), list[str](), False
    for device in document["devices"]:
        free = device["free_bytes"]
        figures.append(Figure(f"{device['name']}: free, GB", round(free / 1e9, 1)))
        for need in device["needs"]:
            formats = f"--weights {need['weights']}{' --tails --kv fp8' if need['saves_memory'] else ''}"
            fits, is_wanted = need["bytes"] <= free, device["name"] == wanted
            is_chosen = is_wanted and (need["weights"], need["saves_memory"]) == (
                options.weight_format,
                saves,
            )
            found = found or is_chosen
            fitting += [formats] if fits and is_wanted else []
            limit = f"<= {free / 1e9:.1f}" if is_chosen else ""
            name = f"{device['name']}: {formats}, GB"
            figures.append(Figure(name, round(need["bytes"] / 1e9, 1), limit, fits if is_chosen else None))
    advice = f"These fit now: {', '.join(fitting)}." if fitting else "Close other programs that use it."
    reason = "" if found else f"there is no device {wanted}, or no such format on it"
    return StepOutcome.judge(figures, advice, reason)


# ---- the engine ----


def _kernels(plan: Plan, did: list[str]) -> StepOutcome:
    words = [*plan.engine_words(), "--kernel-paths", "--json", *plan.wav_words()]
    result = plan.run(did, "verify", *words)
    advice = f"Try --kernels torch, which does not use them, and send the report. {_LOG_ADVICE}"
    outcome = verdict_of(result, advice)
    paths = [
        Figure(f"kernels for {conversations}: {name.replace('_', ' ')}", path)
        for conversations, found in document_of(result)["kernels"].items()
        for name, path in found.items()
    ]
    return replace(outcome, figures=(*paths, *outcome.figures))


def _verify(plan: Plan, did: list[str]) -> StepOutcome:
    result = plan.run(did, "verify", *plan.engine_words(), "--json", *plan.wav_words())
    advice = f"Try a wider format (--weights), more --flow-steps, or --exact-encoding. {_LOG_ADVICE}"
    return verdict_of(result, advice)


def verdict_of(result: CommandResult, advice: str, table: str = "") -> StepOutcome:
    """Of the rows of `verify`, or of a table in the document."""
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


def bench(plan: Plan, did: list[str], words: Sequence[str], python: Path | None = None) -> StepOutcome:
    """Replies and stages against the targets of `moss-voice bench`."""
    result = plan.run(did, "bench", *words, f"--runs={plan.runs}", "--check", "--json", python=python)
    document = document_of(result)
    _refuse_error(document, result)
    figures = [
        Figure(f"{name}, p50", round(summary["p50"], 4)) for name, summary in document["metrics"].items()
    ]
    targets = document["targets"]["rows"]
    figures += [_target(row) for row in targets]
    reason = "" if result.status == 0 else result.error or "the bench ended with an error"
    if all(row["result"] == "not measured" for row in targets):
        reason = reason or "no target was measured"
    return StepOutcome.judge(figures, f"See which stage is over its floor. {_LOG_ADVICE}", reason)


def _target(row: Mapping[str, Any]) -> Figure:
    """A target of bench, with its limit."""
    is_met = {"passed": True, "failed": False}.get(row["result"])
    return Figure(f"target {row['target']}", row["measured"], f"<= {row['limit']:g}", is_met)


def _soak(plan: Plan, did: list[str]) -> StepOutcome:
    words = [*plan.engine_words(), f"--endurance-minutes={60 * plan.soak_hours:g}", "--runs=1", "--repeats=1"]
    result = plan.run(did, "bench", *words, "--json")
    document = document_of(result)
    _refuse_error(document, result)
    rows = document["endurance"]["rows"]
    figures = [Figure("hours", round(rows[-1]["at_s"] / 3600, 3)), Figure("turns", rows[-1]["turns"])]
    for name, unit in (("host_mb", "main memory"), ("device_mb", "device memory")):
        course = [row[name] for row in rows if name in row]
        if course:
            figures.append(Figure(f"{unit} at the end, MB", round(course[-1], 1)))
            figures.append(
                Figure(
                    f"{unit}, growth after the first tenth, MB",
                    round(course[-1] - course[min(1, len(course) - 1)], 1),
                )
            )
    figures.append(
        Figure("cache blocks in use at the end", rows[-1]["blocks_used"], "0", rows[-1]["blocks_used"] == 0)
    )
    reason = "" if result.status == 0 else result.error
    return StepOutcome.judge(
        figures, f"This is a defect of the program: please send the report. {_LOG_ADVICE}", reason
    )


# ---- the sound devices ----


def _duplex(plan: Plan, did: list[str]) -> StepOutcome:
    seconds = 60 * plan.duplex_minutes
    words = [*plan.engine_words(), "--ask", f"--seconds={seconds:g}", "--json"]
    result = plan.run(did, "console", *words)
    trial: dict[str, Any] = document_of(result)["trial"]
    echo = trial["echo"]
    figures = [
        Figure("replies played", trial["played"], ">= 1", trial["played"] >= 1),
        Figure("seconds spoken", trial["spoken_s"]),
        Figure(
            "loudest moment of the microphone, dBFS",
            trial["loudest_dbfs"],
            f"> {_QUIETEST_DBFS:g}",
            trial["loudest_dbfs"] > _QUIETEST_DBFS,
        ),
        _most("self-interruptions", trial["self_interruptions"]),
        _most("turns that nobody spoke, answered", trial["turns_answered"]),
        Figure("the same, opened", trial["turns_opened"]),
        Figure("replies that paused for what was heard", trial["pauses"]),
        _most("under-runs", trial["underruns"]),
        _most("captured samples lost", trial["dropped_samples"]),
        *_echo_figures(echo, trial["delay_spread_ms"], plan.headphones),
    ]
    reasons = list(trial["errors"])
    if not trial["had_microphone"]:
        reasons.append("no microphone could be opened")
    if trial["microphone_silent"]:
        reasons.append("the microphone delivered exact silence: it is muted, or switched off")
    advice = (
        "Check that loudspeaker and microphone are chosen, on and not muted, and that nobody speaks "
        "meanwhile; with headphones add --headphones."
    )
    return StepOutcome.judge(figures, advice, "; ".join(reasons))


def _echo_figures(echo: Mapping[str, Any], spread_ms: float | None, headphones: bool) -> list[Figure]:
    found = echo["delay_ms"] is not None
    if headphones and not found:
        return [Figure("echo", "none, as with headphones")]
    if not found:
        return [Figure("echo", "none was heard", "heard", False)]
    delay_ms, erl_db, erle_db = echo["delay_ms"], echo["erl_db"], echo["erle_db"]
    return [
        Figure("loop latency, ms", round(delay_ms, 1), f"<= {_LOOP_MS:g}", delay_ms <= _LOOP_MS),
        Figure("its spread, ms", spread_ms),
        Figure("echo return loss, dB", round(erl_db, 1)),
        Figure("echo return loss enhancement, dB", round(erle_db, 1)),
        Figure("clock drift, ppm", round(echo["drift_ppm"], 1)),
    ]


def _most(name: str, count: int) -> Figure:
    return Figure(name, count, "0", count == 0)


# ---- results of commands ----


def document_of(result: CommandResult) -> dict[str, Any]:
    """What the command printed. MossVoiceError, its own, if it ended without that."""
    if result.document is None:
        require_success(result)
        raise MossVoiceError(
            f"moss-voice {result.words[0]} printed no result.",
            f"This is a defect of the program. {_LOG_ADVICE}",
        )
    return result.document


def require_success(result: CommandResult) -> None:
    if result.status != 0:
        raise MossVoiceError(result.error)


def _refuse_error(document: Mapping[str, Any], result: CommandResult) -> None:
    """MossVoiceError if a command that prints its document in any case has failed early."""
    if "error" in document:
        raise MossVoiceError(str(document["error"]) or result.error)


def shown_command(words: Sequence[str], python: Path | None) -> str:
    """A command as a user would type it."""
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
    """GPUs and driver: with others everything is to be done again."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    query = [program, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, timeout=30, check=False).stdout


def _hash_of(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return ""
