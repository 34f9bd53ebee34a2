"""A conversation that another engine continues: the same replies, ids and samples, as without the restart."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine_runtime.bundle.bundle import Bundle
from engine_runtime.conversation.snapshot import ConversationSnapshot, HistoryError
from engine_runtime.conversation.turn import Conversation
from engine_runtime.engine import Engine
from engine_runtime.types import Modality, Pcm, ReplyEvent, SamplingParams
from engine_runtime.work import run_alone
from tests.tools.turns import ask, done, exchange, sound, speech

SAMPLED = SamplingParams(do_sample=True, temperature=1.0, top_k=20, min_new=12, max_new=16)


def through_json(snapshot: ConversationSnapshot) -> ConversationSnapshot:
    return ConversationSnapshot.of(json.loads(json.dumps(snapshot.document())))


def talk(engine: Engine, conversation: Conversation, first_id: int = 1) -> None:
    """A spoken turn, a typed one, and one whose reply was cut after its second code."""
    exchange(engine, conversation, speech(1.0), params=SAMPLED, turn_id=first_id)
    exchange(engine, conversation, "and now?", Modality.TEXT, SAMPLED, turn_id=first_id + 1)
    turn = run_alone(engine.open_turn(conversation, first_id + 2))
    ask(turn, speech(0.8, 1))
    list(run_alone(turn.commit(Modality.SPEECH, SAMPLED)))
    turn.truncate(engine.bundle.samples_per_code + 1)


def same(first: list[ReplyEvent], second: list[ReplyEvent]) -> bool:
    return done(first) == done(second) and np.array_equal(sound(first), sound(second))


@pytest.mark.slow
def test_the_next_reply_is_that_without_a_restart(loaded: Engine) -> None:
    engine = Engine(loaded.stages)
    conversation = engine.new_conversation()
    talk(engine, conversation)
    snapshot = through_json(engine.snapshot(conversation))
    assert [known.turn_id for known in snapshot.exchanges] == [1, 2, 3]
    without = exchange(engine, conversation, speech(0.7, 2), params=SAMPLED, turn_id=4)
    engine.end_conversation(conversation)
    restored = engine.restore(snapshot)
    assert engine.snapshot(restored) == snapshot
    assert same(exchange(engine, restored, speech(0.7, 2), params=SAMPLED, turn_id=4), without)


@pytest.mark.slow
def test_another_engine_of_the_nano_bundle_continues(nano_bundle: Path, question: Pcm) -> None:
    def ask_once(engine: Engine, conversation: Conversation, turn_id: int) -> list[ReplyEvent]:
        turn = run_alone(engine.open_turn(conversation, turn_id))
        ask(turn, question)
        return list(run_alone(turn.commit(Modality.SPEECH)))

    engine = Engine.load(Bundle.open(nano_bundle))
    conversation = engine.new_conversation()
    ask_once(engine, conversation, 1)
    snapshot = through_json(engine.snapshot(conversation))
    without = ask_once(engine, conversation, 2)
    engine.close()
    engine = Engine.load(Bundle.open(nano_bundle))
    after = ask_once(engine, engine.restore(snapshot), 2)
    engine.close()
    assert len(done(without).codes) > 5
    assert done(after) == done(without)
    assert np.array_equal(sound(after), sound(without))


@pytest.fixture
def question() -> Pcm:
    from app.audio.wav import read_wav

    return read_wav(Path(__file__).parents[2] / "data" / "speech" / "question.wav")[0]


@pytest.mark.slow
def test_a_deleted_turn_never_was(engine: Engine) -> None:
    kept, other = engine.new_conversation(), engine.new_conversation()
    kept.seed = other.seed = 3
    for turn_id, text in ((1, "one"), (2, "two"), (3, "three")):
        exchange(engine, kept, text, params=SAMPLED, turn_id=turn_id)
    engine.remove(kept, range(2, 3))
    assert [known.turn_id for known in kept.exchanges] == [1, 3]
    other.exchanges = list(kept.exchanges)
    other.num_commits = kept.num_commits
    assert same(
        exchange(engine, kept, "four", params=SAMPLED), exchange(engine, other, "four", params=SAMPLED)
    )


@pytest.mark.slow
def test_deleting_the_latest_turn_ends_it(engine: Engine) -> None:
    conversation = engine.new_conversation()
    exchange(engine, conversation, "one", turn_id=1)
    engine.remove(conversation, range(1, 2))
    assert conversation.turn is None
    assert conversation.exchanges == []
    assert done(exchange(engine, conversation, "two", turn_id=2)).finish_reason == "length"


@pytest.mark.parametrize("make", [lambda: "what is it?", lambda: speech(0.9)])
@pytest.mark.slow
def test_a_question_is_asked_again(engine: Engine, make: Callable[[], Pcm | str]) -> None:
    conversation = engine.new_conversation()
    turn = run_alone(engine.open_turn(conversation, 1))
    ask(turn, make())
    first = list(run_alone(turn.commit(Modality.SPEECH, replace(SAMPLED, do_sample=False))))
    question = turn.question
    engine.remove(conversation, range(1, 2))
    again = run_alone(engine.open_turn(conversation, 2))
    assert run_alone(again.push_question(question)) == (
        0 if isinstance(make(), str) else pytest.approx(0.9 * 12.5, abs=2)
    )
    second = list(run_alone(again.commit(Modality.SPEECH, replace(SAMPLED, do_sample=False))))
    assert done(first).codes == done(second).codes
    assert conversation.exchanges[0].user == question.user
    assert conversation.exchanges[0].turn_id == 2


def test_a_question_that_is_asked_again_may_be_continued(engine: Engine) -> None:
    conversation = engine.new_conversation()
    turn = run_alone(engine.open_turn(conversation, 1))
    ask(turn, "what is it?")
    list(run_alone(turn.commit(Modality.SPEECH, SAMPLED)))
    again = run_alone(engine.open_turn(conversation, 2))
    run_alone(again.push_question(turn.question))
    run_alone(again.push_text("and why?"))
    list(run_alone(again.commit(Modality.SPEECH, SAMPLED)))
    prompt = engine.stages.prompt
    more = [*prompt.user_text("and why?"), *prompt.end_turn()]
    assert list(again.question.user) == [*turn.question.user, *more]


def test_another_bundle_is_refused(engine: Engine) -> None:
    conversation = engine.new_conversation()
    exchange(engine, conversation, "one")
    snapshot = engine.snapshot(conversation)
    with pytest.raises(HistoryError, match=r"bundle other, and .* is loaded"):
        engine.restore(replace(snapshot, bundle="other", vocabulary="?"))
    with pytest.raises(HistoryError, match="another version of"):
        engine.restore(replace(snapshot, vocabulary="?"))


def test_damaged_documents_are_refused(engine: Engine) -> None:
    conversation = engine.new_conversation()
    exchange(engine, conversation, "one")
    document = engine.snapshot(conversation).document()
    with pytest.raises(HistoryError, match="format 2"):
        ConversationSnapshot.of(document | {"format": 2})
    damages: list[dict[str, object]] = [
        {"exchanges": [{}]},
        {"seed": None},
        {"modality": "smell"},
        {"exchanges": 5},
    ]
    for broken in damages:
        with pytest.raises(HistoryError, match="damaged"):
            ConversationSnapshot.of(document | broken)
    document["exchanges"][0]["user"][0][0] = 10**6
    with pytest.raises(HistoryError, match="damaged"):
        engine.restore(ConversationSnapshot.of(document))
    assert engine.stats.used >= 0
