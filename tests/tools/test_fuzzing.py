"""The fuzz tests detect each kind of misbehaviour."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import strategies as st

from tests.tools.fuzz_worker import Limits, Outcome, Worker
from tests.tools.fuzzing import CASES, SHARES, fuzz, mutated_bytes, mutated_tree

CONTROLS = "tests.tools.fuzz_controls"
SMALL = Limits(cpu_s=0.5, clock_s=60.0, memory=64 << 20)


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    worker = Worker()
    yield worker
    worker.close()


def test_the_cases_are_shared_out() -> None:
    assert sum(SHARES.values()) == pytest.approx(1.0)
    assert CASES == {"default": 1_000, "thorough": 20_000}


@pytest.mark.slow
def test_a_result_and_a_refusal(worker: Worker) -> None:
    outcome = worker.run(f"{CONTROLS}:behave", {"a": b"1"})
    assert (outcome.kind, outcome.value) == ("returned", {"a": b"1"})
    outcome = worker.run(f"{CONTROLS}:refuse")
    assert (outcome.kind, outcome.detail) == ("refused", "It is bad. Use another one.")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("control", "kind", "words"),
    [
        ("fail", "raised", "KeyError: 'x'"),
        ("fail_beyond_exception", "raised", "BaseException: panic"),
        ("work_without_end", "hung", "ended with status -27"),
        ("work_long", "hung", "took 0.6 s of processor time"),
        ("wait_without_end", "hung", "no answer after 1 s"),
        ("allocate", "raised", "MemoryError"),
        ("abort", "died", "ended with status -6"),
    ],
)
def test_misbehaviour_is_noticed(worker: Worker, control: str, kind: str, words: str) -> None:
    limits = Limits(SMALL.cpu_s, 1.0, SMALL.memory) if control == "wait_without_end" else SMALL
    worker.run(f"{CONTROLS}:behave", 0)  # so that the clock does not count the start
    outcome = worker.run(f"{CONTROLS}:{control}", limits=limits)
    assert (outcome.kind, words in outcome.detail) == (kind, True), outcome
    assert worker.run(f"{CONTROLS}:behave", 3).value == 3


def test_what_fails_before_a_case_is_noticed(worker: Worker) -> None:
    outcome = worker.run(f"{CONTROLS}:no_such_target")
    assert outcome.kind == "raised"
    assert "before the case" in outcome.detail


def _accept(case: object, outcome: Outcome) -> None:
    assert outcome.value == case


def _deny(case: object, outcome: Outcome) -> None:
    assert case != 0


def _run(worker: Worker, control: str, cases: st.SearchStrategy[object]) -> None:
    fuzz("", f"{CONTROLS}:{control}", cases, _accept, worker=worker, limits=SMALL, number=60)


@pytest.mark.slow
def test_a_campaign_ends_well_or_with_its_smallest_case(worker: Worker) -> None:
    before = worker.cases
    _run(worker, "behave", st.integers())
    assert worker.cases - before == 60
    with pytest.raises(AssertionError):
        fuzz("", f"{CONTROLS}:behave", st.integers(), _deny, worker=worker, number=60)


@pytest.mark.slow
def test_a_campaign_notices_memory_that_is_kept(worker: Worker) -> None:
    with pytest.raises(AssertionError, match="MB more after 64 cases"):
        fuzz(
            "",
            f"{CONTROLS}:keep",
            st.integers(),
            _ignore,
            worker=worker,
            number=80,
        )
    worker.close()


def _ignore(case: object, outcome: Outcome) -> None:
    """Does nothing."""


@pytest.mark.slow
def test_mutations_change_what_they_are_given() -> None:
    tree = {"a": {"b": [1, 2], "c": 3}, "d": 4}
    content = bytes(range(100))
    trees, contents = [], []
    cases = st.tuples(mutated_tree(tree, st.none()), mutated_bytes(content)).map(list)

    def keep(case: list[object], outcome: Outcome) -> None:
        trees.append(case[0])
        contents.append(case[1])

    worker = Worker()
    fuzz("", f"{CONTROLS}:behave", cases, keep, worker=worker, number=200)
    worker.close()
    assert tree == {"a": {"b": [1, 2], "c": 3}, "d": 4}
    assert len({repr(item) for item in trees}) > 30
    assert len(set(contents)) > 60
    assert sum(item == tree for item in trees) < 20
