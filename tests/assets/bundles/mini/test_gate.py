"""How figures of the gate are computed; the checkpoint itself is not needed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="module")
def gate(recipe: Callable[[str], ModuleType]) -> ModuleType:
    return recipe("gate")


def test_auroc_counts_pairs(gate: ModuleType) -> None:
    scores, labels = [3, 1, 2, 2], [True, False, False, True]
    # Of four pairs of a right and a wrong answer three are in order, and one is a tie.
    assert gate.auroc(scores, labels) == pytest.approx(3.5 / 4)
    assert gate.auroc([-one for one in scores], labels) == pytest.approx(0.5 / 4)


def test_a_threshold_does_not_part_equal_scores(gate: ModuleType) -> None:
    labels = [True, True, False, True, False]
    assert gate.right_at(1.0, [5, 4, 3, 2, 1], labels) == pytest.approx(2 / 5)
    assert gate.right_at(0.75, [5, 4, 3, 2, 1], labels) == pytest.approx(3 / 5)
    assert gate.right_at(0.75, [5, 4, 4, 4, 1], labels) == pytest.approx(3 / 5)
    assert gate.right_at(1.0, [5, 4, 4, 4, 1], labels) == pytest.approx(1 / 5)
    assert gate.right_at(0.9, [1, 1, 1, 1, 1], labels) == 0.0


def test_answers_agree_in_what_the_question_does_not_say(gate: ModuleType) -> None:
    question = "What is the largest planet?"
    assert gate.content("The largest planet is Jupiter.", question) == {"jupiter"}
    assert gate.agreement("It is Jupiter.", ["Jupiter", "The largest planet is Mars."], question) == 0.5
    assert gate.among_samples(["Jupiter", "Jupiter.", "Mars"], question) == pytest.approx(1 / 3)
    assert gate.agreement("", ["", "Mars"], question) == 0.0


def test_the_report_compares_each_stage_with_the_same_questions_as_text(
    gate: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: list[dict[str, Any]] = [
        {
            "question": {"text": f"What is thing {n}?", "answers": ["Jupiter"], "source": "x"},
            "greedy": "Jupiter" if n < 4 else "Mars",
            "sampled": ["Jupiter" if n < 3 else "Mars", "Venus"],
            "mean_logprob": -0.1 * n,
            "least_logprob": -0.2 * n,
        }
        for n in range(8)
    ]
    (tmp_path / "known.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = [
        {
            "asked": row["question"]["text"],
            "question": row["question"],
            "reply": row["greedy"],
            "right": n < 4,
        }
        for n, row in enumerate(rows)
    ]
    (tmp_path / "text.json").write_text(json.dumps(text))
    heard = [
        {"asked": "what is a thing", "question": row["question"], "reply": "", "right": n < 2}
        for n, row in enumerate(rows[:4])
    ]
    (tmp_path / "ear.json").write_text(json.dumps({"all voices": heard}))
    gate.report(tmp_path)
    printed = capsys.readouterr().out
    assert "text (8): right 0.500" in printed
    assert "known (8): right 0.500" in printed
    # "what is thing 0" of three words and "what is a thing": one inserted
    assert "ear, all voices (4): word errors 0.333, right 0.500, as text 1.000, ratio 0.50" in printed
    assert "mean log-probability: AUROC 1.000, right at 50 % precision 0.500" in printed
