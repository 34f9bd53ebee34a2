"""moss-voice verify: compare weight formats, or an engine, with the reference, and their speech.

The language model holds conversations of several turns; the reference, the native weights in plain layers,
then runs the same tokens, and the logits of both heads are compared. Streamed speech codes are compared with
those of complete recordings. The speech of every format at every number of flow steps is compared with that
of the first: by mel, by predicted MOS (with the extra `quality`) and by the words that Whisper hears. With
--kernel-paths every kernel path that runs here is compared with plain torch on the same weights instead. Exit
status 0 if everything is aligned.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

from app import paths
from app.commands.bench_engine import list_variants
from app.commands.questions import read_questions
from app.commands.shared_options import (
    Prompts,
    add_engine_options,
    add_verify_options,
    integer,
    prompts_of,
    reference_options,
    start_settings,
)
from app.dialog.turn_taking_settings import TurnTakingSettings
from app.progress import progress_bar
from app.settings import StartSettings
from engine_runtime.errors import MossVoiceError
from engine_runtime.options import MOST_FLOW_STEPS, EngineOptions, WeightFormat

if TYPE_CHECKING:
    from engine_runtime.bench.quality import QualityBench
    from engine_runtime.bench.verdict import Verdict
    from engine_runtime.bench.verify_encoder import LeadIn
    from engine_runtime.bundle.bundle import Bundle
    from engine_runtime.table import Section
    from engine_runtime.types import Pcm


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the subcommand."""
    parser = commands.add_parser(
        "verify", help="compare weight formats with the reference", description=__doc__
    )
    parser.add_argument(
        "folder", metavar="BUNDLE", nargs="?", type=paths.user_path, help="bundle (default: that of --bundle)"
    )
    add_engine_options(parser)
    add_verify_options(parser)
    parser.add_argument(
        "--formats",
        nargs="+",
        choices=get_args(WeightFormat),
        metavar="FORMAT",
        help="weight formats to compare, one after the other: native, fp8, int8, int4 (default: --weights)",
    )
    parser.add_argument(
        "--steps",
        nargs="+",
        type=integer(1, MOST_FLOW_STEPS),
        metavar="N",
        help="steps of the flow to compare (default: 10, 5 and --flow-steps)",
    )
    parser.add_argument(
        "--whisper",
        type=paths.user_path,
        metavar="DIR",
        help="count word errors with this Whisper model, a folder in CTranslate2's format (default: none)",
    )
    parser.add_argument(
        "--encoder",
        action="store_true",
        help="compare the streamed codes of the speech encoder alone; needs no other network",
    )
    parser.add_argument(
        "--kernel-paths",
        action="store_true",
        help="compare the kernels with plain torch on the same weights; needs memory for one model only",
    )
    parser.add_argument("--json", action="store_true", help="end the output with one JSON document")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Compare and print. Exit status 0 if aligned."""
    settings = start_settings(arguments)
    is_random = settings.engine.random_weights is not None
    if arguments.folder is not None:
        folder = arguments.folder if is_random else paths.find_bundle(arguments.folder)
        settings = replace(settings, bundle=folder)
    if arguments.kernel_paths:
        return verify_kernel_paths(settings, arguments)
    from engine_runtime.bench.verify_encoder import all_lead_ins
    from engine_runtime.bundle.bundle import Bundle
    from engine_runtime.bundle.released.full_size import describe

    turns = TurnTakingSettings()
    lead_ins = all_lead_ins(turns.pre_roll_ms / 1000, turns.tail_ms / 1000)
    if is_random:
        bundle = describe(settings.bundle)
    else:
        bundle = Bundle.open(settings.bundle, verify="none", needs_lm_weights=not arguments.encoder)
    prompts = prompts_of(bundle, arguments.wavs, arguments.texts)
    if arguments.encoder:
        return _verify_encoder(bundle, settings, prompts.spoken, lead_ins, arguments)
    tested = settings.engine
    only = [] if tested.backend == "trtllm" else [tested.weight_format]
    variants = list_variants(tested, arguments.formats or only)
    verdict = _verify(bundle, settings, variants, prompts, lead_ins, arguments)
    described = _described(tested, list(variants))
    section = verdict.section(f"{settings.bundle.name}: {described}")
    _print(verdict, section)
    print(f"\n{described}: {'aligned' if verdict.is_aligned else 'not aligned'}")
    if arguments.json:
        about: dict[str, Any] = {"engine": str(tested.engine)}
        if tested.engine is None:
            about = {
                "weights": tested.formats.trunk,
                "tails": tested.formats.tails,
                "kv": tested.kv_dtype,
                "dtype": tested.lm_dtype,
            }
        document = {"bundle": str(settings.bundle), **about, "formats": list(variants)}
        document |= {"reference": arguments.reference, "reference_dtype": arguments.reference_dtype}
        print(json.dumps(document | _document(verdict, section)))
    return 0 if verdict.is_aligned else 1


def _verify(
    bundle: Bundle,
    settings: StartSettings,
    variants: dict[str, EngineOptions],
    prompts: Prompts,
    lead_ins: Sequence[LeadIn],
    arguments: argparse.Namespace,
) -> Verdict:
    from app.main import engine_factory
    from engine_runtime.bench.quality import MOST_ROWS
    from engine_runtime.bench.reference import reference_of
    from engine_runtime.bench.verify import Verification

    verification = Verification(
        reference_of(bundle, settings.engine, reference_options(arguments)),
        prompts.spoken,
        prompts.typed,
        _quality_bench(arguments),
        lead_ins,
    )
    codes = MOST_ROWS if settings.engine.random_weights is not None else None
    for name, options in variants.items():
        try:
            verification.add(name, engine_factory(replace(settings, engine=options), codes))
        except MossVoiceError as error:
            if len(variants) == 1:
                raise
            verification.fail(name, error)
    return verification.finish()


def _quality_bench(arguments: argparse.Namespace) -> QualityBench:
    from engine_runtime.bench.predicted_mos import MosPredictor, PredictorMissing
    from engine_runtime.bench.quality import QualityBench
    from engine_runtime.bench.word_errors import Recognizer

    notes = []
    recognizer = None if arguments.whisper is None else Recognizer(arguments.whisper)
    if recognizer is None:
        notes.append("word errors not counted: give a Whisper model with --whisper DIR")
    try:
        predictor = MosPredictor()
    except PredictorMissing as error:
        predictor = None
        notes.append(f"MOS not predicted: {error}")
    bench = QualityBench(arguments.steps, predictor, recognizer)
    bench.notes += notes
    return bench


def _described(tested: EngineOptions, formats: list[str]) -> str:
    if tested.engine is not None:
        return f"engine {tested.engine}"
    tails = " (tails, too)" if tested.rounds_tails else ""
    return f"{', '.join(formats)} weights{tails}, {tested.kv_dtype} KV, {tested.lm_dtype}"


def _verify_encoder(
    bundle: Bundle,
    settings: StartSettings,
    questions: dict[str, Pcm],
    lead_ins: Sequence[LeadIn],
    arguments: argparse.Namespace,
) -> int:
    """The part of it that needs the speech encoder only."""
    from engine_runtime.bench.verify_encoder import verify_encoder
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
