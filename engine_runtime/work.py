"""Tasks and their work: computations that can wait for a device together with those of others.

A `Task` is a generator: it yields `Work`, what it needs from a network, and is resumed with the result. In:
nothing. Out: `run_alone`, which runs the work of one task at once; the scheduler (scheduler.py)
gathers the work of many and runs equal kinds in one call. A task holds no lock and no device context while
it waits. Runs in the thread of its caller.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, Literal, Self, TypeVar

Result = TypeVar("Result")

Stage = Literal["features", "encode", "prefill", "step", "flow", "vocoder", "arrival"]


class Work(ABC, Generic[Result]):
    """What a task waits for. By default it runs alone, at once."""

    __slots__ = ()

    @property
    @abstractmethod
    def stage(self) -> Stage:
        """The network that does it."""

    @property
    def batch_key(self) -> Hashable:
        """Works with the same key can run in one call; None: always alone."""
        return None

    @property
    def is_ready(self) -> bool:
        """Whether `run` works rather than waits for what was started before."""
        return True

    @property
    def is_in_flight(self) -> bool:
        """Whether it is a decode step that the device already computes."""
        return False

    def waits_for_memory(self, beside: Sequence[Self] = ()) -> bool:
        """Whether older replies hold the memory that it needs beside those of a batch: if it is not due soon,
        they go first."""
        return False

    def fits(self, batch: Sequence[Self]) -> bool:
        """Whether this work can join others of its key."""
        return False

    @abstractmethod
    def run(self) -> Result:
        """Do it; returns the result for the task."""

    def run_together(self, batch: Sequence[Self]) -> list[Result]:
        """Do all works of a batch, this one among them; one result each, in order."""
        return [work.run() for work in batch]


class SingleWork(Work[Result]):
    """A call that is not batched."""

    __slots__ = ("_function", "_stage")

    def __init__(self, stage: Stage, function: Callable[[], Result]) -> None:
        self._stage, self._function = stage, function

    @property
    def stage(self) -> Stage:
        return self._stage

    def run(self) -> Result:
        return self._function()


Task = Generator[Work[Any], Any, Result]
"""A computation that yields its works and returns its result."""


@dataclass(slots=True)
class Outcome:
    """What came of a work: its result or its error."""

    value: Any = None
    error: BaseException | None = None

    def resume(self, task: Task[Any]) -> Work[Any]:
        """Give it to the task that waits for it; returns the next work. StopIteration at its end."""
        error, self.error = self.error, None
        try:
            return task.send(self.value) if error is None else task.throw(error)
        finally:
            error = None  # the traceback of the error refers to this frame


def run_alone(task: Task[Result]) -> Result:
    """Run a task to its end, each work as it comes."""
    outcome = Outcome()
    while True:
        try:
            work = outcome.resume(task)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        try:
            outcome = Outcome(work.run())
        except BaseException as error:
            outcome = Outcome(error=error)


def within(context: Callable[[], AbstractContextManager[object]], task: Task[Result]) -> Task[Result]:
    """The task, with its own code inside the context and its work outside."""
    outcome = Outcome()
    while True:
        with context():
            try:
                work = outcome.resume(task)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
        try:
            outcome = Outcome((yield work))
        except GeneratorExit:
            task.close()
            raise
        except BaseException as error:
            outcome = Outcome(error=error)
