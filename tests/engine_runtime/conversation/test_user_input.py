"""Codes of a spoken turn: revised during speech, encoded again at the commit; initial ceiling."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from engine_runtime.bundle.bundle import Bundle
from engine_runtime.bundle.card import ModelCard
from engine_runtime.codec.speech_tokenizer.log_mel_stream import WhisperLogMelStream
from engine_runtime.conversation.history import Exchange
from engine_runtime.conversation.turn import Conversation
from engine_runtime.engine import Engine
from engine_runtime.errors import LanguageError
from engine_runtime.lm.block_manager import Sequence
from engine_runtime.lm.generation import Token
from engine_runtime.lm.step import BOTH_TAILS
from engine_runtime.options import EngineOptions
from engine_runtime.timing import TimingEvent
from engine_runtime.types import Modality, Pcm
from engine_runtime.work import run_alone
from tests.tools.turns import GREEDY, ask, check, done, exchange, speech

FAR_PRIOR = 16.0
"""So far above any speech that its features vanish and its codes differ."""
SHORT_S = 0.9
"""Too short for a revision."""


def load(random_bundle: Path) -> Engine:
    """An engine that estimates the maximum of a segment, and is wrong at first."""
    bundle = Bundle.open(random_bundle)
    encoder = replace(bundle.speech_encoder, normalization="segment_max", ceiling_prior=FAR_PRIOR)
    return Engine.load(replace(bundle, speech_encoder=encoder), EngineOptions(exact_encoding=True))


@pytest.fixture(scope="module")
def loaded(random_bundle: Path) -> Engine:
    return load(random_bundle)


@pytest.fixture
def exact(loaded: Engine) -> Iterator[Engine]:
    engine = Engine(loaded.stages)
    yield engine
    check(engine)
    engine.close()


@pytest.fixture
def streamed(loaded: Engine) -> Iterator[Engine]:
    engine = Engine(replace(loaded.stages, options=EngineOptions()))
    yield engine
    engine.close()


def with_silence(seconds: float, seed: int = 0) -> Pcm:
    return np.concatenate((np.zeros(5000, np.float32), speech(seconds - 5000 / 16000, seed)))


def user_codes(engine: Engine, conversation: Conversation, index: int = -1) -> list[int]:
    """Codes of a user turn in the history."""
    special = engine.bundle.lm.special_ids
    tokens = conversation.exchanges[index].user
    return [
        token.audio for token in tokens if token.text == special.modality_pad and token.audio < special.eosp
    ]


def keys_and_values(engine: Engine, sequence: Sequence) -> torch.Tensor:
    """What the KV cache holds of a sequence, [.., tokens, ..]."""
    blocks = engine.stages.lm.cache.pool[torch.tensor(sequence.block_table)]
    tokens = blocks.movedim(4, 1).flatten(0, 1)
    return tokens[: sequence.num_tokens]


@pytest.mark.parametrize("seconds", [SHORT_S, 3.0])
def test_codes_at_the_commit_are_those_of_the_complete_question(exact: Engine, seconds: float) -> None:
    question = with_silence(seconds)
    conversation = exact.new_conversation()
    assert done(exchange(exact, conversation, question)).codes
    assert user_codes(exact, conversation) == exact.stages.speech_tokenizer.encode(question).tolist()


def test_a_stream_alone_keeps_its_estimate(streamed: Engine) -> None:
    question, tokenizer = with_silence(SHORT_S), streamed.stages.speech_tokenizer
    conversation = streamed.new_conversation()
    exchange(streamed, conversation, question)
    found = user_codes(streamed, conversation)
    assert found == tokenizer.encode_streamed(question).tolist()
    assert found != tokenizer.encode(question).tolist()


def test_codes_that_a_revision_changed_are_prefilled_again(streamed: Engine) -> None:
    question, tokenizer = with_silence(3.0), streamed.stages.speech_tokenizer
    seen: list[TimingEvent] = []
    streamed.timing.subscribe(seen.append)
    conversation = streamed.new_conversation()
    turn = run_alone(streamed.open_turn(conversation, 1))
    ask(turn, question)
    tokens = [event.attributes["tokens"] for event in seen if event.name == "prefill"]
    assert max(int(count) for count in tokens[1:]) > 5  # else as many as there are new codes
    stream = tokenizer.stream()
    for start in range(0, question.size, 1280):
        run_alone(stream.push(question[start : start + 1280]))
    prompt = streamed.stages.prompt
    wanted = [*conversation.history(), *prompt.open_user_speech(), *prompt.code_tokens(stream.codes)]
    check_cache(streamed, conversation, wanted)


def test_prefill_starts_at_the_first_code_that_differs(random_bundle: Path) -> None:
    exact = load(random_bundle)  # no block of an earlier conversation can be reused
    question, tokenizer = with_silence(SHORT_S), exact.stages.speech_tokenizer
    seen: list[TimingEvent] = []
    conversation = exact.new_conversation()
    turn = run_alone(exact.open_turn(conversation, 1))
    ask(turn, question)
    exact.timing.subscribe(seen.append)
    reply = run_alone(turn.commit(Modality.SPEECH, GREEDY))
    next(reply)
    stream = tokenizer.stream()
    run_alone(stream.push(question))
    old, new = stream.codes, tokenizer.encode(question).tolist()
    same = next(index for index, (a, b) in enumerate(zip(old, new, strict=False)) if a != b)
    assert same < len(old)
    (encoded,) = [event for event in seen if event.name == "encode"]
    changed = sum(a != b for a, b in zip(old, new, strict=False))
    assert encoded.attributes == {"exact": 1, "codes": len(new), "changed_codes": changed}
    prompt = exact.stages.prompt
    after = [*prompt.end_speech(), *prompt.end_turn(), *prompt.open_reply(Modality.SPEECH)]
    commit = next(event for event in seen if "tokens_at_commit" in event.attributes)
    assert commit.attributes["tokens_at_commit"] == len(new) - same + len(after)
    exact.close()


def check_cache(engine: Engine, conversation: Conversation, wanted: list[Token]) -> None:
    """The cache holds these tokens, as a prefill of all of them at once leaves it."""
    ids = engine.stages.sequences.merged_ids(wanted)
    assert conversation.sequence.num_tokens == len(ids)
    held = keys_and_values(engine, conversation.sequence).clone()
    fresh, lm = Sequence(), engine.stages.lm
    lm.prefill(fresh, ids, BOTH_TAILS)
    complete, config = keys_and_values(engine, fresh), engine.stages.lm_config
    # The text tail, the layers after the shared ones, is left out of a spoken reply until it is wanted.
    text, tokens = (
        slice(config.shared_layers, config.shared_layers + config.text_layers),
        conversation.sequence,
    )
    held[tokens.text_computed :, text] = complete[tokens.text_computed :, text]
    torch.testing.assert_close(held, complete, atol=1e-5, rtol=1e-4)
    lm.blocks.release(fresh)


def test_the_cache_is_that_of_a_fresh_prefill(exact: Engine) -> None:
    conversation = exact.new_conversation()
    exchange(exact, conversation, with_silence(SHORT_S))
    tokens = conversation.history()
    check_cache(exact, conversation, tokens[: conversation.sequence.num_tokens])


@pytest.mark.parametrize("seconds", [SHORT_S, 2.0])
@pytest.mark.slow
def test_the_user_continues_after_the_commit(exact: Engine, seconds: float) -> None:
    complete, place = with_silence(seconds + 1.0), int(seconds * 16000)
    conversation = exact.new_conversation()
    turn = run_alone(exact.open_turn(conversation, 1))
    ask(turn, complete[:place])
    next(run_alone(turn.commit(Modality.SPEECH, GREEDY)))
    turn.reopen()
    ask(turn, complete[place:])
    straight = exact.new_conversation()
    expected = done(exchange(exact, straight, complete)).codes
    assert done(list(run_alone(turn.commit(Modality.SPEECH, GREEDY)))).codes == expected
    assert user_codes(exact, conversation) == exact.stages.speech_tokenizer.encode(complete).tolist()


def test_a_question_in_an_unknown_script_leaves_no_trace(loaded: Engine) -> None:
    bundle = replace(loaded.bundle, card=ModelCard(("en",)))
    engine = Engine(replace(loaded.stages, bundle=bundle))
    conversation = engine.new_conversation()
    turn = run_alone(engine.open_turn(conversation, 1))
    with pytest.raises(LanguageError):
        run_alone(turn.push_text("你好"))
    assert turn.is_over
    assert conversation.exchanges == []
    again = run_alone(engine.open_turn(conversation, 2))
    run_alone(again.push_text("hello"))
    assert done(list(run_alone(again.commit(Modality.SPEECH, GREEDY)))).codes
    check(engine)
    engine.close()


@pytest.fixture
def priors(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """Maxima that segments were expected to have when their features began; the last is that of the last
    turn."""
    found: list[float | None] = []
    reset = WhisperLogMelStream.reset

    def noting(self: WhisperLogMelStream, prior: float | None = None) -> None:
        found.append(prior)
        reset(self, prior)

    monkeypatch.setattr(WhisperLogMelStream, "reset", noting)
    return found


@pytest.mark.slow
def test_a_turn_starts_from_the_maximum_of_the_one_before(
    streamed: Engine, priors: list[float | None]
) -> None:
    conversation = streamed.new_conversation()
    first = run_alone(streamed.open_turn(conversation, 1))
    assert priors[-1] is None, "it is that of the bundle"
    assert streamed.stages.speech_tokenizer.features.start_ceiling(None) == FAR_PRIOR
    ask(first, with_silence(2.0))
    list(run_alone(first.commit(Modality.SPEECH, GREEDY)))
    loud = conversation.expected_maximum
    assert loud is not None
    typed = run_alone(streamed.open_turn(conversation, 2))
    run_alone(typed.push_text("two plus three?"))
    list(run_alone(typed.commit(Modality.SPEECH, GREEDY)))
    assert conversation.exchanges[-1].speech_maximum is None
    dropped = run_alone(streamed.open_turn(conversation, 3))
    ask(dropped, 0.01 * with_silence(2.0))
    dropped.cancel()
    run_alone(streamed.open_turn(conversation, 4))
    assert priors[-1] == loud
    quiet = run_alone(streamed.open_turn(conversation, 5))
    ask(quiet, 0.1 * with_silence(2.0))
    list(run_alone(quiet.commit(Modality.SPEECH, GREEDY)))
    assert conversation.expected_maximum == pytest.approx(loud - 2.0, abs=0.01)


@pytest.mark.slow
def test_one_outlier_says_nothing_about_the_next_turn(streamed: Engine, priors: list[float | None]) -> None:
    conversation = streamed.new_conversation()
    for gain in (0.1, 0.1, 1.0):
        turn = run_alone(streamed.open_turn(conversation, 1))
        ask(turn, gain * with_silence(2.0))
        list(run_alone(turn.commit(Modality.SPEECH, GREEDY)))
    maxima = [exchange.speech_maximum for exchange in conversation.exchanges]
    assert maxima[2] == pytest.approx((maxima[0] or 0.0) + 2.0, abs=0.01)
    run_alone(streamed.open_turn(conversation, 4))
    assert priors[-1] == maxima[0] is not None


@pytest.mark.slow
def test_a_turn_that_is_taken_back_says_nothing_about_the_next(streamed: Engine) -> None:
    conversation = streamed.new_conversation()
    exchange(streamed, conversation, with_silence(2.0))
    loud = conversation.expected_maximum
    turn = run_alone(streamed.open_turn(conversation, 2))
    ask(turn, 0.1 * with_silence(2.0))
    list(run_alone(turn.commit(Modality.SPEECH, GREEDY)))
    assert conversation.expected_maximum != loud
    turn.reopen()
    assert conversation.expected_maximum == loud


@pytest.mark.slow
def test_no_conversation_learns_how_loud_another_is(streamed: Engine, priors: list[float | None]) -> None:
    question = with_silence(SHORT_S)
    alone = streamed.new_conversation()
    exchange(streamed, alone, question)
    other = streamed.new_conversation()
    exchange(streamed, other, 0.05 * with_silence(3.0, 4))
    streamed.warm_up()
    streamed.end_conversation(other)
    later = streamed.new_conversation()
    turn = run_alone(streamed.open_turn(later, 1))
    assert priors[-1] is None
    ask(turn, question)
    list(run_alone(turn.commit(Modality.SPEECH, GREEDY)))
    assert user_codes(streamed, later) == user_codes(streamed, alone)


def asked(engine: Engine, *parts: Pcm | str) -> Exchange:
    """The exchange of a turn with these parts."""
    conversation = engine.new_conversation()
    turn = run_alone(engine.open_turn(conversation, 1))
    for part in parts:
        ask(turn, part)
    done(list(run_alone(turn.commit(Modality.SPEECH, GREEDY))))
    return conversation.exchanges[0]


def test_a_turn_may_mix_speech_and_text(streamed: Engine) -> None:
    note, question = "by the way", speech(1.0, 3)
    typed, spoken = asked(streamed, note), asked(streamed, question)
    assert asked(streamed, note, question).user == (*typed.user, *spoken.user)
    mixed = asked(streamed, question, note, note)
    assert mixed.user == (*spoken.user, *typed.user, *typed.user)
    assert mixed.speech_maximum == spoken.speech_maximum


def test_speech_after_a_text_is_a_segment_of_its_own(exact: Engine) -> None:
    first, second = with_silence(1.5), with_silence(SHORT_S, 1)
    spoken, mixed = asked(exact, first).user, asked(exact, first, "and", second).user
    assert mixed[: len(spoken)] == spoken
    assert len(mixed) == sum(len(asked(exact, part).user) for part in (first, "and", second))


def test_text_ends_speech_that_is_too_short_for_a_code(streamed: Engine) -> None:
    assert asked(streamed, np.zeros(0, np.float32), "hello").user == asked(streamed, "hello").user
