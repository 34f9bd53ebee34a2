"""Replies without a sound or a word, and what their probability says about the user's turn."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine_runtime.engine import Engine
from engine_runtime.timing import TimingBus, TimingEvent
from engine_runtime.types import Modality, ReplyDone, SamplingParams, TurnEndPrediction
from engine_runtime.work import run_alone
from tests.doubles.scripted_lm import SamplingScript, ScriptedExecutor, scripted
from tests.tools.turns import ask, done, exchange, reply_script, sound, speech

EMPTY = SamplingParams(max_new=20)
NOT_EMPTY = replace(EMPTY, min_new=2)


def predicting(engine: Engine) -> Engine:
    """The engine with a bundle that detects the end of turns."""
    bundle = engine.bundle
    lm = replace(bundle.lm, detects_turn_end=True)
    return Engine(replace(engine.stages, bundle=replace(bundle, lm=lm)), engine.timing)


def test_an_empty_spoken_reply_is_a_reply(engine: Engine) -> None:
    engine, executor = scripted(engine, reply_script(engine, []))
    conversation = engine.new_conversation()
    events = exchange(engine, conversation, speech(1.0), params=EMPTY)
    (last,) = events
    assert isinstance(last, ReplyDone)
    assert (last.finish_reason, last.codes, last.text, last.audio_samples) == ("stop", (), "", 0)
    prompt = engine.stages.prompt
    closed = [*prompt.open_reply(Modality.SPEECH), *prompt.end_speech(), *prompt.end_turn()]
    assert list(conversation.exchanges[0].reply) == closed
    # The conversation goes on from there.
    executor.script = reply_script(engine, [7, 8, 9])
    assert done(exchange(engine, conversation, speech(1.0, 1), params=EMPTY)).codes == (7, 8, 9)


def test_an_empty_text_reply_is_a_reply(engine: Engine) -> None:
    engine, _ = scripted(engine, [(engine.bundle.lm.special_ids.im_end, 0)])
    conversation = engine.new_conversation()
    turn = run_alone(engine.open_turn(conversation, 1, Modality.TEXT))
    run_alone(turn.push_text("three plus"))
    (last,) = run_alone(turn.commit(Modality.TEXT, EMPTY))
    assert isinstance(last, ReplyDone)
    assert (last.finish_reason, last.text) == ("stop", "")
    prompt = engine.stages.prompt
    assert list(conversation.exchanges[0].reply) == [*prompt.open_reply(Modality.TEXT), *prompt.end_turn()]
    # Nothing of it was shown: it never happened.
    turn.truncate(0, 0)
    assert conversation.exchanges == []


@pytest.mark.parametrize("executor", [ScriptedExecutor, SamplingScript])
@pytest.mark.parametrize("is_empty", [True, False])
@pytest.mark.parametrize("modality", [Modality.SPEECH, Modality.TEXT])
def test_the_first_event_predicts_the_end_of_the_turn(
    engine: Engine, executor: type[ScriptedExecutor], is_empty: bool, modality: Modality
) -> None:
    special = engine.bundle.lm.special_ids
    if modality is Modality.SPEECH:
        script = reply_script(engine, [] if is_empty else [7, 8, 9])
    else:
        words = [] if is_empty else engine.stages.tokenizer.encode("five")
        script = [*((word, 0) for word in words), (special.im_end, 0)]
    engine, _ = scripted(predicting(engine), script, executor)
    turn = run_alone(engine.open_turn(engine.new_conversation(), 1, modality))
    ask(turn, speech(1.0))
    prediction, *rest = run_alone(turn.commit(modality, EMPTY))
    assert isinstance(prediction, TurnEndPrediction)
    # The scripted logits are 5 for one id and 0 for the others, of which there are some hundreds.
    assert prediction.probability < 0.9 if is_empty else prediction.probability > 0.97
    assert not any(isinstance(event, TurnEndPrediction) for event in rest)
    assert (done(rest).codes, done(rest).text) == (
        (() if is_empty or modality is Modality.TEXT else (7, 8, 9)),
        "five" if modality is Modality.TEXT and not is_empty else "",
    )


def test_it_predicts_the_same_where_an_empty_reply_is_forbidden(engine: Engine) -> None:
    special = engine.bundle.lm.special_ids
    script = [(0, special.eosp), (0, special.eosp), (special.im_end, 0)]
    engine, executor = scripted(predicting(engine), script)
    conversation = engine.new_conversation()
    turn = run_alone(engine.open_turn(conversation, 1))
    ask(turn, speech(1.0))
    free, *_ = run_alone(turn.commit(Modality.SPEECH, EMPTY))
    turn.reopen()
    answer = list(run_alone(turn.commit(Modality.SPEECH, NOT_EMPTY)))
    assert answer[0] == free
    assert len(done(answer).codes) == 1
    assert len(sound(answer)) == engine.bundle.samples_per_code

    executor.script = [(special.im_end, 0)]
    turn = run_alone(engine.open_turn(conversation, 2, Modality.TEXT))
    run_alone(turn.push_text("three plus"))
    for _ in run_alone(turn.commit(Modality.TEXT, NOT_EMPTY)):
        pass
    prompt = engine.stages.prompt
    opening, ending = len(prompt.open_reply(Modality.TEXT)), len(prompt.end_turn())
    (token,) = conversation.exchanges[-1].reply[opening:-ending]
    assert token.text not in (special.im_end, special.endoftext)


def test_a_reply_that_is_held_after_its_prediction_is_not_late(engine: Engine) -> None:
    now_ns = 1_000
    timing = TimingBus(lambda: now_ns)
    engine, _ = scripted(predicting(engine), reply_script(engine, [7, 8, 9]))
    seen: list[TimingEvent] = []
    timing.subscribe(seen.append)
    turn = run_alone(engine.open_turn(engine.new_conversation(), 1))
    ask(turn, speech(1.0))
    events = run_alone(turn.commit(Modality.SPEECH, EMPTY, timing=timing))
    assert isinstance(next(events), TurnEndPrediction)
    now_ns += 2_000_000_000
    list(events)
    (first,) = [event for event in seen if event.name == "first_audio"]
    assert (first.start_ns, first.duration_ns) == (now_ns, 0)


def test_other_bundles_predict_nothing(engine: Engine) -> None:
    engine, _ = scripted(engine, reply_script(engine, [7, 8, 9]))
    events = exchange(engine, engine.new_conversation(), speech(1.0), params=EMPTY)
    assert not any(isinstance(event, TurnEndPrediction) for event in events)
