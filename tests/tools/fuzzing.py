"""Fuzz tests: many cases of bad input from a strategy, each processed by a target in a subprocess.

A case passes if it ends within its limits in a MossVoiceError, or in a result that passes its check. The
cases are the same in every run; HYPOTHESIS_PROFILE=thorough makes many more of them.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tools.fuzz_worker import Limits, Outcome, Worker

T = TypeVar("T")

CASES = {"default": 1_000, "thorough": 20_000}
"""All targets together, by the profile of Hypothesis."""
SHARES = {"wav": 0.25, "manifest": 0.25, "safetensors": 0.15, "tokenizer": 0.1, "settings": 0.15, "cli": 0.1}
GROWTH = 48 << 20
"""Bytes that a process may have more after all cases of a target than after the first fifth of them."""
LONGEST_MESSAGE = 3_000

_worker = Worker()


def count(target: str) -> int:
    """Cases of a target in this run."""
    return round(CASES[os.environ.get("HYPOTHESIS_PROFILE", "default")] * SHARES[target])


def fuzz(
    name: str,
    target: str,
    cases: st.SearchStrategy[T],
    judge: Callable[[T, Outcome], None],
    *,
    limits: Limits | None = None,
    worker: Worker | None = None,
    number: int | None = None,
    growth: int | None = GROWTH,
) -> None:
    """Run the share of `name` through `target`; AssertionError with the smallest case that fails.

    A tuple is spread over the arguments of the target. `judge` looks at cases that returned or were refused,
    and fails where it should have been otherwise. `growth` None is for what runs once in a process.
    """
    worker = worker or _worker
    number = number or count(name)
    first = worker.cases + number // 5
    resident: list[int] = []

    @settings(
        max_examples=number,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(cases)
    def check(case: T) -> None:
        arguments = case if isinstance(case, tuple) else (case,)
        outcome = worker.run(target, *arguments, limits=limits)
        assert outcome.kind in ("returned", "refused"), f"{outcome.kind}: {outcome.detail}"
        assert len(outcome.detail) <= LONGEST_MESSAGE, f"a message of {len(outcome.detail)} characters"
        judge(case, outcome)
        if worker.cases == first:
            resident.append(worker.resident())

    check()
    grown = worker.resident() - resident[0]
    assert growth is None or grown < growth, f"{grown >> 20} MB more after {worker.cases - first} cases"


def mutated_bytes(content: bytes, most: int = 4) -> st.SearchStrategy[bytes]:
    """The content with a few places changed, removed, repeated or filled, or cut off."""

    @st.composite
    def mutate(draw: st.DrawFn) -> bytes:
        changed = bytearray(content)
        for _ in range(draw(st.integers(0, most))):
            place = draw(st.integers(0, max(len(changed) - 1, 0)))
            length = draw(st.sampled_from((1, 1, 2, 4, 8, 64)))
            kind = draw(st.sampled_from(("set", "extreme", "insert", "remove", "repeat", "cut")))
            if kind == "set":
                changed[place : place + 1] = draw(st.binary(min_size=1, max_size=1))
            elif kind == "extreme":
                changed[place : place + length] = (
                    bytes([draw(st.sampled_from((0, 0x7F, 0x80, 0xFF)))]) * length
                )
            elif kind == "insert":
                changed[place:place] = draw(st.binary(max_size=8))
            elif kind == "remove":
                del changed[place : place + length]
            elif kind == "repeat":
                changed[place:place] = changed[place : place + length] * draw(st.sampled_from((1, 3, 50)))
            else:
                del changed[place:]
        return bytes(changed)

    return mutate()


def mutated_tree(
    tree: Any, values: st.SearchStrategy[Any], most: int = 3, root: bool = False
) -> st.SearchStrategy[Any]:
    """Nested dicts and lists with a few values replaced, keys removed, renamed or added."""

    @st.composite
    def mutate(draw: st.DrawFn) -> Any:
        changed = copy.deepcopy(tree)
        for _ in range(draw(st.integers(1, most))):
            changed = _changed(draw, changed, values)
        return changed

    return st.one_of(mutate(), values) if root else mutate()


def _nudged(draw: st.DrawFn, value: Any) -> Any:
    """Another value of the same kind, which gets further than any value would."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return draw(st.sampled_from((value + 1, value - 1, value * 2, value // 2, value * 1_000, -value)))
    if isinstance(value, float):
        return draw(st.sampled_from((value + 1.0, value / 2, value * 1_000, -value)))
    if isinstance(value, str):
        return draw(st.sampled_from((value + "x", value[1:], value.upper(), value * 2)))
    if isinstance(value, list):
        return draw(st.sampled_from((value[1:], value * 2, value[::-1], [*value, value])))
    return value


def _changed(draw: st.DrawFn, tree: Any, values: st.SearchStrategy[Any]) -> Any:
    """NOTE: a value is copied, since it may be changed in its turn and is drawn again for another case."""
    keys: list[Any] = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
    if not keys:
        return copy.deepcopy(draw(values))
    key = draw(st.sampled_from(keys))
    if isinstance(tree[key], (dict, list)) and tree[key] and draw(st.integers(0, 5)):
        tree[key] = _changed(draw, tree[key], values)
        return tree
    kind = draw(st.sampled_from(("nudge", "nudge", "nudge", "replace", "replace", "remove", "rename", "add")))
    if kind == "nudge":
        tree[key] = _nudged(draw, tree[key])
    elif kind == "remove":
        del tree[key]
    elif kind == "rename" and isinstance(tree, dict):
        tree[draw(st.text(max_size=8))] = tree.pop(key)
    elif kind == "add" and isinstance(tree, dict):
        tree[draw(st.text(max_size=8))] = copy.deepcopy(draw(values))
    else:
        tree[key] = copy.deepcopy(draw(values))
    return tree
