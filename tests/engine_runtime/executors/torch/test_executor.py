"""The paged forward step: equal to the plain network however the rows are cut, and strict about its
inputs."""

from __future__ import annotations

import pytest
import torch

from engine_runtime.errors import ContextLengthError, ExecutorError, OutOfBlocksError
from engine_runtime.lm.executor import step_spec
from engine_runtime.lm.paged_lm import Logits, PagedLM
from engine_runtime.lm.sequence import Sequence
from engine_runtime.lm.step import StepInputBuilder, Tails
from engine_runtime.models.moss_lm import MossLM
from engine_runtime.options import EngineOptions, WeightFormat
from tests.factories.tiny_lm import LOGIT_TOLERANCE, as_ids, load_tiny, make_paged

Tiny = tuple[MossLM, dict[str, torch.Tensor]]


@pytest.fixture(scope="module")
def tiny() -> Tiny:
    return load_tiny()


def assert_logits(got: Logits, cases: dict[str, torch.Tensor], case: str, row: int) -> None:
    """Both heads equal the stored logits of one row."""
    assert got.text is not None
    assert got.audio is not None
    torch.testing.assert_close(got.text, cases[f"{case}.text_logits"][row], atol=LOGIT_TOLERANCE, rtol=0)
    torch.testing.assert_close(got.audio, cases[f"{case}.audio_logits"][row], atol=LOGIT_TOLERANCE, rtol=0)


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
        logits = paged.prefill(sequence, ids[sequence.num_rows : sequence.num_rows + cut])
        assert_logits(logits, cases, "a", sequence.num_rows - 1)


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
        assert (logits.text is None) == (not left_out.text)
        if logits.audio is not None:
            torch.testing.assert_close(
                logits.audio, cases["a.audio_logits"][row], atol=LOGIT_TOLERANCE, rtol=0
            )
    assert sequence.complete_rows == 30
    other = paged.blocks.fork(sequence)
    assert_logits(paged.decode(sequence, ids[61]), cases, "a", 61)
    assert sequence.complete_rows == 62
    paged.prefill(other, ids[61:80], left_out)
    assert_logits(paged.prefill(other, ids[80:]), cases, "a", 95)
    assert_logits(paged.prefill(sequence, ids[62:]), cases, "a", 95)
    paged.blocks.check_integrity([sequence, other])


def test_half_precision_stays_close(tiny: Tiny) -> None:
    from engine_runtime.executors.torch.executor import TorchExecutor
    from engine_runtime.lm.block_manager import BlockManager
    from engine_runtime.lm.kv_cache import KVCache

    model, cases = load_tiny()
    cache = KVCache(model.config, 16, 16, dtype=torch.bfloat16)
    executor = TorchExecutor(model.to(torch.bfloat16), cache, max_seq_len=256)
    paged, sequence, distances = PagedLM(executor, cache, BlockManager(16, 16)), Sequence(), []
    for row, token_id in enumerate(as_ids(cases["a.rows"], model)):
        logits = paged.decode(sequence, token_id).text
        assert logits is not None
        distances.append((logits - cases["a.text_logits"][row]).abs().mean().item())
    assert sum(distances) / len(distances) < 0.1


def test_a_refused_step_leaves_the_sequence_as_it_was(tiny: Tiny) -> None:
    model, cases = tiny
    ids, paged, sequence = as_ids(cases["a.rows"], model), make_paged(model, max_seq_len=112), Sequence()
    paged.prefill(sequence, ids[:60])
    with pytest.raises(ContextLengthError, match="Start a new conversation"):
        paged.prefill(sequence, [1] * 53)
    with pytest.raises(ExecutorError, match="input_ids"):
        paged.prefill(sequence, [1, 2, 512 + 160])
    assert sequence.num_rows == 60
    assert_logits(paged.prefill(sequence, ids[60:]), cases, "a", 95)
    paged.blocks.check_integrity([sequence])


def test_blocks_run_out(tiny: Tiny) -> None:
    model, _ = tiny
    paged, sequence = make_paged(model, num_blocks=3), Sequence()
    paged.prefill(sequence, [1] * 40)
    with pytest.raises(OutOfBlocksError, match="Start a new conversation"):
        paged.prefill(sequence, [1] * 10)
    assert sequence.num_rows == 40
    paged.decode(sequence, 1)


def one_step(paged: PagedLM, model: MossLM) -> dict[str, torch.Tensor]:
    """Tensors of a good decode step after 20 rows."""
    sequence = Sequence()
    paged.prefill(sequence, list(range(20)))
    paged.blocks.reserve(sequence, 20, 21)
    return StepInputBuilder(paged.executor, paged.cache).fill(sequence, [5], Tails(), prefill=False)


@pytest.mark.parametrize(
    "name", [spec.name for spec in step_spec(make_paged(load_tiny()[0]).executor.limits)]
)
def test_every_tensor_is_checked(tiny: Tiny, name: str) -> None:
    model, _ = tiny
    paged = make_paged(model)
    good = one_step(paged, model)
    paged.executor.forward(good)
    bad = [
        good | {name: good[name].to(torch.float32)},
        good | {name: good[name][None]},
        good | {name: torch.cat((good[name], good[name]), dim=-1)},
    ]
    if name != "host_tail_start":
        bad.append({key: value for key, value in good.items() if key != name})
    for tensors in bad:
        with pytest.raises(ExecutorError, match=f"^{name}: "):
            paged.executor.forward(tensors)


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("host_request_types", [2], "host_request_types"),
        ("host_request_types", [0], "host_context_lengths"),
        ("host_past_key_value_lengths", [21], "position_ids"),
        ("host_past_key_value_lengths", [-2], "host_past_key_value_lengths"),
        ("host_past_key_value_lengths", [1024], "host_past_key_value_lengths"),
        ("input_ids", [-1], "input_ids"),
        ("position_ids", [19], "position_ids"),
        ("last_token_ids", [0], "last_token_ids"),
        ("sequence_length", [20], "sequence_length"),
        ("context_lengths", [19], "context_lengths"),
        ("host_kv_cache_pool_pointers", [[0, 0]], "host_kv_cache_pool_pointers"),
        ("host_kv_cache_pool_pointers", [[4096, 0]], "host_kv_cache_pool_pointers"),
        ("host_kv_cache_pool_mapping", [[0, 0]] * 7, "host_kv_cache_pool_mapping"),
        ("host_max_attention_window_sizes", [20] * 7, "host_max_attention_window_sizes"),
        ("host_sink_token_length", [4], "host_sink_token_length"),
        ("host_tail_start", [22, 20], "host_tail_start"),
    ],
)
def test_values_that_do_not_fit_are_refused(tiny: Tiny, name: str, value: list[object], named: str) -> None:
    model, _ = tiny
    paged = make_paged(model)
    good = one_step(paged, model)
    with pytest.raises(ExecutorError, match=f"^{named}: "):
        paged.executor.forward(good | {name: torch.tensor(value, dtype=good[name].dtype)})


@pytest.mark.parametrize("change", ["outside", "negative", "v_like_k", "not_a_block", "twice"])
@pytest.mark.parametrize("name", ["kv_cache_block_offsets", "host_kv_cache_block_offsets"])
def test_offsets_that_would_overwrite_memory_are_refused(tiny: Tiny, name: str, change: str) -> None:
    model, _ = tiny
    paged = make_paged(model)
    good = one_step(paged, model)
    offsets = good[name].clone()
    stride = model.config.num_layers * 2
    if change == "outside":
        offsets[0, 0, :, 1] = torch.tensor([64 * stride, 64 * stride + 1])
    elif change == "negative":
        offsets[0, 0, :, 0] = torch.tensor([-stride, -stride + 1])
    elif change == "v_like_k":
        offsets[0, 0, 1] = offsets[0, 0, 0]
    elif change == "not_a_block":
        offsets += 1
    else:
        offsets[0, 0, :, 1] = offsets[0, 0, :, 0]
    with pytest.raises(ExecutorError, match=f"^{name}: "):
        paged.executor.forward(good | {name: offsets})


def test_a_result_that_cannot_be_one_is_refused() -> None:
    model, _ = load_tiny()
    with torch.no_grad():
        model.audio_lm_head.weight.zero_()
    with pytest.raises(ExecutorError, match=r"^audio_logits: .* only zeros"):
        make_paged(model).prefill(Sequence(), [1, 2, 3])
    with torch.no_grad():
        model.model.text_block.layers[0].mlp.down_proj.weight[0, 0] = float("nan")
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
    assert got.text is not None
    assert got.audio is not None
    torch.testing.assert_close(got.text, text[0, -1], atol=LOGIT_TOLERANCE, rtol=0)
    torch.testing.assert_close(got.audio, audio[0, -1], atol=LOGIT_TOLERANCE, rtol=0)
    assert (got.text - cases["a.text_logits"][95]).abs().max() > 10 * LOGIT_TOLERANCE


def test_keys_and_values_in_fp8_stay_close(tiny: Tiny) -> None:
    from engine_runtime.executors.torch.executor import TorchExecutor
    from engine_runtime.lm.block_manager import BlockManager
    from engine_runtime.lm.kv_cache import KVCache

    model, cases = tiny
    ids = as_ids(cases["a.rows"], model)
    cache = KVCache(model.config, 16, 16, kv_dtype=torch.float8_e4m3fn)
    executor = TorchExecutor(model, cache, max_seq_len=256)
    paged, sequence = PagedLM(executor, cache, BlockManager(16, 16)), Sequence()
    whole = paged.prefill(sequence, ids[:60])
    for token_id in ids[60:]:
        whole = paged.decode(sequence, token_id)
    assert whole.text is not None
    cut = paged.prefill(Sequence(), ids)
    assert cut.text is not None
    torch.testing.assert_close(whole.text, cut.text, atol=0.05, rtol=0)
    similarity = torch.cosine_similarity(whole.text, cases["a.text_logits"][95], dim=0)
    assert similarity > 0.99
