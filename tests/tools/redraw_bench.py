"""How long the window keeps its thread busy while a conversation runs. Run by hand, not by pytest:

    QT_QPA_PLATFORM=offscreen python -m tests.tools.redraw_bench [SECONDS] [--json FILE]

Full series (600 values each), a conversation at real-time pace, and a thread that computes as an engine does.
A timer of 5 ms records the gaps between its ticks: the delay of a click.
"""

from __future__ import annotations

import argparse
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QApplication

from app.gui.common.preferences import PreferenceStore
from app.gui.window.main_window import MainWindow
from app.session.events import (
    Event,
    Levels,
    PlaybackLevel,
    Timing,
)
from engine_runtime.bench.measuring import summarize, summary_section
from engine_runtime.timing import TimingEvent
from tests.doubles.scripted_session import ScriptedSession, all_timings, conversation, opening
from tests.tools.tool_report import parse, tool_report

_TICK_MS = 5


def main(arguments: argparse.Namespace) -> None:
    """Report percentiles of the gaps and the longest redraw."""
    application = QApplication.instance() or QApplication([])
    assert isinstance(application, QApplication)
    with TemporaryDirectory() as folder:
        session = ScriptedSession()
        window = MainWindow(session, store=PreferenceStore(Path(folder) / "window.ini"))
        window.show()
        window.start_session()
        session.feed(*opening())
        window.latency.add_events(all_timings(rounds=12))
        window.latency.longest_redraw_ms = 0.0
        application.processEvents()
        gaps, stop = _watch(arguments.seconds, application, session)
        redraw_ms = window.latency.longest_redraw_ms
        stop.set()
        window.close()
        application.processEvents()
    late = [gap * 1e3 - _TICK_MS for gap in gaps]
    definitions = {"click_ms": "how late a timer of the window is: the delay of a click"}
    section = summary_section("window", {"click_ms": summarize(late)}, definitions)
    section.note = f"longest redraw {redraw_ms:.1f} ms"
    with tool_report("redraw_bench", arguments) as report:
        report.add(section)


def _watch(
    seconds: float, application: QApplication, session: ScriptedSession
) -> tuple[list[float], threading.Event]:
    gaps: list[float] = []
    last = time.perf_counter()

    def tick() -> None:
        nonlocal last
        now = time.perf_counter()
        gaps.append(now - last)
        last = now

    stop = threading.Event()
    threading.Thread(target=_compute, args=(stop,), daemon=True).start()
    feeder, watch = QTimer(), QTimer()
    script = [event for events in conversation() for event in events]
    feeder.timeout.connect(lambda: session.feed(*_next_events(script)))
    feeder.start(50)
    watch.timeout.connect(tick)
    watch.start(_TICK_MS)
    QTimer.singleShot(int(seconds * 1e3), application.quit)
    application.exec()
    return gaps[2:], stop


def _next_events(script: list[Event]) -> list[Event]:
    """What 50 ms of a conversation bring: some of the script, meters, and a step and a chunk."""
    taken, script[:12] = script[:12], []
    now = time.perf_counter_ns()
    steps = [Timing(TimingEvent("step", 1, now, 4_000_000 + index, "engine")) for index in range(5)]
    chunk = Timing(TimingEvent("token2mel", 1, now, 70_000_000, "engine", {"audio_ms": 400.0}))
    level = Timing(
        TimingEvent("playback_buffer", 1, now, 0, "dialog", {"level_ms": float(now // 10**6 % 900)})
    )
    return [*taken, Levels(-20.0, -30.0, 0.7), PlaybackLevel(300.0), *steps, chunk, level]


def _compute(stop: threading.Event) -> None:
    """Matrix products that release the GIL, with Python between them that holds it."""
    a = np.random.default_rng(0).standard_normal((256, 256))
    while not stop.is_set():
        for _ in range(20):
            a = np.tanh(a @ a * 1e-3)
        sum(index * index for index in range(2000))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.tools.redraw_bench", description=__doc__)
    parser.add_argument("seconds", type=float, nargs="?", default=20.0, help="duration (default: 20)")
    main(parse(parser))
