"""Conversations as text: what was said, and how long speech without a text was."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from app.session.events import ReplyCut, ReplyFinished, TurnCommitted, TurnOpened, TurnTranscribed
from app.session.transcript import (
    Heading,
    TurnText,
    Words,
    as_text,
    searchable_text,
    title_of,
    turn_texts,
    write_text,
)
from engine_runtime.types import Modality

WORDS = Words("You", "MOSS", "spoke %1 s")


def test_turns_are_those_that_were_answered() -> None:
    found = turn_texts(
        (
            TurnOpened(1, "voice"),
            TurnCommitted(1, 1.24),
            ReplyFinished(1, Modality.SPEECH, 2.5, "yes", 3, 4, "stop"),
            TurnOpened(2, "text", "and  you?"),
            TurnCommitted(2, 0.0),
            TurnTranscribed(1, "Is it so?"),
            ReplyFinished(2, Modality.SPEECH, 2.5, "well then", 3, 4, "stop"),
            ReplyCut(2, "barge_in", Modality.SPEECH, "well", "then", 0.8, 2.5, 3, 2),
            TurnOpened(3, "text", "never answered"),
        )
    )
    assert found == [TurnText("Is it so?", 1.24, "yes", 2.5), TurnText("and  you?", 0.0, "well", 0.8)]


def test_speech_without_a_text_says_how_long_it_was(tmp_path: Path) -> None:
    turns = [TurnText("", 1.24, "", 2.0), TurnText("and  you?", 0.0, "I\nam\ud800", 1.0)]
    assert as_text(turns, WORDS) == (
        "You (spoke 1.2 s)\n\nMOSS (spoke 2.0 s)\n\nYou: and you?\n\nMOSS: I am\ud800\n"
    )
    write_text(tmp_path / "c.MD", turns, WORDS, Heading(""))
    assert (tmp_path / "c.MD").read_text().startswith("**You (spoke 1.2 s)**\n\n**MOSS (spoke")
    assert "**MOSS:** I am?" in (tmp_path / "c.MD").read_text()


def test_markdown_has_a_heading_and_the_time_of_each_question(tmp_path: Path) -> None:
    turns = [
        TurnText("one?", 0.0, "yes", 1.0, began_s=0.2),
        TurnText("", 2.0, "two", 1.0, began_s=75.9),
        TurnText("three?", 0.0, "no", 1.0, began_s=3_661.0),
    ]
    heading = Heading(title_of(turns), datetime(2026, 11, 26, 15, 40))
    write_text(tmp_path / "c.md", turns, WORDS, heading)
    assert (tmp_path / "c.md").read_text() == (
        "# one?\n\n2026-11-26 15:40\n\n**You, 0:00:** one?\n\n**MOSS:** yes\n\n"
        "**You, 1:15 (spoke 2.0 s)**\n\n**MOSS:** two\n\n**You, 1:01:01:** three?\n\n**MOSS:** no\n"
    )
    write_text(tmp_path / "c.txt", turns, WORDS, heading)
    assert (tmp_path / "c.txt").read_text().startswith("You: one?\n\nMOSS: yes\n\n")


def test_a_conversation_of_speech_has_the_title_of_its_first_reply() -> None:
    assert title_of([TurnText("", 1.0, "", 2.0), TurnText("", 1.0, "  Five  it is. ", 2.0)]) == "Five it is."
    assert title_of([TurnText("", 1.0, "", 2.0)]) == ""


def test_all_texts_can_be_searched(repository: Path) -> None:
    folder = repository / "tests" / "data" / "version_0_1_0" / "conversations" / "text"
    text = searchable_text(folder)
    assert "what is the capital of france?" in text
    assert "berlin" in text
