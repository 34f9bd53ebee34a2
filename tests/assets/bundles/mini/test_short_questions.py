"""Which questions are short and complete, and how they are drawn."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def short_questions(recipe: Callable[[str], ModuleType]) -> ModuleType:
    return recipe("short_questions")


@pytest.mark.parametrize(
    ("text", "answer", "is_short"),
    [
        ("What is the largest planet?", "Jupiter", True),
        ("who painted the mona lisa", "Leonardo da Vinci", True),
        ("Which of these is a planet?", "Jupiter", False),
        ("Name the largest planet there is.", "Jupiter", False),
        ("What is it?", "Jupiter", False),
        ("What is the capital of Mexico now?", "Mexico City", False),
        ("What colour is a red rose?", "Red", False),
        ("Who wrote the book on bears?", "All of these", False),
        ("What did the old man want to do?", "to go home again soon", False),
    ],
)
def test_short(short_questions: ModuleType, text: str, answer: str, is_short: bool) -> None:
    assert short_questions.is_short(short_questions.Question(text, (answer,), "x")) == is_short


def test_drawn_questions_are_different_and_the_seed_decides(
    short_questions: ModuleType, tmp_path: Path
) -> None:
    rows = [{"question": f"what comes after the number {n}", "answers": ["yellow"]} for n in range(9)] * 2
    for source in ("webquestions", "nq_open_dev"):
        with gzip.open(tmp_path / f"{source}.jsonl.gz", "wt") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    counts = {"webquestions": 5, "nq_open_dev": 2}
    drawn = short_questions.draw(tmp_path, counts, 1)
    assert drawn == short_questions.draw(tmp_path, counts, 1) != short_questions.draw(tmp_path, counts, 2)
    assert {source: [one.source for one in drawn].count(source) for source in counts} == counts
    assert len({one.text for one in drawn if one.source == "webquestions"}) == 5
    assert drawn[0].text.startswith("What comes after the number")
    assert drawn[0].text.endswith("?")
    with pytest.raises(SystemExit, match="has 9 short questions, 10 were asked for"):
        short_questions.draw(tmp_path, {"webquestions": 10}, 1)
