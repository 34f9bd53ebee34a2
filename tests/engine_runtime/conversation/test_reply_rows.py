"""A cut reply in the history: rows, text and codes end at the same position."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine_runtime.bundle.bundle import Bundle, SpecialIds
from engine_runtime.conversation.reply_rows import ReplyPosition, ReplyRows
from engine_runtime.lm.chat_template import Prompt, TextTokenizer
from engine_runtime.lm.generation import GeneratedRow, Mode, Row
from engine_runtime.types import Modality

SAMPLES = 100


@pytest.fixture(scope="module")
def prompt(random_bundle: Path) -> Prompt:
    bundle = Bundle.open(random_bundle)
    special = bundle.lm.special_ids
    tokenizer = TextTokenizer(bundle.text_tokenizer, special, bundle.lm.config["text_vocab"])
    return Prompt(tokenizer, special, bundle.lm.prompt)


@pytest.fixture(scope="module")
def special(random_bundle: Path) -> SpecialIds:
    return Bundle.open(random_bundle).lm.special_ids


def code(special: SpecialIds, audio: int) -> GeneratedRow:
    row = Row(special.modality_pad, audio)
    return GeneratedRow(row, Mode.AUDIO, 0, row)


def word(special: SpecialIds, text: int = 50) -> GeneratedRow:
    row = Row(text, 0)
    is_stop = text == special.im_end
    return GeneratedRow(row, Mode.TEXT, 0, row, is_stop=is_stop)


def spoken(special: SpecialIds) -> ReplyRows:
    """Three codes with subtitles, the end of speech, the end of the turn."""
    rows = ReplyRows(Modality.SPEECH, special, SAMPLES)
    for number, part in enumerate(("one", " two", " three")):
        rows.append(code(special, number))
        assert rows.add_text(part) == number * SAMPLES
    rows.append(code(special, special.eosp))
    rows.append(word(special, special.im_end))
    return rows


@pytest.mark.parametrize(
    ("played", "codes", "text"),
    [
        (0, [], ""),
        (1, [0], "one"),
        (100, [0], "one"),
        (101, [0, 1], "one two"),
        (200, [0, 1], "one two"),
        (201, [0, 1, 2], "one two three"),
        (999, [0, 1, 2], "one two three"),
    ],
)
def test_a_code_is_heard_once_its_audio_has_started(
    special: SpecialIds, prompt: Prompt, played: int, codes: list[int], text: str
) -> None:
    left = spoken(special).up_to(ReplyPosition(samples=played))
    assert (left.codes, left.text) == (codes, text)
    expected = [*prompt.open_reply(Modality.SPEECH), *prompt.code_rows(codes)]
    assert left.as_turn(prompt) == [*expected, *prompt.end_speech(), *prompt.end_turn()]


def test_a_fully_heard_reply_is_the_complete_one(special: SpecialIds, prompt: Prompt) -> None:
    rows = spoken(special)
    assert rows.up_to(ReplyPosition(samples=201)).as_turn(prompt) == rows.as_turn(prompt)


def test_what_is_cut_can_be_cut_again_and_does_not_grow(special: SpecialIds) -> None:
    left = spoken(special).up_to(ReplyPosition(samples=150))
    assert left.up_to(ReplyPosition(samples=300)).codes == [0, 1]
    assert left.up_to(ReplyPosition(samples=50)).codes == [0]
    assert left.up_to(ReplyPosition()).rows == []


def test_text_after_the_last_code_that_was_heard_is_cut(special: SpecialIds, prompt: Prompt) -> None:
    rows = ReplyRows(Modality.SPEECH, special, SAMPLES)
    rows.append(word(special))
    assert rows.add_text("well") == 0
    rows.append(word(special, special.sosp))
    rows.append(code(special, 3))
    rows.append(code(special, special.eosp))
    rows.append(word(special))
    assert rows.add_text(" bye") == SAMPLES
    left = rows.up_to(ReplyPosition(samples=SAMPLES))
    assert left.text == "well"
    assert left.rows == rows.rows[:3]
    assert left.as_turn(prompt)[-len(prompt.end_turn()) - 1] == prompt.end_speech()[0]
    assert rows.as_turn(prompt)[-len(prompt.end_turn()) - 1] == Row(50, 0)


@pytest.mark.parametrize(("shown", "count"), [(0, 0), (1, 2), (3, 2), (4, 3), (7, 3), (99, 3)])
def test_a_text_reply_is_cut_behind_the_last_character_shown(
    special: SpecialIds, shown: int, count: int
) -> None:
    rows = ReplyRows(Modality.TEXT, special, SAMPLES)
    for part in ("", "two", " six"):
        rows.append(word(special))
        if part:
            rows.add_text(part)
    rows.append(word(special, special.im_end))
    left = rows.up_to(ReplyPosition(characters=shown))
    assert left.rows == rows.rows[:count]
    assert left.text == {0: "", 2: "two", 3: "two six"}[count]


def test_text_that_came_late_belongs_to_the_row_that_began_it(special: SpecialIds) -> None:
    rows = spoken(special)
    assert rows.add_text("!", is_late=True) == 2 * SAMPLES
    assert rows.up_to(ReplyPosition(samples=201)).text == "one two three!"
    assert rows.up_to(ReplyPosition(samples=200)).text == "one two"
