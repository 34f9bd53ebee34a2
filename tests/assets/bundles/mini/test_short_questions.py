"""Which questions are short and complete, and how they are drawn."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

Row = dict[str, object]


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


def write(folder: Path, source: str, rows: list[Row]) -> None:
    with gzip.open(folder / f"{source}.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def test_drawn_questions_are_different_and_the_seed_decides(
    short_questions: ModuleType, tmp_path: Path
) -> None:
    trivia: list[Row] = [
        {"question": f"Which colour has number {n}?", "answer": answer, "category": category}
        for answer, category in (("Yellow", "general"), ("1945", "history"), ("Yellow", "movies"))
        for n in range(9)
    ]
    write(tmp_path, "opentriviaqa", [*trivia, {"question": "q", "answer": "Teal", "category": "general"}])
    known: list[Row] = [
        {"question": f"what colour has thing {n}", "answers": ["gold", "yellow"]} for n in range(9)
    ]
    unknown: list[Row] = [{"question": f"what colour has part {n}", "answers": ["teal"]} for n in range(9)]
    write(tmp_path, "webquestions", [*known, *known, *unknown])
    counts = {"opentriviaqa": 9, "webquestions": 5}
    drawn = short_questions.draw(tmp_path, counts, 1)
    assert drawn == short_questions.draw(tmp_path, counts, 1) != short_questions.draw(tmp_path, counts, 2)
    assert {one.answers for one in drawn} == {("Yellow",), ("gold", "yellow")}
    asked = [one.text for one in drawn if one.source == "webquestions"]
    assert len(set(asked)) == 5
    assert all(text.startswith("What colour has thing") and text.endswith("?") for text in asked)
    assert {one.category for one in drawn} == {"", "general"}
    with pytest.raises(SystemExit, match="has 9 short questions, 10 were asked for"):
        short_questions.draw(tmp_path, {"webquestions": 10}, 1)
