"""A cut reply in the history: tokens, text and codes end at the same position."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine_runtime.bundle.bundle import Bundle, SpecialIds
from engine_runtime.conversation.reply_tokens import ReplyPosition, ReplyTokens
from engine_runtime.lm.chat_template import Prompt, TextTokenizer
from engine_runtime.lm.generation import GeneratedToken, Mode, Token
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


def code(special: SpecialIds, audio: int) -> GeneratedToken:
    token = Token(special.modality_pad, audio)
    return GeneratedToken(token, Mode.AUDIO, 0, token)


def word(special: SpecialIds, text: int = 50) -> GeneratedToken:
    token = Token(text, 0)
    is_stop = text == special.im_end
    return GeneratedToken(token, Mode.TEXT, 0, token, is_stop=is_stop)


def spoken(special: SpecialIds) -> ReplyTokens:
    """Three codes with subtitles, the end of speech, the end of the turn."""
    tokens = ReplyTokens(Modality.SPEECH, special, SAMPLES)
    for number, part in enumerate(("one", " two", " three")):
        tokens.append(code(special, number))
        assert tokens.add_text(part) == number * SAMPLES
    tokens.append(code(special, special.eosp))
    tokens.append(word(special, special.im_end))
    return tokens


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
    expected = [*prompt.open_reply(Modality.SPEECH), *prompt.code_tokens(codes)]
    assert left.as_turn(prompt) == [*expected, *prompt.end_speech(), *prompt.end_turn()]


def test_a_fully_heard_reply_is_the_complete_one(special: SpecialIds, prompt: Prompt) -> None:
    tokens = spoken(special)
    assert tokens.up_to(ReplyPosition(samples=201)).as_turn(prompt) == tokens.as_turn(prompt)


def test_what_is_cut_can_be_cut_again_and_does_not_grow(special: SpecialIds) -> None:
    left = spoken(special).up_to(ReplyPosition(samples=150))
    assert left.up_to(ReplyPosition(samples=300)).codes == [0, 1]
    assert left.up_to(ReplyPosition(samples=50)).codes == [0]
    assert left.up_to(ReplyPosition()).tokens == []


def test_text_after_the_last_code_that_was_heard_is_cut(special: SpecialIds, prompt: Prompt) -> None:
    tokens = ReplyTokens(Modality.SPEECH, special, SAMPLES)
    tokens.append(word(special))
    assert tokens.add_text("well") == 0
    tokens.append(word(special, special.sosp))
    tokens.append(code(special, 3))
    tokens.append(code(special, special.eosp))
    tokens.append(word(special))
    assert tokens.add_text(" bye") == SAMPLES
    left = tokens.up_to(ReplyPosition(samples=SAMPLES))
    assert left.text == "well"
    assert left.tokens == tokens.tokens[:3]
    assert left.as_turn(prompt)[-len(prompt.end_turn()) - 1] == prompt.end_speech()[0]
    assert tokens.as_turn(prompt)[-len(prompt.end_turn()) - 1] == Token(50, 0)


@pytest.mark.parametrize(("shown", "count"), [(0, 0), (1, 2), (3, 2), (4, 3), (7, 3), (99, 3)])
def test_a_text_reply_is_cut_behind_the_last_character_shown(
    special: SpecialIds, shown: int, count: int
) -> None:
    tokens = ReplyTokens(Modality.TEXT, special, SAMPLES)
    for part in ("", "two", " six"):
        tokens.append(word(special))
        if part:
            tokens.add_text(part)
    tokens.append(word(special, special.im_end))
    left = tokens.up_to(ReplyPosition(characters=shown))
    assert left.tokens == tokens.tokens[:count]
    assert left.text == {0: "", 2: "two", 3: "two six"}[count]


def test_text_that_came_late_belongs_to_the_token_that_began_it(special: SpecialIds) -> None:
    tokens = spoken(special)
    assert tokens.add_text("!", is_late=True) == 2 * SAMPLES
    assert tokens.up_to(ReplyPosition(samples=201)).text == "one two three!"
    assert tokens.up_to(ReplyPosition(samples=200)).text == "one two"
