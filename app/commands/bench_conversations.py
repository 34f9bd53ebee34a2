"""moss-voice bench --conversations: simulated users talk to one engine at the same time.

Times are printed with the number of replies that a conversation alone repeated, and how many of them were
equal: with larger batches a GPU may round differently.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable
from dataclasses import replace

from app.commands.live_report import live_report
from app.commands.questions import check_question, read_question
from app.commands.shared_options import add_sharing_options, integers, number, shared_engine, start_settings
from app.progress import progress_bar
from engine_runtime.errors import MossVoiceError
from engine_runtime.table import Section

_MOST_USERS = 4096
_MOST_SECONDS = 24 * 3600


def add_conversation_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    group = parser.add_argument_group("simultaneous conversations")
    group.add_argument(
        "--conversations",
        type=integers(1, _MOST_USERS),
        default=[],
        metavar="N[,N...]",
        help="instead of all this, let N simulated users talk at once in real time, each of them "
        "half of the time",
    )
    group.add_argument(
        "--conversation-seconds",
        type=number(1, _MOST_SECONDS),
        default=60.0,
        metavar="S",
        help="how long the users of each N talk (default: 60)",
    )
    add_sharing_options(group)
    group.add_argument(
        "--processor-time",
        action="store_true",
        help="count the processor time of the engine thread instead of wall time, for a shared "
        "machine; set OMP_NUM_THREADS, so that the number of threads does not follow its load",
    )


def run_conversations(arguments: argparse.Namespace) -> int:
    """Load, measure, print."""
    from app.main import engine_factory
    from engine_runtime import hardware
    from engine_runtime.bench.batched_codec import measure_batched_flow, measure_batched_vocoder
    from engine_runtime.bench.batched_decode import measure_batched_decode
    from engine_runtime.bench.ceilings import measure_ceilings
    from engine_runtime.bench.language_model import LMBench
    from engine_runtime.bench.memory_course import MemoryCourse
    from engine_runtime.bench.simultaneous import ProcessorClock, WallClock, measure_simultaneous
    from engine_runtime.codec.runtime import packet_frames
    from engine_runtime.cuda.availability import check_formats
    from engine_runtime.cuda.gpu_memory import explain_out_of_memory

    settings = start_settings(arguments)
    question = check_question(arguments.question)
    options = shared_engine(arguments, settings.engine, max(arguments.conversations))
    settings = replace(settings, engine=options)
    device = hardware.usable_device(options.device)
    check_formats(options)
    ceilings = measure_ceilings(device)
    with (
        live_report("moss-voice bench --conversations", arguments) as report,
        MemoryCourse(device) as course,
        engine_factory(settings)() as engine,
    ):
        document = report.document
        engine.warm_up()
        course.mark("load")
        environment = {
            "bundle": engine.bundle.name,
            **hardware.environment(options.device, options.lm_dtype),
            "backend": options.backend,
            "weights": options.weight_format,
            **engine.stages.kernel_paths,
            "max_batch_size": engine.stages.lm.executor.limits.max_batch_size,
            "clock": "processor time of the engine thread" if arguments.processor_time else "wall clock",
        }
        document["environment"] = environment
        report.facts(environment)
        stages, missing = engine.stages, 0
        alone: dict[str, Callable[[], Section]] = {"ceilings": ceilings.section}
        if engine.gains_from_batches:
            alone |= {
                "decode steps": lambda: measure_batched_decode(LMBench(stages, ceilings, arguments.repeats)),
                "flow": lambda: measure_batched_flow(stages.token2mel, device),
                "vocoder": lambda: measure_batched_vocoder(
                    stages.vocoder, packet_frames(engine.bundle.flow), device
                ),
            }
        for title, measure in alone.items():
            try:
                section = explain_out_of_memory(measure, engine.bundle.lm, options)
            except MossVoiceError as error:  # the other tables are worth their time
                section = Section(title, {}, note=f"not measured: {error}")
                missing += 1
            document[section.title] = report.add(section)
            course.mark(section.title)
        # As in a server: without this, a collection walks all that was loaded while replies wait.
        gc.collect()
        gc.freeze()
        recording = read_question(question, engine.input_sample_rate)
        clock = ProcessorClock() if arguments.processor_time else WallClock()
        with progress_bar("conversations", len(arguments.conversations)) as progress:
            measured = measure_simultaneous(
                engine,
                recording,
                arguments.conversations,
                arguments.conversation_seconds,
                clock,
                ceilings,
                progress,
                batch_invariant=arguments.batch_invariant,
                report=lambda run: print(run.line(), flush=True),
            )
        for section in measured:
            document[section.title] = report.add(section)
            missing += section.is_missing
        course.mark("conversations")
        report.add(course.section())
        document["memory_course"] = course.document()
    return 1 if missing else 0
