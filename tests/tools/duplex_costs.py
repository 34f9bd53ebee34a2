"""Processor time of a conversation on open loudspeakers, by thread. Run by hand, not by pytest:

    python -m tests.tools.duplex_costs [SECONDS]

In real time, in a simulated room with an echo at -12 dB, with the real VAD, echo canceller and end-of-turn
detector. A scripted engine answers with sample questions and speaks half of the time. The processor time of
the room itself is left out.
"""

from __future__ import annotations

import sys
import threading
import time

from app.audio.devices import DeviceList
from app.duplex.room import RATE, EchoRoom
from app.main import load_turn_end_detector
from app.session.clocks import RealClock
from app.session.commands import Start
from app.session.events import PlaybackFinished, TurnCancelled
from app.session.session import Session
from engine_runtime.types import Pcm
from tests.app.session.test_session_echo import SpeakingEngine, spoken
from tests.tools.session_driver import Driver

_EVERY_S = 10.0


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


def main(seconds: float) -> None:
    """Print the share of a core of each thread."""
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
    shares = ", ".join(f"{name} {each / seconds:.1%}" for name, each in spent.items())
    sys.stdout.write(f"of a core, in {seconds:.0f} s with {replies} replies, {cuts} cut: {shares}\n")


def _cpu_s(thread: threading.Thread) -> float:
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident or 0))


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0)
