"""The table of decode steps of several sequences: what is measured, and what must hold before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from engine_runtime.bench import batched_decode
from engine_runtime.bench.batched_decode import COLUMNS, batch_bytes, measure_batched_decode
from engine_runtime.bench.ceilings import Ceilings
from engine_runtime.bench.language_model import LMBench
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.engine import Engine
from engine_runtime.lm.paged_lm import StepRequest
from engine_runtime.lm.step import StepOutput, Tails

CEILINGS = Ceilings(2e10, 1e11, 1, 1, "float32")
AUDIO = Tails(text=False, audio=True)


@pytest.fixture(scope="module")
def bench(random_bundle: Path) -> LMBench:
    return LMBench(Engine.load(Bundle.open(random_bundle)).stages, CEILINGS, repeats=2)


def test_a_row_for_each_batch_that_fits(bench: LMBench) -> None:
    before = bench.stages.lm.blocks.num_used
    section = measure_batched_decode(bench, ((1, 8), (3, 8), (2, 10**6)))
    assert [(row["sequences"], row["cached_tokens"], row["valid"]) for row in section.rows] == [
        (1, 8, "yes"),
        (3, 8, "yes"),
    ]
    assert all(set(row) == set(COLUMNS) for row in section.rows)
    assert "2 x 1000000" in section.note
    assert bench.stages.lm.blocks.num_used == before


@pytest.mark.parametrize(("cached_tokens", "average"), [(50, 50), (2, 6)])
def test_sequences_have_the_rows_of_the_floor_on_average(
    bench: LMBench, monkeypatch: pytest.MonkeyPatch, cached_tokens: int, average: float
) -> None:
    """A sequence begins with two rows at least."""
    step, found = bench.stages.lm.step, []

    def noted(requests: list[StepRequest], **options: bool) -> list[StepOutput]:
        found.append(requests[0].sequence.num_tokens)
        return step(requests, **options)

    monkeypatch.setattr(bench.stages.lm, "step", noted)
    measure_batched_decode(bench, ((1, cached_tokens),))
    timed = found[-bench.repeats :]
    assert abs(sum(timed) / len(timed) - average) <= 1


def test_keys_and_values_count_once_for_each_sequence(bench: LMBench) -> None:
    costs = bench.costs
    one = costs.step_bytes(100, AUDIO) - costs.step_bytes(0, AUDIO)
    assert batch_bytes(costs, 4, 100, AUDIO) == costs.step_bytes(0, AUDIO) + 4 * one


def _swapped(step: Callable[..., list[StepOutput]]) -> Callable[..., list[StepOutput]]:
    return lambda requests, **options: step(requests, **options)[::-1]


def _repeated(step: Callable[..., list[StepOutput]]) -> Callable[..., list[StepOutput]]:
    def run(requests: list[StepRequest], **options: bool) -> list[StepOutput]:
        return [step(requests, **options)[0]] * len(requests)

    return run


@pytest.mark.parametrize(
    ("wrong", "reason"), [(_swapped, "from those of single"), (_repeated, "the same logits")]
)
def test_no_time_of_a_step_with_other_logits(
    bench: LMBench,
    monkeypatch: pytest.MonkeyPatch,
    wrong: Callable[[Callable[..., list[StepOutput]]], Callable[..., list[StepOutput]]],
    reason: str,
) -> None:
    monkeypatch.setattr(bench.stages.lm, "step", wrong(bench.stages.lm.step))
    (row,) = measure_batched_decode(bench, ((2, 8),)).rows
    assert reason in str(row["valid"])
    assert "ms" not in row


def test_no_time_if_every_code_is_the_same(bench: LMBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batched_decode.Speaker, "codes", [7])
    (row,) = measure_batched_decode(bench, ((2, 8),)).rows
    assert "the same code" in str(row["valid"])
