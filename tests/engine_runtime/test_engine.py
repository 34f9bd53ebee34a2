"""The engine end to end on random weights, against the plain networks."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch

import engine_runtime
from engine_runtime import engine as engine_module
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.bundle.weights import load_weights
from engine_runtime.codec.flow.static import bytes_per_code
from engine_runtime.codec.flow.token2mel import Token2Mel
from engine_runtime.codec.loading import load_flow
from engine_runtime.codec.speech_tokenizer.speech_tokenizer import SpeechTokenizer
from engine_runtime.codec.vocoder.vocoder import Vocoder
from engine_runtime.engine import Engine, share_encoder
from engine_runtime.errors import AudioInputError, BundleError, ContextLengthError
from engine_runtime.hardware import AcceleratorError
from engine_runtime.lm.block_manager import Sequence
from engine_runtime.lm.generation import Generation, Token, speech_codes
from engine_runtime.lm.step import ScheduledBatch, StepOutput
from engine_runtime.models.moss_lm import MossLM, MossLMConfig
from engine_runtime.models.whisper_vq import WhisperVQConfig
from engine_runtime.options import Dtype, EngineOptions
from engine_runtime.timing import TimingBus, TimingEvent
from engine_runtime.types import (
    Modality,
    Pcm,
    ReplyAudio,
    ReplyDone,
    ReplyEvent,
    ReplyText,
    SamplingParams,
    SystemText,
    TurnEndPrediction,
)
from engine_runtime.work import run_alone
from tests.factories.tiny_lm import make_cuda_paged
from tests.tools.turns import GREEDY, ask, done, exchange, sound, speech


@pytest.fixture(scope="module")
def bundle(random_bundle: Path) -> Bundle:
    return Bundle.open(random_bundle)


def plain_reply(
    bundle: Bundle, engine: Engine, rows: list[Token], params: SamplingParams = GREEDY
) -> tuple[list[int], list[int]]:
    """Codes and text ids after `rows` by the plain network, with the complete sequence at every step."""
    config = MossLMConfig.from_dict(bundle.lm.config)
    model = MossLM(config)
    load_weights(model, bundle.lm.weights)
    generation = Generation(
        rows, params, bundle.lm.special_ids, text_vocab=config.text_vocab, audio_vocab=config.audio_vocab
    )
    made = []
    rows = list(rows)
    while generation.finish_reason is None:
        with torch.inference_mode():
            text, audio = model(torch.tensor([rows]))
        made.append(generation.sample(StepOutput(text[0, -1], audio[0, -1])))
        rows.append(made[-1].token)
    texts = [row.token.text for row in made if row.mode.value == "text" and not row.is_stop]
    return list(speech_codes(made, bundle.lm.special_ids)), texts


def said(engine: Engine, text_ids: list[int]) -> str:
    """Text of a reply; bytes at its end that are no character are left out."""
    return engine.stages.tokenizer.decode(text_ids).rstrip("\ufffd").strip()


def committed_rows(engine: Engine, question: Pcm | str, reply: Modality) -> list[Token]:
    """The rows of a first turn, put together by hand."""
    prompt = engine.stages.prompt
    if isinstance(question, str):
        user = prompt.user_text(question)
    else:
        codes = engine.stages.speech_tokenizer.encode(question)
        user = [*prompt.open_user_speech(), *prompt.code_tokens(codes), *prompt.end_speech()]
    return [*prompt.system(reply), *user, *prompt.end_turn(), *prompt.open_reply(reply)]


@pytest.mark.slow
@pytest.mark.parametrize("reply", list(Modality))
@pytest.mark.parametrize("question", [speech(2.03), "what is two plus three?"], ids=["spoken", "typed"])
def test_all_four_ways_equal_the_plain_network(
    bundle: Bundle, engine: Engine, question: Pcm | str, reply: Modality
) -> None:
    events = exchange(engine, engine.new_conversation(), question, reply)
    codes, texts = plain_reply(bundle, engine, committed_rows(engine, question, reply))
    last = done(events)
    assert last.modality is reply
    if reply is Modality.SPEECH:
        assert list(last.codes) == codes
        assert last.audio_samples == len(codes) * bundle.samples_per_code == len(sound(events))
    else:
        assert last.text == said(engine, texts)
        text = "".join(event.text for event in events if isinstance(event, ReplyText))
        assert text.strip() == last.text
        assert not any(isinstance(event, ReplyAudio) for event in events)


@pytest.mark.slow
def test_the_sound_of_a_reply_is_that_of_its_codes(engine: Engine) -> None:
    events = exchange(engine, engine.new_conversation(), speech(1.0))
    stages = engine.stages
    codes = np.array(done(events).codes)
    mel = stages.token2mel.convert(codes)
    assert isinstance(stages.vocoder, Vocoder)
    stream = stages.vocoder.stream()
    reference = np.concatenate([stream.push(mel), stream.finish()])
    np.testing.assert_allclose(sound(events), reference, atol=1e-4)
    indices = [event.chunk_index for event in events if isinstance(event, ReplyAudio)]
    assert indices == list(range(len(indices)))


def test_the_first_sound_comes_before_the_last_code(engine: Engine) -> None:
    seen: list[TimingEvent] = []
    engine.timing.subscribe(seen.append)
    turn = run_alone(engine.open_turn(engine.new_conversation(), 1))
    run_alone(turn.push(speech(1.0)))
    reply = run_alone(turn.commit(Modality.SPEECH, GREEDY))
    first = next(event for event in reply if isinstance(event, ReplyAudio))
    flow = engine.bundle.flow
    steps = [event for event in seen if event.name == "step"]
    assert len(steps) == flow.first_chunk_codes + flow.look_ahead_codes - 1
    assert first.chunk_index == 0
    assert len(list(reply)) > 1


@pytest.mark.slow
def test_speech_is_prefilled_while_it_arrives(engine: Engine) -> None:
    seen: list[TimingEvent] = []
    engine.timing.subscribe(seen.append)
    exchange(engine, engine.new_conversation(), speech(6.0))
    prefills = [event.attributes for event in seen if event.name == "prefill"]
    assert [entry["phase"] for entry in prefills] == ["listen"] * (len(prefills) - 1) + ["commit"]
    at_commit = int(prefills[-1]["tokens_at_commit"])
    assert at_commit == prefills[-1]["tokens"]
    assert at_commit + int(prefills[-1]["cached_tokens"]) == len(
        committed_rows(engine, speech(6.0), Modality.SPEECH)
    )
    prompt = engine.stages.prompt
    closing = [*prompt.end_speech(), *prompt.end_turn(), *prompt.open_reply(Modality.SPEECH)]
    assert at_commit <= len(closing) + 1


@pytest.mark.slow
@pytest.mark.parametrize("block", [160, 999, 40000])
def test_the_reply_does_not_depend_on_how_speech_was_cut(engine: Engine, block: int) -> None:
    expected = done(exchange(engine, engine.new_conversation(), speech(2.5))).codes
    turn = run_alone(engine.open_turn(engine.new_conversation(), 1))
    ask(turn, speech(2.5), block)
    assert done(list(run_alone(turn.commit(Modality.SPEECH, GREEDY)))).codes == expected


@pytest.mark.slow
def test_a_follow_up_reuses_the_turns_before_and_equals_a_full_prefill(
    bundle: Bundle, engine: Engine
) -> None:
    conversation = engine.new_conversation()
    exchange(engine, conversation, speech(1.5, 1))
    seen: list[TimingEvent] = []
    engine.timing.subscribe(seen.append)
    history = conversation.history()
    warm = done(exchange(engine, conversation, speech(1.1, 2), turn_id=2))
    first_prefill = next(event.attributes for event in seen if event.name == "prefill")
    prompt = engine.stages.prompt
    cut = 1 + len(prompt.end_speech()) + len(prompt.end_turn())
    assert int(first_prefill["cached_tokens"]) == len(history) - cut
    rows = committed_rows(engine, speech(1.1, 2), Modality.SPEECH)
    rows = [*history, *rows[len(engine.stages.prompt.system(Modality.SPEECH)) :]]
    assert list(warm.codes) == plain_reply(bundle, engine, rows)[0]


@pytest.mark.slow
def test_alternating_modalities_equal_a_conversation_without_a_cache(bundle: Bundle, engine: Engine) -> None:
    conversation = engine.new_conversation()
    turns = [Modality.SPEECH, Modality.TEXT, Modality.SPEECH, Modality.TEXT]
    for number, modality in enumerate(turns):
        question = speech(1.2, number)
        rows = committed_rows(engine, question, modality)[len(engine.stages.prompt.system(modality)) :]
        last = done(exchange(engine, conversation, question, modality, turn_id=number))
        before = conversation.history()[: -conversation.exchanges[-1].num_tokens]
        codes, texts = plain_reply(bundle, engine, [*before, *rows])
        if modality is Modality.SPEECH:
            assert list(last.codes) == codes
        else:
            assert last.text == said(engine, texts)


def test_the_commit_may_ask_for_another_modality_than_was_expected(bundle: Bundle, engine: Engine) -> None:
    turn = run_alone(engine.open_turn(engine.new_conversation(), 1, Modality.TEXT))
    ask(turn, speech(1.3))
    last = done(list(run_alone(turn.commit(Modality.SPEECH, GREEDY))))
    assert (
        list(last.codes)
        == plain_reply(bundle, engine, committed_rows(engine, speech(1.3), Modality.SPEECH))[0]
    )


@pytest.mark.slow
def test_the_same_seed_yields_the_same_codes(engine: Engine) -> None:
    def codes(seed: int) -> tuple[int, ...]:
        params = replace(engine.bundle.lm.sampling_speech, seed=seed)
        return done(exchange(engine, engine.new_conversation(), speech(1.0), params=params)).codes

    assert codes(5) == codes(5)
    assert codes(5) != codes(6)


@pytest.mark.slow
def test_the_bundle_decides_how_to_sample(engine: Engine) -> None:
    turn = run_alone(engine.open_turn(engine.new_conversation(), 1))
    run_alone(turn.push(speech(1.0)))
    default = done(list(run_alone(turn.commit(Modality.SPEECH))))
    given = exchange(engine, engine.new_conversation(), speech(1.0), params=engine.bundle.lm.sampling_speech)
    assert default.codes == done(given).codes


def test_figures_of_a_reply(engine: Engine) -> None:
    seen: list[TimingEvent] = []
    engine.timing.subscribe(seen.append)
    events = exchange(engine, engine.new_conversation(), speech(2.0), turn_id=7)
    assert {event.turn_id for event in seen} == {7}
    by_name = {event.name: event for event in seen}
    assert set(by_name) == {
        "encode",
        "prefill",
        "commit",
        "step",
        "token2mel",
        "vocoder",
        "first_audio",
        "reply",
    }
    reply = by_name["reply"].attributes
    audio_s = len(sound(events)) / engine.output_sample_rate
    assert reply["audio_s"] == pytest.approx(audio_s)
    assert reply["finish_reason"] == done(events).finish_reason
    assert by_name["first_audio"].start_ns == by_name["commit"].start_ns == by_name["reply"].start_ns
    first = next(event for event in events if isinstance(event, ReplyAudio))
    ttfa_s = by_name["first_audio"].duration_ns / 1e9
    assert reply["first_chunk_ratio"] == pytest.approx(ttfa_s / (first.pcm.size / engine.output_sample_rate))
    assert 0 < float(reply["rtf_steady"]) < 10
    assert float(reply["rtf_total"]) * audio_s <= by_name["reply"].duration_ns / 1e9
    assert 0.1 < float(reply["memory_gb"]) < 100
    for event in seen:
        if event.name == "step":  # sampling is part of it
            assert 0 < float(event.attributes["sampling_ms"]) < event.duration_ms
    samples = sum(int(event.attributes["samples"]) for event in seen if event.name == "vocoder")
    assert samples == len(sound(events))
    frames = sum(int(event.attributes["frames"]) for event in seen if event.name == "token2mel")
    assert frames == len(done(events).codes) * engine.stages.token2mel.frames_per_code
    assert [event.attributes["index"] for event in seen if event.name == "step"] == list(range(1, 20))


@pytest.mark.slow
def test_warming_up_leaves_nothing_behind(engine: Engine) -> None:
    seen: list[TimingEvent] = []
    engine.timing.subscribe(seen.append)
    engine.warm_up()
    engine.new_conversation()
    assert seen == []
    expected = done(exchange(engine, engine.new_conversation(), speech(1.0))).codes
    engine.warm_up()
    assert done(exchange(engine, engine.new_conversation(), speech(1.0))).codes == expected


@pytest.mark.slow
def test_warming_up_reports_too_little_memory(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def warm_up(self: Token2Mel) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has ...")

    monkeypatch.setattr(Token2Mel, "warm_up", warm_up)
    monkeypatch.setattr(Token2Mel, "is_static", True)
    with pytest.raises(AcceleratorError, match="too little memory with --weights native"):
        engine.warm_up()


@pytest.mark.slow
def test_a_conversation_longer_than_the_context(bundle: Bundle) -> None:
    short = replace(bundle, lm=replace(bundle.lm, context_tokens=256))
    engine = Engine.load(short)
    conversation = engine.new_conversation()
    for number in range(14):
        last = done(exchange(engine, conversation, speech(1.5, number), turn_id=number))
        assert len(last.codes) == 20
        assert conversation.sequence.num_tokens <= 256
        kept = conversation.exchanges[conversation.num_forgotten :]
        rows = committed_rows(engine, speech(1.5, number), Modality.SPEECH)
        system = len(engine.stages.prompt.system(Modality.SPEECH))
        before = [row for one in kept[:-1] for row in (*one.user, *one.reply)]
        codes, _ = plain_reply(short, engine, [*rows[:system], *before, *rows[system:]])
        assert list(last.codes) == codes
    assert len(conversation.exchanges) == 14
    assert 0 < conversation.num_forgotten < 14
    engine.stages.lm.blocks.check_integrity([conversation.sequence])


@pytest.mark.slow
def test_the_context_is_a_hard_stop_for_a_reply(bundle: Bundle) -> None:
    engine = Engine.load(replace(bundle, lm=replace(bundle.lm, context_tokens=128)))
    conversation = engine.new_conversation()
    events = exchange(engine, conversation, speech(1.5), params=SamplingParams(min_new=500, max_new=500))
    assert done(events).finish_reason == "length"
    assert conversation.sequence.num_tokens == 128
    assert len(sound(events)) == done(events).audio_samples > 0


@pytest.mark.slow
@pytest.mark.parametrize(("modality", "longest"), [(Modality.SPEECH, 8), (Modality.TEXT, 20)])
def test_a_question_leaves_room_for_the_longest_reply_of_its_modality(
    bundle: Bundle, modality: Modality, longest: int
) -> None:
    lm = replace(
        bundle.lm,
        context_tokens=256,
        sampling_speech=SamplingParams(min_new=8, max_new=8),
        sampling_text=SamplingParams(min_new=20, max_new=20),
    )
    engine = Engine.load(replace(bundle, lm=lm))
    conversation, prompt = engine.new_conversation(), engine.stages.prompt
    turn = run_alone(engine.open_turn(conversation, 1, modality))
    with pytest.raises(ContextLengthError) as caught:
        run_alone(turn.push_text("why? " * 500))
    end = [*prompt.end_speech(), *prompt.end_turn(), *prompt.open_reply(modality)]
    beside = len(prompt.system(modality)) + len(end) + longest
    assert caught.value.problem.values["most"] == 256 - beside
    turn = run_alone(engine.open_turn(conversation, 2, modality))
    run_alone(turn.push_text("why?"))
    assert done(list(run_alone(turn.commit(modality)))).finish_reason == "length"
    made = len(conversation.exchanges[-1].reply) - len(prompt.open_reply(modality))
    assert longest <= made <= longest + 3, "the rest is its end"


@pytest.mark.slow
def test_a_pool_smaller_than_the_context(bundle: Bundle) -> None:
    engine = Engine.load(bundle, EngineOptions(kv_blocks=10))
    conversation = engine.new_conversation()
    for number in range(6):
        assert len(done(exchange(engine, conversation, speech(1.5, number))).codes) == 20
    assert conversation.num_forgotten > 0
    assert engine.stats.total == 10


@pytest.mark.slow
def test_a_resting_conversation_lends_its_blocks(bundle: Bundle) -> None:
    engine = Engine.load(bundle, EngineOptions(kv_blocks=12))
    first, second = engine.new_conversation(), engine.new_conversation()
    exchange(engine, first, speech(3.0, 1))
    assert engine.stats.used > 5
    exchange(engine, second, speech(6.5, 2))
    assert first.sequence == Sequence()
    alone = Engine.load(bundle, EngineOptions(kv_blocks=12))
    other = alone.new_conversation()
    exchange(alone, other, speech(3.0, 1))
    expected = done(exchange(alone, other, speech(1.0, 3))).codes
    assert done(exchange(engine, first, speech(1.0, 3))).codes == expected
    engine.stages.lm.blocks.check_integrity([first.sequence, second.sequence])


def test_a_conversation_that_has_ended_releases_its_blocks_at_once(engine: Engine) -> None:
    before = engine.stats.used
    conversation = engine.new_conversation()
    turn = run_alone(engine.open_turn(conversation, 1, Modality.TEXT))
    run_alone(turn.push_text("one two three"))
    assert engine.stats.used > before
    engine.end_conversation(conversation)
    assert engine.stats.used == before
    assert turn.is_over
    assert conversation.turn is None


@pytest.mark.slow
def test_a_conversation_that_is_no_longer_referenced_releases_its_blocks(engine: Engine) -> None:
    import gc

    exchange(engine, engine.new_conversation(), speech(1.0))
    gc.collect()
    engine.new_conversation()
    assert engine.stats.used == 0


@pytest.mark.slow
def test_ten_thousand_characters_are_refused_and_the_conversation_is_kept(engine: Engine) -> None:
    conversation = engine.new_conversation()
    exchange(engine, conversation, speech(1.0))
    before = (list(conversation.exchanges), conversation.num_forgotten, engine.stats.used)
    turn = run_alone(engine.open_turn(conversation, 2))
    with pytest.raises(ContextLengthError) as caught:
        run_alone(turn.push_text("why? " * 2000))
    assert caught.value.what_to_do.startswith("Send a shorter message")
    assert (conversation.exchanges, conversation.num_forgotten) == before[:2]
    assert engine.stats.used <= before[2]
    assert run_alone(turn.push(speech(0.5))) == 0
    follow_up = done(exchange(engine, conversation, speech(1.0, 4), turn_id=3)).codes
    other = engine.new_conversation()
    exchange(engine, other, speech(1.0))
    assert done(exchange(engine, other, speech(1.0, 4))).codes == follow_up


@pytest.mark.slow
@pytest.mark.parametrize("pcm", [np.full(1600, np.nan, np.float32), np.zeros((1600, 2), np.float32)])
def test_sound_that_is_none_ends_the_turn_only(engine: Engine, pcm: Pcm) -> None:
    conversation = engine.new_conversation()
    exchange(engine, conversation, speech(1.0))
    turn = run_alone(engine.open_turn(conversation, 2))
    run_alone(turn.push(speech(0.5)))
    with pytest.raises(AudioInputError):
        run_alone(turn.push(pcm))
    assert len(conversation.exchanges) == 1
    assert done(exchange(engine, conversation, speech(1.0))).codes


@pytest.mark.parametrize("typed", ["", "  \n"])
def test_nothing_said_or_typed_is_an_error(engine: Engine, typed: str) -> None:
    conversation = engine.new_conversation()
    with pytest.raises(AudioInputError, match="This turn is empty"):
        run_alone(run_alone(engine.open_turn(conversation, 1)).commit(Modality.SPEECH))
    with pytest.raises(AudioInputError, match="The question is empty"):
        run_alone(run_alone(engine.open_turn(conversation, 2)).push_text(typed))
    assert conversation.exchanges == []


def test_an_engine_is_closed_after_its_context(bundle: Bundle) -> None:
    with Engine.load(bundle) as engine:
        conversation = engine.new_conversation()
    with pytest.raises(RuntimeError, match="closed"):
        run_alone(engine.open_turn(conversation, 1))


def test_a_closed_engine_says_so(bundle: Bundle) -> None:
    engine = Engine.load(bundle)
    turn = run_alone(engine.open_turn(engine.new_conversation(), 1))
    run_alone(turn.push(speech(0.5)))
    engine.close()
    assert engine.stats.used == 0
    with pytest.raises(RuntimeError, match="closed"):
        engine.new_conversation()
    assert done(list(run_alone(turn.commit(Modality.SPEECH)))).finish_reason == "cancelled"


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_language_model(bundle: Bundle, dtype: Dtype) -> None:
    engine = Engine.load(bundle, EngineOptions(dtype=dtype))
    events = exchange(engine, engine.new_conversation(), speech(1.0))
    assert engine.stages.lm.cache.pool.dtype == getattr(torch, dtype)
    assert len(sound(events)) == 20 * bundle.samples_per_code
    assert np.isfinite(sound(events)).all()


def test_parts_of_two_models_are_refused(bundle: Bundle) -> None:
    few = replace(bundle.lm.special_ids, eosp=20)
    with pytest.raises(BundleError, match="Use parts of one model"):
        Engine.load(replace(bundle, lm=replace(bundle.lm, special_ids=few)))
    encoder = replace(bundle.speech_encoder, normalization="none")
    with pytest.raises(BundleError, match="normalization"):
        Engine.load(replace(bundle, speech_encoder=encoder))


@pytest.mark.slow
def test_replies_share_the_flow_if_there_is_room_for_one(engine: Engine, bundle: Bundle) -> None:
    """Each sounds as alone, whose turn it is changes with every event."""
    flow, _ = load_flow(bundle, torch.device("cpu"), EngineOptions())
    code = bytes_per_code(flow.config, bundle.flow.steps, bundle.flow.cfg_rate, torch.float32)
    static = Token2Mel(flow, bundle.flow.mel, packet_codes=bundle.flow.packets, static_bytes=60 * code)
    engine.stages = replace(engine.stages, token2mel=static)

    def answered(seed: int) -> Iterator[ReplyEvent]:
        turn = run_alone(engine.open_turn(engine.new_conversation(), 1))
        ask(turn, speech(0.5, seed))
        return run_alone(turn.commit(Modality.SPEECH, GREEDY))

    alone = [sound(list(answered(seed))) for seed in range(2)]
    replies = [answered(seed) for seed in range(2)]
    heard: list[list[ReplyEvent]] = [[], []]
    for pair in zip(*replies, strict=True):
        for events, event in zip(heard, pair, strict=True):
            events.append(event)
    for events, expected in zip(heard, alone, strict=True):
        assert isinstance(events[-1], ReplyDone)
        np.testing.assert_allclose(sound(events), expected, atol=1e-4)


def test_a_decode_step_takes_the_documented_path(bundle: Bundle) -> None:
    """The calls that the engine's README lists are made in that order, from the turn to the sampled id."""
    document = (Path(engine_runtime.__file__).parent / "README.md").read_text(encoding="utf-8")
    section = document.partition("## Life of a decode step")[2].partition("\n## ")[0]
    listed = re.findall(r"^\d+\. `([\w.]+)`", section, re.MULTILINE)
    assert len(listed) <= 10
    stages = Engine.load(bundle).stages
    model, limits = MossLM(stages.lm_config), stages.lm.executor.limits
    load_weights(model, bundle.lm.weights)
    lm = make_cuda_paged(
        model,
        num_blocks=limits.num_blocks,
        tokens_per_block=limits.tokens_per_block,
        max_seq_len=limits.max_seq_len,
    )
    engine = Engine(replace(stages, lm=lm), TimingBus())
    turn = run_alone(engine.open_turn(engine.new_conversation(), 1))
    ask(turn, speech(1.0))
    replies = run_alone(turn.commit(Modality.SPEECH, replace(GREEDY, max_new=4)))
    calls, files = [], set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_qualname in listed:
            calls.append(frame.f_code.co_qualname)
            files.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        list(replies)
    finally:
        sys.setprofile(None)
    turn_run, *step = listed  # a generator, which runs several steps per call
    assert calls[0] == turn_run
    assert " ".join(step) in " ".join(calls)
    assert len(files) <= 8


@pytest.mark.parametrize("question", ["what is two plus three", speech(1.0)], ids=["typed", "spoken"])
def test_an_exchange_of_elsewhere_is_history(bundle: Bundle, engine: Engine, question: str | Pcm) -> None:
    conversation = engine.new_conversation()
    run_alone(engine.remember(conversation, 1, (question,), "five"))
    (remembered,) = conversation.exchanges
    asked = engine.new_conversation()
    turn = run_alone(engine.open_turn(asked, 1))
    if isinstance(question, str):
        run_alone(turn.push_text(question))
    else:
        run_alone(turn.push(question))
    for _ in run_alone(turn.commit(Modality.TEXT, GREEDY)):
        pass
    assert remembered.user == asked.exchanges[0].user, "as if it had been asked here"
    prompt = engine.stages.prompt
    assert list(remembered.reply) == [
        *prompt.open_reply(Modality.TEXT),
        *prompt.text_tokens("five"),
        *prompt.end_turn(),
    ]
    codes, _ = plain_reply(
        bundle,
        engine,
        [*conversation.history(), *prompt.user_text("and plus two"), *prompt.end_turn(),
         *prompt.open_reply(Modality.SPEECH)],
    )  # fmt: skip
    follow_up = run_alone(engine.open_turn(conversation, 2))
    run_alone(follow_up.push_text("and plus two"))
    last = list(run_alone(follow_up.commit(Modality.SPEECH, GREEDY)))[-1]
    assert isinstance(last, ReplyDone)
    assert list(last.codes) == codes


def test_others_go_on_while_speech_of_elsewhere_is_encoded(engine: Engine) -> None:
    conversation = engine.new_conversation()
    task = engine.remember(conversation, 1, (speech(1.0),), "five")
    assert next(task).stage == "features"
    assert conversation.exchanges == []
    task.close()
    assert conversation.exchanges == []


def test_an_empty_question_of_elsewhere_is_refused(engine: Engine) -> None:
    conversation = engine.new_conversation()
    with pytest.raises(AudioInputError, match="empty"):
        run_alone(engine.remember(conversation, 1, (" ",), "five"))
    assert conversation.exchanges == []


def test_exchanges_of_elsewhere_are_added_at_any_place(engine: Engine) -> None:
    conversation = engine.new_conversation()
    for turn_id, question, reply, before in (
        (1, ("one",), "1", None),
        (2, (), "hello", 1),
        (3, ("a note", speech(0.5)), "", 1),
        (4, ("two",), "2", 99),
    ):
        run_alone(engine.remember(conversation, turn_id, question, reply, before))
    assert [exchange.turn_id for exchange in conversation.exchanges] == [2, 3, 1, 4]
    greeting, note, *_ = conversation.exchanges
    assert greeting.user == note.reply == ()
    prompt = engine.stages.prompt
    typed = [*prompt.user_text("a note"), *prompt.end_turn(), *prompt.open_user_speech()]
    assert list(note.user[: len(typed)]) == typed
    conversation.num_forgotten = 2
    run_alone(engine.remember(conversation, 5, (), "so", 3))
    assert conversation.num_forgotten == 3, "it was added before what is forgotten"
    turn = run_alone(engine.open_turn(conversation, 6))
    run_alone(turn.push_text("and then"))
    last = list(run_alone(turn.commit(Modality.SPEECH, GREEDY)))[-1]
    assert isinstance(last, ReplyDone)
    assert last.finish_reason in ("stop", "length")


def test_a_turn_takes_as_much_of_the_context_as_its_room_says(engine: Engine) -> None:
    room = engine.turn_room
    longest = " ".join(["a"] * room.most)
    while room.tokens(longest) > room.most:
        longest = longest[:-1]
    for text, fits in ((longest, True), (longest + " a b c d e f", False)):
        turn = run_alone(engine.open_turn(engine.new_conversation(), 1))
        assert (room.tokens(text) <= room.most) is fits
        with nullcontext() if fits else pytest.raises(ContextLengthError):
            run_alone(turn.push_text(text))
            list(run_alone(turn.commit(Modality.TEXT)))
    samples = room.samples(100)
    assert room.tokens(samples) <= 100 < room.tokens(samples + engine.input_sample_rate)


def test_instructions_and_texts_of_the_system_are_turns_of_the_system(engine: Engine) -> None:
    conversation = engine.new_conversation()
    prompt = engine.stages.prompt
    plain = prompt.system(Modality.SPEECH)
    conversation.instructions = "Be brief."
    instructed = conversation.history()
    added = prompt.text_tokens("\nBe brief.")
    assert [*plain[: -len(prompt.end_turn())], *added, *prompt.end_turn()] == instructed
    turn = run_alone(engine.open_turn(conversation, 1))
    run_alone(turn.push_text(SystemText("It is late.")))
    run_alone(turn.push_text("how late?"))
    done = list(run_alone(turn.commit(Modality.SPEECH, GREEDY)))[-1]
    (exchange,) = conversation.exchanges
    note = [*prompt.system_text("It is late."), *prompt.end_turn()]
    question = [*prompt.user_text("how late?"), *prompt.end_turn()]
    assert list(exchange.user) == [*note, *question]
    assert isinstance(done, ReplyDone)
    assert done.usage is not None
    before = len(instructed) + len(note) + len(question) - len(prompt.end_turn())
    assert done.usage.cached == before, "all but the end of the turn and the opening of the reply"
    assert done.usage.input_text == len(instructed) + len(note) + len(question) + len(
        prompt.open_reply(Modality.SPEECH)
    )
    assert (done.usage.input_audio, done.usage.output_audio) == (0, len(done.codes))


def test_the_tokens_of_a_spoken_question_are_counted(engine: Engine) -> None:
    turn = run_alone(engine.open_turn(engine.new_conversation(), 1))
    run_alone(turn.push(speech(1.0)))
    done = list(run_alone(turn.commit(Modality.TEXT, GREEDY)))[-1]
    assert isinstance(done, ReplyDone)
    assert done.usage is not None
    # The end of speech is a token of the audio, too.
    assert done.usage.input_audio == sum(
        row.text == engine.bundle.lm.special_ids.modality_pad for row in turn.question.user
    )
    assert 12 <= done.usage.input_audio <= 15
    assert done.usage.output_audio == 0


@pytest.mark.parametrize("modality", list(Modality))
def test_tokens_are_counted_as_they_come(engine: Engine, modality: Modality) -> None:
    turn = run_alone(engine.open_turn(engine.new_conversation(), 1))
    run_alone(turn.push_text("hello"))
    events = list(run_alone(turn.commit(modality, GREEDY)))
    counted = [event.usage for event in events if not isinstance(event, TurnEndPrediction)]
    usages = [usage for usage in counted if usage is not None]
    assert len(usages) == len(counted) > 1
    assert len({(usage.input_text, usage.input_audio, usage.cached) for usage in usages}) == 1
    made = [(usage.output_text, usage.output_audio) for usage in usages]
    assert made == sorted(made)
    assert max(made[0]) > 0


def test_a_conversation_whose_truncation_is_off_does_not_forget(engine: Engine) -> None:
    conversation = engine.new_conversation()
    long = " ".join(["a"] * (engine.turn_room.most // 4))
    for turn_id in range(1, 6):
        run_alone(engine.remember(conversation, turn_id, (long,), "so"))
    conversation.retention = None
    with pytest.raises(ContextLengthError, match="of them fit into the model's context"):
        run_alone(engine.open_turn(conversation, 9))
    assert (conversation.num_forgotten, len(conversation.exchanges)) == (0, 5)
    conversation.retention = 0.5
    run_alone(engine.open_turn(conversation, 10))
    assert conversation.num_forgotten > 0


def test_how_many_conversations_fit_into_memory(
    bundle: Bundle, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, blocks = min(engine.stages.lm.max_tokens, bundle.lm.context_tokens), engine.stages.lm.blocks
    in_cache = blocks.num_blocks // -(-rows // blocks.tokens_per_block)
    assert engine.conversation_limits == {"KV cache": in_cache}
    with monkeypatch.context() as patch:
        patch.setattr(engine.stages.speech_tokenizer, "pool", SimpleNamespace(num_slots=3))
        assert engine.conversation_limits == {"KV cache": in_cache, "speech encoder": 3}


def test_how_many_replies_have_caches_of_the_flow(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine.speaking_limit is None, "on a CPU each has its own"
    code_s = engine.bundle.samples_per_code / engine.output_sample_rate
    monkeypatch.setattr(engine.stages.token2mel, "cached_codes", round(50 / code_s))
    assert engine.speaking_limit == 10, "half of ten seconds each"
    monkeypatch.setattr(engine.stages.token2mel, "cached_codes", 1)
    assert engine.speaking_limit == 1


def test_the_pool_is_large_enough_for_the_conversations(bundle: Bundle) -> None:
    at_least = bundle.lm.kv_blocks // -(-bundle.lm.context_tokens // bundle.lm.tokens_per_block)
    for options, expected in (
        (EngineOptions(), at_least),
        (EngineOptions(conversations=1), at_least),
        (EngineOptions(conversations=at_least + 2), at_least + 2),
        (EngineOptions(conversations=9, kv_blocks=bundle.lm.kv_blocks), at_least),
    ):
        with Engine.load(bundle, options) as engine:
            assert engine.conversation_limits["KV cache"] == expected


def test_without_a_number_as_many_conversations_as_fit(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_least = bundle.lm.kv_blocks // -(-bundle.lm.context_tokens // bundle.lm.tokens_per_block)
    asked: list[EngineOptions] = []

    def fitting(of: Bundle, options: EngineOptions) -> int:
        asked.append(options)
        return at_least + 3

    monkeypatch.setattr(engine_module, "fitting_conversations", fitting)
    for options, expected in (
        (EngineOptions(), at_least + 3),
        (EngineOptions(conversations=at_least + 1), at_least + 1),
        (EngineOptions(kv_blocks=bundle.lm.kv_blocks), at_least),
    ):
        with Engine.load(bundle, options) as engine:
            assert engine.conversation_limits["KV cache"] == expected
    assert asked == [EngineOptions()]


def test_a_shorter_context_makes_room_for_more_conversations(bundle: Bundle) -> None:
    with Engine.load(bundle) as engine, Engine.load(bundle, EngineOptions(context_tokens=256)) as shorter:
        assert shorter.bundle.lm.context_tokens == 256 < engine.bundle.lm.context_tokens
        assert shorter.conversation_limits["KV cache"] >= 2 * engine.conversation_limits["KV cache"]
    with Engine.load(bundle, EngineOptions(context_tokens=1 << 20)) as engine:
        assert engine.bundle.lm.context_tokens == bundle.lm.context_tokens, "no more than the bundle allows"


@pytest.mark.parametrize(
    ("free_gb", "conversations", "expected"),
    [
        (100.0, None, (128, True)),
        (100.0, 96, (96, True)),
        (100.0, 160, (160, True)),
        (29.0, None, (50, True)),
        (29.0, 72, (72, True)),
        (29.0, 120, (93, True)),
        (24.0, None, (40, True)),
        (6.0, 2, (2, False)),
        (6.0, 96, (11, False)),
        (6.0, None, (11, False)),
        (0.4, None, None),
    ],
)
def test_the_pool_of_the_encoder_takes_half_of_the_free_memory_or_what_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
    free_gb: float,
    conversations: int | None,
    expected: tuple[int, bool] | None,
) -> None:
    """With the weights that it copies for tensor cores, which are left out where memory is short."""
    used: list[tuple[int, bool]] = []
    config = WhisperVQConfig(
        num_mel_bins=128, d_model=1280, heads=20, ffn=5120, layers=16, max_positions=1500, codebook_size=16384
    )
    tokenizer = SimpleNamespace(
        calls=SimpleNamespace(is_capturing=True, device=torch.device("cuda")),
        model=SimpleNamespace(config=config),
        pool=None,
        stream_bytes=2 * 4 * 16 * 1500 * 1280,
        takes_batches=True,
        use_pool=lambda slots, most, *, triton: used.append((slots, triton)),
    )
    options = EngineOptions(
        max_batch_size=64, conversations=conversations, device="cuda", captures_batches=True
    )
    monkeypatch.setattr(engine_module, "memory_of", lambda device: (int(free_gb * 1e9), 0))
    monkeypatch.setattr(engine_module, "uses_triton", lambda choice, device: True)
    share_encoder(cast(SpeechTokenizer, tokenizer), options)
    assert used == ([] if expected is None else [expected])


def test_a_long_question_is_prefilled_in_calls_of_the_chosen_size(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    question, replies = "what is two plus three " * 40, []
    for tokens in (None, 64):
        with Engine.load(bundle, EngineOptions(prefill_tokens=tokens)) as engine:
            calls: list[int] = []
            execute = engine.stages.lm.executor.execute

            def note(batch: ScheduledBatch) -> list[StepOutput]:
                calls.extend(len(scheduled.token_ids) for scheduled in batch.sequences)  # noqa: B023
                return execute(batch)  # noqa: B023

            monkeypatch.setattr(engine.stages.lm.executor, "execute", note)
            replies.append(done(exchange(engine, engine.new_conversation(), question)))
            assert (max(calls) > 64) == (tokens is None)
            assert max(calls) == 64 or tokens is None
    assert replies[0].codes == replies[1].codes
