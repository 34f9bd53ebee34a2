"""What the protocol costs on loopback: the time to first audio of the same engine in this process and behind
`serve`, turn by turn side by side.

python -m tests.tools.protocol_overhead [--turns 200]

The engine is the scripted one, whose reply takes no time, so that what is measured is what lies between:
threads, event loop, JSON, base64, WebSocket. The server is a process of its own.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from queue import SimpleQueue

import numpy as np

from app.remote.address import ServerAddress
from app.remote.host import RemoteHost
from app.server.run import ServeSettings, serve
from app.session.engine_jobs import Ask, Close, Commit, Loaded, OpenTurn, ReplyResult, Result
from app.session.engine_source import EngineSource
from app.session.engine_worker import EngineWorker
from app.session.pending_work import PendingWork
from engine_runtime.types import CancelScope, Modality, ReplyAudio, ReplyDone
from tests.doubles.scripted_engine import Script, ScriptedEngine

TARGET_MS = 5.0


class Side:
    """One way to the engine."""

    def __init__(self, source: EngineSource) -> None:
        self.times_ms: list[float] = []
        self._worker = EngineWorker(source, lambda timing: None, PendingWork())
        self._thread = threading.Thread(target=self._worker.run, daemon=True)
        self._thread.start()
        self._until(lambda result: isinstance(result, Loaded))

    def ask(self, turn_id: int) -> None:
        """One turn, timed from its commit to its first audio."""
        scope = CancelScope()
        self._worker.submit(OpenTurn(turn_id, Modality.SPEECH, scope))
        self._worker.submit(Ask(turn_id, "hello"))
        began_s = time.perf_counter()
        self._worker.submit(Commit(turn_id, Modality.SPEECH, None, CancelScope(scope)))
        self._until(lambda result: isinstance(result, ReplyResult) and isinstance(result.event, ReplyAudio))
        self.times_ms.append((time.perf_counter() - began_s) * 1e3)
        self._until(lambda result: isinstance(result, ReplyResult) and isinstance(result.event, ReplyDone))

    def close(self) -> None:
        self._worker.submit(Close())
        self._thread.join(10)

    def _until(self, is_it: Callable[[Result], bool]) -> None:
        results: SimpleQueue[Result] = self._worker.results
        while not is_it(results.get(timeout=30)):
            pass


def say(text: str) -> None:
    """To whoever started the tool."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _engine() -> ScriptedEngine:
    return ScriptedEngine(Script(chunks=3))


def serve_scripted() -> int:
    """The other process: prints its address."""
    return serve(
        ServeSettings(port=0, conversations=1),
        lambda: nullcontext(_engine()),  # type: ignore[arg-type, return-value]
        lambda: None,
        lambda address: say(address),
    )


@contextmanager
def served() -> Iterator[str]:
    command = [sys.executable, "-m", "tests.tools.protocol_overhead", "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.terminate()


def measure(turns: int) -> tuple[list[float], list[float]]:
    """Times to first audio in ms, in this process and through the server; a few turns before are not
    counted."""
    with served() as url:
        sides = [Side(lambda: nullcontext(_engine())), Side(lambda: RemoteHost(ServerAddress(url)))]  # type: ignore[arg-type, return-value]
        for turn_id in range(1, turns + 6):
            for side in sides:
                side.ask(turn_id)
        for side in sides:
            side.close()
    local, remote = (side.times_ms[5:] for side in sides)
    return local, remote


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve_scripted()
    local, remote = measure(arguments.turns)
    for name, times in (("in this process", local), ("through serve", remote)):
        say(f"{name:16} p50 {np.percentile(times, 50):6.2f} ms  p95 {np.percentile(times, 95):6.2f} ms")
    overhead_ms = float(np.median(np.subtract(remote, local)))
    verdict = "within" if overhead_ms <= TARGET_MS else "above"
    say(f"overhead of a turn, median: {overhead_ms:.2f} ms, {verdict} {TARGET_MS:g} ms")
    return 0 if overhead_ms <= TARGET_MS else 1


if __name__ == "__main__":
    raise SystemExit(main())
