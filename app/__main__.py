"""Entry point of `python -m app` and `moss-voice`. Main thread."""

from __future__ import annotations

import sys
import threading

from app import process


def start() -> int:
    """Run the command line; returns the exit status, but for a command that a signal ended.

    NOTE: a thread that is still inside a library when the interpreter ends aborts the process, as when the
    window is closed while the engine is loaded. Qt keeps the objects of the window beyond the end of the
    libraries that they use, which report that as leaks on stderr.
    """
    process.end_without_traceback()
    process.open_standard_streams()
    from app.cli import main

    status = main()
    if status > 128 or threading.active_count() > 1 or "PySide6" in sys.modules:
        process.exit_now(status)
    return status


if __name__ == "__main__":
    sys.exit(start())
