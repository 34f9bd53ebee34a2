"""Measures the same engine with the kernels of the GPU and with those of compute capability 8.9, in turns.

    python -m tests.tools.kernel_path_bench single --formats native fp8 --turns 2
    python -m tests.tools.kernel_path_bench batched
    python -m tests.tools.kernel_path_bench users --formats native

`single`: decode step, TTFA, flow and vocoder of one conversation. `batched`: decode steps of 1, 8 and 32, and
flow and vocoder of 1 and 8. `users`: 8 and 32 at once in real time, and flow and vocoder of 8 and 16 replies,
with the graphs of a server. Random weights; one table at the end, and each line as soon as it is known. Stops
before a load that would end after --seconds.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import torch

from app.commands.questions import read_question, sample_paths
from engine_runtime.bench import codec
from engine_runtime.bench.batched_codec import measure_batched_flow, measure_batched_vocoder
from engine_runtime.bench.batched_decode import measure_batched_decode
from engine_runtime.bench.ceilings import Ceilings, measure_ceilings
from engine_runtime.bench.codec import CodecBench
from engine_runtime.bench.conversation import question_of
from engine_runtime.bench.language_model import LMBench
from engine_runtime.bench.replies import run_bench
from engine_runtime.bench.simultaneous import WallClock, measure_simultaneous
from engine_runtime.bench.stages import load_timed
from engine_runtime.bundle.released.full_size import describe
from engine_runtime.codec.runtime import packet_frames
from engine_runtime.engine import Engine
from engine_runtime.hardware import environment, usable_device
from engine_runtime.options import EngineOptions
from engine_runtime.table import Section

REPLY_CODES, REPLIES = 64, (1, 8, 32)
USERS, USER_SECONDS = (8, 32), 12.0
LOWER = "8.9"


def single(engine: Engine, ceilings: Ceilings) -> Iterator[tuple[str, float, str]]:
    """What was measured, its value, and a remark, of one conversation."""
    lm = LMBench(engine.stages, ceilings, repeats=20)
    for row in lm.step().rows:
        yield (
            f"step at {row['cached_tokens']}, ms",
            _number(row["ms"]),
            f"{_number(row['ratio']):.2f} x floor",
        )
    recording = read_question(sample_paths()[0], engine.input_sample_rate)
    question = question_of(recording, 5.0, engine.input_sample_rate)
    params = replace(
        engine.bundle.lm.sampling_speech, do_sample=True, min_new=REPLY_CODES + 1, max_new=REPLY_CODES
    )
    report = run_bench(engine, question, runs=5, warm_up=2, params=params)
    for name in ("ttfa_ms", "rtf_steady", "step_ms"):
        yield f"reply: {name}", report.metrics[name].p50, f"max {report.metrics[name].max:.2f}"
    codec.OTHER_STEPS = ()  # type: ignore[assignment]
    stages = CodecBench(engine.stages, 10)
    for section in (stages.flow(), stages.vocoder()):
        for row in section.rows:
            yield f"{section.title} {row['packet']} {row['codes']} codes, ms", _number(row["ms"]), ""


def batched(engine: Engine, ceilings: Ceilings) -> Iterator[tuple[str, float, str]]:
    """The same of several conversations."""
    batches = tuple((count, 1024) for count in REPLIES)
    for row in measure_batched_decode(LMBench(engine.stages, ceilings, repeats=40), batches).rows:
        what = f"step {row['sequences']} x {row['cached_tokens']}, ms"
        yield what, _number(row.get("ms")), f"{_number(row.get('ratio')):.2f} x floor {row['valid']}"
    yield from _codec(engine, (1, 8))


def users(engine: Engine, ceilings: Ceilings) -> Iterator[tuple[str, float, str]]:
    """TTFA and gaps of users who talk at once, and the codec of as many replies."""
    engine.warm_up()
    yield from _codec(engine, (8, 16))  # more replies take several calls
    gc.collect()
    gc.freeze()  # as in a server: without it, a collection walks all that was loaded while replies wait
    recording = read_question(sample_paths()[0], engine.input_sample_rate)
    talk, _ = measure_simultaneous(engine, recording, list(USERS), USER_SECONDS, WallClock(), ceilings)
    for row in talk.rows:
        heard = f"{row['gaps']} gaps in {row['replies']} replies, {row['failed']} failed"
        heard += f"; {row['equal']} of {row['compared']} as alone"
        yield f"{row['users']} users: TTFA p50, ms", _number(row["ttfa_ms"]), heard
        for name, key in (("TTFA p95, ms", "ttfa_ms_p95"), ("RTF p50", "rtf"), ("engine thread", "busy")):
            yield f"{row['users']} users: {name}", _number(row[key]), ""


def _codec(engine: Engine, replies: tuple[int, ...]) -> Iterator[tuple[str, float, str]]:
    """Flow and vocoder of several replies in one call."""
    device, stages = usable_device(engine.stages.options.device), engine.stages
    sections: list[Section] = [
        measure_batched_flow(stages.token2mel, device, replies, 3),
        measure_batched_vocoder(stages.vocoder, packet_frames(engine.bundle.flow), device, replies, 3),
    ]
    for section in sections:
        for row in section.rows:
            size = row.get("codes", row.get("frames"))
            yield f"{section.title} {row['replies']} x {size}, ms", _number(row.get("ms")), str(row["valid"])


MEASURED = {"single": single, "batched": batched, "users": users}


def _say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def _number(cell: object) -> float:
    return float(cell) if isinstance(cell, int | float) else float("nan")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.kernel_path_bench", description=__doc__)
    parser.add_argument("what", choices=tuple(MEASURED))
    parser.add_argument("--bundle", default="moss-speech")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--formats", nargs="+", default=["native", "fp8", "int8", "int4"])
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=540.0)
    arguments = parser.parse_args()
    began, longest = time.monotonic(), 0.0
    device = usable_device(arguments.device)
    ceilings = measure_ceilings(device)
    _say(environment(arguments.device), f"copy {ceilings.copy_bytes_per_s / 1e12:.2f} TB/s")
    bundle = describe(arguments.bundle)
    table: dict[tuple[str, str], dict[str, list[str]]] = {}
    runs = [
        (weights, limit)
        for weights in arguments.formats
        for _ in range(arguments.turns)
        for limit in (None, LOWER)
    ]
    for weights, limit in runs:
        at = time.monotonic()
        if at - began + longest > arguments.seconds:
            _say(f"out of time before {weights} {limit}")
            break
        options = EngineOptions(
            device=arguments.device, weight_format=weights, random_weights=0, compute_capability=limit
        )
        if arguments.what != "single":
            options = replace(
                options,
                max_batch_size=max(REPLIES),
                conversations=max(REPLIES),
                context_tokens=1152,
                captures_batches=arguments.what == "users",
            )
            engine, load_s = Engine.load(bundle, options), 0.0
        else:
            engine, load_s = load_timed(lambda options=options: Engine.load(bundle, options), options)  # type: ignore[misc]
        path = limit or "own"
        _say(f"\n# {weights}, kernels of {path}: {engine.stages.kernel_paths}, load {load_s:.0f} s")
        for what, value, remark in MEASURED[arguments.what](engine, ceilings):
            _say(f"{weights:<7}{path:<5}{what:<40}{value:9.3f}  {remark}")
            shown = f"{value:.3f} {remark}".strip()
            table.setdefault((weights, what), {}).setdefault(path, []).append(shown)
        engine.close()
        del engine
        gc.unfreeze()
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
        longest = max(longest, time.monotonic() - at)
        _say(f"# {time.monotonic() - at:.0f} s, {time.monotonic() - began:.0f} s in all")
    _say()
    for (weights, what), found in table.items():
        _say(
            f"| {weights} | {what} | "
            + " | ".join("; ".join(found.get(key, ())) for key in ("own", LOWER))
            + " |"
        )


if __name__ == "__main__":
    main()
