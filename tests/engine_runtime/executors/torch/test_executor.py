"""The paged forward step: equal to the plain network for any split of the rows, and strict about its
inputs."""

from __future__ import annotations

import random

import pytest
import torch

from engine_runtime.errors import ContextLengthError, ExecutorError, OutOfBlocksError
from engine_runtime.executors.torch.executor import TorchExecutor
from engine_runtime.lm.block_manager import BlockManager, Sequence
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.lm.paged_lm import PagedLM, StepRequest
from engine_runtime.lm.step import StepOutput, Tails
from engine_runtime.models.moss_lm import MossLM
from engine_runtime.options import EngineOptions, WeightFormat
from tests.factories.tiny_lm import LOGIT_TOLERANCE, as_ids, layers_of, load_tiny, make_llama, make_paged
from tests.tools.lm_scenarios import SAMPLINGS, assert_same, replies_together, reply

Tiny = tuple[MossLM, dict[str, torch.Tensor]]


@pytest.fixture(scope="module")
def tiny() -> Tiny:
    return load_tiny()


def assert_logits(got: StepOutput, cases: dict[str, torch.Tensor], case: str, row: int) -> None:
    """Both heads equal the stored logits of one row."""
    assert got.text_logits is not None
    assert got.audio_logits is not None
    torch.testing.assert_close(
        got.text_logits, cases[f"{case}.text_logits"][row], atol=LOGIT_TOLERANCE, rtol=0
    )
    torch.testing.assert_close(
        got.audio_logits, cases[f"{case}.audio_logits"][row], atol=LOGIT_TOLERANCE, rtol=0
    )


def test_prefill_then_single_steps(tiny: Tiny) -> None:
    model, cases = tiny
    ids, paged, sequence = as_ids(cases["a.rows"], model), make_paged(model), Sequence()
    assert_logits(paged.prefill(sequence, ids[:37]), cases, "a", 36)
    for row in range(37, len(ids)):
        assert_logits(paged.decode(sequence, ids[row]), cases, "a", row)
    paged.blocks.check_integrity([sequence])


@pytest.mark.slow
@pytest.mark.parametrize("tokens_per_block", [8, 16, 64])
def test_long_prefill_in_blocks_then_single_steps(tiny: Tiny, tokens_per_block: int) -> None:
    model, cases = tiny
    ids = as_ids(cases["c.rows"], model)
    paged = make_paged(model, num_blocks=1024 // tokens_per_block, tokens_per_block=tokens_per_block)
    sequence = Sequence()
    for start in range(0, 640, 64):
        assert_logits(paged.prefill(sequence, ids[start : start + 64]), cases, "c", start + 63)
    for row in range(640, len(ids)):
        assert_logits(paged.decode(sequence, ids[row]), cases, "c", row)


@pytest.mark.parametrize("cuts", [[96], [40, 56], [1, 95], [17, 1, 30, 48], [16, 16, 64]])
def test_prefill_is_the_same_however_it_is_cut(tiny: Tiny, cuts: list[int]) -> None:
    model, cases = tiny
    ids, paged, sequence = as_ids(cases["a.rows"], model), make_paged(model), Sequence()
    for cut in cuts:
        logits = paged.prefill(sequence, ids[sequence.num_tokens : sequence.num_tokens + cut])
        assert_logits(logits, cases, "a", sequence.num_tokens - 1)


def test_a_prefill_longer_than_one_call_is_cut_by_the_runtime(tiny: Tiny) -> None:
    model, cases = tiny
    paged, sequence = make_paged(model, chunk=50), Sequence()
    assert_logits(paged.prefill(sequence, as_ids(cases["c.rows"], model)), cases, "c", 699)


def test_blocks_scattered_over_the_pool(tiny: Tiny) -> None:
    model, cases = tiny
    ids, paged = as_ids(cases["a.rows"], model), make_paged(model, num_blocks=16)
    others = [Sequence() for _ in range(6)]
    for count, other in enumerate(others):
        paged.prefill(other, [7 + count] * 20)
    for other in others[::2]:
        paged.blocks.release(other)
    sequence = Sequence()
    assert_logits(paged.prefill(sequence, ids), cases, "a", 95)
    assert sequence.block_table != sorted(sequence.block_table)
    paged.blocks.check_integrity([sequence, *others[1::2]])


def test_second_turn_on_a_warm_cache_equals_a_full_prefill(tiny: Tiny) -> None:
    model, cases = tiny
    ids, paged, first = as_ids(cases["a.rows"], model), make_paged(model), Sequence()
    paged.prefill(first, ids[:60])
    paged.blocks.release(first)
    second = Sequence()
    assert paged.align(second, ids) == 48
    assert_logits(paged.prefill(second, ids[48:]), cases, "a", 95)
    assert paged.align(second, ids[:70]) == 70
    assert_logits(paged.prefill(second, ids[70:]), cases, "a", 95)


def test_forks_do_not_disturb_each_other(tiny: Tiny) -> None:
    model, cases = tiny
    ids, paged, first = as_ids(cases["a.rows"], model), make_paged(model), Sequence()
    paged.prefill(first, ids[:52])
    second = paged.blocks.fork(first)
    paged.prefill(second, [3, 1, 4, 1, 5])
    assert_logits(paged.prefill(first, ids[52:]), cases, "a", 95)
    assert first.block_table[:3] == second.block_table[:3]
    assert first.block_table[3] != second.block_table[3]
    paged.blocks.rollback(second, 52)
    assert_logits(paged.prefill(second, ids[52:]), cases, "a", 95)
    paged.blocks.check_integrity([first, second])


@pytest.mark.parametrize("left_out", [Tails(text=False), Tails(audio=False), Tails(text=False, audio=False)])
def test_a_tail_that_was_left_out_is_filled_before_it_is_read(tiny: Tiny, left_out: Tails) -> None:
    model, cases = tiny
    ids, paged, sequence = as_ids(cases["a.rows"], model), make_paged(model), Sequence()
    paged.prefill(sequence, ids[:30])
    for row in range(30, 61):
        logits = paged.decode(sequence, ids[row], left_out)
        assert (logits.text_logits is None) == (not left_out.text)
        if logits.audio_logits is not None:
            torch.testing.assert_close(
                logits.audio_logits, cases["a.audio_logits"][row], atol=LOGIT_TOLERANCE, rtol=0
            )
    assert sequence.complete_tokens == 30
    other = paged.blocks.fork(sequence)
    assert_logits(paged.decode(sequence, ids[61]), cases, "a", 61)
    assert sequence.complete_tokens == 62
    paged.prefill(other, ids[61:80], left_out)
    assert_logits(paged.prefill(other, ids[80:]), cases, "a", 95)
    assert_logits(paged.prefill(sequence, ids[62:]), cases, "a", 95)
    paged.blocks.check_integrity([sequence, other])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@torch.inference_mode()
def test_a_network_without_norms_of_queries_and_keys(tiny: Tiny, dtype: torch.dtype) -> None:
    """Prefill, decode steps (by the single-row path in float32 alone) and the plain network agree."""
    model, rows = make_llama().to(dtype), tiny[1]["a.rows"]
    ids, sequence = as_ids(rows, model), Sequence()
    cache = KVCache(model.config, 16, 16, dtype=dtype)
    executor = TorchExecutor(model, cache, max_seq_len=256)
    assert (executor._single_row is not None) == (dtype == torch.float32)
    paged = PagedLM(executor, cache, BlockManager(16, 16))
    text, audio = model(rows[None])
    steps = [paged.prefill(sequence, ids[:37]), *(paged.decode(sequence, one) for one in ids[37:])]
    for row, step in enumerate(steps, start=36):
        torch.testing.assert_close(step.text_logits, text[0, row].float(), atol=LOGIT_TOLERANCE, rtol=0)
        torch.testing.assert_close(step.audio_logits, audio[0, row].float(), atol=LOGIT_TOLERANCE, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("model", [load_tiny()[0], make_llama()], ids=["qwen3", "llama"])
def test_a_batch_equals_single_runs(model: MossLM) -> None:
    """Random mixtures of prefills and decode steps, with skipped tails, forks and scattered blocks."""
    choose = random.Random(7)
    vocab = model.config.text_vocab + model.config.audio_vocab
    batched, single = make_paged(model, num_blocks=96), make_paged(model, num_blocks=96)
    pairs = [(Sequence(), Sequence()) for _ in range(4)]
    for step in range(40):
        if step == 20:
            pairs.append((batched.blocks.fork(pairs[0][0]), single.blocks.fork(pairs[0][1])))
        requests, wanted = [], []
        for mine, other in choose.sample(pairs, choose.randrange(1, len(pairs) + 1)):
            is_prefill = mine.num_tokens == 0 or choose.random() < 0.3
            ids = [choose.randrange(vocab) for _ in range(choose.randrange(1, 20) if is_prefill else 1)]
            tails = Tails(text=choose.random() < 0.7, audio=choose.random() < 0.7)
            requests.append(StepRequest(mine, ids, tails, is_prefill=is_prefill))
            wanted += single.step([StepRequest(other, ids, tails, is_prefill=is_prefill)])
        for got, alone in zip(batched.step(requests), wanted, strict=True):
            assert_same(got, alone)
        for mine, other in pairs:
            assert (mine.ids, mine.text_computed, mine.audio_computed) == (
                other.ids,
                other.text_computed,
                other.audio_computed,
            )
    batched.blocks.check_integrity([mine for mine, _ in pairs])


@pytest.mark.slow
def test_replies_in_shared_steps_are_those_of_single_replies(tiny: Tiny) -> None:
    """Each with its own sampling parameters, draws, penalized ids and mode."""
    model, cases = tiny
    prompts = [cases["a.rows"][index : 50 - 3 * index] for index in range(len(SAMPLINGS))]
    together = replies_together(model, make_paged(model, num_blocks=96), prompts, SAMPLINGS)
    alone = [
        reply(model, make_paged(model), prompt, params)
        for prompt, params in zip(prompts, SAMPLINGS, strict=True)
    ]
    assert together == alone


@pytest.mark.parametrize("count", [2, 3, 8, 33])
def test_the_size_of_a_batch_changes_logits_by_rounding_only(tiny: Tiny, count: int) -> None:
    model, cases = tiny
    ids = as_ids(cases["a.rows"], model)
    alone, batched = make_paged(model, num_blocks=160), make_paged(model, num_blocks=160)
    requests, wanted = [], []
    for index in range(count):
        mine, other = Sequence(), Sequence()
        batched.prefill(mine, ids[: 20 + index])
        alone.prefill(other, ids[: 20 + index])
        requests.append(StepRequest(mine, [ids[20 + index]]))
        wanted.append(alone.decode(other, ids[20 + index]))
    for got, single in zip(batched.step(requests), wanted, strict=True):
        assert got.audio_logits is not None
        assert single.audio_logits is not None
        # float32 products of one row and of several sum in different orders
        torch.testing.assert_close(got.audio_logits, single.audio_logits, atol=2e-5, rtol=0)
        assert int(got.audio_logits.argmax()) == int(single.audio_logits.argmax())


def test_a_batch_with_one_bad_sequence_changes_none(tiny: Tiny) -> None:
    model, cases = tiny
    ids, paged = as_ids(cases["a.rows"], model), make_paged(model)
    first, second = Sequence(), Sequence()
    for sequence in (first, second):
        paged.prefill(sequence, ids[:31])
    with pytest.raises(ExecutorError, match=r"^token_ids: "):
        paged.step([StepRequest(first, [ids[31]]), StepRequest(second, [512 + 160])])
    assert (first.num_tokens, second.num_tokens) == (31, 31)
    outputs = paged.step([StepRequest(first, [ids[31]]), StepRequest(second, [ids[31]])])
    for output in outputs:
        assert_logits(output, cases, "a", 31)
    paged.blocks.check_integrity([first, second])


@pytest.mark.slow
def test_half_precision_stays_close(tiny: Tiny) -> None:
    model, cases = load_tiny()
    cache = KVCache(model.config, 16, 16, dtype=torch.bfloat16)
    executor = TorchExecutor(model.to(torch.bfloat16), cache, max_seq_len=256)
    paged, sequence, distances = PagedLM(executor, cache, BlockManager(16, 16)), Sequence(), []
    for row, token_id in enumerate(as_ids(cases["a.rows"], model)):
        logits = paged.decode(sequence, token_id).text_logits
        assert logits is not None
        distances.append((logits - cases["a.text_logits"][row]).abs().mean().item())
    assert sum(distances) / len(distances) < 0.1


def test_a_refused_step_leaves_the_sequence_as_it_was(tiny: Tiny) -> None:
    model, cases = tiny
    ids, paged, sequence = as_ids(cases["a.rows"], model), make_paged(model, max_seq_len=112), Sequence()
    paged.prefill(sequence, ids[:60])
    with pytest.raises(ContextLengthError, match="Start a new conversation"):
        paged.prefill(sequence, [1] * 53)
    with pytest.raises(ExecutorError, match="token_ids"):
        paged.prefill(sequence, [1, 2, 512 + 160])
    assert sequence.num_tokens == 60
    assert_logits(paged.prefill(sequence, ids[60:]), cases, "a", 95)
    paged.blocks.check_integrity([sequence])


def test_blocks_run_out(tiny: Tiny) -> None:
    model, _ = tiny
    paged, sequence = make_paged(model, num_blocks=3), Sequence()
    paged.prefill(sequence, [1] * 40)
    with pytest.raises(OutOfBlocksError, match="Start a new conversation"):
        paged.prefill(sequence, [1] * 10)
    assert sequence.num_tokens == 40
    paged.decode(sequence, 1)


def test_a_result_that_cannot_be_one_is_refused() -> None:
    model, _ = load_tiny()
    with torch.no_grad():
        model.audio_lm_head.weight.zero_()
    with pytest.raises(ExecutorError, match=r"^audio_logits: .* only zeros"):
        make_paged(model).prefill(Sequence(), [1, 2, 3])
    with torch.no_grad():
        layers_of(model.model.text_block)[0].mlp.down_proj.weight[0, 0] = float("nan")
        model.audio_lm_head.weight.fill_(0.1)
    with pytest.raises(ExecutorError, match=r"^logits: .* not finite"):
        make_paged(model).prefill(Sequence(), [1, 2, 3])


@pytest.mark.parametrize("rounds_tails", [False, True])
@pytest.mark.parametrize("weight_format", ["fp8", "int8", "int4"])
def test_a_weight_format_is_the_plain_network_with_rounded_weights(
    tiny: Tiny, weight_format: WeightFormat, rounds_tails: bool
) -> None:
    from engine_runtime.executors.torch.executor import TorchExecutor
    from engine_runtime.lm.block_manager import BlockManager
    from engine_runtime.lm.kv_cache import KVCache
    from engine_runtime.quantization import quantize

    model, cases = tiny
    ids = as_ids(cases["a.rows"], model)
    cache = KVCache(model.config, 16, 16)
    formats = EngineOptions(weight_format=weight_format, rounds_tails=rounds_tails).formats
    executor = TorchExecutor(model, cache, max_seq_len=256, formats=formats)
    got = PagedLM(executor, cache, BlockManager(16, 16)).prefill(Sequence(), ids)
    rounded, _ = load_tiny()
    with torch.no_grad():
        for name, parameter in rounded.model.named_parameters():
            if name.endswith("proj.weight") and (rounds_tails or name.startswith("shared_block.")):
                parameter.copy_(quantize(parameter, weight_format).dense(torch.float32))
    text, audio = rounded(cases["a.rows"][None].long())
    assert got.text_logits is not None
    assert got.audio_logits is not None
    torch.testing.assert_close(got.text_logits, text[0, -1], atol=LOGIT_TOLERANCE, rtol=0)
    torch.testing.assert_close(got.audio_logits, audio[0, -1], atol=LOGIT_TOLERANCE, rtol=0)
    assert (got.text_logits - cases["a.text_logits"][95]).abs().max() > 10 * LOGIT_TOLERANCE


def test_keys_and_values_in_fp8_stay_close(tiny: Tiny) -> None:
    model, cases = tiny
    ids = as_ids(cases["a.rows"], model)
    cache = KVCache(model.config, 16, 16, kv_dtype=torch.float8_e4m3fn)
    executor = TorchExecutor(model, cache, max_seq_len=256)
    paged, sequence = PagedLM(executor, cache, BlockManager(16, 16)), Sequence()
    whole = paged.prefill(sequence, ids[:60])
    for token_id in ids[60:]:
        whole = paged.decode(sequence, token_id)
    assert whole.text_logits is not None
    cut = paged.prefill(Sequence(), ids)
    assert cut.text_logits is not None
    torch.testing.assert_close(whole.text_logits, cut.text_logits, atol=0.05, rtol=0)
    similarity = torch.cosine_similarity(whole.text_logits, cases["a.text_logits"][95], dim=0)
    assert similarity > 0.99
