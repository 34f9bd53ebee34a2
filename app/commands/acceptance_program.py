"""The steps of an acceptance that concern the program itself: the machine, then the model. TensorRT-LLM has
its own.

In: the plan. Out: the steps in their order, and their outcomes. Every step is a command of the program, so
that its figures can be had by hand. Main thread.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.commands.acceptance_plan import (
    LOG_ADVICE,
    Plan,
    document_of,
    refuse_error,
    require_success,
    verdict_of,
)
from app.commands.acceptance_steps import AcceptanceStep, Figure, StepOutcome
from app.commands.gpu_driver import cuda_compiler, cuda_of_driver, driver_gpus
from app.other_python import examination, inherited_variables
from app.version import VERSION
from engine_runtime.bundle.bundle import MANIFEST_NAME
from engine_runtime.cuda.triton_launcher import has_launcher
from engine_runtime.errors import MossVoiceError


def program_steps(plan: Plan) -> list[AcceptanceStep]:
    """All of them in order, except the soak. What changes independently of this program, such as the free
    memory, is examined each time."""
    wavs = plan.wav_inputs()

    def no_files() -> str:
        return "random weights take the place of the files" if plan.is_random else ""

    return [
        AcceptanceStep(
            "environment",
            "driver, GPU, compiler, libraries, sound devices",
            lambda did: environment(plan, did),
            inputs=time.time_ns,
        ),
        AcceptanceStep(
            "files",
            "the model's files, their sizes and hashes",
            lambda did: files(plan, did),
            inputs=plan.inputs(),
            why_not=no_files,
        ),
        AcceptanceStep(
            "tensors",
            "name, shape and dtype of each tensor",
            lambda did: tensors(plan, did),
            inputs=plan.inputs(),
            why_not=no_files,
        ),
        AcceptanceStep(
            "memory",
            "weight formats that fit into the free memory",
            lambda did: memory(plan, did),
            ("files",),
            time.time_ns,
        ),
        AcceptanceStep(
            "kernels",
            "kernels against plain torch on the same weights",
            lambda did: kernels(plan, did),
            ("files", "tensors"),
            plan.inputs(wavs),
        ),
        AcceptanceStep(
            "verify",
            "weight format, flow steps and streamed codes with spoken questions",
            lambda did: verify(plan, did),
            ("files", "tensors"),
            plan.inputs(wavs),
            lambda: "random weights give no replies to compare" if plan.is_random else "",
        ),
        AcceptanceStep(
            "bench",
            "latency and throughput against their targets",
            lambda did: bench_torch(plan, did),
            ("files", "tensors"),
            plan.inputs(plan.runs),
        ),
        AcceptanceStep(
            "duplex",
            "replies aloud through the sound devices: echo, loop latency, self-interruptions",
            lambda did: duplex(plan, did),
            ("files", "tensors"),
            plan.inputs(plan.duplex_minutes, plan.headphones),
        ),
    ]


def soak_step(plan: Plan) -> AcceptanceStep:
    """Hours without a pause."""
    return AcceptanceStep(
        "soak",
        "conversations without a pause: memory and cache blocks",
        lambda did: soak(plan, did),
        ("files", "tensors"),
        plan.inputs(plan.soak_hours),
        lambda: "" if plan.soak_hours else "on request only: --soak-hours 24",
    )


_LOOP_MS = 384.0
"""Delay up to which an echo is found (app/audio/echo_monitor.py)."""
_QUIETEST_DBFS = -90.0
"""Level of the loudest moment below which a microphone is not open: noise alone is louder."""
_EXAMINATION_S = 60


def environment(plan: Plan, did: list[str]) -> StepOutcome:
    """What is installed, here and in the environment of --engine-python. A GPU that is asked for has to be
    there, with kernels that run."""
    document = document_of(plan.run(did, "doctor", "--json"))
    findings: list[dict[str, str]] = document["findings"]
    missing = [finding for finding in findings if finding["status"] == "missing"]
    has_gpu = any(finding["what"] == "GPU" and finding["status"] == "ok" for finding in findings)
    slow = [finding for finding in findings if finding["what"] == "kernels" and finding["status"] != "ok"]
    wants_gpu = plan.settings.engine.device != "cpu"
    figures = [
        Figure("missing", len(missing), "0", not missing),
        Figure("GPU that torch can use", has_gpu, "yes" if wants_gpu else "", has_gpu if wants_gpu else None),
        Figure("GPU kernels run", not slow, "yes" if wants_gpu else "", not slow if wants_gpu else None),
        Figure("C compiler, or none needed", has_launcher()),
        Figure("free disk, GB", round(shutil.disk_usage(plan.out).free / 1e9, 1)),
    ]
    figures += _driver_figures() if wants_gpu else []
    figures += [Figure(f"{finding['what']}: {finding['status']}", finding["detail"]) for finding in findings]
    reasons = [f"{finding['what']}: {finding['detail']}" for finding in missing]
    advice = [finding["what_to_do"] for finding in missing]
    if wants_gpu and not has_gpu:
        advice += [finding["what_to_do"] for finding in findings if finding["what"] == "GPU"]
    if wants_gpu:
        advice += [finding["what_to_do"] for finding in slow]
    if plan.engine_python is not None:
        more, reason = _other_environment(plan, plan.engine_python, did)
        figures += more
        reasons += [reason] if reason else []
        if reason or any(figure.is_met is False for figure in more):
            advice.append("Set that environment up as packaging/TENSORRT.md says.")
    return StepOutcome.judge(figures, "\n".join(dict.fromkeys(filter(None, advice))), "\n".join(reasons))


def _driver_figures() -> list[Figure]:
    """Each GPU of the driver, the fields of several with its number, and the CUDA versions."""
    gpus = driver_gpus()
    if gpus is None:
        return [Figure("driver", "no nvidia-smi")]
    figures = list[Figure]()
    for number, gpu in enumerate(gpus):
        title = "GPU" if len(gpus) == 1 else f"GPU {number}"
        figures += [
            Figure(f"{title}: name", gpu.name),
            Figure(f"{title}: driver version", gpu.driver_version),
            Figure(f"{title}: memory, MiB", gpu.memory_mib),
            Figure(f"{title}: compute capability", gpu.compute_capability),
            Figure(f"{title}: power limit, W", gpu.power_limit_w),
        ]
    if not gpus:
        figures.append(Figure("driver", "nvidia-smi lists no GPU"))
    return [
        *figures,
        Figure("CUDA of the driver", cuda_of_driver() or "not reported"),
        Figure("CUDA compiler", cuda_compiler() or "no nvcc"),
    ]


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
    version, name = VERSION, "engine environment"
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


def memory(plan: Plan, did: list[str]) -> StepOutcome:
    """What each format takes, and whether the chosen one fits into the memory that is free now."""
    model = plan.model if plan.is_random else str(plan.bundle)
    document = document_of(plan.run(did, "devices", model, "--json"))
    options = plan.settings.engine
    wanted = "cuda:0" if options.device == "cuda" else options.device
    # The plan of the processor has native weights alone: those in other formats take less.
    weights = "native" if options.device == "cpu" else options.weight_format
    saves = weights != "native" and options.rounds_tails and options.kv_dtype == "fp8"
    figures, fitting, found = list[Figure](), list[str](), False
    for device in document["devices"]:
        free = device["free_bytes"]
        figures.append(Figure(f"{device['name']}: free, GB", round(free / 1e9, 1)))
        for need in device["needs"]:
            formats = f"--weights {need['weights']}{' --tails --kv fp8' if need['saves_memory'] else ''}"
            fits, is_wanted = need["bytes"] <= free, device["name"] == wanted
            is_chosen = is_wanted and (need["weights"], need["saves_memory"]) == (weights, saves)
            found = found or is_chosen
            fitting += [formats] if fits and is_wanted else []
            limit = f"<= {free / 1e9:.1f}" if is_chosen else ""
            name = f"{device['name']}: {formats}, GB"
            figures.append(Figure(name, round(need["bytes"] / 1e9, 1), limit, fits if is_chosen else None))
    advice = f"These fit now: {', '.join(fitting)}." if fitting else "Close other programs that use it."
    reason = "" if found else f"there is no device {wanted}, or no such format on it"
    return StepOutcome.judge(figures, advice, reason)


def duplex(plan: Plan, did: list[str]) -> StepOutcome:
    """Replies aloud while nobody speaks: whatever the microphone takes for speech is the loudspeaker's
    echo."""
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
    return StepOutcome.judge(figures, _sound_advice(trial, bool(reasons)), "; ".join(reasons))


def _sound_advice(trial: Mapping[str, Any], has_error: bool) -> str:
    """What to do about each kind of failure."""
    advice = []
    is_quiet = trial["loudest_dbfs"] <= _QUIETEST_DBFS
    if has_error or is_quiet or not trial["played"] or trial["echo"]["delay_ms"] is None:
        advice.append(
            "Check that loudspeaker and microphone are chosen, on, loud enough and not muted; with "
            "headphones add --headphones."
        )
    if trial["self_interruptions"] or trial["turns_answered"]:
        advice.append(
            "See that nobody speaks meanwhile; turn the loudspeaker down or away from the microphone, or try "
            "--echo-library livekit with `moss-voice console --ask`."
        )
    if trial["underruns"] or trial["dropped_samples"]:
        advice.append("Close programs that keep the processor busy, and do this step again.")
    return " ".join(advice)


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


_LONGEST_LIST = 20
"""Differences that are listed in a reason; the log has all of them."""


def files(plan: Plan, did: list[str]) -> StepOutcome:
    """Fetch the model if that is requested and it is missing; check sizes and hashes of all files."""
    if not (plan.bundle / MANIFEST_NAME).is_file():
        if plan.fetch is None:
            raise MossVoiceError(
                "There is no model {model} on this machine.",
                "Add --fetch, which downloads it, or run: moss-voice fetch {model}",
                model=plan.model,
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


def tensors(plan: Plan, did: list[str]) -> StepOutcome:
    """All differences from the manifest, the first ones in the reason."""
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


def kernels(plan: Plan, did: list[str]) -> StepOutcome:
    """Each path that runs here, with its errors; which kernels that are is among the figures."""
    words = [*plan.engine_words(), "--kernel-paths", "--json", *plan.wav_words()]
    result = plan.run(did, "verify", *words)
    advice = f"Try --kernels torch, which does not use them, and send the report. {LOG_ADVICE}"
    outcome = verdict_of(result, advice)
    paths = [
        Figure(f"kernels for {conversations}: {name.replace('_', ' ')}", path)
        for conversations, found in document_of(result)["kernels"].items()
        for name, path in found.items()
    ]
    return replace(outcome, figures=(*paths, *outcome.figures))


def verify(plan: Plan, did: list[str]) -> StepOutcome:
    """The chosen format against the reference, streamed codes, and speech at few steps of the flow."""
    result = plan.run(did, "verify", *plan.engine_words(), "--json", *plan.wav_words())
    advice = f"Try a wider format (--weights), more --flow-steps, or --exact-encoding. {LOG_ADVICE}"
    return verdict_of(result, advice)


def bench_torch(plan: Plan, did: list[str]) -> StepOutcome:
    """The engine in torch, in the chosen format alone: with random weights the bench would take all."""
    return bench(plan, did, [*plan.engine_words(), f"--formats={plan.settings.engine.weight_format}"])


def bench(plan: Plan, did: list[str], words: Sequence[str], python: Path | None = None) -> StepOutcome:
    """Replies and stages against the targets of `moss-voice bench`."""
    result = plan.run(did, "bench", *words, f"--runs={plan.runs}", "--check", "--json", python=python)
    document = document_of(result)
    refuse_error(document, result)
    figures = [
        Figure(f"{name}, p50", round(summary["p50"], 4)) for name, summary in document["metrics"].items()
    ]
    targets = document["targets"]["rows"]
    figures += [_target(row) for row in targets]
    # The bench ends with status 1 because of a target, too; its figure says which.
    is_told = any(row["result"] == "failed" for row in targets)
    reason = "" if result.status == 0 or is_told else result.error or "the bench ended with an error"
    if all(row["result"] == "not measured" for row in targets):
        reason = reason or "no target was measured"
    return StepOutcome.judge(figures, f"See which stage is over its floor. {LOG_ADVICE}", reason)


def _target(row: Mapping[str, Any]) -> Figure:
    """A target of bench, with its limit."""
    is_met = {"passed": True, "failed": False}.get(row["result"])
    return Figure(f"target {row['target']}", row["measured"], f"<= {row['limit']:g}", is_met)


def soak(plan: Plan, did: list[str]) -> StepOutcome:
    """Conversations without a pause, for as long as was asked for."""
    words = [*plan.engine_words(), f"--formats={plan.settings.engine.weight_format}"]
    words += [f"--endurance-minutes={60 * plan.soak_hours:g}", "--runs=1", "--repeats=1"]
    result = plan.run(did, "bench", *words, "--json")
    document = document_of(result)
    refuse_error(document, result)
    rows = document["endurance"]["rows"]
    hours = rows[-1]["at_s"] / 3600
    figures = [
        Figure("hours", round(hours, 3), f">= {plan.soak_hours:g}", hours >= plan.soak_hours),
        Figure("turns", rows[-1]["turns"]),
    ]
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
        figures, f"This is a defect of the program: please send the report. {LOG_ADVICE}", reason
    )
