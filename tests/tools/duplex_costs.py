"""Processor time of a conversation on open loudspeakers, by thread. Run by hand, not by pytest:

    python -m tests.tools.duplex_costs [SECONDS] [--json FILE]

In real time, in a simulated room with an echo at -12 dB, with the real VAD, echo canceller and end-of-turn
detector. A scripted engine answers with sample questions and speaks half of the time. The processor time of
the room itself is left out.
"""

from __future__ import annotations

import argparse
import threading
import time

from app.audio.devices import DeviceList
from app.duplex.room import RATE, EchoRoom
from app.main import load_turn_end_detector
from app.session.clocks import RealClock
from app.session.commands import Start
from app.session.events import PlaybackFinished, TurnCancelled
from app.session.session import Session
from engine_runtime.table import Section
from engine_runtime.types import Pcm
from tests.app.session.test_session_echo import SpeakingEngine, spoken
from tests.tools.session_driver import Driver
from tests.tools.tool_report import parse, tool_report

_EVERY_S = 10.0
_COLUMNS = {"thread": "of the program", "core": "its processor time, percent of a core"}


class TimedRoom(EchoRoom):
    """Adds up the processor time that it takes itself."""

    def __init__(self) -> None:
        super().__init__(12, 100)
        self.cpu_s = 0.0

    def service(self, now_ns: int) -> None:
        began = time.thread_time()
        super().service(now_ns)
        self.cpu_s += time.thread_time() - began

    def hear(self, block: Pcm) -> None:
        began = time.thread_time()
        super().hear(block)
        self.cpu_s += time.thread_time() - began


def main(arguments: argparse.Namespace) -> None:
    """Report the share of a core of each thread."""
    seconds: float = arguments.seconds
    room, engine = TimedRoom(), SpeakingEngine()
    session = Session(
        lambda: engine,
        None,
        room,
        room.speaker,
        clock=RealClock(),
        end_of_turn=load_turn_end_detector,
        find_devices=lambda: DeviceList((), ()),
        look_for_devices=lambda: None,
    )
    session.start()
    session.send(Start())
    driver, began_s = Driver(session, engine), time.monotonic()
    question = 0.6 * spoken("question", RATE)
    for _ in range(round(seconds / _EVERY_S)):
        room.speak(question, _EVERY_S - len(question) / RATE)
    driver.until(lambda: time.monotonic() >= began_s + seconds, 2 * seconds)
    seconds = time.monotonic() - began_s
    replies, cuts = len(driver.of(PlaybackFinished)), len(driver.of(TurnCancelled))
    spent = {thread.name: _cpu_s(thread) for thread in session._threads if thread.is_alive()}
    session.stop()
    spent["dialog"] -= room.cpu_s
    section = Section("threads", _COLUMNS)
    section.rows += [{"thread": name, "core": 100 * each / seconds} for name, each in spent.items()]
    section.note = f"{seconds:.0f} s with {replies} replies, {cuts} cut"
    with tool_report("duplex_costs", arguments) as report:
        report.add(section)


def _cpu_s(thread: threading.Thread) -> float:
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident or 0))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("seconds", type=float, nargs="?", default=60.0, help="duration (default: 60)")
    main(parse(parser))
