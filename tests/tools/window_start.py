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

from tests.doubles.x_server import XServer

_TITLE = "MOSS Voice"
_SCREEN = "1500x950x24"
_POLL_S = 0.01
_PATIENCE_S = 60.0
_SETTLED_S = 20.0
"""From the window to its picture: the engine is loaded by then."""


def main() -> int:
    """Print the time of each start and their median."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", nargs="+", help="the program and its arguments")
    parser.add_argument("--runs", type=int, default=5, help="starts after a first one, which warms up")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="PNG of the screen after the last start")
    arguments = parser.parse_args()
    server = XServer(_SCREEN)
    server.start()
    try:
        times = []
        for number in range(arguments.runs + 1):
            picture = arguments.picture if number == arguments.runs else None
            took_s, processor_s = start_once(server, arguments.command, picture)
            times.append(took_s)
            name = "warm-up" if number == 0 else f"start {number}"
            say(f"{name}: {took_s:.2f} s, of the processor {processor_s:.2f} s")
    except TimeoutError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    finally:
        server.stop()
    if times[1:]:
        say(f"median {statistics.median(times[1:]):.2f} s, longest {max(times[1:]):.2f} s")
    return 0


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


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
