"""Stage benchmarks of `moss-voice bench`, for each variant of the language model: weight formats under torch,
and an engine.

Variants are loaded one at a time: two may not fit into memory. If one cannot be measured, the reason is
printed and the others are measured.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, get_args

from app.commands.live_report import LiveReport
from app.commands.verify_options import prompts_of
from app.settings import StartSettings
from engine_runtime.errors import MossVoiceError
from engine_runtime.options import EngineOptions, WeightFormat
from engine_runtime.table import Section

if TYPE_CHECKING:
    from engine_runtime.bench import BenchReport
    from engine_runtime.bench.ceilings import Ceilings
    from engine_runtime.bench.memory_course import MemoryCourse
    from engine_runtime.bench.stages import StageBench
    from engine_runtime.engine import Engine
    from engine_runtime.types import Pcm, SamplingParams

ENGINE = "trtllm"


def list_variants(options: EngineOptions, formats: Sequence[WeightFormat] | None) -> dict[str, EngineOptions]:
    """The variants by name: the engine first if there is one, then torch in each weight format."""
    variants = {ENGINE: options} if options.backend == "trtllm" else {}
    if formats is None and not variants:
        is_full_size = options.random_weights is not None and options.device.startswith("cuda")
        formats = get_args(WeightFormat) if is_full_size else [options.weight_format]
    for weight_format in formats or ():
        variants[weight_format] = replace(options, backend="torch", engine=None, weight_format=weight_format)
    return variants


@dataclass
class StageMeasurements:
    """All variants.

    Attributes:
        document: what is reported, as plain values.
        question_of, params_of: question and sampling parameters for a loaded engine.
        replies: those of the first variant, None until they are measured.
    """

    settings: StartSettings
    variants: dict[str, EngineOptions]
    arguments: argparse.Namespace
    report: LiveReport
    document: dict[str, Any]
    course: MemoryCourse
    question_of: Callable[[Engine], Pcm]
    params_of: Callable[[Engine], SamplingParams | None]
    replies: BenchReport | None = None
    is_complete: bool = True
    ceilings_s: float = 0.0
    """Seconds spent on measuring the ceilings."""
    _ceilings: Ceilings | None = None
    _engine: tuple[Engine, float] | None = None
    _failures: dict[str, str] = field(default_factory=dict)
    """Reasons why variants have no times, or not all."""

    def measure_ceilings(self) -> Ceilings:
        """Bandwidth and matrix rate of the machine, measured once: before an engine fills its memory."""
        if self._ceilings is None:
            from engine_runtime.bench.ceilings import measure_ceilings
            from engine_runtime.hardware import usable_device

            start = time.perf_counter()
            device = usable_device(self.settings.engine.device)
            self._ceilings = measure_ceilings(device, min(self.arguments.repeats, 20))
            self.ceilings_s = time.perf_counter() - start
        return self._ceilings

    def check_variants(self) -> None:
        """Report variants that this machine refuses, before anything is loaded. Raises MossVoiceError if none
        is left, or if what they are compared with is not installed."""
        from engine_runtime.bench.transformers_reference import require_transformers
        from engine_runtime.cuda.availability import check_formats
        from engine_runtime.hardware import usable_device

        usable_device(self.settings.engine.device)
        if "transformers" in self.arguments.compare:
            require_transformers()
        for variant, options in self.variants.items():
            try:
                check_formats(options)
            except MossVoiceError as error:
                if len(self.variants) == 1:
                    raise
                self.fail(variant, error)

    def has_failed(self, variant: str) -> bool:
        """Whether there is a reason for having no times of it, or not all."""
        return variant in self._failures

    def take(self, engine: Engine, load_s: float) -> None:
        """The engine of the first variant, loaded already; it is closed here."""
        self._engine = (engine, load_s)

    def fail(self, variant: str, error: MossVoiceError) -> None:
        """Report why a variant has no (further) times; the results of the others are kept."""
        self._failures[variant] = str(error)
        self.report.add(Section(f"{variant} not measured", {}, note=str(error)))

    def run(self) -> None:
        """Report the tables of every stage and comparison, and fill in their part of the document."""
        from engine_runtime.bench.side_by_side import is_complete, side_by_side
        from engine_runtime.hardware import usable_device

        device = usable_device(self.settings.engine.device)
        ceilings, report, document = self.measure_ceilings(), self.report, self.document
        report.add(ceilings.section())
        document |= {"ceilings": asdict(ceilings), "stages": {}, "kernels": {}, "gpu": {}, "comparisons": {}}
        for variant in self.variants:
            document["stages"][variant] = {}
            if variant not in self._failures:
                try:
                    self._measure(variant, ceilings, device)
                except MossVoiceError as error:
                    self.fail(variant, error)
            if variant in self._failures:
                document["stages"][variant]["error"] = self._failures[variant]
        section = side_by_side(document["stages"])
        document["side_by_side"] = report.add(section) if len(self.variants) > 1 else section.document()
        failed = self._failures or any("error" in found for found in document["comparisons"].values())
        self.is_complete = is_complete(section) and not failed

    def _measure(self, variant: str, ceilings: Ceilings, device: Any) -> None:
        """Load the variant unless it is loaded, measure it, close it."""
        from app.main import engine_factory
        from engine_runtime.bench.stages import StageBench, load_timed
        from engine_runtime.hardware import gpu_clocks

        options, report, document = self.variants[variant], self.report, self.document
        is_first = variant == next(iter(self.variants))
        loaded, self._engine = self._engine, None
        engine, load_s = loaded or load_timed(engine_factory(replace(self.settings, engine=options)), options)
        if loaded is None:
            self.course.mark(f"{variant}: load")
        try:
            report.heading(_title(variant, device.type))
            if engine.stages.kernel_paths:
                report.facts(engine.stages.kernel_paths)
            document["kernels"][variant] = engine.stages.kernel_paths
            before = gpu_clocks(device)
            replies = min(self.arguments.runs, self.arguments.repeats)
            bench = StageBench(ceilings, self.arguments.repeats, replies, self.params_of(engine))
            for section in bench.run(engine, self.question_of(engine), load_s):
                self.course.mark(f"{variant}: {section.title}")
                document["stages"][variant][section.title] = report.add(section)
                if section.is_missing:
                    self._failures[variant] = f"{section.title} {section.note}"
            document["gpu"][variant] = {"before": before, "after": gpu_clocks(device)}
            for when, clocks in document["gpu"][variant].items():
                if clocks:
                    state = ", ".join(f"{name} {value:g}" for name, value in clocks.items())
                    report.remark(f"GPU {when} these tables: {state}")
            if is_first:
                self._predict(engine, ceilings, device)
            compared = self.arguments.compare if is_first else ()
            begun = {what: _begin_comparison(bench, engine, what) for what in compared}
        finally:
            engine.close()
        del engine, loaded  # the other side of a comparison needs their memory
        for what, finish in begun.items():
            document["comparisons"][what] = _finish_comparison(what, finish, report)

    def _predict(self, engine: Engine, ceilings: Ceilings, device: Any) -> None:
        """Compare with the data sheet of this GPU, and predict others. A time that no GPU can reach fails the
        variant."""
        from engine_runtime.bench.gpu_spec import GPU_SPECS, spec_of_device
        from engine_runtime.bench.language_model import LMBench
        from engine_runtime.bench.prediction import Prediction, impossible, memory_section
        from engine_runtime.hardware import device_name

        variant = next(iter(self.variants))
        own = spec_of_device(device_name(device))
        named = [GPU_SPECS[name] for name in self.arguments.gpu_spec]
        lm = LMBench(engine.stages, ceilings, self.arguments.repeats)
        tables = self.document["stages"][variant]
        found = self.document["data_sheets"] = {}
        for spec in dict.fromkeys([own, *named] if own is not None else named):
            section = Prediction(spec, own, lm, tables, self.replies).section()
            memory = memory_section(engine.stages, spec)
            found[spec.name] = {"figures": self.report.add(section), "memory": self.report.add(memory)}
            if wrong := impossible(section):
                self._failures[variant] = (
                    f"impossible on this GPU: {', '.join(wrong)}; the measurement is wrong"
                )
                self.report.remark(self._failures[variant])


def _begin_comparison(
    bench: StageBench, engine: Engine, what: str
) -> Callable[[], list[Section]] | MossVoiceError:
    """What measures the other side, once the engine is closed; or the reason why that is not possible."""
    from engine_runtime.bench.teacher_forcing import dialogs

    try:
        if what == "recompute":
            sections = [bench.recompute(engine)]
            return lambda: sections
        prompts = prompts_of(engine.bundle)
        return bench.transformers(engine, dialogs(prompts.spoken, prompts.typed))
    except MossVoiceError as error:
        return error


def _finish_comparison(
    what: str, finish: Callable[[], list[Section]] | MossVoiceError, report: LiveReport
) -> dict[str, Any]:
    """Report one comparison, or the reason why it is not possible."""
    try:
        if isinstance(finish, MossVoiceError):
            raise finish
        *details, section = finish()
    except MossVoiceError as error:
        report.add(Section(f"not compared with {what}", {}, note=str(error)))
        return {"error": str(error)}
    tables = {table.title: report.add(table) for table in details}
    return report.add(section) | ({"tables": tables} if tables else {})


def _title(variant: str, device: str) -> str:
    if variant == ENGINE:
        return "TensorRT-LLM engine"
    if variant == "native" or device == "cuda":
        return f"weights: {variant}"
    return (
        f"weights: {variant} (on a CPU rounded to this format and stored in full: its floor does not apply)"
    )
