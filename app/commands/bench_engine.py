"""moss-voice bench of an engine by itself: complete replies, single stages against the ceilings of the
machine, and comparisons.

It measures each variant of the language model: weight formats under torch, and a TensorRT-LLM engine. Replies
are those of the first one. Variants are loaded one at a time: two may not fit into memory. If one cannot be
measured, the reason is printed and the others are measured.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import psutil

from app.commands.live_report import LiveReport, live_report
from app.commands.questions import check_question, read_question
from app.commands.shared_options import prompts_of, start_settings
from app.progress import progress_bar
from app.settings import StartSettings
from engine_runtime.errors import MossVoiceError
from engine_runtime.options import EngineOptions, WeightFormat
from engine_runtime.table import Section

if TYPE_CHECKING:
    from engine_runtime.bench.ceilings import Ceilings
    from engine_runtime.bench.memory_course import MemoryCourse
    from engine_runtime.bench.replies import BenchReport
    from engine_runtime.bench.stages import StageBench
    from engine_runtime.bench.targets import Limits
    from engine_runtime.engine import Engine
    from engine_runtime.types import Pcm, SamplingParams

ENGINE = "trtllm"
_QUESTION_S = 5.0
_RANDOM_NOTE = (
    "random weights: the output is meaningless; a small text tokenizer yields prompts of about as many "
    "tokens as the released one, replies have a fixed length, the voice prompt is 4 s of random codes"
)
_PROCESS_COLUMNS = {
    "start_to_ready_s": "start of the process until the engine is loaded and warmed up, without the ceilings",
    "load_s": "the part of loading and warming up",
    "resident_mb": "resident memory after the replies (10^6 bytes)",
    "peak_resident_mb": "largest until then",
}
_CACHED_ROWS = 512
"""Cached positions in the steps by which sampling is measured."""


def run_engine(arguments: argparse.Namespace) -> int:
    """Load, warm up, measure, print. Replies are those of the first variant; stages those of all."""
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
        live_report("moss-voice bench", arguments) as report,
        MemoryCourse(usable_device(settings.engine.device)) as course,
    ):
        measured = StageMeasurements(
            settings,
            variants,
            arguments,
            report,
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
            report.document["memory_course"] = course.document()
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
        from app.commands.conversation import converse, realtime_section

        document["realtime"] = converse(measured.settings, minutes)
        measured.report.add(realtime_section(document["realtime"]))
        measured.course.mark("conversation")


def _judge(limits: Limits, measured: StageMeasurements) -> Section:
    """The targets."""
    from engine_runtime.bench.targets import targets_section

    document = measured.document
    on_gpu = measured.settings.engine.device != "cpu"
    section = targets_section(limits, document.get("metrics", {}), document["stages"], on_gpu=on_gpu)
    document["targets"] = measured.report.add(section)
    return section


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
        question_of, params_of: question and sampling parameters for a loaded engine.
        replies: those of the first variant, None until they are measured.
    """

    settings: StartSettings
    variants: dict[str, EngineOptions]
    arguments: argparse.Namespace
    report: LiveReport
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

    @property
    def document(self) -> dict[str, Any]:
        """What is reported, as plain values."""
        return self.report.document

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
        from engine_runtime.bench.stages import is_complete, side_by_side
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
    from engine_runtime.bench.heads import measure_heads
    from engine_runtime.bench.language_model import LMBench
    from engine_runtime.bench.networks import kv_budget_section, networks_section
    from engine_runtime.bench.replies import figures_section, run_bench, runs_section, shares_section

    arguments, report, document = measured.arguments, measured.report, measured.document
    ready = {"start_to_ready_s": _since_process_start() - measured.ceilings_s, "load_s": load_s}
    question, params = measured.question_of(engine), measured.params_of(engine)
    with progress_bar("replies", arguments.runs + arguments.warm_up) as progress:
        replies = run_bench(
            engine, question, runs=arguments.runs, warm_up=arguments.warm_up, params=params, progress=progress
        )
    measured.replies = replies
    process = ready | _memory()
    measured.course.mark("replies")
    document["environment"] = _environment(engine, measured, question, replies)
    report.facts(document["environment"])
    report.remark(_counted(replies))
    report.add(Section("process", _PROCESS_COLUMNS, [dict(process)]))
    if measured.settings.engine.random_weights is not None:
        report.remark(_RANDOM_NOTE)
    document["process"] = process
    document["networks"] = report.add(networks_section(engine.stages))
    document["runs"] = report.add(runs_section(replies))
    report.add(figures_section(replies))
    document["metrics"] = {name: asdict(summary) for name, summary in replies.metrics.items()}
    document["warm_up_ttfa_ms"] = replies.warm_up_ttfa_ms
    lm = LMBench(engine.stages, measured.measure_ceilings(), arguments.repeats)
    sampling_ms = lm.sampling_in_step_ms(min(_CACHED_ROWS, engine.stages.lm.max_tokens - 1))
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


def _params(engine: Engine, settings: StartSettings, arguments: argparse.Namespace) -> SamplingParams | None:
    """None for those of the bundle. With random weights a reply never ends, so its length is fixed."""
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
