"""moss-voice verify --kernel-paths: compare the kernels with plain torch on the same weights."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from typing import TYPE_CHECKING

from app.commands.questions import read_questions
from app.progress import progress_bar
from app.settings import StartSettings

if TYPE_CHECKING:
    from engine_runtime.bench.verdict import Verdict


def verify_kernel_paths(settings: StartSettings, arguments: argparse.Namespace) -> int:
    """Compare the kernel paths of an engine for one conversation, and on a GPU, where they differ, those of
    one for several."""
    from engine_runtime.bench.verdict import Verdict
    from engine_runtime.bench.verify_kernels import MOST_REPLIES
    from engine_runtime.hardware import AcceleratorError

    options, verdict = settings.engine, Verdict()
    kernels = {"one": _compare_kernels(settings, arguments, verdict, "")}
    if options.device != "cpu":
        several = replace(options, max_batch_size=MOST_REPLIES, conversations=1)
        try:
            kernels["several"] = _compare_kernels(
                replace(settings, engine=several), arguments, verdict, "several: "
            )
        except AcceleratorError as error:  # fewer conversations may be all that this GPU is for
            verdict.notes.append(f"kernels of several conversations were not compared: {error}")
    described = f"{options.weight_format} weights, {options.kv_dtype} KV, {options.lm_dtype}"
    title = f"{settings.bundle.name}: kernels of {described} on {options.device} against plain torch"
    section = verdict.section(title)
    print("\n".join(section.lines()))
    print(f"\nkernels: {'aligned' if verdict.is_aligned else 'not aligned'}")
    if arguments.json:
        about = {"bundle": str(settings.bundle), "weights": options.weight_format, "kernels": kernels}
        print(json.dumps(about | section.document() | {"aligned": verdict.is_aligned}))
    return 0 if verdict.is_aligned else 1


def _compare_kernels(
    settings: StartSettings, arguments: argparse.Namespace, verdict: Verdict, prefix: str
) -> dict[str, str]:
    """Add the checks of one engine to the verdict; returns the kernels that run."""
    from app.main import engine_factory
    from engine_runtime.bench.stages import load_timed
    from engine_runtime.bench.verify_kernels import verify_kernels

    loaded, _ = load_timed(engine_factory(settings), settings.engine)
    with loaded as engine, progress_bar("kernels") as progress:
        questions = read_questions(arguments.wavs, engine.input_sample_rate)
        found = verify_kernels(engine, questions, progress)
        verdict.checks += [replace(check, name=prefix + check.name) for check in found.checks]
        verdict.notes += found.notes
        return engine.stages.kernel_paths
