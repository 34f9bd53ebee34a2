"""Selection of the captured step by the number of rows, and host values during capture."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine_runtime.errors import ExecutorError
from engine_runtime.tensorrt.llm.graphed_decode import ROWS_PER_GRAPH, GraphedDecode


class Calls:
    """Runs a function when its key is new, else only counts."""

    def __init__(self) -> None:
        self.runs: list[int] = []
        self.fails = False

    def run(self, key: int, function: Callable[[], None]) -> None:
        if self.fails:
            raise ExecutorError("the step did not start")
        if key not in self.runs:
            function()
        self.runs.append(key)


class Context:
    """Notes what the host said when it was bound."""

    def __init__(self, stated: list[int]) -> None:
        self.stated, self.past, self.enqueued = stated, -1, 0

    def set_inputs(self, inputs: list[int]) -> None:
        self.past = inputs[0]
        self.stated.append(inputs[0])

    def enqueue(self, stream: int) -> None:
        assert stream == 7
        self.enqueued += 1


class Inputs:
    """The one number that matters here."""

    def __init__(self) -> None:
        self.past = -1

    def set_past(self, rows: int) -> None:
        self.past = rows

    def bindings(self) -> list[int]:
        return [self.past]


class Outputs:
    def bindings(self, sequences: int) -> list[str]:
        return []


def made(most_past: int) -> tuple[GraphedDecode, Calls, list[int]]:
    calls, stated = Calls(), []
    graphed = GraphedDecode(
        calls,  # type: ignore[arg-type]
        lambda: Context(stated),  # type: ignore[arg-type, return-value]
        Inputs(),  # type: ignore[arg-type]
        Outputs(),  # type: ignore[arg-type]
        stream=7,
        most_past=most_past,
    )
    return graphed, calls, stated


def test_a_bucket_states_the_most_that_it_holds() -> None:
    graphed, calls, stated = made(most_past=599)
    for past in (0, 255, 256, 511, 512, 599, 3):
        graphed.run(past)
    assert calls.runs == [0, 0, 1, 1, 2, 2, 0]
    assert stated == [256, 512, 599]
    assert graphed.num_graphs == 3
    for bucket, most in enumerate(stated):
        last = min((bucket + 1) * ROWS_PER_GRAPH - 1, 599)
        assert last <= most, "the grid would be too small for the last row of the bucket"


def test_what_cannot_be_captured_is_not_kept() -> None:
    graphed, calls, stated = made(most_past=599)
    calls.fails = True
    with pytest.raises(ExecutorError, match="did not start"):
        graphed.run(3)
    assert graphed.num_graphs == 0
    calls.fails = False
    graphed.run(4)
    assert stated == [256, 256]
    assert graphed.num_graphs == 1
