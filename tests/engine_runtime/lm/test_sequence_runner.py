"""Steps of several sequences as work: what is in flight runs apart, and looks ahead only if nobody waits."""

from __future__ import annotations

from typing import cast

from engine_runtime.bundle.bundle import SpecialIds
from engine_runtime.lm.block_manager import Sequence
from engine_runtime.lm.generation import Token
from engine_runtime.lm.paged_lm import PagedLM, StepRequest
from engine_runtime.lm.sequence_runner import SequenceRunner, StepWork
from engine_runtime.lm.step import BOTH_TAILS, SamplingMetadata, StepOutput
from engine_runtime.work import Task
from tests.factories.tiny_lm import load_special_ids

AHEAD = cast(SamplingMetadata, object())


class NotingLM:
    """In place of a PagedLM: notes which requests wish to look ahead, and calls those of `busy` in flight."""

    def __init__(self) -> None:
        self.wishes: list[list[bool]] = []
        self.busy: list[Sequence] = []

    def step(self, requests: list[StepRequest], *, exclusive_gpu: bool) -> list[StepOutput]:
        self.wishes.append([request.ahead is not None for request in requests])
        return [StepOutput(None, None) for _ in requests]

    def is_in_flight(self, request: StepRequest) -> bool:
        return request.sequence in self.busy


def make() -> tuple[SequenceRunner, NotingLM]:
    lm, special = NotingLM(), load_special_ids()
    assert isinstance(special, SpecialIds)
    return SequenceRunner(cast(PagedLM, lm), special, 512), lm


def decode(runner: SequenceRunner, sequence: Sequence) -> tuple[Task[StepOutput], StepWork]:
    task = runner.decode(sequence, Token(503, 3), BOTH_TAILS, None, AHEAD)
    work = next(task)
    assert isinstance(work, StepWork)
    return task, work


def test_a_step_looks_ahead_only_if_all_that_waits_takes_part() -> None:
    runner, lm = make()
    (first, one), (second, other) = decode(runner, Sequence()), decode(runner, Sequence())
    runner.step([one])
    assert one.request.ahead is None
    runner.step([other, one])
    assert lm.wishes == [[False], [True, False]]
    first.close()
    runner.step([other])
    assert lm.wishes[-1] == [True]
    second.close()
    third, last = decode(runner, Sequence())
    runner.step([last])
    assert lm.wishes[-1] == [True], "what was closed waits no more"
    third.close()


def test_a_step_does_not_look_ahead_while_another_of_three_waits() -> None:
    runner, lm = make()
    (gone, _), (first, one), (second, _) = (decode(runner, Sequence()) for _ in range(3))
    gone.close()
    runner.step([one])
    assert lm.wishes == [[False]]
    for task in (first, second):
        task.close()


def test_steps_in_flight_run_apart_from_the_others() -> None:
    runner, lm = make()
    busy = Sequence()
    (first, one), (second, other) = decode(runner, busy), decode(runner, Sequence([1]))
    assert one.batch_key == other.batch_key
    lm.busy.append(busy)
    assert (one.is_in_flight, other.is_in_flight) == (True, False)
    assert one.batch_key != other.batch_key
    for task in (first, second):
        task.close()
