"""Scheduler: runs the tasks of many conversations, and equal kinds of work together.

In: tasks with deadlines. Out: their results. `run_once` takes the most urgent work, adds the work of other
tasks that can run in the same call (decode steps of all speakers, prefill tokens of all listeners, ...), runs
the call and gives every task its result; a task that needs more work waits again.

Deadlines order the work: a task that is due earlier goes first, whatever its stage, so nothing starves.
Others join a call in the same order: a forward of the language model always, since it reads all weights for
any number of tokens, and so what has arrived; other calls if they are due soon or where that is cheap, so
that they do not delay the urgent one. If a batched call fails, each work is tried alone, and only the task
whose work fails gets the error. No lock is held. Engine thread.

The decode step that all wait for may already be in flight (lm/step.py). Other work that is due soon runs
meanwhile; then its results are taken; then comes another forward, which all share.

Two rules make calls larger. Speech of users who are still speaking begins at common ticks. While a task is
due soon, replies with much audio left do not start decode steps or flow packets of their own: they would only
slow down the urgent task.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from engine_runtime.work import Outcome, Stage, Task, Work

_WEIGHT = 0.2
"""Weight of the latest call in the moving average."""


@dataclass(slots=True)
class BatchTime:
    """Calls of one stage with one batch size."""

    calls: int = 0
    total_ns: int = 0
    recent_ns: float = 0.0
    """Moving average."""


class StageTimes:
    """How long the calls of each stage take, by stage and number of works: the expected time of a call, for
    the scheduler, and totals, for reports. `summary` from any thread.
    """

    def __init__(self) -> None:
        self._times: dict[tuple[Stage, int], BatchTime] = {}

    def note(self, stage: Stage, batch: int, duration_ns: int) -> None:
        """A call was measured."""
        known = self._times.setdefault((stage, batch), BatchTime())
        known.recent_ns += (duration_ns - known.recent_ns) * (_WEIGHT if known.calls else 1.0)
        known.calls, known.total_ns = known.calls + 1, known.total_ns + duration_ns

    def expected_ns(self, stage: Stage, batch: int) -> float | None:
        """Expected time of a call: that of the nearest batch size not above it; None if none was measured."""
        known = [size for measured, size in self._times if measured == stage and size <= batch]
        return self._times[stage, max(known)].recent_ns if known else None

    def summary(self) -> dict[tuple[Stage, int], BatchTime]:
        """Totals by stage and batch size."""
        return dict(sorted(self._times.items()))

    def clear(self) -> None:
        """Forget all calls."""
        self._times.clear()


_SOON_NS = 300_000_000
"""A task due this soon after the most urgent one joins its call in any case, and runs before the results of a
step in flight are taken."""
TICK_NS = 240_000_000
"""Speech is begun at multiples of this: three codes of the released model."""
_AHEAD_NS: dict[Stage, int] = {"step": 500_000_000, "flow": 300_000_000}
"""A reply that is this far ahead of its playback leaves the device to tasks that are due within this time."""
_NAP_S, _MOST_NAPS = 0.0002, 250
_CHEAP = 1.9
"""A call may take this many times as long as the urgent work alone, for the sake of tasks with time left."""
_FIRST: tuple[Stage, ...] = ("arrival", "features")
_FORWARDS: tuple[Stage, ...] = ("prefill", "step")
_JOINED_BY_ALL: tuple[Stage, ...] = (*_FORWARDS, *_FIRST)


class ScheduledTask:
    """A task in the scheduler. Created by `Scheduler.start`."""

    def __init__(self, task: Task[Any], due_ns: Callable[[], int]) -> None:
        self.work: Work[Any] | None = None
        """The work it waits for; None once it is over."""
        self.due_ns = 0
        """Its deadline when it was last read."""
        self._task, self._due_ns = task, due_ns

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.work is None

    def look(self) -> None:
        """Note its present deadline."""
        self.due_ns = self._due_ns()

    def resume(self, outcome: Outcome) -> None:
        """Continue it up to its next work. Raises what the task raises."""
        try:
            self.work = outcome.resume(self._task)
        except StopIteration:
            self.work = None
        except BaseException:
            self.work = None
            raise

    def close(self) -> None:
        """Abandon it; its pending work is not done."""
        self.work = None
        self._task.close()


class Scheduler:
    """`is_batching` False runs each work alone, so that no result depends on what else runs
    (batch-invariant)."""

    def __init__(
        self, *, is_batching: bool = True, clock_ns: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        self.is_batching = is_batching
        self.times = StageTimes()
        self._clock_ns = clock_ns
        self._running: list[ScheduledTask] = []
        self._naps = 0

    def start(self, task: Task[Any], due_ns: Callable[[], int]) -> ScheduledTask:
        """Begin a task, up to its first work. `due_ns` returns its deadline at any time."""
        scheduled = ScheduledTask(task, due_ns)
        scheduled.resume(Outcome())
        if not scheduled.is_over:
            self._running.append(scheduled)
        return scheduled

    def close(self, scheduled: ScheduledTask) -> None:
        """Abandon a task between two steps."""
        scheduled.close()
        self._forget_finished()

    @property
    def is_idle(self) -> bool:
        """Whether no task waits for work."""
        return not self._running

    def speech_begins_ns(self, arrived_ns: int) -> int:
        """When to begin a task for speech of a user who goes on speaking: at the next tick, even if nothing
        runs. What arrives until then belongs to the same task."""
        if not self.is_batching:
            return arrived_ns
        return -(-arrived_ns // TICK_NS) * TICK_NS

    def run_once(self) -> None:
        """Run the most urgent work with what can join it. Does nothing if there is none, and only waits a
        moment while a device is busy with all of it."""
        if not self._running:
            return
        for scheduled in self._running:
            scheduled.look()
        by_deadline = sorted(self._running, key=_order)
        first_due_ns, now_ns = min(scheduled.due_ns for scheduled in self._running), self._clock_ns()
        able = [
            scheduled
            for scheduled in by_deadline
            if _work_of(scheduled).is_ready and not _gives_way(scheduled, now_ns)
        ]
        ready = able
        if self.is_batching:
            ready = [scheduled for scheduled in able if not _can_wait(scheduled, first_due_ns, now_ns)]
        if ready:
            self._naps = 0
        elif self._naps < _MOST_NAPS and len(self._running) > 1:
            # Does not wait for one of them: another may be ready sooner, or a new task may begin.
            self._naps += 1
            # Results of several streams come in any order, so none of them is waited for; after 50 ms of naps
            # the most urgent one is, and a device error shows there.
            time.sleep(_NAP_S)
            return
        # Without other work, wait for what was started before.
        first = _first(ready, able) if able else by_deadline[0]
        batch = self._batch([first, *(scheduled for scheduled in able if scheduled is not first)], now_ns)
        errors: list[BaseException] = []
        outcomes = self._outcomes([_work_of(scheduled) for scheduled in batch])
        for scheduled, outcome in zip(batch, outcomes, strict=True):
            try:
                scheduled.resume(outcome)
            # The work of the others is done already. Raising here would lose their results and leave their
            # tasks waiting for ever.
            except BaseException as error:  # the others get their results first
                errors.append(error)
        self._forget_finished()
        if errors:
            raise errors[0]

    def _batch(self, by_deadline: list[ScheduledTask], now_ns: int) -> list[ScheduledTask]:
        """The most urgent task, and those that join it."""
        first, *others = by_deadline
        work = _work_of(first)
        key = work.batch_key
        if not self.is_batching or key is None:
            return [first]
        batch, works, urgent = [first], [work], 1
        soon_ns = first.due_ns + _SOON_NS
        for other in others:
            its = _work_of(other)
            if its.batch_key != key or not its.fits(works):
                continue
            if _gives_way(other, now_ns, works):
                continue
            if other.due_ns <= soon_ns or work.stage in _JOINED_BY_ALL:
                urgent += 1
            elif not self._is_cheap(work, urgent, len(batch) + 1):
                break
            batch.append(other)
            works.append(its)
        return batch

    def _is_cheap(self, work: Work[Any], urgent: int, wanted: int) -> bool:
        alone, together = (self.times.expected_ns(work.stage, size) for size in (urgent, wanted))
        if alone is None or together is None:
            return together is None  # neither is known without a first call
        return together <= _CHEAP * alone

    def _outcomes(self, works: list[Work[Any]]) -> list[Outcome]:
        if len(works) > 1:
            start_ns = self._clock_ns()
            try:
                outcomes = [Outcome(result) for result in works[0].run_together(works)]
            except Exception:
                return [self._outcome(work) for work in works]  # only the one that fails gets the error
            self.times.note(works[0].stage, len(works), self._clock_ns() - start_ns)
            return outcomes
        return [self._outcome(work) for work in works]

    def _outcome(self, work: Work[Any]) -> Outcome:
        start_ns = self._clock_ns()
        try:
            outcome = Outcome(work.run())
        except Exception as error:
            return Outcome(error=error)
        self.times.note(work.stage, 1, self._clock_ns() - start_ns)
        return outcome

    def _forget_finished(self) -> None:
        self._running = [scheduled for scheduled in self._running if not scheduled.is_over]


def _order(scheduled: ScheduledTask) -> tuple[bool, int]:
    """Arrived results first, since they only let tasks continue; then features, which are cheap and let the
    encoder begin; then the earliest deadline."""
    return _work_of(scheduled).stage not in _FIRST, scheduled.due_ns


def _first(ready: list[ScheduledTask], able: list[ScheduledTask]) -> ScheduledTask:
    """The task to run next. While a decode step is in flight: other work that is due soon, then the results
    of the step, and only then another forward, which would drop the step."""
    in_flight = [scheduled for scheduled in able if _work_of(scheduled).is_in_flight]
    if not in_flight:
        return (ready or able)[0]
    soon_ns = in_flight[0].due_ns + _SOON_NS
    for scheduled in ready:
        stage = _work_of(scheduled).stage
        if stage in _FIRST or (stage not in _FORWARDS and scheduled.due_ns <= soon_ns):
            return scheduled
    return in_flight[0]


def _gives_way(scheduled: ScheduledTask, now_ns: int, beside: Sequence[Work[Any]] = ()) -> bool:
    """True if running this work now, beside a batch, would evict cache pages of older replies and its
    deadline is not near."""
    return scheduled.due_ns > now_ns + _AHEAD_NS["flow"] and _work_of(scheduled).waits_for_memory(beside)


def _can_wait(scheduled: ScheduledTask, first_due_ns: int, now_ns: int) -> bool:
    """True if it is far ahead of its playback and the most urgent task is not."""
    ahead_ns = _AHEAD_NS.get(_work_of(scheduled).stage)
    return ahead_ns is not None and first_due_ns <= now_ns + ahead_ns < scheduled.due_ns


def _work_of(scheduled: ScheduledTask) -> Work[Any]:
    assert scheduled.work is not None
    return scheduled.work
