"""The engine side of one conversation without a thread: jobs wait until the test lets them be carried out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from app.session.engine_jobs import Job, Result
from app.session.engine_turns import EngineHistory, EngineTurns
from engine_runtime.engine import Engine
from engine_runtime.work import run_alone

AnyEngine = TypeVar("AnyEngine", bound=Engine)


class InlineEngine(Generic[AnyEngine]):
    """Takes the place of an `EngineSlot`."""

    def __init__(self, engine: AnyEngine) -> None:
        self.engine = engine
        self.jobs: list[Job] = []
        """All that were submitted."""
        self.deliver: Callable[[Result], None] = lambda result: None
        self._waiting: deque[Job] = deque()
        history = EngineHistory(engine, self._give)
        self._turns = EngineTurns(history, self._give)

    def submit(self, job: Job) -> None:
        self.jobs.append(job)
        self._waiting.append(job)

    def work(self, events: int = 1_000) -> None:
        """Carry out what waits, and make at most this many events of the reply."""
        while self._waiting:
            run_alone(self._turns.carry_out(self._waiting.popleft()))
        for _ in range(events):
            if not run_alone(self._turns.advance()):
                return

    def _give(self, result: Result) -> None:
        self.deliver(result)
