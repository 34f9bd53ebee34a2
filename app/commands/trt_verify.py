"""moss-voice trt verify: compare an engine with the torch executor.

Runs both over the same conversations of two turns (teacher forcing) and compares the logits of both heads
after each call, in prefill and decode; of an engine for several conversations also in steps of several. Exit
status 0 if they are aligned; otherwise the first different row is reported.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, get_args

from app import paths
from app.commands.engine_options import add_engine_options, start_settings
from app.commands.option_types import LARGEST_COUNT, integer
from app.commands.questions import read_questions
from engine_runtime.options import Dtype

if TYPE_CHECKING:
    from engine_runtime.engine import Engine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("folder", metavar="ENGINE", type=paths.user_path, help="folder of the engine")
    add_engine_options(parser)
    parser.add_argument(
        "--wavs",
        type=paths.user_path,
        metavar="DIR",
        help="folder of spoken questions (default: the shipped ones)",
    )
    parser.add_argument(
        "--rows",
        type=integer(1, LARGEST_COUNT),
        metavar="N",
        help="maximum rows of a reply to compare (default: 48)",
    )
    parser.add_argument(
        "--reference-device",
        metavar="DEVICE",
        help="device of the torch executor, such as cpu where a GPU has no room for it (default: --device)",
    )
    parser.add_argument(
        "--reference-dtype",
        choices=get_args(Dtype),
        help="dtype of the torch executor (default: float32 on a CPU, bfloat16 on a GPU)",
    )
    parser.add_argument("--json", action="store_true", help="end the output with one JSON document")


def _reference(load: Callable[[], Engine], device: str) -> Engine:
    """The torch executor, which needs more memory than an engine. VerifyError if the GPU has too little."""
    from engine_runtime.bench.verify import VerifyError
    from engine_runtime.hardware import AcceleratorError

    try:
        return load()
    except AcceleratorError as error:
        raise VerifyError(
            f"The engine is compared with torch, which cannot be loaded on {device}: {error.what_is_wrong} "
            "Add --reference-device cpu --reference-dtype bfloat16, which needs main memory instead."
        ) from error


def run(arguments: argparse.Namespace) -> int:
    """Compare and print. Exit status 0 if aligned."""
    arguments.backend, arguments.engine = "trtllm", arguments.folder
    settings = start_settings(arguments)
    device = arguments.reference_device or settings.engine.device
    native = replace(
        settings.engine,
        backend="torch",
        engine=None,
        device=device,
        dtype=arguments.reference_dtype,
        codec_dtype=settings.engine.codec_dtype if device == settings.engine.device else None,
    )
    from app.main import engine_factory
    from engine_runtime.bundle.bundle import Bundle
    from engine_runtime.executors.trtllm.engine_directory import EngineDirectory
    from engine_runtime.trtllm.alignment import MOST_TOGETHER, ROWS_PER_REPLY, align

    engine = EngineDirectory.open(arguments.folder)
    together = min(engine.max_batch_size, MOST_TOGETHER)
    settings = replace(settings, engine=replace(settings.engine, max_batch_size=together))
    rate = Bundle.open(settings.bundle, verify="none").speech_encoder.sample_rate
    alignment = align(
        lambda: _reference(engine_factory(replace(settings, engine=native)), device),
        engine_factory(settings),
        read_questions(arguments.wavs, rate),
        arguments.rows or ROWS_PER_REPLY,
    )
    verdict = alignment.verdict
    batch = f", steps of 1 to {together} conversations" if together > 1 else ", one conversation a step"
    title = f"{engine.path} ({engine.precision}{batch}) against torch in {native.lm_dtype} on {device}"
    section = verdict.section(title)
    print("\n".join(section.lines()))
    if alignment.first is None:
        print("\nno row differs")
    else:
        print(f"\nfirst row that differs: {alignment.first}")
    print("aligned" if verdict.is_aligned else "not aligned")
    if arguments.json:
        about = {"engine": str(engine.path), "bundle": str(settings.bundle), "precision": engine.precision}
        first = None if alignment.first is None else str(alignment.first)
        document = about | {
            "conversations_of_a_step": together,
            "reference_device": device,
            "reference_dtype": native.lm_dtype,
            "first_difference": first,
        }
        print(json.dumps(document | section.document() | {"aligned": verdict.is_aligned}))
    return 0 if verdict.is_aligned else 1
