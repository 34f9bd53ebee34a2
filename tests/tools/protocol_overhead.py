"""What the protocol costs on loopback: the time to first audio of the same engine in this process and behind
`serve`, turn by turn side by side.

python -m tests.tools.protocol_overhead [--turns 200] [--ray] [--json FILE]

The engine is the scripted one, whose reply takes no time, so that what is measured is what lies between:
threads, event loop, JSON, base64, WebSocket. The server is a process of its own. With --ray the same engine
behind Ray Serve, too; RAY_SERVE_ENABLE_HA_PROXY=1 measures its HAProxy in place of its Python proxy.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from queue import SimpleQueue

import numpy as np

from app.remote.server_engine import ServerEngine
from app.server.run import serve
from app.server.service import ServeSettings
from app.server_address import ServerAddress
from app.session.engine_host import EngineHost
from app.session.engine_jobs import Ask, Commit, Loaded, OpenTurn, ReplyResult, Result
from app.session.engine_slot import EngineSource
from engine_runtime.bench.measuring import summarize, summary_section
from engine_runtime.types import CancelScope, Modality, ReplyAudio, ReplyDone
from tests.doubles.scripted_engine import Script, ScriptedEngine
from tests.tools.tool_report import parse, tool_report

_SIDES = {
    "in this process": "the engine without a server",
    "through serve": "behind `moss-voice serve`",
    "through Ray": "behind `moss-voice serve --ray`",
}
TARGET_MS = 5.0


class Side:
    """One way to the engine."""

    def __init__(self, source: EngineSource) -> None:
        self.times_ms: list[float] = []
        self._host = EngineHost(source)
        self._results: SimpleQueue[Result] = SimpleQueue()
        self._slot = self._host.open_slot(self._results.put)
        self._thread = threading.Thread(target=self._host.run, daemon=True)
        self._thread.start()
        self._until(lambda result: isinstance(result, Loaded))

    def ask(self, turn_id: int) -> None:
        """One turn, timed from its commit to its first audio."""
        scope = CancelScope()
        self._slot.submit(OpenTurn(turn_id, Modality.SPEECH, scope))
        self._slot.submit(Ask(turn_id, "hello"))
        began_s = time.perf_counter()
        self._slot.submit(Commit(turn_id, Modality.SPEECH, None, CancelScope(scope)))
        self._until(lambda result: isinstance(result, ReplyResult) and isinstance(result.event, ReplyAudio))
        self.times_ms.append((time.perf_counter() - began_s) * 1e3)
        self._until(lambda result: isinstance(result, ReplyResult) and isinstance(result.event, ReplyDone))

    def close(self) -> None:
        self._host.close()
        self._thread.join(10)

    def _until(self, is_it: Callable[[Result], bool]) -> None:
        while not is_it(self._results.get(timeout=30)):
            pass


def say(text: str) -> None:
    """To whoever started the tool."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _engine() -> ScriptedEngine:
    return ScriptedEngine(Script(chunks=3))


def serve_scripted(with_ray: bool) -> int:
    """The other process: prints its address."""
    settings = ServeSettings(port=0, conversations=1)
    if with_ray:
        from app.server.ray_replica import Replicas
        from app.server.ray_run import serve_with_ray

        return serve_with_ray(
            settings,
            Replicas(),
            lambda: nullcontext(_engine()),
            lambda: None,
            lambda: None,
            lambda address: say(address),
        )
    return serve(
        settings,
        lambda: nullcontext(_engine()),
        lambda: None,
        lambda address: say(address),
    )


@contextmanager
def served(with_ray: bool) -> Iterator[Side]:
    """A side behind a server."""
    command = [sys.executable, "-m", "tests.tools.protocol_overhead", "--serve", *["--ray"] * with_ray]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as process:
        assert process.stdout is not None
        url = next(line for line in process.stdout if line.startswith("ws://")).strip()
        threading.Thread(target=process.stdout.read, daemon=True).start()
        yield Side(lambda: ServerEngine(ServerAddress(url)))
        process.terminate()


def measure(turns: int, with_ray: bool) -> list[list[float]]:
    """Times to first audio in ms, in this process, through the server and perhaps through Ray; a few turns
    before are not counted."""
    with ExitStack() as stack:
        sides = [Side(lambda: nullcontext(_engine()))]
        sides += [stack.enter_context(served(way)) for way in ([False, True] if with_ray else [False])]
        for turn_id in range(1, turns + 6):
            for side in sides:
                side.ask(turn_id)
        for side in sides:
            side.close()
    return [side.times_ms[5:] for side in sides]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--ray", action="store_true", help="measure Ray Serve, too")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parse(parser)
    if arguments.serve:
        return serve_scripted(arguments.ray)
    with tool_report("protocol_overhead", arguments) as report:
        measured = measure(arguments.turns, arguments.ray)
        sides = {name: summarize(times) for name, times in zip(_SIDES, measured, strict=False)}
        section = summary_section("time to first audio, ms", sides, _SIDES)
        local, remote = measured[:2]
        overhead_ms = float(np.median(np.subtract(remote, local)))
        verdict = "within" if overhead_ms <= TARGET_MS else "above"
        section.note = f"overhead of a turn, median: {overhead_ms:.2f} ms, {verdict} {TARGET_MS:g} ms"
        if arguments.ray:
            share_ms = float(np.median(np.subtract(measured[2], remote)))
            section.note += f"; share of Ray in a turn, median: {share_ms:.2f} ms"
        report.add(section)
    return 0 if overhead_ms <= TARGET_MS else 1


if __name__ == "__main__":
    raise SystemExit(main())
