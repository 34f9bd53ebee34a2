"""The mode machine and the sampler against stored replies: tokens, modes, scores and draws."""

from __future__ import annotations

from dataclasses import replace
from typing import TypedDict, Unpack

import pytest
import torch

from engine_runtime.lm.block_manager import Sequence
from engine_runtime.lm.generation import (
    GeneratedToken,
    Generation,
    Mode,
    Token,
    initial_mode,
    merged_id,
    next_mode,
    speech_codes,
)
from engine_runtime.lm.paged_lm import PagedLM
from engine_runtime.lm.sampler import Sampler, draws
from engine_runtime.lm.step import SampledIds, StepOutput
from engine_runtime.models.moss_lm import MossLM
from engine_runtime.types import SamplingParams
from tests.engine_runtime.lm.test_sampler import processed
from tests.factories.tiny_lm import (
    LOGIT_TOLERANCE,
    as_ids,
    as_tokens,
    load_meta,
    load_special_ids,
    load_tiny,
    make_paged,
)

Tiny = tuple[MossLM, dict[str, torch.Tensor]]
META, SPECIAL = load_meta(), load_special_ids()
CASES = sorted(name.removeprefix("gen.") for name in META["cases"] if name.startswith("gen."))


@pytest.fixture(scope="module")
def tiny() -> Tiny:
    return load_tiny()


def stored_params(case: str) -> SamplingParams:
    """Sampling parameters of a stored reply."""
    return SamplingParams(**META["cases"][f"gen.{case}"]["params"])


class Options(TypedDict, total=False):
    """Of a `Generation`."""

    want_subtitles: bool
    predict_turn_end: bool
    rated_tokens: int
    skip_unused_tails: bool
    samples_on_device: bool
    given_draws: torch.Tensor | None


def start(tiny: Tiny, prompt: list[Token], params: SamplingParams, **options: Unpack[Options]) -> Generation:
    """A reply after `prompt` with the vocabularies of the tiny model."""
    config = tiny[0].config
    return Generation(
        prompt,
        params,
        SPECIAL,
        text_vocab=config.text_vocab,
        audio_vocab=config.audio_vocab,
        **options,
    )


def reply(paged: PagedLM, tiny: Tiny, generation: Generation, prompt: list[Token]) -> list[GeneratedToken]:
    """Run a reply to its end."""
    sequence, tokens = Sequence(), []
    vocab = tiny[0].config.text_vocab
    ids = [merged_id(token, SPECIAL, vocab) for token in prompt]
    logits = paged.prefill(sequence, ids, generation.tails, generation.sampling)
    while True:
        tokens.append(generation.sample(logits))
        if generation.finish_reason is not None:
            return tokens
        token = merged_id(tokens[-1].token, SPECIAL, vocab)
        logits = paged.decode(sequence, token, generation.tails, generation.sampling)


@pytest.mark.slow
@pytest.mark.parametrize("skip_unused_tails", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_replies_through_the_paged_runtime(tiny: Tiny, case: str, skip_unused_tails: bool) -> None:
    model, cases = tiny
    stored = META["cases"][f"gen.{case}"]
    prompt, params = as_tokens(cases[f"gen.{case}.prompt"]), stored_params(case)
    generation = start(
        tiny,
        prompt,
        params,
        skip_unused_tails=skip_unused_tails,
        given_draws=cases[f"gen.{case}.draws"] if params.do_sample else None,
    )
    tokens = reply(make_paged(model), tiny, generation, prompt)
    assert "".join("TA"[made.mode is Mode.AUDIO] for made in tokens) == stored["modes"]
    assert generation.finish_reason == stored["finish"]
    assert list(speech_codes(tokens, SPECIAL)) == stored["codes"]
    assert [r.token.text for r in tokens if r.mode is Mode.TEXT and not r.is_stop] == stored["text_ids"]
    if not skip_unused_tails:
        assert [made.token for made in tokens] == as_tokens(cases[f"gen.{case}.rows"])
        assert [made.sampled for made in tokens] == as_tokens(cases[f"gen.{case}.raw_pick"])


@pytest.mark.parametrize("case", CASES)
def test_scores_of_every_step(tiny: Tiny, case: str) -> None:
    _, cases = tiny
    params, tokens = stored_params(case), as_tokens(cases[f"gen.{case}.rows"])
    history = as_tokens(cases[f"gen.{case}.prompt"])
    config = tiny[0].config
    text = Sampler(params, config.text_vocab, (token.text for token in history))
    audio = Sampler(params, config.audio_vocab, (token.audio for token in history))
    for step, token in enumerate(tokens):
        forbidden: list[slice | int] = [slice(SPECIAL.audio_forbidden_from, None)]
        if step + 1 < params.min_new:
            forbidden.append(SPECIAL.eosp)
        got = processed(text.scores(cases[f"gen.{case}.text_logits"][step]), params)
        torch.testing.assert_close(got, cases[f"gen.{case}.text_scores"][step], atol=1e-4, rtol=1e-5)
        got = processed(audio.scores(cases[f"gen.{case}.audio_logits"][step], forbidden), params)
        torch.testing.assert_close(got, cases[f"gen.{case}.audio_scores"][step], atol=1e-4, rtol=1e-5)
        text.note(token.text)
        audio.note(token.audio)


def test_modes() -> None:
    pad, sosp, eosp, audio_pad = SPECIAL.modality_pad, SPECIAL.sosp, SPECIAL.eosp, SPECIAL.audio_pad
    assert initial_mode(Token(10, audio_pad), SPECIAL) is Mode.TEXT
    assert initial_mode(Token(pad, 9), SPECIAL) is Mode.AUDIO
    assert initial_mode(Token(pad, audio_pad), SPECIAL) is Mode.TEXT
    assert next_mode(Mode.TEXT, Token(sosp, audio_pad), SPECIAL) is Mode.AUDIO
    assert next_mode(Mode.AUDIO, Token(pad, eosp), SPECIAL) is Mode.TEXT
    assert next_mode(Mode.AUDIO, Token(pad, 3), SPECIAL) is Mode.AUDIO
    assert next_mode(Mode.TEXT, Token(3, eosp), SPECIAL) is Mode.TEXT


def test_a_head_that_did_not_run_says_nothing(tiny: Tiny) -> None:
    config, pad, audio_pad = tiny[0].config, SPECIAL.modality_pad, SPECIAL.audio_pad
    text, audio = torch.zeros(config.text_vocab), torch.zeros(config.audio_vocab)
    text[12], audio[7] = 9.0, 9.0
    params = SamplingParams(max_new=5)

    speaks = start(tiny, [Token(pad, 9)], params, want_subtitles=True, rated_tokens=2)
    made = speaks.sample(StepOutput(None, audio))
    assert (made.token, made.sampled, made.subtitle, made.certainty) == (
        Token(pad, 7),
        Token(pad, 7),
        None,
        None,
    )
    made = speaks.sample(StepOutput(text, None))
    assert (made.token, made.sampled, made.subtitle) == (Token(pad, audio_pad), Token(12, audio_pad), 12)
    assert made.certainty == pytest.approx(float(text.double().softmax(-1).max()))

    writes = start(tiny, [Token(10, audio_pad)], params)
    assert writes.sample(StepOutput(text, None)).token == Token(12, audio_pad)

    for last in (Token(pad, 9), Token(10, audio_pad)):
        predicts = start(tiny, [last], params, predict_turn_end=True)
        with pytest.raises(ValueError, match="needs the logits of the first token"):
            predicts.sample(StepOutput(None, None))


def test_a_reply_is_cut_at_max_new_whatever_the_model_says(tiny: Tiny) -> None:
    model, cases = tiny
    prompt = as_tokens(cases["gen.greedy_speech.prompt"])
    generation = start(tiny, prompt, SamplingParams(max_new=5))
    assert len(reply(make_paged(model), tiny, generation, prompt)) == 5
    assert generation.finish_reason == "length"


@pytest.mark.slow
def test_the_same_seed_yields_the_same_reply(tiny: Tiny) -> None:
    model, cases = tiny
    prompt = as_tokens(cases["gen.sample_speech_min_new.prompt"])

    def codes(seed: int) -> list[int]:
        params = SamplingParams(do_sample=True, temperature=0.9, top_k=30, max_new=40, seed=seed)
        return list(
            speech_codes(reply(make_paged(model), tiny, start(tiny, prompt, params), prompt), SPECIAL)
        )

    assert codes(3) == codes(3)
    assert len({tuple(codes(seed)) for seed in range(4)}) > 1
    assert torch.equal(draws(SamplingParams(seed=3)), draws(SamplingParams(seed=3)))


def test_later_turns_agree_after_tails_were_left_out(tiny: Tiny) -> None:
    model, cases = tiny
    prompt = as_tokens(cases["gen.greedy_no_penalty.prompt"])
    question = as_ids(cases["a.rows"], model)[:25]
    after = []
    for skip in (False, True):
        paged, sequence = make_paged(model), Sequence()
        generation = start(tiny, prompt, SamplingParams(max_new=24), skip_unused_tails=skip)
        logits = paged.prefill(
            sequence, as_ids(cases["gen.greedy_no_penalty.prompt"], model), generation.tails
        )
        while generation.finish_reason is None:
            token = generation.sample(logits).token
            logits = paged.decode(
                sequence, merged_id(token, SPECIAL, model.config.text_vocab), generation.tails
            )
        last = paged.prefill(sequence, question)
        assert sequence.complete_tokens == sequence.num_tokens
        after.append(last)
    for name in ("text_logits", "audio_logits"):
        plain, skipped = getattr(after[0], name), getattr(after[1], name)
        torch.testing.assert_close(skipped, plain, atol=LOGIT_TOLERANCE, rtol=0)


@pytest.mark.parametrize(("min_new", "wanted"), [(0, "empty"), (2, "word")])
def test_the_first_subtitle_is_a_word_where_the_reply_may_not_be_empty(
    tiny: Tiny, min_new: int, wanted: str
) -> None:
    config = tiny[0].config
    special = replace(SPECIAL, empty=7)
    ids = {"empty": 7, "word": 9}
    text, audio = torch.zeros(config.text_vocab), torch.zeros(config.audio_vocab)
    text[7], text[special.im_end], text[9] = 3.0, 2.0, 1.0  # likeliest: the end of an empty reply
    audio[special.eosp] = 3.0
    params = replace(stored_params("greedy_speech"), min_new=min_new)
    prompt = [Token(special.sosp, special.audio_pad)]
    generation = Generation(
        prompt,
        params,
        special,
        text_vocab=config.text_vocab,
        audio_vocab=config.audio_vocab,
        want_subtitles=True,
        predict_turn_end=True,
    )
    first = generation.sample(StepOutput(text_logits=text, audio_logits=audio))
    assert (first.mode, first.subtitle) == (Mode.AUDIO, ids[wanted])
    assert (first.token.audio == special.eosp) == (wanted == "empty")
    second = generation.sample(StepOutput(text_logits=text, audio_logits=audio))
    assert second.subtitle in (None, ids["empty"])  # later tokens may go without a new word


def test_subtitles_are_the_likeliest_words_at_audio_tokens(tiny: Tiny) -> None:
    model, cases = tiny
    prompt = as_tokens(cases["gen.greedy_speech.prompt"])
    generation = start(
        tiny, prompt, stored_params("greedy_speech"), want_subtitles=True, skip_unused_tails=True
    )
    tokens = reply(make_paged(model), tiny, generation, prompt)
    for made, logits in zip(tokens, cases["gen.greedy_speech.text_logits"], strict=True):
        assert made.subtitle == (int(logits.argmax()) if made.mode is Mode.AUDIO else None)


def test_forbidden_codes_and_an_early_end_are_never_picked(tiny: Tiny) -> None:
    config = tiny[0].config
    params = SamplingParams(min_new=3, max_new=5)
    generation = start(tiny, [Token(SPECIAL.sosp, SPECIAL.audio_pad)], params)
    audio = torch.zeros(config.audio_vocab)
    audio[SPECIAL.audio_forbidden_from :] = 9.0
    audio[SPECIAL.eosp] = 8.0
    audio[7] = 1.0
    logits = StepOutput(torch.zeros(config.text_vocab), audio)
    assert [generation.sample(logits).token.audio for _ in range(3)] == [7, 7, SPECIAL.eosp]
    assert generation.mode is Mode.TEXT


def test_sampling_ahead_is_that_of_the_token_after_a_code(tiny: Tiny) -> None:
    """Draws, bans and ids of the token after the next, as it is sampled once the code is known."""
    params = SamplingParams(do_sample=True, top_k=20, min_new=3, max_new=6, seed=4)
    prompt = [Token(SPECIAL.sosp, SPECIAL.audio_pad)]
    generation = start(tiny, prompt, params, samples_on_device=True, skip_unused_tails=True)
    bans = []
    for code in (7, 8, 9, 10):
        ahead = generation.sampling_ahead
        assert ahead is not None
        assert (ahead.last_text, ahead.last_audio) == (SPECIAL.modality_pad, SPECIAL.audio_pad)
        generation.sample(StepOutput(None, None, SampledIds(None, code)))
        assert replace(ahead, last_audio=code) == generation.sampling
        bans.append(ahead.bans_eosp)
    assert bans == [True, False, False, False]
    assert generation.sampling_ahead is not None
    generation.sample(StepOutput(None, None, SampledIds(None, 11)))
    assert generation.sampling_ahead is None, "the next token is the last one"


@pytest.mark.parametrize("options", [{}, {"samples_on_device": True, "predict_turn_end": True}])
def test_no_sampling_ahead_of_tokens_that_are_sampled_here(tiny: Tiny, options: Options) -> None:
    prompt = [Token(SPECIAL.sosp, SPECIAL.audio_pad)]
    generation = start(tiny, prompt, SamplingParams(max_new=6), **options)
    assert generation.sampling_ahead is None


def test_no_sampling_ahead_of_tokens_of_text(tiny: Tiny) -> None:
    generation = start(tiny, [Token(3, SPECIAL.audio_pad)], SamplingParams(max_new=6), samples_on_device=True)
    assert generation.sampling is not None
    assert generation.sampling_ahead is None
    generation.sample(StepOutput(None, None, SampledIds(SPECIAL.sosp, 1)))
    assert generation.sampling_ahead is not None
    generation.sample(StepOutput(None, None, SampledIds(None, SPECIAL.eosp)))
    assert generation.sampling_ahead is None
