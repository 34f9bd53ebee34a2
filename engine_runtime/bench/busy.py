"""Background CPU load for a measurement: processes that spin.

In: number of processes. Out: a context manager; the processes run while its block runs and are killed when it
exits, also on errors and Ctrl-C. A process exits when its parent has died. Any thread.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from engine_runtime.bench.measuring import BenchError

_SPINS = b"spins"
_PROGRAM = f"""
import os, sys, threading
threading.Thread(target=lambda: (sys.stdin.buffer.read(), os._exit(0)), daemon=True).start()
print("{_SPINS.decode()}", flush=True)
while True:
    pass
"""


@contextmanager
def busy_processes(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run the block while `count` processes spin. Raises BenchError if one does not start."""
    with ExitStack() as stack:
        processes = [stack.enter_context(_process()) for _ in range(count)]
        for process in processes:
            assert process.stdout is not None
            if process.stdout.readline().strip() != _SPINS:
                raise BenchError(
                    "A process that keeps the CPU busy did not start.",
                    "Run without --busy, or start other work by hand.",
                )
        yield processes


@contextmanager
def _process() -> Iterator[subprocess.Popen[bytes]]:
    """Killed at the end of the block; exits when its standard input is closed, that is, with this program."""
    # A terminal interrupt reaches the process as well; discard its traceback.
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield process
        finally:
            process.kill()
