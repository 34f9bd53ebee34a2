"""moss-voice trt verify: compare an engine with the reference, the native weights in plain layers.

The engine holds conversations of several turns and is closed; the reference then runs the same tokens, and
the logits of both heads are compared after each call, in prefill and decode; of an engine for several
conversations also in steps of several. Exit status 0 if they are aligned; otherwise the first different token
is reported.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace

from app import paths
from app.commands.shared_options import (
    LARGEST_COUNT,
    add_engine_options,
    add_verify_options,
    integer,
    prompts_of,
    reference_options,
    start_settings,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("folder", metavar="ENGINE", type=paths.user_path, help="folder of the engine")
    add_engine_options(parser)
    add_verify_options(parser)
    parser.add_argument(
        "--tokens",
        type=integer(1, LARGEST_COUNT),
        metavar="N",
        help="maximum tokens of a reply to compare (default: 48)",
    )
    parser.add_argument("--json", action="store_true", help="end the output with one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Compare and print. Exit status 0 if aligned."""
    arguments.backend, arguments.engine = "trtllm", arguments.folder
    settings = start_settings(arguments)
    from app.main import engine_factory
    from engine_runtime.bench.alignment import MOST_TOGETHER, align
    from engine_runtime.bench.reference import reference_of
    from engine_runtime.bench.teacher_forcing import TOKENS_PER_REPLY, dialogs
    from engine_runtime.bundle.bundle import Bundle
    from engine_runtime.tensorrt.llm.engine_directory import EngineDirectory

    engine = EngineDirectory.open(arguments.folder)
    together = min(engine.max_batch_size, MOST_TOGETHER)
    settings = replace(settings, engine=replace(settings.engine, max_batch_size=together))
    bundle = Bundle.open(settings.bundle, verify="none")
    prompts = prompts_of(bundle, arguments.wavs, arguments.texts)
    alignment = align(
        engine_factory(settings),
        reference_of(bundle, settings.engine, reference_options(arguments)),
        dialogs(prompts.spoken, prompts.typed),
        arguments.tokens or TOKENS_PER_REPLY,
    )
    verdict = alignment.verdict
    batch = f", steps of 1 to {together} conversations" if together > 1 else ", one conversation a step"
    section = verdict.section(f"{engine.path} ({engine.precision}{batch}) against the reference")
    print("\n".join(section.lines()))
    if alignment.first is None:
        print("\nno token differs")
    else:
        print(f"\nfirst token that differs: {alignment.first}")
    print("aligned" if verdict.is_aligned else "not aligned")
    if arguments.json:
        about = {"engine": str(engine.path), "bundle": str(settings.bundle), "precision": engine.precision}
        first = None if alignment.first is None else str(alignment.first)
        document = about | {
            "conversations_of_a_step": together,
            "reference": arguments.reference,
            "reference_dtype": arguments.reference_dtype,
            "first_difference": first,
        }
        print(json.dumps(document | section.document() | {"aligned": verdict.is_aligned}))
    return 0 if verdict.is_aligned else 1
