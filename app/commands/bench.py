"""moss-voice bench: measure replies, single stages against the ceilings of the machine, and real-time talk.

Times are printed only for verified replies: finite, not silent, of the right length, and with the same codes
in every run with the same seed. `--random-weights` measures a model without its weight files.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from app import paths
from app.commands.bench_conversations import add_conversation_options, run_conversations
from app.commands.bench_duplex import add_duplex_options, run_duplex
from app.commands.bench_replies import measure_first
from app.commands.bench_server import add_server_bench_options, run_server
from app.commands.bench_variants import StageMeasurements, list_variants
from app.commands.engine_options import (
    add_engine_options,
    add_microphone_options,
    add_server_options,
    add_turn_options,
    start_settings,
)
from app.commands.live_report import live_report
from app.commands.option_types import LARGEST_COUNT, integer, number
from app.commands.questions import check_question, read_question
from app.export import check_target
from app.progress import json_document
from app.settings import StartSettings
from engine_runtime.bench.gpu_spec import GPU_SPECS
from engine_runtime.errors import MossVoiceError
from engine_runtime.options import EngineOptions, OptionsError, WeightFormat

if TYPE_CHECKING:
    from engine_runtime.bench.targets import Limits
    from engine_runtime.engine import Engine
    from engine_runtime.table import Section
    from engine_runtime.types import Pcm, SamplingParams

_QUESTION_S = 5.0
_MOST_MINUTES = 7 * 24 * 60
_MOST_BUSY = 1000


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the subcommand."""
    parser = commands.add_parser(
        "bench", help="measure every stage of the engine", description=__doc__.partition("\n\n")[0]
    )
    add_engine_options(parser)
    add_turn_options(parser)
    add_server_options(parser)
    add_server_bench_options(parser)
    parser.add_argument(
        "--in", dest="question", type=paths.user_path, metavar="WAV", help="question (default: a sample)"
    )
    parser.add_argument(
        "--runs",
        type=integer(1, LARGEST_COUNT),
        default=10,
        metavar="N",
        help="replies to measure (default: %(default)s)",
    )
    parser.add_argument(
        "--warm-up",
        type=integer(0, LARGEST_COUNT),
        default=2,
        metavar="N",
        help="replies before them, not measured (default: %(default)s)",
    )
    parser.add_argument(
        "--realtime-minutes",
        type=number(0, _MOST_MINUTES),
        default=0.0,
        metavar="M",
        help="afterwards hold a conversation of M minutes at real-time pace and count under-runs",
    )
    parser.add_argument(
        "--endurance-minutes",
        type=number(0, _MOST_MINUTES),
        default=0.0,
        metavar="M",
        help="after the replies hold conversations for M minutes without a pause; fails if memory grows or a "
        "KV block is lost",
    )
    parser.add_argument(
        "--repeats",
        type=integer(1, LARGEST_COUNT),
        default=10,
        metavar="N",
        help="calls of each stage alone (default: %(default)s)",
    )
    parser.add_argument(
        "--formats",
        nargs="+",
        choices=get_args(WeightFormat),
        metavar="FORMAT",
        help="weight formats to measure one after the other: native, fp8, int8, int4 (default: --weights; "
        "with --random-weights on a GPU all of them; with an engine none)",
    )
    parser.add_argument(
        "--reply-codes",
        type=integer(1, LARGEST_COUNT),
        default=64,
        metavar="N",
        help="length of a reply with --random-weights (default: %(default)s)",
    )
    parser.add_argument(
        "--gpu-spec",
        nargs="+",
        choices=GPU_SPECS,
        default=[],
        metavar="NAME",
        help="predict prefill, step, TTFA, RTF and memory of these GPUs by their data sheets: "
        f"{', '.join(GPU_SPECS)} (that of --device is compared with its own in any case)",
    )
    parser.add_argument(
        "--heads",
        type=integer(0, LARGEST_COUNT),
        default=0,
        metavar="N",
        help="also print statistics of both heads at the first N positions of a reply, and its ids",
    )
    parser.add_argument(
        "--compare",
        action="append",
        choices=("transformers", "recompute"),
        default=[],
        help="measure side by side: transformers' Qwen3 modules, or a flow that recomputes its prefix",
    )
    parser.add_argument(
        "--busy",
        type=integer(0, _MOST_BUSY),
        default=0,
        metavar="N",
        help="measure while N processes keep the CPU busy (default: none)",
    )
    parser.add_argument("--json", action="store_true", help="end the output with one JSON document")
    parser.add_argument(
        "--markdown", type=paths.user_path, metavar="FILE", help="also write the report as Markdown"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="exit status 1 if a target is not met: those of the replies and decode steps, or with --duplex "
        "those of the conversations",
    )
    parser.add_argument(
        "--targets",
        nargs="+",
        default=[],
        metavar="NAME=NUMBER",
        help="other limits than ttfa=300 first_chunk=200 (ms, p95), rtf=0.7 (p95), step_floor=1.5",
    )
    add_conversation_options(parser)
    add_duplex_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Load, warm up, measure, print. Replies are those of the first variant; stages those of all."""
    if arguments.markdown is not None:
        if arguments.server or arguments.duplex:
            raise OptionsError("--markdown does not go with --server and --duplex. Use --json.")
        check_target(arguments.markdown)
    if arguments.server:
        return run_server(arguments)
    if arguments.duplex:
        return run_duplex(arguments)
    if arguments.conversations:
        return run_conversations(arguments)
    with json_document(arguments.json) as document:
        return _run(arguments, document)


def measure(words: Sequence[str]) -> tuple[int, dict[str, Any]]:
    """Run `moss-voice bench` with these options for another command (not with --duplex, --conversations or
    --server). Returns its exit status and JSON document; raises MossVoiceError as the command."""
    parser = argparse.ArgumentParser(prog="moss-voice")
    for add_options in (add_engine_options, add_turn_options, add_microphone_options, add_server_options):
        add_options(parser, of_subcommand=False)
    add_parser(parser.add_subparsers())
    document: dict[str, Any] = {}
    return _run(parser.parse_args(["bench", *words]), document), document


def _run(arguments: argparse.Namespace, document: dict[str, Any]) -> int:
    from engine_runtime.bench.busy import busy_processes
    from engine_runtime.bench.memory_course import MemoryCourse
    from engine_runtime.bench.targets import Limits, missed
    from engine_runtime.hardware import usable_device

    limits = Limits.parse(arguments.targets)
    settings = start_settings(arguments)
    question = check_question(arguments.question)
    variants = list_variants(settings.engine, arguments.formats)
    settings = replace(settings, engine=next(iter(variants.values())))
    with (
        live_report("moss-voice bench", arguments.markdown) as report,
        MemoryCourse(usable_device(settings.engine.device)) as course,
    ):
        measured = StageMeasurements(
            settings,
            variants,
            arguments,
            report,
            document,
            course,
            question_of=lambda engine: _question(question, engine.input_sample_rate, settings.engine),
            params_of=lambda engine: _params(engine, settings, arguments),
        )
        measured.check_variants()
        measured.measure_ceilings()  # first, because the device is the same for all variants
        course.mark("ceilings")
        try:
            with busy_processes(arguments.busy):
                _measure(measured)
        finally:
            report.add(course.section())
            document["memory_course"] = course.document()
        targets = _judge(limits, measured)
    is_missed = arguments.check and bool(missed(targets))
    return 0 if measured.is_complete and not is_missed else 1


def _measure(measured: StageMeasurements) -> None:
    """Measure replies, stages and a conversation, and fill in the document."""
    first, document = next(iter(measured.variants)), measured.document
    if not measured.has_failed(first):
        try:
            measure_first(measured)
        except MossVoiceError as error:
            if len(measured.variants) == 1:
                raise
            measured.fail(first, error)
    measured.run()
    minutes = measured.arguments.realtime_minutes
    if minutes > 0 and "metrics" in document:
        from app.commands.conversation import converse, realtime_line

        document["realtime"] = converse(measured.settings, minutes)
        measured.report.remark(realtime_line(document["realtime"]))
        measured.course.mark("conversation")


def _judge(limits: Limits, measured: StageMeasurements) -> Section:
    """The targets."""
    from engine_runtime.bench.targets import targets_section

    document = measured.document
    on_gpu = measured.settings.engine.device != "cpu"
    section = targets_section(limits, document.get("metrics", {}), document["stages"], on_gpu=on_gpu)
    document["targets"] = measured.report.add(section)
    return section


def _params(engine: Engine, settings: StartSettings, arguments: argparse.Namespace) -> SamplingParams | None:
    """None: those of the bundle. With random weights a reply does not end, so its length is fixed."""
    sampling = engine.bundle.lm.sampling_speech
    if settings.engine.random_weights is not None:
        codes = min(arguments.reply_codes, engine.stages.max_codes)
        sampling = replace(sampling, do_sample=True, min_new=codes + 1, max_new=codes)
    if settings.seed is not None:
        sampling = replace(sampling, seed=settings.seed)
    return None if sampling == engine.bundle.lm.sampling_speech else sampling


def _question(path: Path, rate: int, options: EngineOptions) -> Pcm:
    """The question at the rate of the engine; for random weights 5 s long."""
    converted = read_question(path, rate)
    if options.random_weights is not None:
        from engine_runtime.bench.conversation import question_of

        return question_of(converted, _QUESTION_S, rate)
    return converted
