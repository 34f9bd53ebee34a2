"""moss-voice bench: measure replies, single stages against the ceilings of the machine, and real-time talk.

Times are printed only for verified replies: finite, not silent, of the right length, and with the same codes
in every run with the same seed. `--random-weights` measures a model without its weight files.
"""

from __future__ import annotations

import argparse
from typing import get_args

from app import paths
from app.commands.bench_conversations import add_conversation_options, run_conversations
from app.commands.bench_duplex import add_duplex_options, run_duplex
from app.commands.bench_engine import run_engine
from app.commands.bench_server import add_server_bench_options, run_server
from app.commands.live_report import add_report_options
from app.commands.shared_options import (
    LARGEST_COUNT,
    add_engine_options,
    add_server_options,
    add_turn_options,
    integer,
    number,
)
from engine_runtime.bench.gpu_spec import GPU_SPECS
from engine_runtime.options import WeightFormat

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
        "--in",
        dest="question",
        type=paths.user_path,
        metavar="FILE",
        help="question (WAV or FLAC; default: a sample)",
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
    add_report_options(parser)
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
        help="other limits than ttfa=300 first_chunk=200 (ms, p95), rtf=0.7 (p95), step_floor=1.5 "
        "(fp8 and int8 1.75, int4 2.25)",
    )
    add_conversation_options(parser)
    add_duplex_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure a server, conversations in a simulated room, users of one engine, or an engine by itself."""
    if arguments.server:
        return run_server(arguments)
    if arguments.duplex:
        return run_duplex(arguments)
    if arguments.conversations:
        return run_conversations(arguments)
    return run_engine(arguments)
