"""moss-voice verify: compare a weight format, or an engine, with the native weights of the same bundle.

Runs both over the same conversation (teacher forcing) and compares their logits; compares the flow at few
steps with many, and streamed speech codes with those of complete recordings. Exit status 0 if everything is
aligned.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

from app import paths
from app.commands.engine_options import add_engine_options, start_settings
from app.commands.questions import read_questions
from app.dialog.turn_taking_settings import TurnTakingSettings
from app.settings import StartSettings
from engine_runtime.options import Dtype

if TYPE_CHECKING:
    from engine_runtime.bench.verify import Verdict
    from engine_runtime.bench.verify_encoder import LeadIn
    from engine_runtime.bundle.bundle import Bundle
    from engine_runtime.table import Section
    from engine_runtime.types import Pcm


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the subcommand."""
    parser = commands.add_parser(
        "verify", help="compare a weight format with the native weights", description=__doc__
    )
    parser.add_argument(
        "folder", metavar="BUNDLE", nargs="?", type=paths.user_path, help="bundle (default: that of --bundle)"
    )
    add_engine_options(parser)
    parser.add_argument(
        "--wavs",
        type=paths.user_path,
        metavar="DIR",
        help="folder of spoken questions (default: the shipped ones)",
    )
    parser.add_argument(
        "--reference-dtype",
        choices=get_args(Dtype),
        help="dtype of the native weights (default: float32 on a CPU, bfloat16 on a GPU)",
    )
    parser.add_argument(
        "--encoder",
        action="store_true",
        help="compare the streamed codes of the speech encoder alone; needs no other network",
    )
    parser.add_argument("--json", action="store_true", help="end the output with one JSON document")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Compare and print. Exit status 0 if aligned."""
    settings = start_settings(arguments)
    if arguments.folder is not None:
        settings = replace(settings, bundle=paths.find_bundle(arguments.folder))
    tested = settings.engine
    native = replace(
        tested,
        weight_format="native",
        kv_dtype="native",
        dtype=arguments.reference_dtype,
        backend="torch",
        engine=None,
    )
    from app.main import engine_factory
    from engine_runtime.bench.verify import verify
    from engine_runtime.bench.verify_encoder import all_lead_ins
    from engine_runtime.bundle.bundle import Bundle

    turns = TurnTakingSettings()
    lead_ins = all_lead_ins(turns.pre_roll_ms / 1000, turns.tail_ms / 1000)
    bundle = Bundle.open(settings.bundle, verify="none", needs_lm_weights=not arguments.encoder)
    questions = read_questions(arguments.wavs, bundle.speech_encoder.sample_rate)
    if arguments.encoder:
        return _verify_encoder(bundle, settings, questions, lead_ins, arguments)
    verdict = verify(
        engine_factory(replace(settings, engine=native)), engine_factory(settings), questions, lead_ins
    )
    tails = " (tails, too)" if tested.rounds_tails else ""
    described = f"{tested.weight_format} weights{tails}, {tested.kv_dtype} KV, {tested.lm_dtype}"
    if tested.engine is not None:
        described = f"engine {tested.engine}"
    section = verdict.section(f"{settings.bundle.name}: {described} against native {native.lm_dtype}")
    _print(verdict, section)
    print(f"\n{described}: {'aligned' if verdict.is_aligned else 'not aligned'}")
    if arguments.json:
        about: dict[str, str] = {"engine": str(tested.engine)}
        if tested.engine is None:
            formats = {"weights": tested.formats.trunk, "tails": tested.formats.tails}
            about = {**formats, "kv": tested.kv_dtype, "dtype": tested.lm_dtype}
        document = {"bundle": str(settings.bundle), **about, "reference_dtype": native.lm_dtype}
        print(json.dumps(document | _document(verdict, section)))
    return 0 if verdict.is_aligned else 1


def _verify_encoder(
    bundle: Bundle,
    settings: StartSettings,
    questions: dict[str, Pcm],
    lead_ins: Sequence[LeadIn],
    arguments: argparse.Namespace,
) -> int:
    """The part of it that needs the speech encoder only."""
    from engine_runtime.bench.verify import verify_encoder
    from engine_runtime.codec.loading import load_speech_encoder

    tokenizer = load_speech_encoder(bundle, settings.engine)
    verdict = verify_encoder(tokenizer, questions, lead_ins, exact=settings.engine.exact_encoding)
    section = verdict.section(f"{settings.bundle.name}: speech encoder")
    _print(verdict, section)
    print(f"\nspeech encoder: {'aligned' if verdict.is_aligned else 'not aligned'}")
    if arguments.json:
        print(json.dumps({"bundle": str(settings.bundle)} | _document(verdict, section)))
    return 0 if verdict.is_aligned else 1


def _print(verdict: Verdict, section: Section) -> None:
    for table in (*verdict.tables, section):
        print("\n".join(table.lines()))


def _document(verdict: Verdict, section: Section) -> dict[str, Any]:
    tables = {table.title: table.document() for table in verdict.tables}
    return section.document() | {"tables": tables, "aligned": verdict.is_aligned}
