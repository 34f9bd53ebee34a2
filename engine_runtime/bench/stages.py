"""Benchmark of every stage of a loaded engine: load time, memory, and latency against the measured ceilings;
and the language model of several engines in one table.

In: a warmed-up engine. Out: tables, none of which keeps a reference to the engine. Engine thread.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psutil
import torch

from engine_runtime.bench.ceilings import Ceilings
from engine_runtime.bench.codec import CodecBench
from engine_runtime.bench.compare import RecomputeComparison, TransformersComparison
from engine_runtime.bench.conversation import ENCODING_TITLE, measure_conversation, measure_exact_encoding
from engine_runtime.bench.language_model import LMBench
from engine_runtime.bench.teacher_forcing import Dialog
from engine_runtime.cuda.gpu_memory import explain_out_of_memory
from engine_runtime.hardware import AcceleratorError, usable_device
from engine_runtime.options import EngineOptions
from engine_runtime.table import Cell, Section
from engine_runtime.types import Pcm, SamplingParams

if TYPE_CHECKING:
    from engine_runtime.engine import Engine

MEMORY_COLUMNS = {
    "load_s": "bundle opened, every network loaded and warmed up",
    "allocated_gb": "device memory in tensors now (10^9 bytes)",
    "peak_gb": "maximum while loading",
    "reserved_gb": "device memory that torch holds",
    "host_gb": "resident memory of the process",
}


@dataclass(frozen=True, slots=True)
class StageBench:
    """Measures `repeats` runs of each call, and `replies` complete replies with `params`."""

    ceilings: Ceilings
    repeats: int
    replies: int
    params: SamplingParams | None

    def run(self, engine: Engine, question: Pcm, load_s: float) -> Iterator[Section]:
        """Yield each table when it is complete; if the GPU has too little memory for one, its note says so.
        Raises BenchError if an output is wrong."""
        lm = self._language_model(engine)
        codec = CodecBench(engine.stages, self.repeats)
        measurements: dict[str, Callable[[], Section]] = {
            "load and memory": lambda: _memory(lm.device, load_s),
            "prefill": lm.prefill,
            "decode step": lm.step,
            "speech encoder": lambda: _encoder(engine, codec, question),
            "flow": codec.flow,
            "vocoder": codec.vocoder,
            "question to reply": lambda: measure_conversation(engine, question, self.params, self.replies),
            ENCODING_TITLE: lambda: measure_exact_encoding(engine, question, self.params, self.replies),
        }
        for title, measure in measurements.items():
            engine.stages.cpu_threads.adapt()
            try:
                yield explain_out_of_memory(measure, engine.bundle.lm, engine.stages.options)
            except AcceleratorError as error:
                yield Section(title, {}, note=f"not measured: {error}")

    def recompute(self, engine: Engine) -> Section:
        """Compare the cached flow with one that recomputes. Raises as `run`, and ComparisonError if they
        disagree."""
        comparison = RecomputeComparison(engine.stages, self._language_model(engine).device, self._repeats)
        return explain_out_of_memory(comparison.run, engine.bundle.lm, engine.stages.options)

    def transformers(self, engine: Engine, asked: Sequence[Dialog]) -> Callable[[], list[Section]]:
        """Measure the runtime's side of a comparison with transformers; returns what measures the other side
        once the engine is closed. Raises as `run`, and ComparisonError."""
        section, options = engine.bundle.lm, engine.stages.options
        recorded = explain_out_of_memory(
            lambda: TransformersComparison.record(engine, self._language_model(engine), self._repeats, asked),
            section,
            options,
        )
        return lambda: explain_out_of_memory(recorded.finish, section, options)

    @property
    def _repeats(self) -> int:
        """Repetitions of a comparison, whose other side is slow."""
        return min(self.repeats, 10)

    def _language_model(self, engine: Engine) -> LMBench:
        return LMBench(engine.stages, self.ceilings, self.repeats)


def _memory(device: torch.device, load_s: float) -> Section:
    """Time to load, and memory of the device and of the host right after loading."""
    section = Section("load and memory", MEMORY_COLUMNS)
    row: dict[str, float | int | str | None] = {
        "load_s": load_s,
        "host_gb": psutil.Process().memory_info().rss / 1e9,
    }
    if device.type == "cuda":
        row["allocated_gb"] = torch.cuda.memory_allocated(device) / 1e9
        row["peak_gb"] = torch.cuda.max_memory_allocated(device) / 1e9
        row["reserved_gb"] = torch.cuda.memory_reserved(device) / 1e9
    else:
        section.note = "device memory does not apply on a CPU"
    section.rows.append(row)
    return section


def _encoder(engine: Engine, codec: CodecBench, question: Pcm) -> Section:
    """Uses the stream of a turn: another one would allocate caches, which captured graphs keep alive."""
    stream = engine.stages.streams.acquire()
    try:
        return codec.encoder(question, stream)
    finally:
        engine.stages.streams.release(stream)


def load_timed(load: Callable[[], Engine], options: EngineOptions) -> tuple[Engine, float]:
    """Load and warm up an engine, after freeing the memory of an earlier one. Returns it and the seconds.

    Raises the errors of `load`, and AcceleratorError if the GPU has too little memory.
    """
    gc.unfreeze()
    gc.collect()
    device = usable_device(options.device)
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    began = time.perf_counter()
    engine = load()
    engine.warm_up()
    load_s = time.perf_counter() - began
    # As in the application: garbage collection that traverses the whole engine would distort the times.
    gc.collect()
    gc.freeze()
    return engine, load_s


VARIANT_COLUMNS = {
    "variant": "weight format under torch, or trtllm for an engine",
    "work": "prefill of this many rows, or decode step after this many rows; as in the tables above",
    "ms": "median wall time",
    "ms_p95": "95th percentile",
    "tokens_per_s": "tokens of the prefill, or the one of the step / ms",
    "device_ms": "median GPU time, by events on the engine's own stream",
    "ratio": "of a step: ms / time to read its bytes at the measured copy bandwidth",
    "valid": "yes, or why no time is reported",
}
_TOKENS_OF = {"prefill": "tokens", "decode step": "cached_tokens"}


def side_by_side(stages: Mapping[str, Mapping[str, Any]]) -> Section:
    """`stages` maps a variant to its tables by title; "error" is the reason why tables are missing."""
    section = Section("language model, side by side", VARIANT_COLUMNS)
    for variant, tables in stages.items():
        for title, column in _TOKENS_OF.items():
            for row in tables.get(title, {}).get("rows", ()):
                work = f"{title.removeprefix('decode ')} {row[column]}"
                cells: dict[str, Cell] = {"variant": variant, "work": work}
                section.rows.append(cells | {name: row.get(name) for name in list(VARIANT_COLUMNS)[2:]})
        if error := tables.get("error"):
            section.rows.append({"variant": variant, "work": "the rest", "valid": f"no: {error}"})
    return section


def is_complete(section: Section) -> bool:
    """Whether every row has a time."""
    return all(row["valid"] == "yes" for row in section.rows)
