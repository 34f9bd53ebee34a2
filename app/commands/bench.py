"""moss-voice bench: measure prefill, step, token2mel, vocoder, TTFA and RTF, and hold a conversation in
real time.

Times are printed only for replies that were checked: finite, not silent, of the right length, and the same
codes in every run with the same seed.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from app import paths
from app.audio.resample import Resampler
from app.audio.wav import read_wav
from app.commands.engine_options import add_engine_options, start_settings
from app.commands.progress import progress_bar
from engine_runtime.errors import AudioInputError

if TYPE_CHECKING:
    from engine_runtime.bench import BenchReport, Summary
    from engine_runtime.types import Pcm

_COLUMNS = ("mean", "std", "min", "p50", "p95", "max")


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the subcommand."""
    parser = commands.add_parser(
        "bench", help="measure every stage of the engine", description=__doc__.partition("\n")[0]
    )
    add_engine_options(parser)
    parser.add_argument(
        "--in", dest="question", type=Path, metavar="WAV", help="question (default: a sample)"
    )
    parser.add_argument(
        "--runs", type=_positive, default=10, help="replies that count (default: %(default)s)"
    )
    parser.add_argument("--warm-up", type=int, default=2, help="replies before them (default: %(default)s)")
    parser.add_argument(
        "--realtime-minutes",
        type=float,
        default=0.0,
        metavar="M",
        help="afterwards hold a conversation of M minutes at real-time pace and count under-runs",
    )
    parser.add_argument("--json", action="store_true", help="end the output with one JSON document")
    parser.set_defaults(run=run)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value


def run(arguments: argparse.Namespace) -> int:
    """Load, warm up, measure, print."""
    settings = start_settings(arguments)
    from app.main import engine_factory
    from engine_runtime import bench, hardware

    began = time.perf_counter()
    engine = engine_factory(settings)()
    engine.warm_up()
    ready = {"start_to_ready_s": _since_process_start(), "load_s": time.perf_counter() - began}
    question = _question(arguments.question, engine.input_sample_rate)
    params = None
    if settings.seed is not None:
        params = replace(engine.bundle.lm.sampling_speech, seed=settings.seed)
    with progress_bar("replies", arguments.runs + arguments.warm_up) as progress:
        report = bench.run_bench(
            engine, question, runs=arguments.runs, warm_up=arguments.warm_up, params=params, progress=progress
        )
    process = ready | _memory()
    engine.close()
    environment = {
        "bundle": engine.bundle.name,
        **hardware.environment(settings.engine.device, settings.engine.dtype),
        "question_s": round(len(question) / engine.input_sample_rate, 2),
        "reply_codes": report.codes_per_reply,
    }
    realtime = None
    print("\n".join([*_header(environment, report, arguments), *_table(report), *_process_lines(process)]))
    if arguments.realtime_minutes > 0:
        from app.commands.conversation import converse, realtime_line

        realtime = converse(settings, arguments.realtime_minutes)
        print(realtime_line(realtime))
    if arguments.json:
        document: dict[str, Any] = {
            "environment": environment,
            "metrics": {name: asdict(summary) for name, summary in report.metrics.items()},
            "warm_up_ttfa_ms": report.warm_up_ttfa_ms,
            "process": process,
        }
        if realtime is not None:
            document["realtime"] = realtime
        print(json.dumps(document))
    return 0


def _since_process_start() -> float:
    return time.time() - float(psutil.Process().create_time())


def _memory() -> dict[str, float]:
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "resident_mb": psutil.Process().memory_info().rss / 1e6,
        "peak_resident_mb": peak_kib * 1024 / 1e6,
    }


def _question(path: Path | None, rate: int) -> Pcm:
    """The question at the engine's rate."""
    if path is None:
        samples = paths.sample_questions()
        if not samples:
            raise AudioInputError(
                f"There is no sample question in {paths.assets_dir()}. Give one with --in WAV."
            )
        path = samples[0]
    pcm, wav_rate = read_wav(path, max_seconds=30)
    resampler = Resampler(wav_rate, rate, "HQ")
    converted: Pcm = np.concatenate([resampler.push(pcm), resampler.finish()])
    return converted


def _header(environment: dict[str, Any], report: BenchReport, arguments: argparse.Namespace) -> list[str]:
    from engine_runtime.bench import DEFINITIONS

    lines = [f"# {name}: {value}" for name, value in environment.items()]
    lines.append(
        f"# {report.replies} replies counted after {arguments.warm_up} for warm-up (TTFA of those: "
        f"{', '.join(f'{value:.0f} ms' for value in report.warm_up_ttfa_ms) or 'none'})"
    )
    lines.append(
        "# every reply was checked: finite, not silent, of the right length, the same codes in each run"
    )
    width = max(map(len, DEFINITIONS))
    lines += [f"# {name:<{width}}  {text}" for name, text in DEFINITIONS.items() if name in report.metrics]
    return lines


def _table(report: BenchReport) -> list[str]:
    head = f"{'':<18}{'runs':>6}" + "".join(f"{column:>10}" for column in _COLUMNS)
    return [head, *(_row(name, summary) for name, summary in report.metrics.items())]


def _row(name: str, summary: Summary) -> str:
    return f"{name:<18}{summary.runs:>6}" + "".join(f"{getattr(summary, c):>10.3f}" for c in _COLUMNS)


def _process_lines(process: dict[str, float]) -> list[str]:
    return [
        f"start of the process to ready (loaded and warmed up): {process['start_to_ready_s']:.2f} s, "
        f"of which loading {process['load_s']:.2f} s",
        f"resident memory: {process['resident_mb']:.0f} MB, at most {process['peak_resident_mb']:.0f} MB",
    ]
