"""What a GPU would do with many conversations: the scheduler and the simulated users of the benchmark, with
time that passes by a model of one H200.

    python -m tests.tools.scheduler_model 64,96,128 [--burst CODES]

In: numbers of users; with `--burst`, of replies with so many codes that begin at the same time. Out: TTFA,
gaps and shares for each, in seconds where the GPU takes minutes. It compares policies of
engine_runtime/scheduler.py before a measurement, and takes the place of none: with
`--no-look-ahead` TTFA p50 and p95 are 96 and 152 ms for 96 users where 113 and 171 ms were measured, and 107
and 174 ms for 128 users, where 140 and 262 ms were measured. Costs are those of `moss-voice bench
--conversations` (RESULTS.md): a call alone, and how much slower it is beside others. Main thread.
"""

from __future__ import annotations

import argparse
import sys
import types
from collections import deque
from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np

from engine_runtime import scheduler
from engine_runtime.bench import simultaneous
from engine_runtime.bench.simultaneous import Clock
from engine_runtime.codec.flow.page_pool import HostPage, HostPages, PagePool
from engine_runtime.table import Cell, Section
from engine_runtime.types import Modality, Pcm, ReplyAudio, ReplyDone, ReplyEvent, SamplingParams
from engine_runtime.work import Stage, Task, Work
from tests.tools.tool_report import parse, tool_report

_MS = 1_000_000
_RATE, _OUTPUT_RATE, _CODE_S = 16_000, 24_000, 0.08
_PACKETS = (5, 5, 10, 25)
_LOOK_AHEAD = 3
_SIZES = (1, 2, 4, 8, 16, 32, 64)
_STEP_MS = (4.3, 4.6, 4.7, 4.8, 5.6, 6.6, 8.0)
"""By rows of a forward."""
_FLOW_MS = {
    5: (12.3, 13.3, 16.5, 23.7, 27.4),
    10: (13.2, 16.3, 23.3, 27.0, 43.3),
    25: (20.2, 28.6, 33.4, 47.3, 67.1),
}
_PAGE_CODES, _PAGE_MS = 5, 0.9
"""Of the flow's caches, and the time in which one is copied to or from the host."""
FLOW_PAGES = 650
"""On an H200: a fifth of its memory."""
_VOCODER_MS = (2.0, 2.5, 3.3, 4.5, 7.0)
_ENCODER_MS = (1.3, 1.4, 1.5, 1.7, 2.1, 2.8, 4.8)
_BESIDE_MS = {"step": 0.35, "flow": 0.6, "vocoder": 0.4, "encode": 0.5}
"""Of the host, for a call."""
_FEATURES_MS, _ARRIVAL_MS, _RESUME_MS = 0.1, 0.25, 0.09
"""Of the host: before and after a call of the encoder, and for a row of a reply."""
_STEP_BESIDE, _STREAM_BESIDE_STEP, _STREAM_BESIDE_STREAM = 0.7, 0.62, 0.8
"""Speed of a stream while others work."""


_STREAM_OF: dict[Stage, str] = {"encode": "encoder", "flow": "codec", "vocoder": "codec"}


@dataclass
class Running:
    """What a stream has left to do, in ns alone on the GPU."""

    stage: Stage
    left_ns: float
    is_done: bool = False


class _PageMoves(HostPages):
    """What moving the pages of the flow costs, without pages."""

    def __init__(self, gpu: ModelGPU) -> None:
        super().__init__((), 0)
        self._gpu = gpu

    def take_out(self, page: int) -> HostPage:
        self._gpu.moves += 1
        self._gpu.launch("flow", _PAGE_MS)
        return ()

    def put_back(self, page: int, kept: HostPage) -> None:
        self._gpu.launch("flow", _PAGE_MS)


class ModelGPU:
    """Time, and what the codec's and the encoder's streams do meanwhile. A clock as the benchmark uses it."""

    def __init__(self, *, looks_ahead: bool = True, flow_pages: int = FLOW_PAGES) -> None:
        self.looks_ahead = looks_ahead
        self.moves = 0
        """Pages of the flow that were copied to the host."""
        self.pages = PagePool(flow_pages, _PageMoves(self))
        self._now_ns = 0.0
        self.streams: dict[str, deque[Running]] = {"codec": deque(), "encoder": deque()}
        self._forwards: deque[float] = deque()
        """What each forward of the language model in the queue has left to do, in ns alone on the GPU."""
        self.in_flight: set[ModelReply] = set()
        """Replies whose next step is in flight."""
        self.waiting = 0
        """Works that wait for a forward."""

    def now_ns(self) -> int:
        """The time."""
        return int(self._now_ns)

    def wait(self, duration_ns: float) -> None:
        """Time passes on the host."""
        self._pass(max(duration_ns, 1_000))

    def step(self, duration_ns: float) -> None:
        """A forward of the language model, which the host waits for."""
        self.launch_step(duration_ns)
        self.wait_for_step()

    def launch_step(self, duration_ns: float) -> None:
        """A forward that follows those launched before."""
        self._forwards.append(duration_ns)

    def wait_for_step(self, num_left: int = 0) -> None:
        """Time passes until only the last `num_left` forwards that were launched have not ended."""
        while len(self._forwards) > num_left:
            self._pass(self._forwards[0])

    def launch(self, stage: Stage, duration_ms: float) -> Running:
        """A call that the host does not wait for."""
        running = Running(stage, duration_ms * _MS)
        self.streams[_STREAM_OF[stage]].append(running)
        return running

    def pending(self, stage: Stage) -> int:
        """Calls that have not ended."""
        return sum(running.stage == stage for running in self.streams[_STREAM_OF[stage]])

    def _pass(self, duration_ns: float) -> None:
        while duration_ns > 0:
            busy, steps = [stream for stream in self.streams.values() if stream], bool(self._forwards)
            speed = _STREAM_BESIDE_STEP if steps else _STREAM_BESIDE_STREAM if len(busy) > 1 else 1.0
            step_speed = _STEP_BESIDE if busy else 1.0
            part_ns = min([duration_ns, *(stream[0].left_ns / speed for stream in busy)])
            if steps:
                part_ns = max(min(part_ns, self._forwards[0] / step_speed), 1.0)
                self._forwards[0] -= part_ns * step_speed
                if self._forwards[0] <= 0:
                    self._forwards.popleft()
            for stream in busy:
                stream[0].left_ns -= part_ns * speed
                if stream[0].left_ns < 1:
                    stream.popleft().is_done = True
            self._now_ns += part_ns
            duration_ns -= part_ns


@dataclass(eq=False)
class ModelWork(Work[Any]):
    """A call of a stage; the stages differ in `run_together`."""

    gpu: ModelGPU
    kind: Stage
    size: int = 1
    """Rows of a forward, or codes of a packet."""
    waits_for: Running | None = None
    reply: ModelReply | None = None
    pages: int = 0
    """Of the flow, after a packet."""

    @property
    def stage(self) -> Stage:
        return self.kind

    @property
    def is_in_flight(self) -> bool:
        return self.reply in self.gpu.in_flight

    def waits_for_memory(self, beside: Sequence[ModelWork] = ()) -> bool:
        if self.reply is None or not self.pages:
            return False
        others = [(work.reply.held, work.pages) for work in beside if work.reply is not None]
        return self.gpu.pages.is_short(self.reply.held, self.pages, others)

    @property
    def batch_key(self) -> Hashable:
        if self.stage in ("prefill", "step"):
            return "step", self.is_in_flight
        if self.stage == "arrival":
            return "arrival"
        return self.stage, self.size if self.stage == "flow" else 0

    @property
    def is_ready(self) -> bool:
        if self.stage == "arrival":
            return self.waits_for is None or self.waits_for.is_done
        most = {"flow": 1, "encode": 0}.get(self.stage)
        return most is None or self.gpu.pending(self.stage) <= most

    def fits(self, batch: Sequence[ModelWork]) -> bool:
        return len(batch) < {"flow": 16, "vocoder": 16, "encode": 64}.get(self.stage, 64)

    def run(self) -> Any:
        return self.run_together([self])[0]

    def run_together(self, batch: Sequence[ModelWork]) -> list[Any]:
        if self.stage == "arrival":
            while not self.is_ready:
                self.gpu.wait(0.05 * _MS)
            return [None] * len(batch)
        gpu, stage = self.gpu, "step" if self.stage == "prefill" else self.stage
        gpu.wait((_BESIDE_MS[stage] + 0.02 * len(batch)) * _MS)
        if stage == "step":
            return self._forward(batch)
        if self.stage == "flow":
            replies = [work.reply.held for work in batch if work.reply is not None]
            for work, held in zip(batch, replies, strict=True):
                gpu.pages.take(held, work.pages, replies)
        times = {"flow": _FLOW_MS.get(self.size, ()), "vocoder": _VOCODER_MS, "encode": _ENCODER_MS}[stage]
        running = gpu.launch(stage, _of(times, len(batch)))
        return [running] * len(batch)

    def _forward(self, batch: Sequence[ModelWork]) -> list[None]:
        """Rows of the language model, and the overlapped step for them before they are waited for."""
        gpu, rows = self.gpu, sum(work.size for work in batch)
        is_taken, gpu.in_flight = self.is_in_flight, set()
        while rows > 0 and not is_taken:
            gpu.launch_step(_of(_STEP_MS, min(rows, 64)) * _MS)
            rows -= 64
        replies = {work.reply for work in batch if work.reply is not None and work.reply.may_go_on}
        if gpu.looks_ahead and 2 <= len(batch) == len(replies) == gpu.waiting:
            gpu.launch_step(_of(_STEP_MS, len(batch)) * _MS)
            gpu.in_flight = replies
        gpu.wait_for_step(num_left=len(gpu.in_flight) > 0)
        return [None] * len(batch)


def _forward(work: ModelWork) -> Task[None]:
    """Wait for a forward."""
    work.gpu.waiting += 1
    try:
        yield work
    finally:
        work.gpu.waiting -= 1


def _of(times: Sequence[float], size: int) -> float:
    """The time of the next larger measured size."""
    return next(ms for ms, known in zip(times, _SIZES, strict=False) if known >= size)


class ModelTurn:
    """In place of a Turn."""

    def __init__(self, gpu: ModelGPU) -> None:
        self._gpu = gpu

    def push(self, pcm: Pcm) -> Task[None]:
        """Features, encoder, rows."""
        self._gpu.wait(_FEATURES_MS * _MS)
        running = yield ModelWork(self._gpu, "encode")
        yield ModelWork(self._gpu, "arrival", waits_for=running)
        self._gpu.wait(_ARRIVAL_MS * _MS)
        yield from _forward(ModelWork(self._gpu, "prefill", max(1, round(pcm.size / _RATE / _CODE_S))))

    def commit(self, modality: Modality, params: SamplingParams) -> Task[ModelReply]:
        """The end of the question."""
        running = yield ModelWork(self._gpu, "encode")
        yield ModelWork(self._gpu, "arrival", waits_for=running)
        return ModelReply(self._gpu, params.max_new)


@dataclass(eq=False)
class ModelReply:
    """In place of the events of a reply of `codes`."""

    gpu: ModelGPU
    codes: int
    _said: int = 0
    _made: int = 0
    _packets: int = 0
    _pending: deque[tuple[Running, int]] = field(default_factory=deque)
    _ready: deque[ReplyEvent] = field(default_factory=deque)
    _is_over: bool = False

    def __post_init__(self) -> None:
        self.held = self.gpu.pages.open(0)

    @property
    def may_go_on(self) -> bool:
        """Whether a row follows the next one, as far as one can know."""
        return self._said + 1 < self.codes

    def next_event(self) -> Task[ReplyEvent | None]:
        """The next audio; ReplyDone at last, and then None."""
        while not self._ready:
            if self._said < self.codes:
                if self._said:
                    yield from _forward(ModelWork(self.gpu, "step", reply=self))
                else:
                    yield from _forward(ModelWork(self.gpu, "prefill", 8))
                self.gpu.wait(_RESUME_MS * _MS)
                self._said += 1
                yield from self._speak()
            elif self._pending:
                yield ModelWork(self.gpu, "arrival", waits_for=self._pending[0][0])
            elif self._is_over:
                return None
            else:
                self._is_over = True
                codes = tuple(range(self.codes))
                self._ready.append(ReplyDone(1, Modality.SPEECH, "stop", "", codes, 0))
            self._take()
        return self._ready.popleft()

    def _speak(self) -> Task[None]:
        while self._made < self._said:
            packet = _PACKETS[min(self._packets, len(_PACKETS) - 1)]
            if self._said < min(self._made + packet + _LOOK_AHEAD, self.codes):
                return
            count = min(packet, self.codes - self._made)
            packet = min(size for size in _PACKETS if size >= count)
            pages = -(-(self._made + packet) // _PAGE_CODES)
            yield ModelWork(self.gpu, "flow", packet, reply=self, pages=pages)
            if self._made + count == self.codes:
                self.gpu.pages.close(self.held)
            running = yield ModelWork(self.gpu, "vocoder")
            self._pending.append((running, count))
            self._made, self._packets = self._made + count, self._packets + 1
            if self._packets == 1:  # a reply waits for its first audio
                yield ModelWork(self.gpu, "arrival", waits_for=running)

    def _take(self) -> None:
        while self._pending and self._pending[0][0].is_done:
            _, count = self._pending.popleft()
            pcm = np.zeros(round(count * _CODE_S * _OUTPUT_RATE), np.float32)
            self._ready.append(ReplyAudio(1, pcm, _OUTPUT_RATE, 0))


class ModelEngine:
    """In place of an Engine, as far as simulated users need it."""

    gains_from_batches = True
    machine = "model"
    input_sample_rate, output_sample_rate = _RATE, _OUTPUT_RATE
    stages = types.SimpleNamespace(samples_per_code=round(_CODE_S * _OUTPUT_RATE), max_codes=1_000)
    bundle = types.SimpleNamespace(lm=types.SimpleNamespace(sampling_speech=SamplingParams()))

    def __init__(self, gpu: ModelGPU) -> None:
        self._gpu = gpu

    def new_conversation(self) -> Any:
        """A conversation without a history."""
        return types.SimpleNamespace(seed=0)

    def end_conversation(self, conversation: Any) -> None:
        """Nothing is held."""

    def open_turn(self, conversation: Any, turn_id: int) -> Task[ModelTurn]:
        """A turn, after its first rows."""
        yield from _forward(ModelWork(self._gpu, "prefill", 12))
        return ModelTurn(self._gpu)


def _sleeping_on(gpu: ModelGPU) -> AbstractContextManager[object]:
    """The scheduler sleeps in the time of the model."""
    passing = types.SimpleNamespace(sleep=lambda duration_s: gpu.wait(duration_s * 1e9))
    return mock.patch.object(scheduler, "time", passing)


def hold(
    users: int, seconds: float, seed: int = 0, *, looks_ahead: bool = True
) -> simultaneous.SimultaneousRun:
    """Conversations of `users` on the model; with `looks_ahead`, decode steps are overlapped."""
    gpu = ModelGPU(looks_ahead=looks_ahead)
    clock: Clock = gpu  # type: ignore[assignment]  # it has the methods of one
    recording = np.zeros(_RATE * 11, np.float32)
    with (
        _sleeping_on(gpu),
        mock.patch.object(simultaneous, "_compare") as compare,
    ):
        compare.return_value = (0, 0)
        engine: Any = ModelEngine(gpu)
        return simultaneous.hold_conversations(engine, recording, users, seconds, clock, seed=seed)


@dataclass
class Burst:
    """Replies that begin at once. Times in s; `moves` counts flow pages that were copied to the host."""

    seconds: float
    first: list[float]
    gaps: list[float]
    moves: int


def burst(replies: int, codes: int, flow_pages: int = FLOW_PAGES) -> Burst:
    """Replies of `codes` that begin at once, heard by clients that play at once."""
    gpu = ModelGPU(flow_pages=flow_pages)
    until_ns, first, gaps = [0] * replies, [0.0] * replies, list[float]()

    def hear(place: int) -> Task[None]:
        reply = ModelReply(gpu, codes)
        while (event := (yield from reply.next_event())) is not None:
            if isinstance(event, ReplyAudio):
                now_ns = gpu.now_ns()
                if not first[place]:
                    first[place] = now_ns / 1e9
                elif now_ns > until_ns[place]:
                    gaps.append((now_ns - until_ns[place]) / 1e9)
                length_ns = len(event.pcm) * 1_000_000_000 // event.sample_rate
                until_ns[place] = max(until_ns[place], now_ns) + length_ns

    with _sleeping_on(gpu):
        running = scheduler.Scheduler(clock_ns=gpu.now_ns)
        for place in range(replies):
            running.start(hear(place), lambda place=place: until_ns[place])  # type: ignore[misc]
        while not running.is_idle:
            running.run_once()
    return Burst(gpu.now_ns() / 1e9, first, gaps, gpu.moves)


_BURST_COLUMNS = {
    "replies": "that begin at once",
    "seconds": "until all are made",
    "first_s": "first audio of the first one",
    "last_s": "first audio of the last one",
    "gaps": "how often a client had played everything made so far",
    "gap_ms": "the longest",
    "moves": "pages of the flow moved to or from host memory",
}


def main() -> int:
    """Hold them and report a row for each number of users."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("users", type=lambda text: [int(number) for number in text.split(",")])
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--no-look-ahead", action="store_true", help="launch no decode step ahead")
    parser.add_argument("--burst", type=int, metavar="CODES", help="replies of so many codes at once")
    parser.add_argument("--flow-pages", type=int, default=FLOW_PAGES, help="with --burst: of five codes")
    arguments = parse(parser)
    with tool_report("scheduler_model", arguments) as report:
        if arguments.burst:
            rows = [_burst_row(replies, arguments) for replies in arguments.users]
            report.add(Section("replies that begin at once", _BURST_COLUMNS, rows))
            return 0
        looks_ahead = not arguments.no_look_ahead
        runs = [hold(users, arguments.seconds, looks_ahead=looks_ahead) for users in arguments.users]
        report.add(Section("users of the model", simultaneous.COLUMNS, [run.row() for run in runs]))
    return 0


def _burst_row(replies: int, arguments: argparse.Namespace) -> dict[str, Cell]:
    found = burst(replies, arguments.burst, arguments.flow_pages)
    return {
        "replies": replies,
        "seconds": found.seconds,
        "first_s": min(found.first),
        "last_s": max(found.first),
        "gaps": len(found.gaps),
        "gap_ms": 1000 * max(found.gaps, default=0.0),
        "moves": found.moves,
    }


if __name__ == "__main__":
    sys.exit(main())
