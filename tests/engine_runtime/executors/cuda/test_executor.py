"""The executor for GPUs, on the CPU with plain torch: equal to the torch executor in all scenarios."""

from __future__ import annotations

import pytest
import torch

from engine_runtime.errors import ExecutorError
from engine_runtime.executors.cuda import executor as cuda_executor
from engine_runtime.executors.cuda import prefill
from engine_runtime.executors.cuda.decode_backend import SMALLEST_BUCKET, bucket_of
from engine_runtime.executors.cuda.prefill import RowsShape
from engine_runtime.lm.block_manager import BlockCopy, Sequence
from engine_runtime.lm.generation import GeneratedToken, Generation, merged_id
from engine_runtime.lm.paged_lm import StepRequest
from engine_runtime.lm.step import ScheduledBatch
from engine_runtime.models.moss_lm import MossLM
from engine_runtime.options import BlockFormats, WeightFormat
from engine_runtime.types import SamplingParams
from tests.doubles.graphs import EmulatedCalls
from tests.factories.steps import next_row
from tests.factories.tiny_lm import (
    LOGIT_TOLERANCE,
    as_ids,
    as_tokens,
    load_special_ids,
    load_tiny,
    make_cuda_paged,
    make_llama,
    make_paged,
)
from tests.tools.lm_scenarios import SAMPLINGS, assert_same, converse, reply

Tiny = tuple[MossLM, dict[str, torch.Tensor]]
FP8_KV = torch.float8_e4m3fn


def has_scaled_rows() -> bool:
    """Whether torch multiplies fp8 with a scale for each row on a CPU; 2.9 does so on a GPU only."""
    ones, scale = torch.ones(16, 16).to(torch.float8_e4m3fn), torch.ones(16, 1)
    try:
        torch._scaled_mm(ones, ones.t(), scale_a=scale, scale_b=scale.t(), out_dtype=torch.bfloat16)
    except RuntimeError:
        return False
    return True


@pytest.fixture(scope="module")
def tiny() -> Tiny:
    return load_tiny()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_conversations_are_the_same_as_on_the_plain_executor(tiny: Tiny, seed: int) -> None:
    model, _ = tiny
    size = [8, 16, 32][seed % 3]
    cuda = make_cuda_paged(model, num_blocks=128, tokens_per_block=size)
    converse(model, cuda, make_paged(model, num_blocks=128, tokens_per_block=size), seed, LOGIT_TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_conversations_without_norms_of_queries_and_keys(seed: int) -> None:
    model = make_llama()
    cuda, plain = make_cuda_paged(model, num_blocks=128), make_paged(model, num_blocks=128)
    converse(model, cuda, plain, seed, LOGIT_TOLERANCE)


@pytest.mark.slow
def test_complete_chunks_of_a_prompt_are_captured_once_for_every_sequence(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dense(rows: int, seen: int) -> torch.Tensor:  # torch's own kind of mask cannot be made under a mode
        return torch.ones(rows, seen, dtype=torch.bool).tril(seen - rows)

    monkeypatch.setattr(prefill, "causal_lower_right", dense)
    model, cases = tiny
    ids = as_ids(cases["a.rows"], model)[:96]
    calls = EmulatedCalls()
    monkeypatch.setattr(cuda_executor, "GraphedCalls", lambda device, enabled: calls)
    cuda, plain = make_cuda_paged(model, chunk=32, graphed_rows=True), make_paged(model, chunk=32)
    kept = []
    for prompt in (ids, ids[::-1], ids[5:] + ids[:5]):  # each with blocks of its own
        mine, other = Sequence(), Sequence()
        assert_same(cuda.prefill(mine, prompt), plain.prefill(other, prompt), LOGIT_TOLERANCE)
        kept += [mine, other]
    assert set(calls.keys) == {
        RowsShape(32, end, text=True, audio=True, is_full_chunk=True) for end in (32, 64, 96)
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("weight_format", ["fp8", "int8", "int4"])
def test_every_weight_format_computes_the_same_as_the_plain_executor(
    tiny: Tiny, weight_format: WeightFormat
) -> None:
    model, _ = tiny
    cuda = make_cuda_paged(model, formats=BlockFormats(trunk=weight_format))
    converse(model, cuda, make_paged(model, weight_format=weight_format), 3, LOGIT_TOLERANCE)


@pytest.mark.slow
def test_keys_and_values_in_fp8_are_the_same_as_on_the_plain_executor(tiny: Tiny) -> None:
    model, _ = tiny
    cuda, plain = make_cuda_paged(model, kv_dtype=FP8_KV), make_paged(model, kv_dtype=FP8_KV)
    # A key within rounding of the middle of two fp8 numbers may fall to either side.
    converse(model, cuda, plain, 5, 0.02)


def test_every_block_may_be_rounded(tiny: Tiny) -> None:
    model, cases = tiny
    ids = as_ids(cases["a.rows"], model)
    rounded = make_cuda_paged(model, formats=BlockFormats("int8", "int8", "int8")).prefill(Sequence(), ids)
    exact = make_cuda_paged(model).prefill(Sequence(), ids)
    for mine, other in ((rounded.text_logits, exact.text_logits), (rounded.audio_logits, exact.audio_logits)):
        assert mine is not None
        assert other is not None
        assert not torch.equal(mine, other)
        assert torch.cosine_similarity(mine, other, dim=0) > 0.99


@pytest.mark.skipif(not has_scaled_rows(), reason="this torch has no fp8 product with a scale a row on a CPU")
def test_products_of_fp8_rows_and_weights_stay_close(tiny: Tiny) -> None:
    model, cases = tiny
    ids = as_ids(cases["a.rows"], model)
    paged = [
        make_cuda_paged(model, formats=BlockFormats("fp8"), dtype=torch.bfloat16, multiplies_fp8=multiplies)
        for multiplies in (True, False)
    ]
    both, weights_only = (one.prefill(Sequence(), ids) for one in paged)
    assert both.audio_logits is not None
    assert weights_only.audio_logits is not None
    assert not torch.equal(both.audio_logits, weights_only.audio_logits)
    assert torch.cosine_similarity(both.audio_logits, weights_only.audio_logits, dim=0) > 0.98


@pytest.mark.slow
def test_stored_logits_of_single_steps(tiny: Tiny) -> None:
    model, cases = tiny
    ids, paged, sequence = as_ids(cases["a.rows"], model), make_cuda_paged(model), Sequence()
    paged.prefill(sequence, ids[:37])
    for row in range(37, len(ids)):
        logits = paged.decode(sequence, ids[row])
        assert logits.text_logits is not None
        torch.testing.assert_close(
            logits.text_logits, cases["a.text_logits"][row], atol=LOGIT_TOLERANCE, rtol=0
        )


def test_a_sequence_that_grows_through_the_buckets(tiny: Tiny) -> None:
    model, cases = tiny
    ids = as_ids(cases["c.rows"], model)
    paged, sequence = make_cuda_paged(model), Sequence()
    paged.prefill(sequence, ids[: SMALLEST_BUCKET - 3])
    for row in range(SMALLEST_BUCKET - 3, SMALLEST_BUCKET + 3):
        logits = paged.decode(sequence, ids[row])
        assert logits.audio_logits is not None
        torch.testing.assert_close(
            logits.audio_logits, cases["c.audio_logits"][row], atol=LOGIT_TOLERANCE, rtol=0
        )


def test_buckets_cover_every_length() -> None:
    for rows in range(1, 5000):
        assert rows <= bucket_of(rows, 5000) <= max(SMALLEST_BUCKET, 2 * rows)
    assert bucket_of(100, 300) == 300


@pytest.mark.slow
@pytest.mark.parametrize("params", SAMPLINGS)
def test_ids_picked_on_the_device_are_those_of_the_sampler(tiny: Tiny, params: SamplingParams) -> None:
    model, cases = tiny
    for prompt in (cases["a.rows"][:50], cases["a.rows"][:33]):
        mine = reply(model, make_cuda_paged(model), prompt, params)
        assert mine == reply(model, make_paged(model), prompt, params)


@pytest.mark.parametrize("params", SAMPLINGS[:2])
@pytest.mark.slow
def test_the_device_samples_on_after_a_predicted_row(tiny: Tiny, params: SamplingParams) -> None:
    model, cases = tiny
    prompt = cases["a.rows"][:50]
    mine = reply(model, make_cuda_paged(model), prompt, params, predict_turn_end=True)
    assert mine == reply(model, make_paged(model), prompt, params)


@pytest.mark.slow
def test_two_replies_by_turns_keep_their_own_penalties(tiny: Tiny) -> None:
    model, cases = tiny
    params = SamplingParams(repetition_penalty=1.5, max_new=12)
    prompts = (cases["a.rows"][:50], cases["a.rows"][20:61])
    alone = [reply(model, make_paged(model), prompt, params) for prompt in prompts]
    paged, special = make_cuda_paged(model), load_special_ids()
    vocab = model.config.text_vocab
    generations = [
        Generation(
            as_tokens(prompt),
            params,
            special,
            text_vocab=vocab,
            audio_vocab=model.config.audio_vocab,
            want_subtitles=True,
            skip_unused_tails=True,
            samples_on_device=True,
        )
        for prompt in prompts
    ]
    sequences, made = [Sequence(), Sequence()], [list[GeneratedToken]() for _ in prompts]
    for index in range(12):
        for which, generation in enumerate(generations):
            if generation.finish_reason is not None:
                continue
            ids = as_ids(prompts[which], model) if not index else []
            logits = (
                paged.prefill(sequences[which], ids, generation.tails, generation.sampling)
                if ids
                else paged.decode(
                    sequences[which],
                    merged_id(made[which][-1].token, special, vocab),
                    generation.tails,
                    generation.sampling,
                )
            )
            made[which].append(generation.sample(logits))
    assert made == alone


def test_what_an_executor_cannot_sample_comes_back_as_logits(tiny: Tiny) -> None:
    model, cases = tiny
    params = SamplingParams(True, 1.0, 0, 0.9, max_new=5, seed=1)
    generation = Generation(
        as_tokens(cases["a.rows"]),
        params,
        load_special_ids(),
        text_vocab=model.config.text_vocab,
        audio_vocab=model.config.audio_vocab,
        samples_on_device=True,
    )
    assert generation.sampling is None


def test_a_result_that_cannot_be_one_is_refused_when_sampled() -> None:
    model, cases = load_tiny()
    with torch.no_grad():
        model.text_lm_head.weight.zero_()
    with pytest.raises(ExecutorError, match=r"^logits: .* only zeros"):
        reply(model, make_cuda_paged(model), cases["a.rows"], SamplingParams())
    with torch.no_grad():
        model.text_lm_head.weight.fill_(float("nan"))
    with pytest.raises(ExecutorError, match=r"^logits: .* not finite"):
        reply(model, make_cuda_paged(model), cases["a.rows"], SamplingParams())


def test_a_refused_step_changes_nothing(tiny: Tiny) -> None:
    model, cases = tiny
    ids, paged, sequence = as_ids(cases["a.rows"], model), make_cuda_paged(model), Sequence()
    paged.prefill(sequence, ids[:60])
    with pytest.raises(ExecutorError, match="token_ids"):
        paged.decode(sequence, 512 + 160)
    assert sequence.num_tokens == 60
    assert_same(paged.prefill(sequence, ids[60:]), make_paged(model).prefill(Sequence(), ids))


def test_a_block_table_that_was_changed_in_place_is_written_again(tiny: Tiny) -> None:
    model, cases = tiny
    ids = as_ids(cases["a.rows"], model)
    paged, sequence = make_cuda_paged(model), Sequence()
    paged.prefill(sequence, ids[:40])
    row = next_row(paged, sequence, [ids[40]])
    (before,) = paged.executor.execute(ScheduledBatch((row,)))
    (free,) = {0, 1, 2, 3} - set(sequence.block_table)
    paged.cache.copy([BlockCopy(sequence.block_table[1], free)])
    paged.cache.pool[sequence.block_table[1]] = 0
    sequence.block_table[1] = free
    (after,) = paged.executor.execute(ScheduledBatch((row,)))
    assert before.text_logits is not None
    assert after.text_logits is not None
    assert torch.equal(before.text_logits, after.text_logits)


def test_two_sequences_at_once_are_refused(tiny: Tiny) -> None:
    model, _ = tiny
    paged = make_cuda_paged(model)
    requests = [StepRequest(Sequence(), [token]) for token in (5, 6)]
    with pytest.raises(ExecutorError, match="runs 1 to 1 sequences per step, got 2"):
        paged.step(requests)
    assert [request.sequence.block_table for request in requests] == [[], []]
    paged.blocks.check_integrity([])
