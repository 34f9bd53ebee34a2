"""Replies of `moss-voice bench`, those of the first variant: what was loaded, every run, the distribution of
the figures, shares of the stages, turns without a pause.
"""

from __future__ import annotations

import resource
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import psutil

from app.commands.bench_variants import StageMeasurements
from app.progress import progress_bar

if TYPE_CHECKING:
    from engine_runtime.bench import BenchReport
    from engine_runtime.engine import Engine
    from engine_runtime.table import Section
    from engine_runtime.types import Pcm, SamplingParams

_RANDOM_NOTE = (
    "random weights: the output is meaningless; a small text tokenizer yields prompts of about as many rows "
    "as the released one, replies have a fixed length, the voice prompt is 4 s of random codes"
)
_CACHED_ROWS = 512
"""Of the steps that sampling is measured in."""


def measure_first(measured: StageMeasurements) -> None:
    """Load the first variant and report its replies; the engine is passed to `measured`."""
    from app.main import engine_factory
    from engine_runtime.bench.stages import load_timed

    settings = measured.settings
    engine, load_s = load_timed(engine_factory(settings), settings.engine)
    measured.course.mark("load")
    try:
        _measure_replies(engine, measured, load_s)
    except BaseException:
        engine.close()
        raise
    measured.take(engine, load_s)


def _measure_replies(engine: Engine, measured: StageMeasurements, load_s: float) -> None:
    from engine_runtime import bench
    from engine_runtime.bench.heads import measure_heads
    from engine_runtime.bench.language_model import LMBench
    from engine_runtime.bench.networks import kv_budget_section, networks_section
    from engine_runtime.bench.reply_tables import figures_section, runs_section, shares_section

    arguments, report, document = measured.arguments, measured.report, measured.document
    ready = {"start_to_ready_s": _since_process_start() - measured.ceilings_s, "load_s": load_s}
    question, params = measured.question_of(engine), measured.params_of(engine)
    with progress_bar("replies", arguments.runs + arguments.warm_up) as progress:
        replies = bench.run_bench(
            engine, question, runs=arguments.runs, warm_up=arguments.warm_up, params=params, progress=progress
        )
    measured.replies = replies
    process = ready | _memory()
    measured.course.mark("replies")
    document["environment"] = _environment(engine, measured, question, replies)
    report.facts(document["environment"])
    report.remark(_counted(replies), *_process_lines(process))
    if measured.settings.engine.random_weights is not None:
        report.remark(_RANDOM_NOTE)
    document["process"] = process
    document["networks"] = report.add(networks_section(engine.stages))
    document["runs"] = report.add(runs_section(replies))
    report.add(figures_section(replies))
    document["metrics"] = {name: asdict(summary) for name, summary in replies.metrics.items()}
    document["warm_up_ttfa_ms"] = replies.warm_up_ttfa_ms
    lm = LMBench(engine.stages, measured.measure_ceilings(), arguments.repeats)
    sampling_ms = lm.sampling_in_step_ms(min(_CACHED_ROWS, engine.stages.lm.max_rows - 1))
    document["shares"] = report.add(shares_section(replies, sampling_ms))
    document["kv_budget"] = report.add(kv_budget_section(engine.stages))
    if arguments.heads:
        document["heads"] = report.add(measure_heads(engine, question, params, arguments.heads))
    if replies.failure is not None:
        raise replies.failure
    if (endurance := _endure(engine, question, params, arguments.endurance_minutes)) is not None:
        document["endurance"] = report.add(endurance)


def _environment(
    engine: Engine, measured: StageMeasurements, question: Pcm, replies: BenchReport
) -> dict[str, Any]:
    from engine_runtime import hardware

    options, threads = measured.settings.engine, engine.stages.cpu_threads
    return {
        "bundle": engine.bundle.name,
        **hardware.environment(options.device, options.lm_dtype),
        "torch_threads": threads.most,
        "torch_threads_now": threads.present,
        "backend": options.backend,
        "weights": options.weight_format,
        **engine.stages.kernel_paths,
        "speech_encoder": engine.stages.speech_tokenizer.backend,
        "question_s": round(len(question) / engine.input_sample_rate, 2),
        "reply_codes": replies.codes_per_reply,
        "busy_processes": measured.arguments.busy,
    }


def _endure(engine: Engine, question: Pcm, params: SamplingParams | None, minutes: float) -> Section | None:
    """The table of turns without a pause; None if none were requested."""
    if minutes <= 0:
        return None
    from engine_runtime.bench.endurance import measure_endurance

    with progress_bar("endurance", minutes * 60) as progress:
        return measure_endurance(engine, question, minutes, params, progress)


def _since_process_start() -> float:
    return time.time() - float(psutil.Process().create_time())


def _memory() -> dict[str, float]:
    resident = psutil.Process().memory_info().rss
    # The kernel updates the peak less often than the present size.
    peak = max(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, resident)
    return {"resident_mb": resident / 1e6, "peak_resident_mb": peak / 1e6}


def _counted(replies: BenchReport) -> str:
    return (
        f"replies measured: {replies.replies}, after {replies.warm_up} for warm-up; every reply was checked: "
        "finite, not silent, of the right length, the same codes in each run"
    )


def _process_lines(process: dict[str, float]) -> list[str]:
    return [
        f"start of the process to ready (loaded and warmed up): {process['start_to_ready_s']:.2f} s, "
        f"of which loading {process['load_s']:.2f} s",
        f"resident memory: {process['resident_mb']:.0f} MB, at most {process['peak_resident_mb']:.0f} MB",
    ]
