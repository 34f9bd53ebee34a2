"""moss-voice bench --duplex: simulated users talk to the session, and both channels are measured.

Voices, rooms and moments are drawn with --duplex-seed. Recorded scenarios: app/duplex/scenario_folder.py.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import chain, count
from typing import TYPE_CHECKING, Any

from app import paths
from app.commands.live_report import live_report
from app.commands.shared_options import (
    LARGEST_COUNT,
    add_echo_library_option,
    integer,
    number,
    start_settings,
)
from app.duplex.scenario import ECHO_DB, GROUPS
from app.duplex.segments import KINDS
from app.progress import progress_bar
from app.settings import DEFAULT_OVERLAP

if TYPE_CHECKING:
    from app.duplex.scenario import RecordedScenario, Scenario
    from app.duplex.simulator import DuplexRecord
    from app.session.session_settings import SessionSettings
    from app.settings import StartSettings

_MOST_MINUTES = 24 * 60
_FORMAT = f"""\
recorded scenarios (--duplex-in):

For each scenario a NAME.wav (or .flac) and a NAME.json. The recording has the user's channel, any rate, at
most ten minutes; of a stereo file the left channel is taken. The assistant's channel is made by the session.
The JSON file annotates it, with times in seconds from the beginning of the file:

  {{"segments": [{{"kind": "turn", "start_s": 1.2, "end_s": 4.0, "pauses": [[2.1, 2.9]]}}, ...],
   "group": "interruptions",
   "room": {{"echo_db": 12, "delay_ms": 100, "skew_ppm": 50, "noise_dbfs": -45}}}}

kind is one of {", ".join(KINDS)}. Segments come in the order of their start.
Pauses lie within their segment. They and text (what is said), group and room may be left out: without echo_db
the user wears headphones, without noise_dbfs there is no noise. --duplex-out writes the same files, with the
assistant's channel on the right and the decisions of the session.
"""


def add_duplex_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = _FORMAT
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    group = parser.add_argument_group("full duplex")
    add_echo_library_option(group)
    group.add_argument(
        "--duplex",
        action="store_true",
        help="instead of all this, let simulated users talk to the assistant, and measure both channels",
    )
    group.add_argument(
        "--groups", nargs="+", choices=GROUPS, default=list(GROUPS), help="what to measure (default: all)"
    )
    group.add_argument(
        "--echo-db",
        nargs="+",
        type=number(0, 60),
        default=list(ECHO_DB),
        metavar="DB",
        help="echo return losses of the rooms with an open loudspeaker (default: 6 12 20)",
    )
    group.add_argument(
        "--minutes",
        type=number(0, _MOST_MINUTES),
        default=0.0,
        metavar="M",
        help="new conversations until M minutes were held (default: one round of all groups); with --server, "
        "how long users talk (default: 0.5)",
    )
    group.add_argument(
        "--duplex-seed", type=integer(0, LARGEST_COUNT), default=1, metavar="N", help="seed of the scenarios"
    )
    group.add_argument(
        "--duplex-in",
        type=paths.user_path,
        metavar="DIR",
        help="recorded scenarios instead of the built-in ones; the end of this text describes the files",
    )
    group.add_argument(
        "--duplex-out",
        type=paths.user_path,
        metavar="DIR",
        help="write each conversation in that format, as stereo with the assistant on the right, "
        "and with the decisions of the session",
    )
    group.add_argument(
        "--duplex-realtime",
        action="store_true",
        help="run in real time, through sound devices of a PulseAudio daemon started for it "
        "(default: on a clock that runs faster while the engine is idle)",
    )
    group.add_argument(
        "--duplex-cpu-time",
        action="store_true",
        help="while the engine works, let time pass with its processor time, so that other programs do not "
        "make it late; for a CPU, with the environment variable OMP_NUM_THREADS=1",
    )
    group.add_argument("--quick", action="store_true", help="a few exchanges of each group")


def run_duplex(arguments: argparse.Namespace) -> int:
    """Hold the conversations and print the report."""
    from app.duplex.null_sinks import check_programs
    from app.duplex.report import DuplexReport, unmet
    from app.duplex.scenario_folder import make_folder, write_record
    from app.session.session_settings import SessionSettings
    from engine_runtime import hardware

    if arguments.duplex_out is not None:
        make_folder(arguments.duplex_out)
    settings = start_settings(arguments)
    session_settings = SessionSettings.of(settings)
    if arguments.duplex_realtime:
        check_programs()
    recordings: list[DuplexRecord] = []
    is_met = True
    environment: dict[str, Any] = {
        "bundle": str(settings.bundle.name),
        **hardware.environment(settings.engine.device, settings.engine.lm_dtype),
        "seed": arguments.duplex_seed,
        "eagerness": settings.eagerness or "balanced",
        "overlap": settings.overlap or DEFAULT_OVERLAP,
        "clock": _clock_name(arguments),
    }
    with live_report("moss-voice bench --duplex", arguments) as report:
        try:
            for place, recording in enumerate(_record(arguments, settings, session_settings), 1):
                recordings.append(recording)
                if arguments.duplex_out is not None:
                    write_record(arguments.duplex_out, f"{place:02}-{recording.name}", recording)
        finally:  # a conversation that fails does not lose those before it
            if recordings:
                found = DuplexReport(recordings, session_settings.turn_taking, settings.engine.device)
                report.facts(environment)
                for part, section in found.sections():
                    if part != report.part:
                        report.heading(part)
                    report.add(section)
                report.document |= {"environment": environment} | found.document()
                is_met = not unmet(found.targets)
    return 1 if arguments.check and not is_met else 0


def _clock_name(arguments: argparse.Namespace) -> str:
    if arguments.duplex_realtime:
        return "real time"
    return "virtual, by processor time" if arguments.duplex_cpu_time else "virtual"


def _record(
    arguments: argparse.Namespace, settings: StartSettings, session_settings: SessionSettings
) -> Iterator[DuplexRecord]:
    from app.duplex.null_sinks import NullSinks
    from app.duplex.simulator import simulate
    from app.main import engine_factory, load_turn_end_detector
    from app.session.clocks import CpuTimeClock, RealClock, VirtualClock
    from engine_runtime.timing import TimingBus

    codes = arguments.reply_codes if settings.engine.random_weights is not None else None
    scenarios = list(_round(arguments, 0))
    held_s, limit_s = 0.0, arguments.minutes * 60
    with (
        engine_factory(settings, codes)() as engine,
        progress_bar("duplex", limit_s or len(scenarios)) as progress,
    ):
        if arguments.duplex_cpu_time:
            engine.timing = TimingBus(time.thread_time_ns)
        virtual = CpuTimeClock if arguments.duplex_cpu_time else VirtualClock
        rounds = chain.from_iterable(_round(arguments, place) for place in count(1)) if limit_s else ()
        for finished, scenario in enumerate(chain(scenarios, rounds), 1):
            with NullSinks() if arguments.duplex_realtime else nullcontext() as sinks:
                recording = simulate(
                    scenario,
                    engine,
                    session_settings,
                    virtual() if sinks is None else RealClock(),
                    end_of_turn=load_turn_end_detector,
                    sinks=sinks,
                )
            yield recording
            held_s += recording.seconds
            progress(held_s if limit_s else finished)
            if limit_s and held_s >= limit_s:
                return


def _round(arguments: argparse.Namespace, place: int) -> Iterator[Scenario | RecordedScenario]:
    """The scenarios of all groups; each round has its own seed."""
    from app.duplex.builtin import FULL, QUICK, draw_scenarios
    from app.duplex.clips import load_clips
    from app.duplex.scenario_folder import read_scenarios

    if arguments.duplex_in is not None:
        return iter(read_scenarios(arguments.duplex_in))
    return draw_scenarios(
        load_clips(paths.assets_dir() / "duplex"),
        arguments.groups,
        arguments.duplex_seed + place,
        counts=QUICK if arguments.quick else FULL,
        echo_db=arguments.echo_db[:1] if arguments.quick else arguments.echo_db,
        **({"users": 1} if arguments.quick else {}),
    )
