"""Tasks and their work: alone, within a context, and what becomes of errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from engine_runtime.work import Outcome, Result, SingleWork, Task, run_alone, within


def single(function: Callable[[], Result]) -> SingleWork[Result]:
    return SingleWork("step", function)


def added(numbers: list[int]) -> Task[int]:
    total = 0
    for number in numbers:
        total += yield single(partial(int, number))
    return total


def recovering() -> Task[str]:
    try:
        yield single(lambda: 1 // 0)
    except ZeroDivisionError as error:
        text = f"caught {error}"
        return (yield single(lambda: text))
    return "no error"


def test_a_task_gets_the_results_of_its_works() -> None:
    assert run_alone(added([1, 2, 3])) == 6
    assert run_alone(added([])) == 0


def test_an_error_of_a_work_is_raised_in_the_task() -> None:
    assert run_alone(recovering()).startswith("caught")

    def failing() -> Task[None]:
        yield single(lambda: 1 // 0)

    with pytest.raises(ZeroDivisionError):
        run_alone(failing())


def test_the_context_surrounds_the_code_of_the_task_and_not_its_work() -> None:
    inside: list[str] = []
    seen: list[tuple[str, bool]] = []

    @contextmanager
    def context() -> Iterator[None]:
        inside.append("entered")
        try:
            yield
        finally:
            inside.pop()

    def task() -> Task[None]:
        seen.append(("code", bool(inside)))
        yield single(lambda: seen.append(("work", bool(inside))))
        seen.append(("code", bool(inside)))
        yield single(lambda: 1 // 0)

    with pytest.raises(ZeroDivisionError):
        run_alone(within(context, task()))
    assert seen == [("code", True), ("work", False), ("code", True)]
    assert not inside
    assert run_alone(within(context, recovering())).startswith("caught")


def test_an_abandoned_task_is_closed_with_what_it_contains() -> None:
    closed: list[str] = []

    @contextmanager
    def context() -> Iterator[None]:
        yield

    def task() -> Task[None]:
        try:
            yield single(lambda: None)
        finally:
            closed.append("inner")

    outer = within(context, task())
    assert Outcome().resume(outer).stage == "step"
    outer.close()
    assert closed == ["inner"]
