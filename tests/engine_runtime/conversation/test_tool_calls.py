"""Calls of tools in the text channel: what is shown, what is called, and what the model sees afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_runtime.bundle.tools import NO_TOOLS, Tool, ToolCallFormat, ToolUse
from engine_runtime.conversation.tool_calls import CallScanner
from engine_runtime.conversation.turn import Conversation, Turn
from engine_runtime.engine import Engine
from engine_runtime.errors import ToolCallError
from engine_runtime.lm.chat_template import TextTokenizer
from engine_runtime.types import Modality, ReplyEvent, ReplyText, ToolCall, ToolOutput
from engine_runtime.work import run_alone
from tests.tools.tool_server import CALL, END, call, load
from tests.tools.turns import ask, check, done

PARIS = ToolCall("get_weather", '{"city": "Paris"}')
WRITTEN = call("get_weather", {"city": "Paris"})
QUESTION = "What is the weather in Paris?"


class NoTokens(TextTokenizer):
    """A tokenizer for which the delimiters are ordinary text."""

    def __init__(self) -> None:
        pass

    def added_id(self, text: str) -> int | None:
        return None


class OwnTokens(NoTokens):
    """A tokenizer for which each delimiter is one token."""

    def added_id(self, text: str) -> int | None:
        return {CALL: 1, END: 2}[text]


OFFERED = ToolUse((Tool("get_weather", "", {"type": "object", "properties": {"city": {"type": "string"}}}),))


def scanner(tokenizer: TextTokenizer | None = None, forced: str | None = None) -> CallScanner:
    return CallScanner(tokenizer or NoTokens(), ToolCallFormat(CALL, END), forced)


@given(st.text("<tool_cal>{}", max_size=12), st.lists(st.integers(1, 5)), st.booleans())
def test_a_call_is_found_wherever_its_text_is_divided(said: str, sizes: list[int], is_ended: bool) -> None:
    scan, shown = scanner(), ""
    rest = f"{said}{CALL}".partition(CALL)[0] + WRITTEN
    whole = rest if is_ended else rest.removesuffix(END)
    expected = whole.partition(CALL)[0]
    for size in [*sizes, *[3] * len(whole)]:
        text, whole = whole[:size], whole[size:]
        shown += scan.push(9, text) if text else ""
    shown += scan.finish("")
    assert (shown, scan.has_begun, scan.is_complete) == (expected, True, is_ended)
    assert scan.result(OFFERED) == PARIS


@given(st.text("<tool_cal>", max_size=40), st.integers(1, 5))
def test_text_without_a_call_is_shown(said: str, size: int) -> None:
    said = said.replace(CALL, "")
    scan = scanner()
    shown = [scan.push(9, said[start : start + size]) for start in range(0, len(said), size)]
    if CALL not in said:
        assert "".join(shown) + scan.finish("") == said
        assert not scan.has_begun


def test_delimiters_that_are_tokens_are_no_text() -> None:
    scan = scanner(OwnTokens())
    assert scan.push(9, WRITTEN) == WRITTEN
    assert not scan.has_begun
    assert scan.push(1, "") == ""
    assert scan.push(9, f'{{"name": "get_weather", "arguments": {{"city": "{END}"}}}}') == ""
    assert not scan.is_complete
    scan.push(2, "")
    assert scan.is_complete
    assert scan.num_tokens == 3
    assert json.loads(scan.result(OFFERED).arguments) == {"city": END}


@pytest.mark.parametrize(
    ("written", "named"),
    [
        ("", "no JSON object"),
        ("[]", "no JSON object"),
        ("{", "no JSON object"),
        ('{"name": "get_weather", "arguments": {"city": NaN}}', "no JSON object"),
        ('{"name": "get_weather", "arguments": {"city": 1e999}}', "no JSON object"),
        (r'{"name": "get_weather", "arguments": {"city": "\ud800"}}', "no JSON object"),
        ('{"name": "get_weather", "arguments": {"city": ' + "9" * 5_000 + "}}", "no JSON object"),
        ("[" * 8_000, "no JSON object"),
        ("{}", "None"),
        ('{"name": ["get_weather"]}', "get_weather"),
        ('{"name": "reboot", "arguments": {}}', "reboot"),
        ('{"name": "get_weather", "arguments": "Paris"}', "arguments"),
        ('{"name": "get_weather", "arguments": {"city": 5}}', r"arguments\.city"),
    ],
)
def test_a_call_that_cannot_be_run_is_refused_by_name(written: str, named: str) -> None:
    scan = scanner(forced="")
    scan.push(9, written)
    with pytest.raises(ToolCallError, match=named):
        scan.result(OFFERED)


def test_a_call_without_an_end_is_given_up() -> None:
    scan = scanner(forced="")
    for _ in range(8_192 // 10):
        scan.push(9, '"too long"')
    with pytest.raises(ToolCallError, match="8192"):
        scan.push(9, '"too long"')


# ---- with the real engine ----


@pytest.fixture(scope="module")
def loaded(tool_bundle: Path) -> Engine:
    return load(tool_bundle)


@pytest.fixture
def engine(loaded: Engine) -> Iterator[Engine]:
    engine = Engine(loaded.stages)
    yield engine
    check(engine)
    engine.close()
    engine.stages.lm.blocks.check_integrity([])


@pytest.fixture
def conversation(engine: Engine) -> Conversation:
    conversation = engine.new_conversation()
    conversation.tools = ToolUse(engine.bundle.card.tools)
    return conversation


def reply_to(
    engine: Engine, conversation: Conversation, question: str, modality: Modality = Modality.TEXT
) -> list[ReplyEvent]:
    return list(run_alone(committed(engine, conversation, question, modality).commit(modality)))


def committed(engine: Engine, conversation: Conversation, question: str, modality: Modality) -> Turn:
    turn = run_alone(engine.open_turn(conversation, len(conversation.exchanges) + 1, modality))
    ask(turn, question)
    return turn


def shown(events: list[ReplyEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, ReplyText))


def read(engine: Engine, conversation: Conversation, place: int = -1) -> str:
    """The text channel of a reply in the history, with the delimiters of calls."""
    known = {engine.stages.tokenizer.added_id(text): text for text in (CALL, END)}
    ids = [token.text for token in conversation.exchanges[place].reply]
    return "".join(known.get(token_id) or engine.stages.tokenizer.decode([token_id]) for token_id in ids)


@pytest.mark.parametrize("modality", list(Modality))
def test_a_call_ends_the_reply_and_its_result_continues(
    engine: Engine, conversation: Conversation, modality: Modality
) -> None:
    events = reply_to(engine, conversation, QUESTION, modality)
    last = done(events)
    assert (last.finish_reason, last.call, last.text) == ("tool_call", PARIS, "Let me look.")
    assert shown(events) == "Let me look."
    assert (last.audio_samples > 0) == (modality is Modality.SPEECH)
    assert read(engine, conversation).rstrip().endswith(WRITTEN)
    events = reply_to(engine, conversation, ToolOutput("sunny"), modality)
    assert (done(events).finish_reason, done(events).call) == ("stop", None)
    assert shown(events) == "It is sunny."
    assert shown(reply_to(engine, conversation, ToolOutput(""), modality)) == "It is ."


@pytest.mark.parametrize("modality", list(Modality))
def test_what_a_user_types_calls_nothing(
    engine: Engine, conversation: Conversation, modality: Modality
) -> None:
    last = done(reply_to(engine, conversation, f"Repeat: {WRITTEN}", modality))
    assert (last.finish_reason, last.call, last.text) == ("stop", None, WRITTEN)
    assert done(reply_to(engine, conversation, WRITTEN, modality)).text == "I heard you."


def test_a_call_that_cannot_be_run_leaves_no_trace(engine: Engine, conversation: Conversation) -> None:
    for question in ("Set a timer for 90 minutes.", "Restart the machine."):
        with pytest.raises(ToolCallError):
            reply_to(engine, conversation, question, Modality.SPEECH)
        assert conversation.exchanges == []
    conversation.tools = NO_TOOLS
    assert done(reply_to(engine, conversation, QUESTION)).text == "I cannot look.", "it is offered nothing"


def test_a_reply_may_have_to_be_a_call(engine: Engine, conversation: Conversation) -> None:
    weather, timer = engine.bundle.card.tools
    conversation.tools = ToolUse((weather,), is_required=True)
    for modality in Modality:
        last = done(reply_to(engine, conversation, QUESTION, modality))
        assert (last.call, last.text, last.codes) == (PARIS, "", ())
        assert conversation.exchanges[-1].reply == tuple(engine.stages.prompt.call_turn(PARIS))
    conversation.tools = ToolUse((weather, timer), is_required=True)
    assert done(reply_to(engine, conversation, QUESTION)).call == PARIS, "whichever the model chooses"
    with pytest.raises(ToolCallError):
        reply_to(engine, conversation, "Hello.")


def test_a_call_stays_however_little_of_the_speech_before_it_was_heard(
    engine: Engine, conversation: Conversation
) -> None:
    turn = committed(engine, conversation, QUESTION, Modality.SPEECH)
    last = done(list(run_alone(turn.commit(Modality.SPEECH))))
    prompt, whole = engine.stages.prompt, conversation.exchanges[0].reply
    written = prompt.call_turn(PARIS)[len(prompt.open_reply(Modality.TEXT)) :]
    for heard in (5, 2):
        turn.truncate(heard * engine.stages.samples_per_code)
        codes = prompt.code_tokens(last.codes[:heard])
        opening = prompt.open_reply(Modality.SPEECH)
        cut = conversation.exchanges[0].reply
        assert cut == (*opening, *codes, *prompt.end_speech(), *written)
        assert len(cut) < len(whole)
    turn.truncate(0)
    assert conversation.exchanges[0].reply == tuple(prompt.call_turn(PARIS))
    assert shown(reply_to(engine, conversation, ToolOutput("sunny"))) == "It is sunny."


def test_a_call_that_was_not_complete_is_forgotten(engine: Engine, conversation: Conversation) -> None:
    turn = committed(engine, conversation, QUESTION, Modality.TEXT)
    events = run_alone(turn.commit(Modality.TEXT))
    assert "".join(next(events).text for _ in range(11)) == "Let me look."  # type: ignore[union-attr]
    turn.cancel()
    assert done(list(events)).finish_reason == "cancelled"
    assert read(engine, conversation).rstrip().endswith("Let me look.")


def test_a_call_from_elsewhere_is_remembered_as_the_model_writes_it(
    engine: Engine, conversation: Conversation
) -> None:
    run_alone(engine.remember(conversation, 1, ("hello",), PARIS))
    assert conversation.exchanges[0].reply == tuple(engine.stages.prompt.call_turn(PARIS))
    assert done(reply_to(engine, conversation, ToolOutput("sunny"))).text == "It is sunny."
