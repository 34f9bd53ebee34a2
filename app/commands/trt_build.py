"""moss-voice trt build: build an engine from a TensorRT-LLM checkpoint.

Needs TensorRT-LLM and the GPU that the engine will run on. Sizes are fixed in an engine: the length of a
conversation, the tokens of one call, and the conversations of one call. The engine appears in its folder when
it is complete. Notes and the library's messages come before the report: its time, size, limits and tensors.
With --check nothing is built: the checkpoint and the sizes are checked, and the arguments of the library and
the GPU memory that they lead to are shown. That needs neither the library nor a GPU.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from app import paths
from app.commands.shared_options import LARGEST_COUNT, integer
from app.progress import say

if TYPE_CHECKING:
    from engine_runtime.tensorrt.llm.build import BuildPlan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "checkpoint",
        metavar="CHECKPOINT",
        type=paths.user_path,
        help="folder created by `trt convert` or `trt quantize`",
    )
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("--to", type=paths.user_path, metavar="DIR", help="folder of the engine")
    target.add_argument("--check", action="store_true", help="check and show the settings, build nothing")
    parser.add_argument(
        "--max-seq-len",
        type=integer(1, LARGEST_COUNT),
        metavar="N",
        help="tokens of the longest conversation (default: that of the model, at most 8192)",
    )
    parser.add_argument(
        "--max-num-tokens",
        type=integer(1, LARGEST_COUNT),
        metavar="N",
        help="tokens of the longest call (default: 2048, at most --max-seq-len)",
    )
    parser.add_argument(
        "--max-batch-size",
        type=integer(1, LARGEST_COUNT),
        default=1,
        metavar="N",
        help="conversations in one call, for `serve --conversations` (default: 1)",
    )
    parser.add_argument(
        "--opt-num-tokens",
        type=integer(1, LARGEST_COUNT),
        metavar="N",
        help="tokens of the call that kernels are chosen for (default: --max-batch-size, a step of as many "
        "replies)",
    )
    parser.add_argument(
        "--tokens-per-block",
        type=integer(1, LARGEST_COUNT),
        default=32,
        metavar="N",
        help="tokens of a block of the KV cache, a power of two (default: 32)",
    )
    parser.add_argument(
        "--multiple-profiles",
        action="store_true",
        help="choose kernels for several ranges of tokens; takes several times as long",
    )
    parser.add_argument(
        "--no-fused-mlp", action="store_true", help="do not fuse the two products of each MLP"
    )
    parser.add_argument(
        "--timing-cache",
        type=paths.user_path,
        metavar="FILE",
        help="timings of earlier builds, read and written; shortens the next build",
    )
    parser.add_argument("--json", action="store_true", help="end the output with one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Check, build, report."""
    from engine_runtime.tensorrt.llm.build import BuildOptions, plan_build

    options = BuildOptions(
        max_seq_len=arguments.max_seq_len,
        max_num_tokens=arguments.max_num_tokens,
        max_batch_size=arguments.max_batch_size,
        opt_num_tokens=arguments.opt_num_tokens,
        tokens_per_block=arguments.tokens_per_block,
        multiple_profiles=arguments.multiple_profiles,
        fused_mlp=not arguments.no_fused_mlp,
        timing_cache=arguments.timing_cache,
    )
    plan = plan_build(arguments.checkpoint, options)
    if arguments.check:
        _show(plan, arguments.json)
        return 0
    from engine_runtime.tensorrt.llm.build import build_engine
    from engine_runtime.tensorrt.llm.library import load_library

    library = load_library()
    say(f"Building with TensorRT-LLM {library.version}; this takes minutes.")
    report = build_engine(plan, arguments.to, options, library)
    print("\n".join(report.lines()))
    if arguments.json:
        print(json.dumps(report.document()))
    return 0


def _show(plan: BuildPlan, as_json: bool) -> None:
    document = plan.document()
    for table, values in document.items():
        print(table)
        for name, value in values.items():
            print(f"  {name:<24} {value}")
    if as_json:
        print(json.dumps(document))
