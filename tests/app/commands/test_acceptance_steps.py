"""What is done, done again and left out, and what a step's figures make of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from app.commands.acceptance_steps import STATE, AcceptanceStep, Choice, Figure, Journal, StepOutcome, hold
from engine_runtime.errors import BundleError, MossVoiceError

PASSED = StepOutcome("passed", (Figure("speed", 2.5, "<= 3", True),))


class Steps:
    """Steps that note that they were done; `results` says how they end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.done: list[str] = []
        self.results: dict[str, StepOutcome | BaseException] = {}
        self.inputs: dict[str, Any] = {}
        self.reasons: dict[str, str] = {}

    def step(self, name: str, *needs: str) -> AcceptanceStep:
        def do(did: list[str]) -> StepOutcome:
            self.done.append(name)
            did.append(f"moss-voice {name}")
            result = self.results.get(name, PASSED)
            if isinstance(result, BaseException):
                raise result
            return result

        return AcceptanceStep(
            name, "what", do, needs, lambda: self.inputs.get(name), lambda: self.reasons.get(name, "")
        )

    def hold(
        self,
        choice: Choice | None = None,
        end: Callable[[AcceptanceStep, StepOutcome, bool], None] = lambda step, outcome, is_new: None,
        steps: Sequence[AcceptanceStep] | None = None,
    ) -> dict[str, StepOutcome]:
        self.done.clear()
        chosen = steps or (self.step("a"), self.step("b", "a"), self.step("c"))
        return hold(chosen, Journal(self.folder), choice or Choice(), begin=lambda step: None, end=end)


@pytest.fixture
def steps(tmp_path: Path) -> Steps:
    return Steps(tmp_path)


def test_finished_steps_are_not_repeated(steps: Steps) -> None:
    first = steps.hold()
    assert steps.done == ["a", "b", "c"]
    assert first["b"].did == ("moss-voice b",)
    assert steps.hold() == first
    assert steps.done == []


def test_only_what_was_not_finished_is_done_after_an_interruption(steps: Steps) -> None:
    steps.results["b"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        steps.hold()
    del steps.results["b"]
    outcomes = steps.hold()
    assert steps.done == ["b", "c"]
    assert {outcome.status for outcome in outcomes.values()} == {"passed"}


def test_a_step_with_other_inputs_and_those_that_need_it_are_done_again(steps: Steps) -> None:
    steps.hold()
    steps.inputs["a"] = "another model"
    steps.hold()
    assert steps.done == ["a", "b"]
    steps.inputs["b"] = "other recordings"
    steps.hold()
    assert steps.done == ["b"]


def test_again_repeats_a_step_and_those_that_need_it(steps: Steps) -> None:
    steps.hold()
    steps.hold(Choice(again=frozenset({"a"})))
    assert steps.done == ["a", "b"]


def test_a_failed_step_is_tried_again_and_its_dependants_wait(steps: Steps) -> None:
    steps.results["a"] = StepOutcome.judge([Figure("hashes", 1, "0", False)], "Download it again.")
    outcomes = steps.hold()
    assert steps.done == ["a", "c"]
    assert (outcomes["a"].status, outcomes["a"].reason) == ("failed", "limit not kept: hashes")
    assert (outcomes["b"].status, outcomes["b"].reason) == ("skipped", "a failed")
    del steps.results["a"]
    assert steps.hold()["b"].status == "passed"
    assert steps.done == ["a", "b"]


def test_an_error_fails_its_step_alone(steps: Steps) -> None:
    steps.results = {"a": BundleError("It is damaged.", "Copy it again."), "c": ZeroDivisionError("x")}
    outcomes = steps.hold()
    assert (outcomes["a"].reason, outcomes["a"].next_step) == ("It is damaged.", "Copy it again.")
    assert outcomes["a"].did == ("moss-voice a",)
    assert outcomes["c"].reason == "unexpected ZeroDivisionError: x"
    assert "defect of the program" in outcomes["c"].next_step


def test_a_step_that_cannot_be_done_here_is_skipped_with_its_reason_and_looked_at_again(steps: Steps) -> None:
    steps.reasons["a"] = "there is no library"
    outcomes = steps.hold()
    assert (outcomes["a"].status, outcomes["a"].reason) == ("skipped", "there is no library")
    assert outcomes["b"].status == "passed"
    steps.reasons.clear()
    steps.hold()
    assert steps.done == ["a", "b"]  # b needs what a does


def test_a_choice_of_steps_shows_earlier_results_only_while_they_hold(steps: Steps) -> None:
    steps.hold()
    only = Choice(only=frozenset({"c"}), again=frozenset({"c"}))
    outcomes = steps.hold(only)
    assert steps.done == ["c"]
    assert outcomes["a"].status == "passed"
    steps.inputs["a"] = "another model"
    outcomes = steps.hold(only)
    assert (outcomes["a"].status, outcomes["a"].reason) == ("skipped", "not wanted this time")
    assert steps.hold(Choice(without=frozenset({"a"})))["a"].status == "skipped"


def test_inputs_that_a_step_brings_along_count_as_they_are_afterwards(tmp_path: Path) -> None:
    world = {"model": "none"}
    done: list[str] = []

    def fetch(did: list[str]) -> StepOutcome:
        done.append("files")
        world["model"] = "here"
        return PASSED

    step = AcceptanceStep("files", "what", fetch, inputs=lambda: world["model"])
    for _ in range(2):
        hold([step], Journal(tmp_path), Choice(), begin=lambda step: None, end=lambda *_: None)
    assert done == ["files"]


def test_each_step_is_reported_when_it_ends_and_kept_before_that(steps: Steps) -> None:
    seen: list[tuple[str, bool, int]] = []

    def end(step: AcceptanceStep, outcome: StepOutcome, is_new: bool) -> None:
        kept = json.loads((steps.folder / STATE).read_text())["steps"]
        seen.append((step.name, is_new, len(kept)))

    steps.hold(end=end)
    assert seen == [("a", True, 1), ("b", True, 2), ("c", True, 3)]
    steps.hold(end=lambda step, outcome, is_new: seen.append((step.name, is_new, 0)))
    assert seen[3:] == [("a", False, 0), ("b", False, 0), ("c", False, 0)]


@pytest.mark.parametrize("content", ["", "[]", '{"format": 2, "runs": 0, "steps": {}}', '{"format": 1}'])
def test_a_state_of_something_else_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / STATE).write_text(content)
    with pytest.raises(MossVoiceError, match=r"state\.json cannot be read"):
        Journal(tmp_path)


def test_every_figure_over_its_limit_fails_a_step() -> None:
    figures = [Figure("a", 1, "<= 2", True), Figure("b", 3, "<= 2", False), Figure("c", None)]
    outcome = StepOutcome.judge(figures, "Close other programs.", "the bench ended early")
    assert (outcome.status, outcome.next_step) == ("failed", "Close other programs.")
    assert outcome.reason == "the bench ended early\nlimit not kept: b"
    assert StepOutcome.judge([figures[0], figures[2]], "").status == "passed"
