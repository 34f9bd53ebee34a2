"""Turns that are cancelled, interrupted, reopened or cut, and their remains in the history."""

from __future__ import annotations

import gc
import random
import threading
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine_runtime.codec.speech_decoder import ReplyVoice
from engine_runtime.conversation import reply
from engine_runtime.conversation.turn import Conversation
from engine_runtime.engine import Engine
from engine_runtime.errors import ExecutorError
from engine_runtime.hardware import AcceleratorError
from engine_runtime.lm.generation import Token
from engine_runtime.lm.step import StepOutput
from engine_runtime.timing import TimingEvent
from engine_runtime.types import (
    CancelScope,
    Modality,
    ReplyAudio,
    ReplyDone,
    ReplyEvent,
    ReplyText,
    SamplingParams,
)
from engine_runtime.work import Outcome, Result, Task, run_alone
from tests.doubles.scripted_lm import SamplingScript, scripted
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


def expected_codes(engine: Engine, *questions: float, params: SamplingParams = GREEDY) -> tuple[int, ...]:
    """Codes of the last reply of a conversation that runs straight through."""
    conversation = engine.new_conversation()
    for number, seconds in enumerate(questions):
        last = done(exchange(engine, conversation, speech(seconds, number), params=params))
    return last.codes


@pytest.mark.slow
def test_a_turn_cancelled_while_listening_never_happened(engine: Engine) -> None:
    conversation = engine.new_conversation()
    exchange(engine, conversation, speech(1.0, 0))
    used = engine.stats.used
    turn = run_alone(engine.open_turn(conversation, 2))
    ask(turn, speech(3.0, 5))
    assert engine.stats.used > used
    turn.cancel()
    assert engine.stats.used <= used
    assert run_alone(turn.push(speech(1.0))) == 0
    last = done(list(run_alone(turn.commit(Modality.SPEECH))))
    assert (last.finish_reason, last.codes, last.audio_samples) == ("cancelled", (), 0)
    assert done(exchange(engine, conversation, speech(1.2, 1))).codes == expected_codes(engine, 1.0, 1.2)


@pytest.mark.slow
def test_an_interrupted_reply_stays_as_far_as_it_was_handed_out(engine: Engine) -> None:
    conversation = engine.new_conversation()
    seen: list[TimingEvent] = []
    engine.timing.subscribe(seen.append)
    turn = run_alone(engine.open_turn(conversation, 1))
    ask(turn, speech(1.0))
    events: list[ReplyEvent] = []
    for event in run_alone(turn.commit(Modality.SPEECH, LONG)):
        events.append(event)
        if sum(isinstance(one, ReplyAudio) for one in events) == 3:
            turn.cancel()
    last = done(events)
    assert last.finish_reason == "cancelled"
    assert [one.attributes["finish_reason"] for one in seen if one.name == "reply"] == ["cancelled"]
    heard = len(sound(events)) // engine.bundle.samples_per_code
    assert 0 < heard < len(last.codes) < 60
    prompt, special = engine.stages.prompt, engine.bundle.lm.special_ids
    codes = [token.audio for token in conversation.exchanges[0].reply if token.text == special.modality_pad]
    assert codes == [*last.codes[:heard], special.eosp]
    assert list(conversation.exchanges[0].reply[-len(prompt.end_turn()) :]) == prompt.end_turn()
    assert conversation.sequence.num_tokens <= len(conversation.history())
    assert done(exchange(engine, conversation, speech(1.0, 1))).codes


def test_an_interrupted_text_stays_as_far_as_it_was_shown(engine: Engine) -> None:
    words = engine.stages.tokenizer.encode("two plus three is five")
    engine, _ = scripted(engine, [(word, 0) for word in words])
    conversation = engine.new_conversation()
    turn = run_alone(engine.open_turn(conversation, 1, Modality.TEXT))
    run_alone(turn.push_text("two plus three?"))
    shown = ""
    for event in run_alone(turn.commit(Modality.TEXT, SamplingParams(max_new=50))):
        if isinstance(event, ReplyText):
            shown += event.text
            if "plus" in shown:
                turn.cancel()
    text = engine.stages.tokenizer.decode(token.text for token in conversation.exchanges[0].reply)
    assert text.strip() == "assistant\n" + shown.strip()


def test_a_reply_cancelled_before_its_first_sound_never_happened(engine: Engine) -> None:
    conversation = engine.new_conversation()
    turn = run_alone(engine.open_turn(conversation, 1))
    ask(turn, speech(1.0))
    reply = run_alone(turn.commit(Modality.SPEECH, LONG))
    turn.cancel()
    assert done(list(reply)).finish_reason == "cancelled"
    assert conversation.exchanges == []


def test_a_cancel_during_a_step_takes_effect_after_it(engine: Engine) -> None:
    engine, executor = scripted(engine, [(0, 3)])
    conversation = engine.new_conversation()
    turn = run_alone(engine.open_turn(conversation, 1))
    ask(turn, speech(0.5))
    executor.before_step = lambda step: turn.cancel() if step == 4 else None
    events = list(run_alone(turn.commit(Modality.SPEECH, LONG)))
    assert done(events).finish_reason == "cancelled"
    assert executor.step == 4
    assert conversation.exchanges == []


def test_another_thread_stops_a_reply_within_a_step_by_its_scope(engine: Engine) -> None:
    engine, executor = scripted(engine, [(0, 3)])
    conversation = engine.new_conversation()
    turn = run_alone(engine.open_turn(conversation, 1))
    ask(turn, speech(0.5))
    reached, go_on, scope = threading.Event(), threading.Event(), CancelScope()

    def pause(step: int) -> None:
        if step == 4:
            reached.set()
            assert go_on.wait(60)

    def stop() -> None:
        assert reached.wait(60)
        scope.cancel()
        go_on.set()

    executor.before_step = pause
    other = threading.Thread(target=stop)
    other.start()
    assert list(run_alone(turn.commit(Modality.SPEECH, LONG, scope=scope))) == []
    other.join(60)
    assert executor.step == 4
    turn.cancel()
    assert conversation.exchanges == []


@pytest.mark.parametrize("works", [0, 1, 2, 3, 5, 8, 13, 40])
@pytest.mark.slow
def test_cancel_during_any_work(engine: Engine, works: int) -> None:
    conversation = engine.new_conversation()
    turn = run_alone(engine.open_turn(conversation, 1))
    begun = 0

    def cancelled(task: Task[Result]) -> Task[Result]:
        """Cancels the turn while the task waits for this work."""
        nonlocal begun
        outcome = Outcome()
        while True:
            try:
                work = outcome.resume(task)
            except StopIteration as stop:
                return stop.value
            if begun == works:
                turn.cancel()
            begun += 1
            outcome = Outcome((yield work))

    for start in range(0, 16_000, 1_280):
        run_alone(cancelled(turn.push(speech(1.0)[start : start + 1_280])))
    reply = run_alone(cancelled(turn.commit(Modality.SPEECH, LONG)))
    events: list[ReplyEvent] = []
    while (event := run_alone(cancelled(reply.next_event()))) is not None:
        events.append(event)
    assert begun > works
    assert done(events).finish_reason == "cancelled"
    check(engine)
    assert len(done(exchange(engine, conversation, speech(1.0))).codes) == 20


def test_a_reply_that_is_done_is_not_cancelled(engine: Engine) -> None:
    conversation = engine.new_conversation()
    turn = run_alone(engine.open_turn(conversation, 1))
    ask(turn, speech(1.0))
    assert done(list(run_alone(turn.commit(Modality.SPEECH, GREEDY)))).finish_reason == "length"
    turn.cancel()
    assert len(conversation.exchanges) == 1


@pytest.mark.parametrize("taken", [0, 1, 2, 1000], ids=["at once", "one event", "two events", "done"])
@pytest.mark.slow
def test_the_user_continues_after_all(engine: Engine, taken: int) -> None:
    complete = speech(3.0)
    turn = run_alone(engine.open_turn(engine.new_conversation(), 1))
    ask(turn, complete)
    expected = done(list(run_alone(turn.commit(Modality.SPEECH, GREEDY)))).codes
    conversation = engine.new_conversation()
    turn = run_alone(engine.open_turn(conversation, 1))
    ask(turn, complete[:17000])
    reply = run_alone(turn.commit(Modality.SPEECH, GREEDY))
    for _, _event in zip(range(taken), reply, strict=False):
        pass
    turn.reopen()
    assert list(reply) == []
    assert conversation.exchanges == []
    ask(turn, complete[17000:])
    assert done(list(run_alone(turn.commit(Modality.SPEECH, GREEDY)))).codes == expected
    assert len(conversation.exchanges) == 1


def test_a_closed_reply_can_be_taken_back_or_is_interrupted_by_the_next_turn(engine: Engine) -> None:
    conversation = engine.new_conversation()
    for number, reopens in enumerate((True, False)):
        turn = run_alone(engine.open_turn(conversation, number))
        ask(turn, speech(1.0))
        reply = run_alone(turn.commit(Modality.SPEECH, LONG))
        assert isinstance(next(reply), ReplyAudio)
        reply.close()
        if reopens:
            turn.reopen()
            assert run_alone(turn.push(speech(0.3))) > 0
    assert conversation.exchanges == []
    later = run_alone(engine.open_turn(conversation, 3))
    assert len(conversation.exchanges) == 1
    run_alone(engine.open_turn(conversation, 4))
    assert run_alone(later.push(speech(0.5))) == 0


def test_only_the_latest_turn_can_be_reopened(engine: Engine) -> None:
    conversation = engine.new_conversation()
    first = run_alone(engine.open_turn(conversation, 1))
    ask(first, speech(1.0))
    list(run_alone(first.commit(Modality.SPEECH, GREEDY)))
    run_alone(engine.open_turn(conversation, 2))
    with pytest.raises(RuntimeError, match="only the latest"):
        first.reopen()


def test_reopening_keeps_a_cancelled_turn_cancelled(engine: Engine) -> None:
    turn = run_alone(engine.open_turn(engine.new_conversation(), 1))
    run_alone(turn.push(speech(1.0)))
    turn.cancel()
    turn.reopen()
    assert run_alone(turn.push(speech(1.0))) == 0


def test_calls_in_the_wrong_order_are_refused(engine: Engine) -> None:
    turn = run_alone(engine.open_turn(engine.new_conversation(), 1))
    ask(turn, speech(1.0))
    list(run_alone(turn.commit(Modality.SPEECH, GREEDY)))
    with pytest.raises(RuntimeError, match="done"):
        run_alone(turn.push(speech(1.0)))
    with pytest.raises(RuntimeError, match="done"):
        run_alone(turn.commit(Modality.SPEECH))


def say(engine: Engine, conversation: Conversation, params: SamplingParams = LONG) -> list[ReplyEvent]:
    """A typed question with a spoken reply."""
    params = replace(params, min_new=0)
    return exchange(engine, conversation, "two plus three?", params=params)


def test_a_reply_that_ends_by_itself(engine: Engine) -> None:
    codes = [7, 8, 9, 10, 11, 12, 13]
    engine, _ = scripted(engine, reply_script(engine, codes))
    conversation = engine.new_conversation()
    events = say(engine, conversation)
    last = done(events)
    assert (last.finish_reason, last.codes, last.text) == ("stop", tuple(codes), "")
    assert last.audio_samples == len(sound(events)) == 7 * engine.bundle.samples_per_code
    prompt = engine.stages.prompt
    expected = [*prompt.open_reply(Modality.SPEECH), *prompt.code_tokens(codes), *prompt.end_speech()]
    reply = conversation.exchanges[0].reply
    assert list(reply) == [*expected, *prompt.end_turn()]


@pytest.mark.slow
def test_steps_have_the_device_to_themselves_until_the_voice_begins(engine: Engine) -> None:
    codes = list(range(1, 31))
    spoken, executor = scripted(engine, reply_script(engine, codes), SamplingScript)
    turn = run_alone(spoken.open_turn(spoken.new_conversation(), 1))
    ask(turn, speech(1.0))
    events = list(run_alone(turn.commit(Modality.SPEECH, LONG)))
    assert done(events).codes == tuple(codes)
    first_chunk = spoken.stages.token2mel.packet_codes[0] + spoken.stages.token2mel.look_ahead_codes
    # The first code comes from the prefill, each step yields one more, and a last one ends the reply.
    assert executor.exclusive_gpu == [True] * (first_chunk - 1) + [False] * (
        len(executor.exclusive_gpu) - first_chunk + 1
    )
    assert len(executor.exclusive_gpu) > len(codes) - 1

    written, executor = scripted(engine, [(word, 0) for word in range(20, 40)], SamplingScript)
    turn = run_alone(written.open_turn(written.new_conversation(), 1, Modality.TEXT))
    run_alone(turn.push_text("two plus three?"))
    list(run_alone(turn.commit(Modality.TEXT, SamplingParams(max_new=15))))
    assert executor.exclusive_gpu == [True] * 14


def test_the_last_sound_comes_with_the_end_of_speech(engine: Engine) -> None:
    engine, executor = scripted(engine, reply_script(engine, [1, 2, 3]))
    turn = run_alone(engine.open_turn(engine.new_conversation(), 1))
    run_alone(turn.push_text("hello"))
    for event in run_alone(turn.commit(Modality.SPEECH, replace(LONG, min_new=0))):
        if isinstance(event, ReplyAudio):
            assert executor.step == 3
    assert executor.step == 4


@pytest.mark.parametrize("cut_at", [1, 3, 5])
def test_a_reply_cut_by_its_length_is_closed_in_the_history(engine: Engine, cut_at: int) -> None:
    engine, _ = scripted(engine, reply_script(engine, [1, 2, 3, 4, 5]))
    conversation = engine.new_conversation()
    events = say(engine, conversation, SamplingParams(max_new=cut_at))
    assert done(events).finish_reason == "length"
    assert len(sound(events)) == cut_at * engine.bundle.samples_per_code
    prompt = engine.stages.prompt
    closing = [*prompt.code_tokens([cut_at]), *prompt.end_speech(), *prompt.end_turn()]
    assert list(conversation.exchanges[0].reply[-len(closing) :]) == closing


@pytest.mark.slow
def test_a_reply_longer_than_the_flow_can_say_is_cut(engine: Engine) -> None:
    engine, _ = scripted(engine, [(0, 3)])
    longest = engine.stages.max_codes
    events = say(engine, engine.new_conversation(), SamplingParams(max_new=5000))
    room = engine.new_conversation().limit
    assert len(done(events).codes) <= min(longest, room)
    assert done(events).finish_reason == "length"


def test_subtitles_come_with_the_speech(engine: Engine) -> None:
    bundle, special = engine.bundle, engine.bundle.lm.special_ids
    lm = replace(bundle.lm, subtitles=True)
    engine = Engine(replace(engine.stages, bundle=replace(bundle, lm=lm)))
    words = engine.stages.tokenizer.encode(" five apples")
    assert special.empty is not None
    spoken = [words[0], special.empty, *words[1:], special.modality_pad]
    script = [(word, number % 60) for number, word in enumerate(spoken)]
    engine, _ = scripted(engine, [*script, (special.empty, special.eosp), (special.im_end, 0)])
    events = say(engine, engine.new_conversation())
    texts = [event for event in events if isinstance(event, ReplyText)]
    assert "".join(event.text for event in texts) == " five apples"
    assert all(event.is_subtitle for event in texts)
    assert done(events).text == "five apples"
    assert len(done(events).codes) == len(spoken)


def test_text_inside_speech_is_no_subtitle(engine: Engine) -> None:
    special, words = engine.bundle.lm.special_ids, engine.stages.tokenizer.encode("yes")
    script = [(0, 5), (0, special.eosp), *((word, 0) for word in words), (special.im_end, 0)]
    engine, _ = scripted(engine, script)
    events = say(engine, engine.new_conversation())
    assert not any(event.is_subtitle for event in events if isinstance(event, ReplyText))
    assert done(events).text == "yes"


def test_speech_inside_a_text_reply_is_no_sound(engine: Engine) -> None:
    special, words = engine.bundle.lm.special_ids, engine.stages.tokenizer.encode("yes")
    script = [
        *((word, 0) for word in words),
        (special.sosp, 0),
        (0, 4),
        (0, special.eosp),
        (special.im_end, 0),
    ]
    engine, _ = scripted(engine, script)
    conversation = engine.new_conversation()
    turn = run_alone(engine.open_turn(conversation, 1, Modality.TEXT))
    run_alone(turn.push_text("hello"))
    events = list(run_alone(turn.commit(Modality.TEXT, replace(LONG, min_new=0))))
    assert done(events).text == "yes"
    assert (done(events).codes, len(sound(events))) == ((4,), 0)
    assert Token(special.modality_pad, special.eosp) in conversation.exchanges[0].reply


@pytest.mark.slow
def test_an_error_in_a_step_ends_the_turn_and_keeps_the_conversation(engine: Engine) -> None:
    engine, executor = scripted(engine, reply_script(engine, [1, 2, 3, 4, 5, 6]))
    conversation = engine.new_conversation()
    say(engine, conversation)
    before = list(conversation.exchanges)

    def fail(step: int) -> None:
        if step == 4:
            raise ExecutorError("logits: the forward step returned only zeros")

    executor.before_step = fail
    turn = run_alone(engine.open_turn(conversation, 2))
    run_alone(turn.push_text("hello"))
    with pytest.raises(ExecutorError):
        list(run_alone(turn.commit(Modality.SPEECH, LONG)))
    assert conversation.exchanges == before
    check(engine)
    executor.before_step = lambda step: None
    assert done(say(engine, conversation)).finish_reason == "stop"


def test_too_little_memory_in_a_step_is_reported_with_what_takes_less(engine: Engine) -> None:
    engine, executor = scripted(engine, reply_script(engine, [1, 2, 3, 4, 5, 6]))
    conversation = engine.new_conversation()

    def fail(step: int) -> None:
        if step == 4:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has ...")

    executor.before_step = fail
    turn = run_alone(engine.open_turn(conversation, 1))
    run_alone(turn.push_text("hello"))
    with pytest.raises(AcceleratorError, match=r"2\.00 MiB\)\. Use --weights with a smaller"):
        list(run_alone(turn.commit(Modality.SPEECH, LONG)))
    check(engine)
    executor.before_step = lambda step: None
    assert done(say(engine, conversation)).finish_reason == "stop"


@pytest.mark.slow
@pytest.mark.parametrize("end", ["done", "cancelled", "reopened", "left", "failed"])
def test_a_reply_that_is_over_releases_its_voice_at_once(
    engine: Engine, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The buffers of a voice are large on a GPU: the next reply must reuse them."""
    voices: list[weakref.ref[ReplyVoice]] = []

    class Noted(ReplyVoice):
        def __init__(self, *words: Any) -> None:
            super().__init__(*words)
            voices.append(weakref.ref(self))

    def fail(*words: Any, **options: Any) -> StepOutput:
        raise ExecutorError("logits: the forward step returned only zeros")

    monkeypatch.setattr(reply, "ReplyVoice", Noted)
    conversation = engine.new_conversation()
    turn = run_alone(engine.open_turn(conversation, 1))
    ask(turn, speech(1.0))
    gc.collect()
    gc.disable()
    try:
        events = run_alone(turn.commit(Modality.SPEECH, LONG))
        next(event for event in events if isinstance(event, ReplyAudio))
        assert voices[0]() is not None
        if end == "done":
            list(events)
        elif end == "cancelled":
            turn.cancel()
        elif end == "reopened":
            turn.reopen()
        elif end == "left":
            run_alone(engine.open_turn(conversation, 2))
        else:
            monkeypatch.setattr(engine.stages.lm, "step", fail)
            with pytest.raises(ExecutorError):
                list(events)
        assert [voice() for voice in voices] == [None]
    finally:
        gc.enable()


@pytest.mark.slow
def test_events_carry_their_turn(engine: Engine) -> None:
    events = exchange(engine, engine.new_conversation(), speech(1.0), turn_id=42)
    assert {event.turn_id for event in events} == {42}
    assert isinstance(events[-1], ReplyDone)


@pytest.mark.slow
@examples(5)
@given(seed=st.integers(0, 2**32))
def test_whatever_happened_the_next_reply_is_that_of_the_history(loaded: Engine, seed: int) -> None:
    choose, engine = random.Random(seed), Engine(loaded.stages)
    conversations = [engine.new_conversation() for _ in range(2)]
    for number in range(12):
        conversation = choose.choice(conversations)
        turn = run_alone(engine.open_turn(conversation, number, choose.choice(list(Modality))))
        for _ in range(choose.randint(1, 3)):
            ask(turn, speech(choose.choice((0.2, 0.5, 0.81)), number), choose.choice((800, 5000)))
            fate = choose.choice(("go on", "reply", "interrupt", "reopen", "cancel", "leave"))
            if fate == "cancel":
                turn.cancel()
            if fate in ("cancel", "leave"):
                break
            if fate == "go on":
                continue
            reply = run_alone(turn.commit(choose.choice(list(Modality)), replace(GREEDY, max_new=16)))
            for _, _event in zip(range(choose.randint(0, 40)), reply, strict=False):
                check(engine)
            if fate == "reply":
                list(reply)
                break
            if fate == "interrupt":
                turn.cancel()
                break
            turn.reopen()
        check(engine)
    for conversation in conversations:
        if conversation.turn is not None:
            conversation.turn.close()
        fresh = Engine(replace(loaded.stages, lm=fresh_pool(loaded)))
        copy = fresh.new_conversation()
        copy.exchanges, copy.num_forgotten = list(conversation.exchanges), conversation.num_forgotten
        expected = done(exchange(fresh, copy, speech(0.7))).codes
        assert done(exchange(engine, conversation, speech(0.7))).codes == expected
    engine.close()
    check(engine)


@pytest.mark.slow
def test_a_step_has_the_gpu_to_itself_while_no_codec_runs(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither that of its own reply nor of another one."""
    step, seen = engine.stages.lm.step, list[bool]()

    def noted(requests: Any, *, exclusive_gpu: bool = False) -> list[StepOutput]:
        if not requests[0].is_prefill:
            seen.append(exclusive_gpu)
        return step(requests, exclusive_gpu=exclusive_gpu)

    monkeypatch.setattr(engine.stages.lm, "step", noted)
    first, second = (run_alone(engine.open_turn(engine.new_conversation(), 1)) for _ in range(2))
    for turn in (first, second):
        ask(turn, speech(1.0))
    speaking = run_alone(first.commit(Modality.SPEECH, LONG))
    next(event for event in speaking if isinstance(event, ReplyAudio))
    assert seen == [True] * len(seen), "the first packet is complete with the last of these steps"
    seen.clear()
    list(run_alone(second.commit(Modality.SPEECH, GREEDY)))
    assert seen == [False] * len(seen)
    first.cancel()
    seen.clear()
    exchange(engine, engine.new_conversation(), speech(1.0))
    assert seen[0]
    assert not seen[-1], "its own codec has begun"
