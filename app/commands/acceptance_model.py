"""Steps of an acceptance that examine the model: files, tensors, kernels, quality, speed, endurance.

In: the plan. Out: outcomes. Every step is a command of the program, so that its figures can be had by hand.
Main thread.
"""

from __future__ import annotations

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
from app.commands.acceptance_steps import Figure, StepOutcome
from engine_runtime.bundle.bundle import MANIFEST_NAME
from engine_runtime.errors import MossVoiceError

_LONGEST_LIST = 20
"""Differences that are listed in a reason; the log has all of them."""


def files(plan: Plan, did: list[str]) -> StepOutcome:
    """Fetch the model if that is wanted and it is not there; sizes and hashes of all files."""
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
