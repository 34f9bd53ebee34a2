"""An engine worker with a server as its engine, in its thread, and its results."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import Empty
from typing import Any

from app.remote.host import GIVE_UP_S, RemoteHost
from app.server_address import ServerAddress
from app.session.engine_jobs import Ask, Close, Commit, OpenTurn, ReplyResult, Result
from app.session.engine_source import EngineSource
from app.session.engine_worker import EngineWorker
from app.session.pending_work import PendingWork
from engine_runtime.types import CancelScope, Modality, ReplyDone

SPEECH = Modality.SPEECH
LIMIT_S = 100.0


class RemoteClient:
    """`of` and `done` are what came so far; `until` waits for more."""

    def __init__(self, server: ServerAddress | EngineSource, give_up_s: float = GIVE_UP_S) -> None:
        """`server` is an address, or what makes the host."""
        self.results: list[Result] = []
        self.pending = PendingWork()
        host = RemoteHost(server, give_up_s=give_up_s) if isinstance(server, ServerAddress) else None
        source = server if host is None else lambda: host
        self.worker = EngineWorker(source, lambda timing: None, self.pending)
        self.thread = threading.Thread(target=self.worker.run, daemon=True)
        self.thread.start()

    def ask(self, turn_id: int, text: str) -> None:
        scope = CancelScope()
        self.worker.submit(OpenTurn(turn_id, SPEECH, scope))
        self.worker.submit(Ask(turn_id, text))
        self.worker.submit(Commit(turn_id, SPEECH, None, CancelScope(scope)))

    def until(self, condition: Callable[[], object]) -> None:
        end_s = time.monotonic() + LIMIT_S
        while not condition():
            try:
                self.results.append(self.worker.results.get(timeout=0.05))
            except Empty:
                assert time.monotonic() < end_s, self.results

    def of(self, kind: type[Any]) -> list[Any]:
        return [result for result in self.results if isinstance(result, kind)]

    def done(self) -> list[ReplyDone]:
        events = [result.event for result in self.of(ReplyResult)]
        return [event for event in events if isinstance(event, ReplyDone)]

    def close(self) -> None:
        self.worker.submit(Close())
        self.thread.join(10)
        assert not self.thread.is_alive()
