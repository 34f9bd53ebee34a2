"""How long a program takes from its start to its window, on an X server of its own. Run by hand:

    python -m tests.tools.window_start build/package/dist/moss-voice/moss-voice
    python -m tests.tools.window_start --runs 5 --picture window.png -- python -m app

The time ends when a window is mapped whose title names the program. The processor time until then is what is
left of it on an idle machine. The picture is the screen some seconds after the last start. Needs Xvfb and
python-xlib. Main thread.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from engine_runtime.table import Section
from tests.doubles.x_server import XServer
from tests.tools.tool_report import parse, tool_report

_COLUMNS = {
    "start": "the first one warms up",
    "window_s": "start of the process to its window",
    "processor_s": "processor time until then",
}
_TITLE = "MOSS Voice"
_SCREEN = "1500x950x24"
_POLL_S = 0.01
_PATIENCE_S = 60.0
_SETTLED_S = 20.0
"""From the window to its picture: the engine is loaded by then."""


def main() -> int:
    """Report the time of each start and their median."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", nargs="+", help="the program and its arguments")
    parser.add_argument("--runs", type=int, default=5, help="starts after a first one, which warms up")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="PNG of the screen after the last start")
    arguments = parse(parser)
    server = XServer(_SCREEN)
    server.start()
    section = Section("start of the window", _COLUMNS)
    try:
        for number in range(arguments.runs + 1):
            picture = arguments.picture if number == arguments.runs else None
            took_s, processor_s = start_once(server, arguments.command, picture)
            name = "warm-up" if number == 0 else str(number)
            section.rows.append({"start": name, "window_s": took_s, "processor_s": processor_s})
    except TimeoutError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    finally:
        server.stop()
    if times := [float(row["window_s"] or 0) for row in section.rows[1:]]:
        section.note = f"median {statistics.median(times):.2f} s, longest {max(times):.2f} s"
    with tool_report("window_start", arguments) as report:
        report.add(section)
    return 0


def start_once(server: XServer, command: list[str], picture: Path | None) -> tuple[float, float]:
    """Seconds from the start of the process to its window, and its processor time in them. TimeoutError if no
    window appears."""
    connection = server.connect()
    environment = os.environ | {"DISPLAY": server.display, "QT_QPA_PLATFORM": "xcb"}
    began_s = time.perf_counter()
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            while _TITLE not in " ".join(mapped_titles(connection)):
                if process.poll() is not None or time.perf_counter() - began_s > _PATIENCE_S:
                    raise TimeoutError(f"No window of {command[0]} (exit status {process.poll()}).")
                time.sleep(_POLL_S)
            took_s = time.perf_counter() - began_s
            used = psutil.Process(process.pid).cpu_times()
            if picture is not None:
                time.sleep(_SETTLED_S)
                save_screen(connection, picture)
        finally:
            process.send_signal(signal.SIGTERM)
    connection.close()
    return took_s, used.user + used.system


def mapped_titles(connection: Any) -> Iterator[str]:
    """The titles of the windows that are shown."""
    from Xlib import X, error

    for window in connection.screen().root.query_tree().children:
        try:
            if window.get_attributes().map_state == X.IsViewable:
                title = window.get_full_text_property(connection.intern_atom("_NET_WM_NAME"))
                yield title or window.get_wm_name() or ""
        except error.BadWindow:  # closed meanwhile
            continue


def save_screen(connection: Any, file: Path) -> None:
    """Write what the screen shows as PNG."""
    from PySide6.QtGui import QImage
    from Xlib import X

    root = connection.screen().root
    size = root.get_geometry()
    grabbed = root.get_image(0, 0, size.width, size.height, X.ZPixmap, 0xFFFFFFFF)
    QImage(grabbed.data, size.width, size.height, QImage.Format.Format_RGB32).save(str(file))


if __name__ == "__main__":
    sys.exit(main())
