"""Conversations as text: what was said, and how long speech without a text was."""

from __future__ import annotations

from pathlib import Path

from app.session.events import ReplyCut, ReplyFinished, TurnCommitted, TurnOpened
from app.session.transcript import TurnText, Words, as_text, turn_texts, write_text
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
            ReplyFinished(2, Modality.SPEECH, 2.5, "well then", 3, 4, "stop"),
            ReplyCut(2, "barge_in", Modality.SPEECH, "well", "then", 0.8, 2.5, 3, 2),
            TurnOpened(3, "text", "never answered"),
        )
    )
    assert found == [TurnText("", 1.24, "yes", 2.5), TurnText("and  you?", 0.0, "well", 0.8)]


def test_speech_without_a_text_says_how_long_it_was(tmp_path: Path) -> None:
    turns = [TurnText("", 1.24, "", 2.0), TurnText("and  you?", 0.0, "I\nam\ud800", 1.0)]
    assert as_text(turns, WORDS, is_markdown=False) == (
        "You (spoke 1.2 s)\n\nMOSS (spoke 2.0 s)\n\nYou: and you?\n\nMOSS: I am\ud800\n"
    )
    write_text(tmp_path / "c.MD", turns, WORDS)
    assert (tmp_path / "c.MD").read_text().startswith("**You (spoke 1.2 s)**\n\n**MOSS (spoke")
    assert "**MOSS:** I am?" in (tmp_path / "c.MD").read_text()
