"""Replies of which the model is not sure: another takes their place in text, sound, history and cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from app.audio.wav import read_wav
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.bundle.sections import DecliningSection
from engine_runtime.conversation.declining import declining_tokens, is_declined
from engine_runtime.conversation.turn import Conversation
from engine_runtime.engine import Engine
from engine_runtime.lm.generation import GeneratedToken, Mode, Token
from engine_runtime.lm.step import ScheduledBatch, StepOutput
from engine_runtime.timing import TimingEvent
from engine_runtime.types import Modality, Pcm, ReplyAudio, ReplyDone, ReplyEvent, ReplyText, SamplingParams
from engine_runtime.work import run_alone
from tests.doubles.scripted_lm import SamplingScript, ScriptedExecutor, scripted
from tests.tools.turns import check, done, exchange, reply_script, sound

SPEECH, TEXT = Modality.SPEECH, Modality.TEXT
PARAMS = SamplingParams(max_new=40)
ANSWER = list(range(20, 40))
DECLINED = tuple(range(1, 13))
SURE, UNSURE = 30.0, 1.0


@dataclass
class DoubtfulScript(SamplingScript):
    """Sure of every text id but those of the steps in `doubts`."""

    doubts: set[int] = field(default_factory=set)
    rated: list[int] = field(default_factory=list)
    """Steps that returned logits."""

    def execute(self, batch: ScheduledBatch) -> list[StepOutput]:
        (output,) = super().execute(batch)
        if output.text_logits is None:
            return [output]
        self.rated.append(self.step)
        scale = (UNSURE if self.step in self.doubts else SURE) / output.text_logits.max()
        return [replace(output, text_logits=output.text_logits * scale)]


def declining(engine: Engine, least: float = 0.9) -> Engine:
    """The engine with a bundle that declines."""
    bundle, special = engine.bundle, engine.bundle.lm.special_ids
    assert special.empty is not None
    words = engine.stages.tokenizer.encode("no idea")
    subtitles = [words[0], special.empty, *words[1:]]
    subtitles += [special.empty] * (len(DECLINED) - len(subtitles))
    section = DecliningSection(least, DECLINED, tuple(subtitles))
    lm = replace(bundle.lm, subtitles=True, detects_turn_end=True, declining=section)
    return Engine(replace(engine.stages, bundle=replace(bundle, lm=lm)), engine.timing)


def answering(
    engine: Engine, doubts: set[int], kind: type[ScriptedExecutor] = DoubtfulScript
) -> tuple[Engine, ScriptedExecutor]:
    """A declining engine whose language model says ANSWER."""
    engine, executor = scripted(declining(engine), reply_script(engine, ANSWER), kind)
    if isinstance(executor, DoubtfulScript):
        executor.doubts = doubts
    return engine, executor


def held(engine: Engine) -> int:
    """Tokens that the first packet of speech needs."""
    return engine.bundle.flow.packets[0] + engine.bundle.flow.look_ahead_codes


def say(
    engine: Engine, conversation: Conversation, modality: Modality = SPEECH, params: SamplingParams = PARAMS
) -> list[ReplyEvent]:
    turn = run_alone(engine.open_turn(conversation, 1, modality))
    run_alone(turn.push_text("hello"))
    return list(run_alone(turn.commit(modality, params)))


def token(certainty: float | None, *, is_stop: bool = False, mode: Mode = Mode.AUDIO) -> GeneratedToken:
    return GeneratedToken(Token(0, 0), mode, 0, Token(0, 0), is_stop=is_stop, certainty=certainty)


def test_one_token_in_doubt_is_enough() -> None:
    section = DecliningSection(0.9, (1,), (1,))
    assert not is_declined(section, [token(0.9), token(1.0), token(None)], PARAMS)
    assert is_declined(section, [token(0.95), token(0.89), token(1.0)], PARAMS)


@pytest.mark.parametrize("mode", Mode)
def test_a_reply_that_ends_as_soon_as_it_may_is_none_where_an_answer_is_asked_for(mode: Mode) -> None:
    section = DecliningSection(0.9, (1,), (1,))
    ends = (
        [token(1.0, mode=mode)] if mode is Mode.AUDIO else []
    )  # the end of speech comes before that of the turn
    tokens = [token(1.0, mode=mode), *ends, token(1.0, is_stop=True, mode=Mode.TEXT)]
    answer = replace(PARAMS, min_new=2)
    assert is_declined(section, tokens, answer)
    assert not is_declined(section, tokens, PARAMS)  # the caller allows an empty reply
    assert not is_declined(section, [token(1.0, mode=mode), *tokens], answer)
    assert not is_declined(section, tokens[:-1], answer)  # it goes on


@pytest.mark.parametrize("step", [0, 3, 7])
@pytest.mark.slow
def test_text_sound_and_history_are_those_of_the_declining_reply(engine: Engine, step: int) -> None:
    assert held(engine) == 8
    engine, _ = answering(engine, {step})
    seen: list[TimingEvent] = []
    engine.timing.subscribe(seen.append)
    conversation = engine.new_conversation()
    events = say(engine, conversation)
    last = done(events)
    assert (last.codes, last.text, last.finish_reason) == (DECLINED, "no idea", "stop")
    texts = [event for event in events if isinstance(event, ReplyText)]
    assert "".join(text.text for text in texts) == "no idea"
    assert texts[-1].start_sample > texts[0].start_sample == 0
    stages = engine.stages
    whole = stages.vocoder.vocode(stages.token2mel.convert(np.array(DECLINED)))
    np.testing.assert_allclose(sound(events), whole, atol=1e-4)
    assert len([event for event in events if isinstance(event, ReplyAudio)]) > 1  # streamed, as every reply
    prompt = stages.prompt
    codes = [
        *prompt.open_reply(SPEECH),
        *prompt.code_tokens(DECLINED),
        *prompt.end_speech(),
        *prompt.end_turn(),
    ]
    assert list(conversation.exchanges[0].reply) == codes
    (reply,) = [event for event in seen if event.name == "reply"]
    assert reply.attributes["declined"] == 1
    assert float(reply.attributes["certainty"]) < 0.1
    # The next turn starts from the history.
    run_alone(engine.open_turn(conversation, 2))
    ids = stages.sequences.merged_ids(conversation.history())
    assert conversation.sequence.ids[: len(ids)] == ids
    check(engine)


def test_a_text_reply_is_declined_in_text(engine: Engine) -> None:
    words = engine.stages.tokenizer.encode("a wrong answer")
    script = [*((word, 0) for word in words), (engine.bundle.lm.special_ids.im_end, 0)]
    engine, executor = scripted(declining(engine), script, DoubtfulScript)
    conversation = engine.new_conversation()
    assert done(say(engine, conversation, TEXT)).text == "a wrong answer"
    executor.doubts = {len(words) - 1}
    events = say(engine, conversation, TEXT)
    assert done(events).text == "no idea"
    assert "wrong" not in "".join(event.text for event in events if isinstance(event, ReplyText))
    assert list(conversation.exchanges[1].reply) == engine.stages.prompt.text_turn("no idea")


@pytest.mark.slow
def test_an_answer_that_is_sure_is_the_same_as_without_the_rule(engine: Engine) -> None:
    sure, _ = answering(engine, set())
    late, _ = answering(engine, {held(engine)})  # when the first packet was made already
    lm = replace(sure.bundle.lm, declining=None)
    without = Engine(replace(sure.stages, bundle=replace(sure.bundle, lm=lm)))
    expected = say(without, without.new_conversation())
    for tried in (sure, late):
        events = say(tried, tried.new_conversation())
        assert done(events) == done(expected)
        np.testing.assert_array_equal(sound(events), sound(expected))


@pytest.mark.slow
def test_the_decision_costs_no_decode_step_before_the_first_sound(engine: Engine) -> None:
    engine, executor = answering(engine, set())
    steps_at_sound = []
    turn = run_alone(engine.open_turn(engine.new_conversation(), 1))
    run_alone(turn.push_text("hello"))
    for event in run_alone(turn.commit(SPEECH, PARAMS)):
        if isinstance(event, ReplyAudio):
            steps_at_sound.append(executor.step)
    assert steps_at_sound[0] == held(engine) - 1
    assert isinstance(executor, DoubtfulScript)
    assert sorted({*executor.rated}) == list(range(held(engine)))  # later ids are sampled on the device


def test_a_reply_that_is_empty_against_the_will_of_the_caller_is_declined(engine: Engine) -> None:
    engine, _ = scripted(declining(engine), reply_script(engine, []), DoubtfulScript)
    conversation = engine.new_conversation()
    assert done(say(engine, conversation)).codes == ()
    # The first code is forced: the second token is the end of speech.
    assert done(say(engine, conversation, params=replace(PARAMS, min_new=2))).codes == DECLINED


@pytest.mark.parametrize(("max_new", "count"), [(5, 5), (12, 12), (13, 12), (14, 12)])
def test_a_declining_reply_keeps_to_the_length_that_is_allowed(
    engine: Engine, max_new: int, count: int
) -> None:
    engine, _ = answering(engine, {0})
    last = done(say(engine, engine.new_conversation(), params=replace(PARAMS, max_new=max_new)))
    assert last.codes == DECLINED[:count]
    assert last.finish_reason == ("stop" if max_new == len(DECLINED) + 2 else "length")


@pytest.mark.parametrize("modality", Modality)
@pytest.mark.parametrize("least", [20, 21])
def test_a_reply_of_a_set_length_runs_every_step(engine: Engine, modality: Modality, least: int) -> None:
    engine, executor = answering(engine, {0})
    params = replace(PARAMS, min_new=least, max_new=20)
    last = done(say(engine, engine.new_conversation(), modality, params))
    assert executor.step == 19  # the prefill is step 0
    if modality is SPEECH:
        assert last.codes == tuple(ANSWER[:20])


@pytest.mark.slow
def test_a_reply_cancelled_while_its_first_tokens_are_held_never_happened(engine: Engine) -> None:
    engine, executor = answering(engine, {0})
    conversation = engine.new_conversation()
    turn = run_alone(engine.open_turn(conversation, 1))
    run_alone(turn.push_text("hello"))
    executor.before_step = lambda step: turn.cancel() if step == 3 else None
    events = list(run_alone(turn.commit(SPEECH, PARAMS)))
    assert isinstance(events[-1], ReplyDone)
    assert (events[-1].finish_reason, events[-1].codes) == ("cancelled", ())
    assert conversation.exchanges == []
    check(engine)


@pytest.mark.slow
def test_a_declining_reply_is_cut_where_it_was_heard_and_made_again_after_a_reopen(engine: Engine) -> None:
    engine, executor = answering(engine, {0})
    conversation = engine.new_conversation()
    turn = run_alone(engine.open_turn(conversation, 1))
    run_alone(turn.push_text("hello"))
    assert done(list(run_alone(turn.commit(SPEECH, PARAMS)))).codes == DECLINED
    turn.reopen()
    assert isinstance(executor, DoubtfulScript)
    executor.doubts = set()
    assert done(list(run_alone(turn.commit(SPEECH, PARAMS)))).codes == tuple(ANSWER)
    turn.reopen()
    executor.doubts = {2}
    assert done(list(run_alone(turn.commit(SPEECH, PARAMS)))).codes == DECLINED
    turn.truncate(4 * engine.bundle.samples_per_code)
    prompt = engine.stages.prompt
    tokens = [
        *prompt.open_reply(SPEECH),
        *prompt.code_tokens(DECLINED[:4]),
        *prompt.end_speech(),
        *prompt.end_turn(),
    ]
    assert list(conversation.exchanges[0].reply) == tokens
    check(engine)


@pytest.mark.slow
@pytest.mark.parametrize("same", [7, 8, 12])
def test_words_follow_the_voice_where_it_begins_to_decline(engine: Engine, same: int) -> None:
    special, words = engine.bundle.lm.special_ids, engine.stages.tokenizer.encode("the answer")
    assert special.empty is not None
    codes = [*DECLINED[:same], *ANSWER]
    text = [*words, *[special.empty] * len(codes)]
    script = [*zip(text, codes, strict=False), (special.empty, special.eosp), (special.im_end, 0)]
    engine, _ = scripted(declining(engine), script, DoubtfulScript)
    last = done(say(engine, engine.new_conversation()))
    assert last.codes == tuple(codes)
    assert last.text == ("the answer" if same < held(engine) else "no idea")


def test_the_tokens_of_a_text_reply_leave_out_what_is_no_word(engine: Engine) -> None:
    special = engine.bundle.lm.special_ids
    assert special.empty is not None
    section = DecliningSection(0.5, (1, 2, 3), (9, special.empty, 8))
    tokens = declining_tokens(section, special, TEXT)
    assert [made.token.text for made in tokens] == [9, 8, special.im_end]
    assert [made.is_stop for made in tokens] == [False, False, True]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """The same sums in every reply."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def nano(nano_bundle: Path) -> Engine:
    return Engine.load(Bundle.open(nano_bundle))


def answer_to(engine: Engine, question: str | Pcm, modality: Modality = SPEECH) -> ReplyDone:
    """The answer that the program asks for."""
    lm = engine.bundle.lm
    params = lm.sampling_speech if modality is SPEECH else lm.sampling_text
    params = replace(params, min_new=2)
    return done(exchange(engine, engine.new_conversation(), question, modality, params))


@pytest.mark.slow
def test_the_declining_reply_of_nano_is_its_own(nano: Engine) -> None:
    section = nano.bundle.lm.declining
    assert section is not None
    lm = replace(nano.bundle.lm, declining=None)
    own = Engine(replace(nano.stages, bundle=replace(nano.bundle, lm=lm)))
    for engine in (own, nano):
        spoken = answer_to(engine, "What is the weather in London?")
        assert (spoken.codes, spoken.text) == (section.codes, "I am sorry I do not know that.")
        assert answer_to(engine, "What is the weather in London?", TEXT).text == spoken.text
    words = answer_to(own, "How do you spell elephant?", TEXT).text
    assert "sorry" not in words
    assert answer_to(nano, "How do you spell elephant?", TEXT).text == spoken.text
    assert answer_to(nano, "What is three plus four?").text == "Three plus four is seven."


@pytest.mark.slow
def test_no_caption_of_nano_lacks_its_first_word(nano: Engine, repository: Path) -> None:
    for file in sorted((repository / "assets" / "samples").glob("*.wav")):
        pcm, rate = read_wav(file)
        assert rate == nano.input_sample_rate
        text = answer_to(nano, pcm).text
        assert text[0].isupper(), (file.name, text)
