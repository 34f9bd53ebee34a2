"""Benchmark of simultaneous conversations: N simulated users at real-time pace, one engine, one scheduler.

In: an engine, a recording, numbers of users. Out: a table of users against TTFA, gaps and RTF with the share
of each stage in the time, and one of calls by stage and batch size. Before a time is reported, conversations
are held again alone, and their codes are compared. Engine thread.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from engine_runtime.bench.bench_user import BenchUser, Clock, UserReply
from engine_runtime.bench.ceilings import Ceilings
from engine_runtime.bench.costs import LMCosts, weight_numbers
from engine_runtime.bench.replies import BenchError
from engine_runtime.cuda.stopwatch import p50_p95
from engine_runtime.errors import MossVoiceError
from engine_runtime.lm.step import Tails
from engine_runtime.scheduler.scheduler import Scheduler
from engine_runtime.scheduler.stage_times import BatchTime
from engine_runtime.table import Cell, Section
from engine_runtime.types import Pcm
from engine_runtime.work import Stage

if TYPE_CHECKING:
    from engine_runtime.engine import Engine

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
        raise BenchError(f"No reply was made: {errors[0] if errors else 'no turn was over in time'}.")
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
