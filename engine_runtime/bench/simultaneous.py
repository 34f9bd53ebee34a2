"""Benchmark of simultaneous conversations: N simulated users at real-time pace, one engine, one scheduler.

Each user speaks for some seconds, hears the reply to its end, and speaks again. Lengths of questions and
replies are drawn from a seed, so that a conversation can be held again alone; before a time is reported, some
are, and their codes are compared.

In: an engine, a recording, numbers of users. Out: a table of users against TTFA, gaps and RTF with the share
of each stage in the time, and one of calls by stage and batch size. Engine thread.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, get_args

import numpy as np

from engine_runtime.bench.ceilings import Ceilings
from engine_runtime.bench.conversation import question_of
from engine_runtime.bench.costs import LMCosts, weight_numbers
from engine_runtime.bench.measuring import BenchError, p50_p95
from engine_runtime.errors import MossVoiceError
from engine_runtime.lm.step import Tails
from engine_runtime.scheduler import TICK_NS, BatchTime, ScheduledTask, Scheduler
from engine_runtime.table import Cell, Section
from engine_runtime.types import Modality, Pcm, ReplyAudio, ReplyDone, SamplingParams
from engine_runtime.work import Stage, Task, run_alone

if TYPE_CHECKING:
    from engine_runtime.conversation.turn import Turn
    from engine_runtime.engine import Engine

TURN_S = (5.0, 10.0)
"""Shortest and longest question and reply."""
_BLOCK_S = 0.08
_PUSH_DUE_NS = TICK_NS + 100_000_000
TARGET_TTFA_MS = 300.0
_REPEATED_USERS, _REPEATED_REPLIES = 4, 2

COLUMNS = {
    "users": "conversations at once; each user speaks for 5 to 10 s and hears a reply of 5 to 10 s",
    "replies": "replies of all users",
    "failed": "replies that ended with an error",
    "ttfa_ms": "end of the question to the first PCM sample ready, median",
    "ttfa_ms_p95": "95th percentile",
    "gaps": "how often a client that plays at once had played everything made so far",
    "gap_ms": "longest of these gaps",
    "rtf": "time from the end of the question to the last sample / audio of the reply, median",
    "busy": "share of the time in which the engine thread worked",
    "features": "share of the time in calls of the spectral features; so for the stages that follow",
    "encode": "the speech encoder; on a GPU the time to start it, as of the features",
    "prefill": "rows of users and of the end of their turns",
    "step": "decode steps",
    "flow": "codes to mel; on a GPU the time to start it",
    "vocoder": "mel to PCM; on a GPU the time to start it",
    "arrival": "waiting for samples with nothing else to do",
    "host": "share of the time between calls",
    "compared": "replies made again in a conversation alone",
    "equal": "of these, replies with the same codes",
}
CALL_COLUMNS = {
    "users": "as above",
    "stage": "one call for one or more conversations",
    "batch": "conversations in the call",
    "calls": "number of calls",
    "ms": "mean time of a call; on a GPU flow and vocoder are only started by it",
    "floor_ms": "decode step: bytes of the weights / the measured copy bandwidth",
}


class WallClock:
    """Time that passes by itself."""

    def now_ns(self) -> int:
        """The time."""
        return time.perf_counter_ns()

    def wait(self, duration_ns: int) -> None:
        """Do nothing for this long."""
        time.sleep(duration_ns / 1e9)


class ProcessorClock:
    """Time that passes while the calling thread works, and jumps where it would wait: the load of other
    programs does not count. Threads that share its operations work at the same time."""

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
        """Whether nothing is in flight and no turn will follow."""
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
            turn = run_alone(self._engine.open_turn(conversation, number))
            for block in self._blocks(reply.question_s):
                run_alone(turn.push(block))
            *_, last = run_alone(turn.commit(Modality.SPEECH, self._params(reply.wanted_codes)))
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
        opening = self._engine.open_turn(self._conversation, len(self.replies))
        self._turn = yield from opening

    def _push(self, block: Pcm) -> Task[None]:
        """Push a block, and those that have come since, as the server does."""
        assert self._turn is not None
        blocks, now_ns = [block], self._clock.now_ns()
        while isinstance(later := self._jobs[0][2], np.ndarray) and self._jobs[0][0] <= now_ns:
            blocks.append(later)
            self._jobs.popleft()
        yield from self._turn.push(np.concatenate(blocks))

    def _reply(self, reply: UserReply, committed_ns: int) -> Task[None]:
        assert self._turn is not None
        try:
            params = self._params(reply.wanted_codes)
            events = yield from self._turn.commit(Modality.SPEECH, params)
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


@dataclass(frozen=True, slots=True)
class SimultaneousRun:
    """What was measured with one number of users. Times in ns."""

    users: int
    replies: list[UserReply]
    calls: dict[tuple[Stage, int], BatchTime]
    elapsed_ns: int
    busy_ns: int
    compared: int
    equal: int

    @property
    def holds(self) -> bool:
        """Whether no reply had a gap or failed, and TTFA reaches the target."""
        heard = [reply for reply in self.replies if not reply.error]
        if not heard or len(heard) < len(self.replies) or any(reply.gaps_ms for reply in heard):
            return False
        return p50_p95([reply.ttfa_ms for reply in heard])[1] <= TARGET_TTFA_MS

    def line(self) -> str:
        """The most important figures."""
        row = self.row()
        ttfa = ", ".join("-" if row[key] is None else f"{row[key]:.0f}" for key in ("ttfa_ms", "ttfa_ms_p95"))
        return (
            f"{self.users} users: TTFA p50, p95 {ttfa} ms; {row['gaps']} gaps in {row['replies']} replies, "
            f"{row['failed']} failed; busy {row['busy']:.2f}"
        )

    def row(self) -> dict[str, Cell]:
        """As a row of the first table."""
        heard = [reply for reply in self.replies if not reply.error]
        gaps = [gap for reply in heard for gap in reply.gaps_ms]
        p50, p95 = p50_p95([reply.ttfa_ms for reply in heard]) if heard else (None, None)
        in_stage: dict[str, float] = {
            stage: self._total_ns(stage) / self.elapsed_ns for stage in get_args(Stage)
        }
        busy = self.busy_ns / self.elapsed_ns
        return {
            "users": self.users,
            "replies": len(self.replies),
            "failed": len(self.replies) - len(heard),
            "ttfa_ms": p50,
            "ttfa_ms_p95": p95,
            "gaps": len(gaps),
            "gap_ms": max(gaps, default=0.0),
            "rtf": statistics.median(reply.rtf for reply in heard) if heard else None,
            "busy": busy,
            **in_stage,
            "host": busy - sum(in_stage.values()),
            "compared": self.compared,
            "equal": self.equal,
        }

    def _total_ns(self, stage: str) -> int:
        return sum(time.total_ns for (called, _), time in self.calls.items() if called == stage)


def hold_conversations(
    engine: Engine,
    recording: Pcm,
    users: int,
    seconds: float,
    clock: Clock,
    *,
    seed: int = 0,
    batch_invariant: bool = False,
) -> SimultaneousRun:
    """Let `users` talk for some seconds; turns that have begun are held to their end."""
    is_batching = engine.gains_from_batches and not batch_invariant
    scheduler = Scheduler(is_batching=is_batching, clock_ns=clock.now_ns)
    talking = [BenchUser(engine, recording, number, seed, clock) for number in range(users)]
    start_ns, busy_ns = clock.now_ns(), 0
    end_ns = start_ns + round(seconds * 1e9)
    while not all(user.is_over for user in talking):
        began_ns = clock.now_ns()
        for user in talking:
            user.is_ending = began_ns >= end_ns
            user.poll(scheduler)
        if scheduler.is_idle:
            next_ns = min([user.next_ns(scheduler) for user in talking if not user.is_over], default=0)
            clock.wait(max(next_ns - clock.now_ns(), 0))
        else:
            scheduler.run_once()
            busy_ns += clock.now_ns() - began_ns
    elapsed_ns = clock.now_ns() - start_ns
    for user in talking:
        user.close()
    compared, equal = _compare(talking)
    replies = [reply for user in talking for reply in user.replies]
    return SimultaneousRun(users, replies, scheduler.times.summary(), elapsed_ns, busy_ns, compared, equal)


def measure_simultaneous(
    engine: Engine,
    recording: Pcm,
    users: list[int],
    seconds: float,
    clock: Clock,
    ceilings: Ceilings,
    progress: Callable[[float], None] = lambda done: None,
    *,
    batch_invariant: bool = False,
    report: Callable[[SimultaneousRun], None] = lambda run: None,
) -> list[Section]:
    """Both tables; `report` receives each run. If one fails, it and those that follow are left out, with a
    note. Raises BenchError if no reply was made."""
    runs: list[SimultaneousRun] = []
    failure = ""
    for place, number in enumerate(users):
        try:
            run = hold_conversations(
                engine, recording, number, seconds, clock, batch_invariant=batch_invariant
            )
        except MossVoiceError as error:
            if not runs:
                raise
            failure = f"not measured: {', '.join(map(str, users[place:]))} users ({error})"
            break
        runs.append(run)
        progress(len(runs))
        report(run)
    if not any(reply.codes for run in runs for reply in run.replies):
        errors = [reply.error for run in runs for reply in run.replies if reply.error]
        raise BenchError(
            "No reply was made: {errors}.", errors=errors[0] if errors else "no turn was over in time"
        )
    holding = [run.users for run in runs if run.holds]
    most = f"{max(holding)} users" if holding else "no number of users"
    errors = sorted({reply.error for run in runs for reply in run.replies if reply.error})
    note = f"without a gap and with TTFA p95 <= {TARGET_TTFA_MS:.0f} ms: {most}"
    table = Section("simultaneous conversations", COLUMNS, [run.row() for run in runs])
    table.note = "; failed: ".join([f"{failure}; {note}" if failure else note, *errors[:3]])
    floor_ms = _floor_ms(engine, ceilings)
    calls = Section("calls by stage and batch size", CALL_COLUMNS)
    for run in runs:
        calls.rows += [
            {
                "users": run.users,
                "stage": stage,
                "batch": batch,
                "calls": time.calls,
                "ms": time.total_ns / time.calls / 1e6,
                "floor_ms": floor_ms if stage == "step" else None,
            }
            for (stage, batch), time in run.calls.items()
        ]
    return [table, calls]


def _compare(talking: list[BenchUser]) -> tuple[int, int]:
    """Make the first replies of some users again, alone: replies compared, and those with equal codes."""
    compared = equal = 0
    spoken = [user for user in talking if user.replies and not any(reply.error for reply in user.replies)]
    for user in spoken[:: -(-len(spoken) // _REPEATED_USERS) or 1]:
        alone = user.repeat_alone(_REPEATED_REPLIES)
        compared += len(alone)
        equal += sum(codes == reply.codes for codes, reply in zip(alone, user.replies, strict=False))
    return compared, equal


def _floor_ms(engine: Engine, ceilings: Ceilings) -> float:
    stages = engine.stages
    formats, weight_bytes = weight_numbers(stages)
    costs = LMCosts(stages.lm_config, formats, weight_bytes, stages.lm.cache.pool.element_size())
    tails = Tails(text=stages.bundle.lm.subtitles, audio=True)
    return costs.step_bytes(0, tails) / ceilings.copy_bytes_per_s * 1000
