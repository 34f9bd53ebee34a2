"""The scheduler: who goes first, who joins, what fails, and real conversations at the same time."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine_runtime.bundle.bundle import Bundle
from engine_runtime.conversation.reply_events import ReplyEvents
from engine_runtime.engine import Engine
from engine_runtime.errors import ExecutorError
from engine_runtime.scheduler import Scheduler
from engine_runtime.types import Modality, ReplyAudio, ReplyEvent
from engine_runtime.work import Stage, Task, Work, run_alone
from tests.tools.turns import LONG, ask, check, done, exchange, sound, speech


@dataclass
class Device:
    """Notes its calls; its clock shows the time that they took."""

    calls: list[list[str]] = field(default_factory=list)
    cost_ns: dict[int, int] = field(default_factory=dict)
    """By batch size; 100 where it is not set."""
    now_ns: int = 0
    broken: str = ""

    def call(self, names: list[str]) -> list[str]:
        if self.broken in names:
            raise ExecutorError("{broken} is broken", broken=self.broken)
        self.calls.append(names)
        self.now_ns += self.cost_ns.get(len(names), 100)
        return [name.upper() for name in names]


@dataclass(frozen=True, eq=False)
class DeviceWork(Work[str]):
    device: Device
    name: str
    stage: Stage = "step"
    is_ready: bool = True
    most: int = 3
    is_in_flight: bool = False
    is_short: bool = False

    @property
    def batch_key(self) -> Hashable:
        return self.stage

    def waits_for_memory(self, beside: Sequence[DeviceWork] = ()) -> bool:
        return self.is_short

    def fits(self, batch: Sequence[DeviceWork]) -> bool:
        return len(batch) < self.most

    def run(self) -> str:
        return self.device.call([self.name])[0]

    def run_together(self, batch: Sequence[DeviceWork]) -> list[str]:
        return self.device.call([work.name for work in batch])


def steps(device: Device, name: str, given: list[str], count: int = 1, **options: Any) -> Task[None]:
    for _ in range(count):
        given.append((yield DeviceWork(device, name, **options)))


def due_at(ns: int) -> Callable[[], int]:
    return lambda: ns


def finish(scheduler: Scheduler) -> None:
    while not scheduler.is_idle:
        scheduler.run_once()


def test_the_most_urgent_goes_first_and_equal_work_joins_up_to_the_limit() -> None:
    device, given = Device(), list[str]()
    scheduler = Scheduler(clock_ns=lambda: device.now_ns)
    dues = {"d": 4, "b": 2, "c": 3, "a": 1}
    for place, name in enumerate(dues):
        scheduler.start(steps(device, name, given), due_at(dues[name]))
        if place == 1:
            scheduler.start(steps(device, "flow", given, stage="flow"), lambda: 0)
    finish(scheduler)
    assert device.calls == [["flow"], ["a", "b", "c"], ["d"]]
    assert given == ["FLOW", "A", "B", "C", "D"]
    sizes = {key: known.calls for key, known in scheduler.times.summary().items()}
    assert sizes == {("flow", 1): 1, ("step", 1): 1, ("step", 3): 1}


def test_without_batching_each_work_runs_alone() -> None:
    device, given = Device(), list[str]()
    scheduler = Scheduler(is_batching=False)
    for name in "ab":
        scheduler.start(steps(device, name, given), lambda: 0)
    finish(scheduler)
    assert device.calls == [["a"], ["b"]]


def test_a_task_with_time_left_joins_only_where_that_is_cheap() -> None:
    device, given = Device(cost_ns={1: 100, 2: 200}), list[str]()
    scheduler = Scheduler(clock_ns=lambda: device.now_ns)
    scheduler.start(steps(device, "urgent", given, 4, stage="flow"), lambda: 0)
    scheduler.start(steps(device, "later", given, 4, stage="flow"), lambda: 10_000_000_000)
    finish(scheduler)
    assert device.calls[0] == ["urgent", "later"], "nothing is known of two at once"
    assert device.calls[1:4] == [["urgent"]] * 3, "twice the time for two is no gain"
    cheap = Device(cost_ns={1: 100, 2: 110})
    scheduler = Scheduler(clock_ns=lambda: cheap.now_ns)
    scheduler.start(steps(cheap, "urgent", given, 4, stage="flow"), lambda: 0)
    scheduler.start(steps(cheap, "later", given, 4, stage="flow"), lambda: 10_000_000_000)
    finish(scheduler)
    assert cheap.calls == [["urgent", "later"], ["urgent"], *[["urgent", "later"]] * 2, ["later"]]


@dataclass
class ForwardDevice(Device):
    """Launches the next step of a batch ahead, as executors/cuda does, if nobody else waits."""

    in_flight: set[str] = field(default_factory=set)
    waiting: int = 0

    def forward(self, works: Sequence[ForwardWork]) -> list[str]:
        names = [work.name for work in works]
        is_taken, self.in_flight = self.in_flight.issuperset(names), set()
        looks_ahead = self.waiting == len(works) > 1 and all(work.stage == "step" for work in works)
        self.in_flight = set(names) if looks_ahead else set()
        return self.call([f"{name}+" if is_taken else name for name in names])


@dataclass(frozen=True, eq=False)
class ForwardWork(Work[str]):
    device: ForwardDevice
    name: str
    stage: Stage = "step"
    is_ready: bool = True

    @property
    def is_in_flight(self) -> bool:
        return self.name in self.device.in_flight

    @property
    def batch_key(self) -> Hashable:
        return "forward", self.is_in_flight

    def fits(self, batch: Sequence[ForwardWork]) -> bool:
        return True

    def run(self) -> str:
        return self.device.forward([self])[0]

    def run_together(self, batch: Sequence[ForwardWork]) -> list[str]:
        return self.device.forward(batch)


def forwards(device: ForwardDevice, name: str, count: int = 1, stage: Stage = "step") -> Task[None]:
    for _ in range(count):
        device.waiting += 1
        yield ForwardWork(device, name, stage)
        device.waiting -= 1


@pytest.mark.parametrize("due_ns", [0, 100_000_000_000])
def test_a_listener_waits_once_for_a_step_in_flight_and_joins_the_next(due_ns: int) -> None:
    """Also if the speakers are far ahead, so that no step is called for their own sake."""
    device = ForwardDevice()
    scheduler = Scheduler(clock_ns=lambda: device.now_ns)
    for name in "ab":
        scheduler.start(forwards(device, name, 5), lambda: due_ns)
    scheduler.run_once()
    scheduler.run_once()
    for name in "cd":
        scheduler.start(forwards(device, name, stage="prefill"), lambda: 50)
    for _ in range(4):
        scheduler.run_once()
    joined = device.calls[3]
    assert device.calls[:3] == [["a", "b"], ["a+", "b+"], ["a+", "b+"]]
    assert sorted(joined) == ["a", "b", "c", "d"]
    assert device.calls[4:] == [["a", "b"]]
    finish(scheduler)


def test_other_work_is_called_while_a_step_is_in_flight() -> None:
    """So that a packet is computed beside the step, and who waits for it is back when the step has ended."""
    device, given = ForwardDevice(), list[str]()
    scheduler = Scheduler(clock_ns=lambda: device.now_ns)
    for name in "ab":
        scheduler.start(forwards(device, name, 3), lambda: 0)
    scheduler.run_once()
    scheduler.start(steps(device, "packet", given, stage="flow"), lambda: 10)
    scheduler.start(steps(device, "busy", given, stage="flow", is_ready=False), lambda: 10)
    for _ in range(2):
        scheduler.run_once()
    assert device.calls == [["a", "b"], ["packet"], ["a+", "b+"]]


def test_work_that_is_due_much_later_comes_after_the_step_in_flight() -> None:
    device, given = ForwardDevice(), list[str]()
    scheduler = Scheduler(clock_ns=lambda: device.now_ns)
    for name in "ab":
        scheduler.start(forwards(device, name, 2), lambda: 1_000_000_000)
    scheduler.run_once()
    scheduler.start(steps(device, "packet", given, stage="flow"), lambda: 1_400_000_000)
    finish(scheduler)
    assert device.calls == [["a", "b"], ["a+", "b+"], ["packet"]]


def test_nothing_starves() -> None:
    """Deadlines are fixed: the work of a task with time left is due at last, whoever comes after it."""
    device, given = Device(), list[str]()
    scheduler = Scheduler(is_batching=False, clock_ns=lambda: device.now_ns)
    scheduler.start(steps(device, "patient", given), lambda: 1_000)
    for _ in range(20):
        scheduler.start(steps(device, "new", given), due_at(device.now_ns))
        scheduler.run_once()
    assert given.count("PATIENT") == 1


def test_a_failed_sequence_fails_alone() -> None:
    device, given = Device(broken="b"), list[str]()
    errors: list[str] = []

    def careful(name: str) -> Task[None]:
        try:
            yield from steps(device, name, given)
        except ExecutorError as error:
            errors.append(f"{name}: {error}")

    scheduler = Scheduler()
    for name in "abc":
        scheduler.start(careful(name), lambda: 0)
    finish(scheduler)
    assert errors == ["b: b is broken"]
    assert given == ["A", "C"]


def test_what_is_in_flight_is_waited_for_only_if_there_is_nothing_else() -> None:
    device, given = Device(), list[str]()
    scheduler = Scheduler()
    scheduler.start(steps(device, "late", given, is_ready=False, stage="arrival"), lambda: 0)
    scheduler.start(steps(device, "now", given), lambda: 5)
    finish(scheduler)
    assert given == ["NOW", "LATE"]


def test_an_abandoned_task_does_no_more_work() -> None:
    device, given = Device(), list[str]()
    scheduler = Scheduler()
    dropped = scheduler.start(steps(device, "a", given, 3), lambda: 0)
    scheduler.start(steps(device, "b", given), lambda: 0)
    scheduler.run_once()
    scheduler.close(dropped)
    assert dropped.is_over
    finish(scheduler)
    assert given == ["A", "B"]


def test_a_task_that_fails_with_a_result_takes_nothing_from_the_others() -> None:
    device, given = Device(), list[str]()

    def fails() -> Task[None]:
        yield DeviceWork(device, "a")
        raise RuntimeError("no use for it")

    scheduler = Scheduler()
    scheduler.start(fails(), lambda: 0)
    scheduler.start(steps(device, "b", given), lambda: 1)
    with pytest.raises(RuntimeError, match="no use"):
        scheduler.run_once()
    assert given == ["B"]
    assert scheduler.is_idle


@pytest.fixture(scope="module")
def engine(random_bundle: Path) -> Engine:
    return Engine.load(Bundle.open(random_bundle))


def talk(engine: Engine, number: int, found: list[ReplyEvent]) -> Task[None]:
    """A conversation of its own: one question and its reply."""
    conversation = engine.new_conversation()
    turn = yield from engine.open_turn(conversation, 1)
    question = speech(1.0 + 0.1 * number, number)
    for start in range(0, len(question), 1280):
        yield from turn.push(question[start : start + 1280])
    events = yield from turn.commit(Modality.SPEECH, LONG)
    while (event := (yield from events.next_event())) is not None:
        found.append(event)
    engine.end_conversation(conversation)


@pytest.mark.slow
def test_conversations_at_once_say_what_each_says_alone(engine: Engine) -> None:
    alone = [
        exchange(engine, engine.new_conversation(), speech(1.0 + 0.1 * n, n), params=LONG) for n in range(3)
    ]
    found: list[list[ReplyEvent]] = [[] for _ in alone]
    scheduler = Scheduler()
    for number, events in enumerate(found):
        scheduler.start(talk(engine, number, events), events.__len__)
    finish(scheduler)
    for events, expected in zip(found, alone, strict=True):
        assert done(events).codes == done(expected).codes
        np.testing.assert_allclose(sound(events), sound(expected), atol=1e-4)
        assert [type(event) for event in events] == [type(event) for event in expected]
    sizes = {size for stage, size in scheduler.times.summary() if stage == "step"}
    assert 3 in sizes, "the decode steps of all speakers are one step"
    check(engine)


def listen(events: ReplyEvents, heard: list[int]) -> Task[None]:
    while (event := (yield from events.next_event())) is not None:
        if isinstance(event, ReplyAudio):
            heard.append(event.pcm.size)


@pytest.mark.slow
def test_cancel_reopen_and_truncate_between_steps(engine: Engine) -> None:
    """While another conversation goes on, which says what it says alone."""
    expected = exchange(engine, engine.new_conversation(), speech(1.1, 1), params=LONG)
    found: list[ReplyEvent] = []
    scheduler = Scheduler()
    scheduler.start(talk(engine, 1, found), lambda: 1)
    conversation = engine.new_conversation()
    for fate in ("cancel", "reopen", "truncate", "close"):
        turn = run_alone(engine.open_turn(conversation, 7))
        ask(turn, speech(0.7))
        events = run_alone(turn.commit(Modality.SPEECH, LONG))
        heard: list[int] = []
        task = scheduler.start(listen(events, heard), lambda: 0)
        for _ in range(25):
            scheduler.run_once()
        assert not task.is_over
        if fate == "close":
            scheduler.close(task)
        getattr(turn, fate if fate != "close" else "cancel")(*([sum(heard)] if fate == "truncate" else []))
        for _ in range(5):
            scheduler.run_once()
        assert task.is_over, "a reply ends within the step in progress"
        check(engine)
        if fate == "reopen":
            assert run_alone(turn.push(speech(0.3))) > 0
    engine.end_conversation(conversation)
    finish(scheduler)
    assert done(found).codes == done(expected).codes
    check(engine)


@pytest.mark.slow
def test_three_conversations_of_nano_at_once_have_the_ids_of_each_alone(nano_bundle: Path) -> None:
    nano = Engine.load(Bundle.open(nano_bundle))
    questions = ["what is three plus four?", "hello", "what day comes after monday?"]
    sampling = replace(nano.bundle.lm.sampling_speech, do_sample=True, top_k=20, seed=5, max_new=40)

    def answer(question: str, events: list[ReplyEvent]) -> Task[None]:
        conversation = nano.new_conversation()
        turn = yield from nano.open_turn(conversation, 1)
        yield from turn.push_text(question)
        reply = yield from turn.commit(Modality.SPEECH, sampling)
        while (event := (yield from reply.next_event())) is not None:
            events.append(event)
        nano.end_conversation(conversation)

    def answers(scheduler: Scheduler, wanted: list[str]) -> list[list[ReplyEvent]]:
        found: list[list[ReplyEvent]] = [[] for _ in wanted]
        for question, events in zip(wanted, found, strict=True):
            scheduler.start(answer(question, events), events.__len__)
        finish(scheduler)
        return found

    alone = [answers(Scheduler(), [question])[0] for question in questions]
    scheduler = Scheduler()
    together = answers(scheduler, questions)
    assert 3 in {size for stage, size in scheduler.times.summary() if stage == "step"}
    for mine, expected in zip(together, alone, strict=True):
        assert (done(mine).codes, done(mine).text) == (done(expected).codes, done(expected).text)
        np.testing.assert_allclose(sound(mine), sound(expected), atol=1e-4)


def test_a_forward_of_the_language_model_takes_whoever_waits_for_one() -> None:
    device, given = Device(cost_ns={1: 100, 2: 200}), list[str]()
    scheduler = Scheduler(clock_ns=lambda: device.now_ns)
    scheduler.start(steps(device, "urgent", given, 2), lambda: 0)
    scheduler.start(steps(device, "later", given, 2), lambda: 10_000_000_000)
    finish(scheduler)
    assert device.calls == [["urgent", "later"]] * 2


def test_a_reply_that_is_far_ahead_leaves_the_device_to_urgent_work() -> None:
    """It steps if the urgent task steps or nothing is urgent, and not while that task waits for a device."""
    device, given = Device(), list[str]()
    scheduler = Scheduler(clock_ns=lambda: device.now_ns)
    arrival = DeviceWork(device, "arrival", stage="arrival", is_ready=False, most=1)

    def urgent() -> Task[None]:
        yield from steps(device, "urgent", given)
        yield arrival

    task = scheduler.start(urgent(), lambda: 0)
    scheduler.start(steps(device, "ahead", given, 4), lambda: 2_000_000_000)
    for _ in range(5):
        scheduler.run_once()
    assert device.calls == [["urgent", "ahead"]]
    object.__setattr__(arrival, "is_ready", True)
    scheduler.run_once()
    assert task.is_over
    finish(scheduler)
    assert device.calls == [["urgent", "ahead"], ["arrival"], *[["ahead"]] * 3]


def test_a_reply_that_is_soon_played_does_not_wait() -> None:
    device, given = Device(), list[str]()
    scheduler = Scheduler(clock_ns=lambda: device.now_ns)
    scheduler.start(steps(device, "arrival", given, stage="arrival", is_ready=False), lambda: 0)
    scheduler.start(steps(device, "reply", given), lambda: 400_000_000)
    scheduler.run_once()
    assert device.calls == [["reply"]]


@pytest.mark.parametrize(
    ("due_ns", "calls"), [(10_000_000_000, [["old"], ["young"]]), (1, [["old", "young"]])]
)
def test_a_reply_waits_for_the_memory_of_older_ones_unless_it_is_due_soon(
    due_ns: int, calls: list[list[str]]
) -> None:
    device, given = Device(), list[str]()
    scheduler = Scheduler(clock_ns=lambda: device.now_ns)
    scheduler.start(steps(device, "young", given, stage="flow", is_short=True), lambda: due_ns)
    scheduler.start(steps(device, "old", given, stage="flow"), lambda: due_ns)
    finish(scheduler)
    assert [sorted(names) for names in device.calls] == calls


@pytest.mark.parametrize("is_batching", [True, False])
def test_speech_is_begun_at_ticks_where_calls_are_shared(is_batching: bool) -> None:
    device = Device()
    scheduler = Scheduler(is_batching=is_batching, clock_ns=lambda: device.now_ns)
    begins = [scheduler.speech_begins_ns(arrived * 1_000_000) for arrived in (1, 100, 240, 241)]
    expected = [240, 240, 240, 480] if is_batching else [1, 100, 240, 241]
    assert begins == [ms * 1_000_000 for ms in expected]


def test_what_has_arrived_goes_first_so_that_what_follows_it_runs_together() -> None:
    device, given = Device(), list[str]()
    scheduler = Scheduler(clock_ns=lambda: device.now_ns)

    def listener(name: str) -> Task[None]:
        yield from steps(device, name, given, stage="arrival")
        yield from steps(device, name, given, stage="prefill")

    for place, name in enumerate("abc"):
        scheduler.start(listener(name), due_at(place * 1_000_000_000))
    finish(scheduler)
    assert device.calls == [["a", "b", "c"]] * 2, "all of it in one pass, whatever is due"


def test_no_call_waits_for_one_device_while_another_may_be_ready_sooner() -> None:
    device, given = Device(), list[str]()
    scheduler = Scheduler(clock_ns=lambda: device.now_ns)
    for name in "ab":
        scheduler.start(steps(device, name, given, is_ready=False, stage="arrival", most=1), lambda: 0)
    scheduler.run_once()
    assert not given, "it returns, so that something else can begin"
    finish(scheduler)
    assert given == ["A", "B"], "in the end it waits"
