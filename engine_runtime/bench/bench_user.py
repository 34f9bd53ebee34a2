"""Simulated users: each speaks for some seconds, hears the reply to its end, and speaks again, in real time.

In: an engine, a recording, a seed. Out: tasks for the scheduler when they are due, and what was measured of
each reply. Lengths of questions and replies are drawn from the seed; a conversation can be held again alone,
and then has to give the same codes. Engine thread.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from engine_runtime.bench.conversation import question_of
from engine_runtime.scheduler.scheduler import TICK_NS, ScheduledTask, Scheduler
from engine_runtime.types import Modality, Pcm, ReplyAudio, ReplyDone, SamplingParams
from engine_runtime.work import Task

if TYPE_CHECKING:
    from engine_runtime.conversation.turn import Turn
    from engine_runtime.engine import Engine

TURN_S = (5.0, 10.0)
"""Shortest and longest question and reply."""
_BLOCK_S = 0.08
_PUSH_DUE_NS = TICK_NS + 100_000_000


class WallClock:
    """Time that passes by itself."""

    def now_ns(self) -> int:
        """The time."""
        return time.perf_counter_ns()

    def wait(self, duration_ns: int) -> None:
        """Do nothing for this long."""
        time.sleep(duration_ns / 1e9)


class ProcessorClock:
    """Time that passes while the calling thread works, and jumps where it would wait: what other programs
    take of the machine does not count. Threads that share its operations work at the same time."""

    def __init__(self) -> None:
        self._waited_ns = 0

    def now_ns(self) -> int:
        """The time."""
        return time.thread_time_ns() + self._waited_ns

    def wait(self, duration_ns: int) -> None:
        """Jump."""
        self._waited_ns += duration_ns


Clock = WallClock | ProcessorClock


@dataclass(slots=True)
class UserReply:
    """One reply. Durations in ms: from the end of the question to the first audio; of all gaps, in which
    everything made so far had been played. `error` says why there is none."""

    question_s: float
    wanted_codes: int
    codes: tuple[int, ...] = ()
    audio_s: float = 0.0
    ttfa_ms: float = 0.0
    rtf: float = 0.0
    gaps_ms: list[float] = field(default_factory=list)
    error: str = ""


class BenchUser:
    """One user and its conversation. `poll` is called whenever something may be due."""

    def __init__(self, engine: Engine, recording: Pcm, number: int, seed: int, clock: Clock) -> None:
        self.replies: list[UserReply] = []
        self.is_ending = False
        """Set to begin no further turn."""
        self._engine, self._recording, self._clock = engine, recording, clock
        self._seed = 1000 * seed + number
        self._conversation = engine.new_conversation()
        self._conversation.seed = self._seed
        self._lengths = np.random.default_rng(self._seed)
        self._turn: Turn | None = None
        self._jobs: deque[tuple[int, int, Pcm | Callable[[], Task[None]]]] = deque()
        """When each can begin, when it is due, and the speech to push or another task."""
        self._running: ScheduledTask | None = None
        self._played_until_ns = 0
        self._due_ns: int | None = None
        spread_s = self._lengths.uniform(0.0, sum(TURN_S))
        self._next_turn_ns = clock.now_ns() + round(spread_s * 1e9)

    @property
    def is_over(self) -> bool:
        """Whether nothing is under way and no turn will follow."""
        return self.is_ending and not self._jobs and (self._running is None or self._running.is_over)

    def next_ns(self, scheduler: Scheduler) -> int:
        """When there is something to do at the latest, if no task is running."""
        return self._begins_ns(scheduler) if self._jobs else self._next_turn_ns

    def poll(self, scheduler: Scheduler) -> None:
        """Begin what can begin now."""
        if self._running is not None and not self._running.is_over:
            return
        if not self._jobs and not self.is_ending and self._clock.now_ns() >= self._next_turn_ns:
            self._plan_turn(self._next_turn_ns)
        if self._jobs and self._clock.now_ns() >= self._begins_ns(scheduler):
            _, self._due_ns, job = self._jobs.popleft()
            task = self._push(job) if isinstance(job, np.ndarray) else job()
            self._running = scheduler.start(self._noting(task), self._deadline_ns)

    def _begins_ns(self, scheduler: Scheduler) -> int:
        """When to begin the next job: speech with that of all users, or at once if the question is over."""
        at_ns, _, job = self._jobs[0]
        if not isinstance(job, np.ndarray):
            return at_ns
        over_ns = next(at_ns for at_ns, _, job in self._jobs if not isinstance(job, np.ndarray))
        return min(scheduler.speech_begins_ns(at_ns), over_ns)

    def close(self) -> None:
        """End the conversation."""
        self._engine.end_conversation(self._conversation)

    def repeat_alone(self, count: int) -> list[tuple[int, ...]]:
        """The codes of the first `count` replies, in a conversation without others."""
        conversation = self._engine.new_conversation()
        conversation.seed = self._seed
        codes = []
        for number, reply in enumerate(self.replies[:count], start=1):
            turn = self._engine.open_turn(conversation, number)
            for block in self._blocks(reply.question_s):
                turn.push(block)
            *_, last = turn.commit(Modality.SPEECH, self._params(reply.wanted_codes))
            assert isinstance(last, ReplyDone)
            codes.append(last.codes)
        self._engine.end_conversation(conversation)
        return codes

    def _deadline_ns(self) -> int:
        due_ns = self._played_until_ns if self._due_ns is None else self._due_ns
        waiting = self._jobs and self._jobs[0][0] <= self._clock.now_ns()
        return (
            min(due_ns, self._jobs[0][1]) if waiting else due_ns
        )  # a job that waits hurries the present one

    def _plan_turn(self, start_ns: int) -> None:
        question_s, reply_s = (round(value, 2) for value in self._lengths.uniform(*TURN_S, 2))
        codes_per_s = self._engine.output_sample_rate / self._engine.stages.samples_per_code
        codes = min(round(reply_s * codes_per_s), self._engine.stages.max_codes)
        reply = UserReply(question_s, codes)
        self.replies.append(reply)
        self._jobs.append((start_ns, start_ns + _PUSH_DUE_NS, self._open))
        at_ns = start_ns
        for block in self._blocks(question_s):
            at_ns += round(len(block) / self._engine.input_sample_rate * 1e9)
            self._jobs.append((at_ns, at_ns + _PUSH_DUE_NS, block))
        self._jobs.append((at_ns, at_ns, lambda: self._reply(reply, at_ns)))

    def _blocks(self, question_s: float) -> list[Pcm]:
        rate = self._engine.input_sample_rate
        pcm, size = question_of(self._recording, question_s, rate), round(_BLOCK_S * rate)
        return [pcm[start : start + size] for start in range(0, len(pcm), size)]

    def _params(self, codes: int) -> SamplingParams:
        sampling = self._engine.bundle.lm.sampling_speech
        return replace(sampling, min_new=codes + 1, max_new=codes)

    def _noting(self, task: Task[None]) -> Task[None]:
        """The task; its error is that of the reply. What follows it in the turn has no effect."""
        try:
            yield from task
        except Exception as error:
            self.replies[-1].error = self.replies[-1].error or f"{type(error).__name__}: {error}"

    def _open(self) -> Task[None]:
        opening = self._engine.open_turn_task(self._conversation, len(self.replies))
        self._turn = yield from opening

    def _push(self, block: Pcm) -> Task[None]:
        """Push a block, and those that have come since, as the server does."""
        assert self._turn is not None
        blocks, now_ns = [block], self._clock.now_ns()
        while isinstance(later := self._jobs[0][2], np.ndarray) and self._jobs[0][0] <= now_ns:
            blocks.append(later)
            self._jobs.popleft()
        yield from self._turn.push_task(np.concatenate(blocks))

    def _reply(self, reply: UserReply, committed_ns: int) -> Task[None]:
        assert self._turn is not None
        try:
            params = self._params(reply.wanted_codes)
            events = yield from self._turn.commit_task(Modality.SPEECH, params)
            self._due_ns, self._played_until_ns = None, committed_ns
            while (event := (yield from events.next_event())) is not None:
                if isinstance(event, ReplyAudio):
                    self._hear(reply, event, committed_ns)
                elif isinstance(event, ReplyDone):
                    reply.codes = event.codes
        finally:
            self._next_turn_ns = max(self._played_until_ns, self._clock.now_ns())

    def _hear(self, reply: UserReply, event: ReplyAudio, committed_ns: int) -> None:
        now_ns = self._clock.now_ns()
        late_ns = now_ns - self._played_until_ns
        if not reply.audio_s:
            reply.ttfa_ms = late_ns / 1e6
        elif late_ns > 0:
            reply.gaps_ms.append(late_ns / 1e6)
        length_s = event.pcm.size / event.sample_rate
        reply.audio_s += length_s
        reply.rtf = (now_ns - committed_ns) / 1e9 / reply.audio_s
        self._played_until_ns = max(self._played_until_ns, now_ns) + round(length_s * 1e9)
