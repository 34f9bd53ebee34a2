"""Random numbers of replies, and replaced exchanges."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engine_runtime.bench.replies import run_bench
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.conversation.history import Exchange
from engine_runtime.conversation.turn import Conversation
from engine_runtime.engine import Engine
from engine_runtime.lm.generation import Token
from engine_runtime.types import Modality, SamplingParams
from engine_runtime.work import run_alone
from tests.tools.turns import ask, done, exchange, speech

DRAWING = SamplingParams(do_sample=True, temperature=2.0, min_new=16, max_new=16)
QUESTION = "what is two plus three?"


@pytest.fixture(scope="module")
def engine(random_bundle: Path) -> Engine:
    return Engine.load(Bundle.open(random_bundle))


def replies(engine: Engine, count: int, seed: int | None) -> list[tuple[int, ...]]:
    """Codes of the replies to one question, asked again and again in one conversation."""
    conversation, params = engine.new_conversation(), replace(DRAWING, seed=seed)
    said = []
    for _ in range(count):
        said.append(done(exchange(engine, conversation, QUESTION, params=params)).codes)
        conversation.exchanges.clear()  # so that only the samples differ
    engine.end_conversation(conversation)
    return said


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 7])
def test_a_seed_repeats_the_conversation_and_no_reply_within_it(engine: Engine, seed: int) -> None:
    said = replies(engine, 3, seed)
    assert len(set(said)) == 3
    assert replies(engine, 3, seed) == said
    assert replies(engine, 1, seed + 1)[0] not in said


@pytest.mark.slow
def test_without_a_seed_every_conversation_uses_new_random_numbers(engine: Engine) -> None:
    said = [*replies(engine, 2, None), *replies(engine, 2, None)]
    assert len(set(said)) == 4


@pytest.mark.slow
def test_a_cancelled_reply_has_used_its_random_numbers_and_a_reverted_one_has_not(engine: Engine) -> None:
    conversation, params, said = engine.new_conversation(), replace(DRAWING, seed=3), []
    for ending in ("reopen", "truncate", "done"):
        turn = run_alone(engine.open_turn(conversation, 1))
        ask(turn, speech(0.5))
        said.append(done(list(run_alone(turn.commit(Modality.SPEECH, params)))).codes)
        if ending == "reopen":
            turn.reopen()
            said.append(done(list(run_alone(turn.commit(Modality.SPEECH, params)))).codes)
        turn.truncate(0)
        assert conversation.exchanges == []
    assert said[0] == said[1]
    assert len(set(said)) == 3
    engine.end_conversation(conversation)


@pytest.mark.slow
def test_the_seed_of_the_bundle_counts_as_given(engine: Engine) -> None:
    lm = engine.bundle.lm
    assert lm.sampling_speech.seed == 7
    by_bundle, by_hand = engine.new_conversation(), engine.new_conversation()
    for _ in range(2):
        turn = run_alone(engine.open_turn(by_bundle, 1))
        run_alone(turn.push_text(QUESTION))
        codes = done(list(run_alone(turn.commit(Modality.SPEECH)))).codes
        assert codes == done(exchange(engine, by_hand, QUESTION, params=lm.sampling_speech)).codes


@pytest.mark.slow
def test_measurements_are_repeatable_without_a_seed(engine: Engine) -> None:
    lm = replace(engine.bundle.lm, sampling_speech=DRAWING)
    drawing = Engine(replace(engine.stages, bundle=replace(engine.bundle, lm=lm)))
    for params in (None, DRAWING):
        report = run_bench(drawing, speech(0.5), runs=2, warm_up=1, params=params)  # compares the codes
        assert report.codes_per_reply == 16


def test_exchanges_are_replaced_where_they_are(engine: Engine) -> None:
    conversation = Conversation(engine.stages.prompt, 1024)
    same = [Exchange((Token(1, 5),), (Token(2, 5),)) for _ in range(3)]
    for one in same:
        conversation.replace(None, one)
    conversation.replace(None, None)
    conversation.num_forgotten = 1
    other = Exchange((Token(1, 5),), (Token(3, 5),))
    conversation.replace(same[1], other)  # by identity: the others are equal
    assert [one is other for one in conversation.exchanges] == [False, True, False]
    conversation.replace(same[2], None)
    assert conversation.num_forgotten == 1
    conversation.replace(same[0], None)
    assert (conversation.exchanges, conversation.num_forgotten) == ([other], 0)
