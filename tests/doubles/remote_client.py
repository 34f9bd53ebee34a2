"""An engine host with a server as its engine, in its thread, and its results."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from app.remote.server_engine import GIVE_UP_S, ServerEngine
from app.server_address import ServerAddress
from app.session.clocks import PendingWork
from app.session.engine_host import EngineHost
from app.session.engine_jobs import Ask, Commit, OpenTurn, ReplyResult, Result
from app.session.engine_slot import EngineSource
from engine_runtime.types import CancelScope, Modality, ReplyDone

SPEECH = Modality.SPEECH
LIMIT_S = 100.0


class RemoteClient:
    """`of` and `done` are what came so far; `until` waits for more."""

    def __init__(self, server: ServerAddress | EngineSource, give_up_s: float = GIVE_UP_S) -> None:
        """`server` is an address, or what makes the engine."""
        self.results: list[Result] = []
        self.pending = PendingWork()
        source: EngineSource
        if isinstance(server, ServerAddress):
            engine = ServerEngine(server, give_up_s=give_up_s)
            source = lambda: engine  # noqa: E731
        else:
            source = server
        self._host = EngineHost(source, pending=self.pending)
        self._incoming: SimpleQueue[Result] = SimpleQueue()
        self.slot = self._host.open_slot(self._incoming.put)
        self.thread = threading.Thread(target=self._host.run, daemon=True)
        self.thread.start()

    def ask(self, turn_id: int, text: str) -> None:
        scope = CancelScope()
        self.slot.submit(OpenTurn(turn_id, SPEECH, scope))
        self.slot.submit(Ask(turn_id, text))
        self.slot.submit(Commit(turn_id, SPEECH, None, CancelScope(scope)))

    def until(self, condition: Callable[[], object]) -> None:
        end_s = time.monotonic() + LIMIT_S
        while not condition():
            try:
                self.results.append(self._incoming.get(timeout=0.05))
            except Empty:
                assert time.monotonic() < end_s, self.results

    def of(self, kind: type[Any]) -> list[Any]:
        return [result for result in self.results if isinstance(result, kind)]

    def done(self) -> list[ReplyDone]:
        events = [result.event for result in self.of(ReplyResult)]
        return [event for event in events if isinstance(event, ReplyDone)]

    def close(self) -> None:
        self._host.close()
        self.thread.join(60)
        assert not self.thread.is_alive()
