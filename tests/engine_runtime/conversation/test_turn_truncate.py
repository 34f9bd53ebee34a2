"""A reply cut at the playback position: history, text and KV cache end at the same code."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine_runtime.conversation.turn import Conversation, Turn
from engine_runtime.engine import Engine
from engine_runtime.errors import ExecutorError
from engine_runtime.lm.step import BOTH_TAILS
from engine_runtime.types import Modality, ReplyAudio, ReplyEvent, ReplyText, SamplingParams
from engine_runtime.work import run_alone
from tests.doubles.scripted_lm import scripted
from tests.tools.examples import examples
from tests.tools.turns import (
    GREEDY,
    LONG,
    ask,
    check,
    done,
    exchange,
    fresh_pool,
    reply_script,
    sound,
    speech,
)

CODES = list(range(1, 31))


def with_subtitles(engine: Engine) -> Engine:
    bundle = engine.bundle
    return Engine(
        replace(engine.stages, bundle=replace(bundle, lm=replace(bundle.lm, subtitles=True))), engine.timing
    )


def codes_in_history(engine: Engine, conversation: Conversation, place: int = -1) -> list[int]:
    """Speech codes of the reply that the history holds, which is closed properly."""
    prompt, special = engine.stages.prompt, engine.bundle.lm.special_ids
    tokens = list(conversation.exchanges[place].reply)
    closing = [*prompt.end_speech(), *prompt.end_turn()]
    assert tokens[-len(closing) :] == closing
    opening = prompt.open_reply(Modality.SPEECH)
    assert tokens[: len(opening)] == opening
    codes = [token.audio for token in tokens[: -len(closing)] if token.text == special.modality_pad]
    assert tokens == [*opening, *prompt.code_tokens(codes), *closing]
    return codes


def answered(
    engine: Engine, conversation: Conversation, question: str = "hello"
) -> tuple[Turn, list[ReplyEvent]]:
    """A turn whose reply is complete."""
    turn = run_alone(engine.open_turn(conversation, 1))
    run_alone(turn.push_text(question))
    return turn, list(run_alone(turn.commit(Modality.SPEECH, replace(LONG, min_new=0))))


@pytest.mark.parametrize(
    ("codes", "more", "heard"),
    [(0, 1, 1), (1, -1, 1), (1, 0, 1), (1, 1, 2), (7, 960, 8), (30, 0, 30), (99, 0, 30)],
)
@pytest.mark.slow
def test_a_complete_reply_is_cut_to_the_codes_whose_audio_had_started(
    engine: Engine, codes: int, more: int, heard: int
) -> None:
    engine, _ = scripted(engine, reply_script(engine, CODES))
    conversation = engine.new_conversation()
    turn, events = answered(engine, conversation)
    assert done(events).codes == tuple(CODES)
    turn.truncate(codes * engine.bundle.samples_per_code + more)
    assert codes_in_history(engine, conversation) == CODES[:heard]
    assert turn.is_over
    # The cache holds no token that is not history, and nearly all of those up to the last code.
    ids = engine.stages.sequences.merged_ids(conversation.history())
    held = conversation.sequence.num_tokens
    assert conversation.sequence.ids == ids[:held]
    closing = len(engine.stages.prompt.end_speech()) + len(engine.stages.prompt.end_turn())
    assert held >= len(ids) - closing - 1


@pytest.mark.slow
def test_a_complete_reply_of_which_nothing_was_heard_never_happened(engine: Engine) -> None:
    engine, _ = scripted(engine, reply_script(engine, CODES))
    conversation = engine.new_conversation()
    answered(engine, conversation, "first")
    used = engine.stats.used
    turn, _ = answered(engine, conversation, "second")
    turn.truncate(0)
    assert len(conversation.exchanges) == 1
    assert engine.stats.used <= used
    turn.reopen()
    assert run_alone(turn.push(speech(0.5))) == 0


@pytest.mark.slow
def test_a_second_position_can_only_leave_less(engine: Engine) -> None:
    engine, _ = scripted(engine, reply_script(engine, CODES))
    conversation, unit = engine.new_conversation(), engine.bundle.samples_per_code
    turn, _ = answered(engine, conversation)
    for played, heard in ((9, 9), (20, 9), (4, 4), (4, 4), (9, 4)):
        turn.truncate(played * unit)
        assert codes_in_history(engine, conversation) == CODES[:heard]
    turn.truncate(0)
    turn.truncate(5 * unit)
    assert conversation.exchanges == []


@pytest.mark.slow
def test_the_text_is_cut_at_the_same_code(engine: Engine) -> None:
    engine = with_subtitles(engine)
    words = engine.stages.tokenizer.encode("two plus three is five and plus two that makes seven")
    special, unit = engine.bundle.lm.special_ids, engine.bundle.samples_per_code
    script = [(word, number) for number, word in enumerate(words)]
    engine, _ = scripted(engine, [*script, (0, special.eosp), (special.im_end, 0)])
    conversation = engine.new_conversation()
    turn, events = answered(engine, conversation)
    parts = [event for event in events if isinstance(event, ReplyText)]
    assert "".join(part.text for part in parts) == conversation.exchanges[-1].text
    for played in range(len(words) * unit, 0, -unit // 2):
        turn.truncate(played)
        heard = "".join(part.text for part in parts if part.start_sample < played)
        assert conversation.exchanges[-1].text == heard.strip()
        count = len(codes_in_history(engine, conversation))
        assert engine.stages.tokenizer.decode(words[:count]).strip() == heard.strip()


def test_a_text_reply_is_cut_to_what_was_shown(engine: Engine) -> None:
    words = engine.stages.tokenizer.encode("two plus three is five")
    special = engine.bundle.lm.special_ids
    engine, _ = scripted(engine, [*((word, 0) for word in words), (special.im_end, 0)])
    conversation = engine.new_conversation()
    turn = run_alone(engine.open_turn(conversation, 1, Modality.TEXT))
    run_alone(turn.push_text("two plus three?"))
    shown = ""
    for event in run_alone(turn.commit(Modality.TEXT, SamplingParams(max_new=50))):
        if isinstance(event, ReplyText) and "plus" not in shown:
            shown += event.text
    turn.truncate(0, len(shown))
    assert conversation.exchanges[0].text == shown.strip() == "two plus"
    text = engine.stages.tokenizer.decode(token.text for token in conversation.exchanges[0].reply)
    assert text.strip() == "assistant\n" + shown.strip()
    turn.truncate(99_999, 0)
    assert conversation.exchanges == []


@pytest.mark.parametrize("at_step", [12, 20, 29])
def test_what_is_made_after_the_cut_does_not_count(engine: Engine, at_step: int) -> None:
    """A cut during a step; what that step makes is dropped."""
    engine, executor = scripted(engine, reply_script(engine, CODES))
    conversation = engine.new_conversation()
    turn = run_alone(engine.open_turn(conversation, 1))
    run_alone(turn.push_text("hello"))

    def cut(step: int) -> None:
        if step == at_step:
            turn.truncate(3 * engine.bundle.samples_per_code + 1)
            assert conversation.exchanges == []  # the engine is at work

    executor.before_step = cut
    events = list(run_alone(turn.commit(Modality.SPEECH, replace(LONG, min_new=0))))
    last = done(events)
    assert last.finish_reason == "cancelled"
    assert len(last.codes) == at_step + 1
    assert codes_in_history(engine, conversation) == CODES[:4]
    check(engine)
    turn.truncate(3 * engine.bundle.samples_per_code + 1)  # the same again
    assert codes_in_history(engine, conversation) == CODES[:4]


@pytest.mark.slow
def test_an_earlier_turn_can_be_cut_while_the_user_speaks_again(engine: Engine) -> None:
    conversation = engine.new_conversation()
    turn = run_alone(engine.open_turn(conversation, 1))
    ask(turn, speech(1.0))
    codes = done(list(run_alone(turn.commit(Modality.SPEECH, GREEDY)))).codes
    later = run_alone(engine.open_turn(conversation, 2))
    ask(later, speech(0.5, 1))
    turn.truncate(4 * engine.bundle.samples_per_code)
    assert codes_in_history(engine, conversation) == list(codes[:4])
    ask(later, speech(0.5, 2))
    said = done(list(run_alone(later.commit(Modality.SPEECH, GREEDY)))).codes

    fresh = Engine(replace(engine.stages, lm=fresh_pool(engine)))
    copy = fresh.new_conversation()
    copy.exchanges = conversation.exchanges[:1]
    again = run_alone(fresh.open_turn(copy, 2))
    ask(again, speech(0.5, 1))
    ask(again, speech(0.5, 2))
    assert done(list(run_alone(again.commit(Modality.SPEECH, GREEDY)))).codes == said


@pytest.mark.slow
def test_a_forgotten_exchange_that_is_cut_away_does_not_hide_another(engine: Engine) -> None:
    engine, _ = scripted(engine, reply_script(engine, CODES))
    conversation = engine.new_conversation()
    turn, _ = answered(engine, conversation, "first")
    answered(engine, conversation, "second")
    conversation.num_forgotten = 1
    kept = conversation.history()
    turn.truncate(0)
    assert (len(conversation.exchanges), conversation.num_forgotten) == (1, 0)
    assert conversation.history() == kept


def failed(engine: Engine) -> tuple[Engine, Conversation, Turn]:
    """A scripted engine that works again, and a turn whose reply broke off at its 20th step."""
    engine, executor = scripted(engine, reply_script(engine, CODES))
    conversation = engine.new_conversation()

    def fail(step: int) -> None:
        if step == 20:
            raise ExecutorError("logits: the forward step returned only zeros")

    executor.before_step = fail
    turn = run_alone(engine.open_turn(conversation, 1))
    run_alone(turn.push_text("hello"))
    with pytest.raises(ExecutorError):
        list(run_alone(turn.commit(Modality.SPEECH, replace(LONG, min_new=0))))
    executor.before_step = lambda step: None
    return engine, conversation, turn


@pytest.mark.slow
def test_what_was_heard_before_an_error_stays(engine: Engine) -> None:
    engine, conversation, turn = failed(engine)
    turn.cancel()
    assert conversation.exchanges == []
    turn.truncate(5 * engine.bundle.samples_per_code)
    assert codes_in_history(engine, conversation) == CODES[:5]
    answered(engine, conversation)
    assert len(conversation.exchanges) == 2


@pytest.mark.slow
def test_a_failed_turn_does_not_come_back_behind_a_later_one(engine: Engine) -> None:
    engine, conversation, turn = failed(engine)
    answered(engine, conversation, "later")
    turn.truncate(5 * engine.bundle.samples_per_code)
    assert len(conversation.exchanges) == 1


def test_while_listening_it_is_a_cancel(engine: Engine) -> None:
    conversation = engine.new_conversation()
    turn = run_alone(engine.open_turn(conversation, 1))
    run_alone(turn.push(speech(1.0)))
    turn.truncate(9_999, 9)
    assert run_alone(turn.push(speech(1.0))) == 0
    assert conversation.exchanges == []


@pytest.mark.slow
@examples(6)
@given(seed=st.integers(0, 2**32))
def test_whenever_the_user_interrupts_the_history_is_what_was_heard(loaded: Engine, seed: int) -> None:
    choose, engine = random.Random(seed), Engine(loaded.stages)
    if choose.random() < 0.5:
        engine = with_subtitles(engine)
    conversation, unit = engine.new_conversation(), engine.bundle.samples_per_code
    for number in range(3):
        before = list(conversation.exchanges)
        turn = run_alone(engine.open_turn(conversation, number))
        if choose.random() < 0.5:
            run_alone(turn.push_text(choose.choice(("hello", "what is two plus three?"))))
        else:
            ask(turn, speech(choose.choice((0.2, 0.5, 1.0)), number))
        length = choose.choice((1, 9, 24))
        reply = run_alone(turn.commit(Modality.SPEECH, SamplingParams(min_new=length, max_new=length)))
        # Before the reply, while it is made, or when it is complete: any number of events.
        events = [event for _, event in zip(range(choose.choice((0, 1, 3, 99))), reply, strict=False)]
        made = len(sound(events))
        played = choose.choice((0, made, choose.randint(0, made), choose.randint(0, made) // unit * unit))
        if choose.random() < 0.3:
            turn.truncate(played)
            events += list(reply)
        else:
            reply.close()
            turn.truncate(played)
        check(engine)
        heard = -(-played // unit)
        if not heard:
            assert conversation.exchanges == before
            continue
        assert conversation.exchanges[:-1] == before
        codes = codes_in_history(engine, conversation)
        assert len(codes) == heard
        audio = [event for event in events if isinstance(event, ReplyAudio)]
        assert audio
        parts = [event for event in events if isinstance(event, ReplyText)]
        text = "".join(part.text for part in parts if part.start_sample < played)
        assert conversation.exchanges[-1].text == text.strip()

    fresh = Engine(replace(engine.stages, lm=fresh_pool(loaded)))
    copy = fresh.new_conversation()
    copy.exchanges = list(conversation.exchanges)
    question = engine.stages.prompt.user_text("and plus two?")
    tokens = [*conversation.history(), *question]
    warm, num_new = run_alone(engine.stages.sequences.prefill(conversation.sequence, tokens, BOTH_TAILS))
    cold, num_cold = run_alone(fresh.stages.sequences.prefill(copy.sequence, tokens, BOTH_TAILS))
    assert num_new <= num_cold
    for left, right in ((warm.text_logits, cold.text_logits), (warm.audio_logits, cold.audio_logits)):
        assert left is not None
        assert right is not None
        torch.testing.assert_close(left, right, atol=1e-4, rtol=1e-4)
    expected = done(exchange(fresh, copy, speech(0.7))).codes
    assert done(exchange(engine, conversation, speech(0.7))).codes == expected
    engine.end_conversation(conversation)
    check(engine)
    assert engine.stats.used == 0
