"""Background load for a measurement: processes that spin on the CPU.

In: how many. Out: a `with` block in which they run, from its first line to its last; Ctrl-C and errors end
them, too. Each also ends by itself when the program that started it is gone. Any thread.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from engine_runtime.bench.replies import BenchError

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
    """Run the block beside `count` processes that spin already. Raises BenchError where one does not
    start."""
    with ExitStack() as stack:
        processes = [stack.enter_context(_process()) for _ in range(count)]
        for process in processes:
            assert process.stdout is not None
            if process.stdout.readline().strip() != _SPINS:
                raise BenchError(
                    "A process that keeps the CPU busy did not start. Run without --busy, or start other "
                    "work by hand."
                )
        yield processes


@contextmanager
def _process() -> Iterator[subprocess.Popen[bytes]]:
    """Ends with the block, and, as its standard input closes then, with this program."""
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
