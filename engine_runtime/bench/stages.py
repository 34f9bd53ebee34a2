"""Every stage of a loaded engine alone, against the ceilings of the machine, in the order of an utterance.

In: an engine that is warmed up, and what it was loaded with. Out: the tables, none of which holds a reference
to the engine. Engine thread.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine_runtime.bench.ceilings import Ceilings
from engine_runtime.bench.codec import CodecBench
from engine_runtime.bench.compare import Comparison
from engine_runtime.bench.conversation import measure_conversation
from engine_runtime.bench.exact_encoding import TITLE, measure_exact_encoding
from engine_runtime.bench.language_model import LMBench
from engine_runtime.bench.memory import measure_memory, reset_peak
from engine_runtime.cuda.gpu_memory import explain_out_of_memory
from engine_runtime.hardware import AcceleratorError, usable_device
from engine_runtime.options import EngineOptions
from engine_runtime.table import Section
from engine_runtime.types import Pcm, SamplingParams

if TYPE_CHECKING:
    from engine_runtime.engine import Engine

COMPARISONS = ("transformers", "recompute")


@dataclass(frozen=True, slots=True)
class StageBench:
    """What is measured: `repeats` of each call, and `replies` whole replies with `params`."""

    ceilings: Ceilings
    repeats: int
    replies: int
    params: SamplingParams | None

    def run(self, engine: Engine, question: Pcm, load_s: float) -> Iterator[Section]:
        """The tables one by one, as they are done; a table for which the GPU has too little memory says so.
        Raises BenchError where an output is wrong."""
        lm = self._language_model(engine)
        codec = CodecBench(engine.stages, self.repeats)
        measurements: dict[str, Callable[[], Section]] = {
            "load and memory": lambda: measure_memory(lm.device, load_s),
            "prefill": lm.prefill,
            "decode step": lm.step,
            "speech encoder": lambda: _encoder(engine, codec, question),
            "flow": codec.flow,
            "vocoder": codec.vocoder,
            "question to reply": lambda: measure_conversation(engine, question, self.params, self.replies),
            TITLE: lambda: measure_exact_encoding(engine, question, self.params, self.replies),
        }
        for title, measure in measurements.items():
            engine.stages.cpu_threads.adapt()
            try:
                yield explain_out_of_memory(measure, engine.bundle.lm, engine.stages.options)
            except AcceleratorError as error:
                yield Section(title, {}, note=f"not measured: {error}")

    def compare(self, engine: Engine, what: str) -> Section:
        """One of COMPARISONS. Raises as `run`, and ComparisonError where the other side is not there."""
        comparison = Comparison(engine.stages, self._language_model(engine), min(self.repeats, 10))
        run = comparison.transformers if what == "transformers" else comparison.recompute
        return explain_out_of_memory(run, engine.bundle.lm, engine.stages.options)

    def _language_model(self, engine: Engine) -> LMBench:
        return LMBench(engine.stages, self.ceilings, self.repeats)


def _encoder(engine: Engine, codec: CodecBench, question: Pcm) -> Section:
    """With the stream of a turn: another one would take memory for its caches, which captured graphs keep."""
    stream = engine.stages.streams.acquire()
    try:
        return codec.encoder(question, stream)
    finally:
        engine.stages.streams.release(stream)


def load_timed(load: Callable[[], Engine], options: EngineOptions) -> tuple[Engine, float]:
    """An engine that is warmed up, and how many seconds that took; the memory of an earlier one is free.

    Raises what loading raises, and AcceleratorError where the GPU has too little memory.
    """
    gc.unfreeze()
    gc.collect()
    reset_peak(usable_device(options.device))
    began = time.perf_counter()
    engine = load()
    engine.warm_up()
    load_s = time.perf_counter() - began
    # As where the app runs an engine: a collection that walks all of it would take part in the times.
    gc.collect()
    gc.freeze()
    return engine, load_s
