"""Single-row steps against the same rows prefilled together, and which steps are of this kind."""

from __future__ import annotations

import warnings

import pytest
import torch

from engine_runtime.errors import ExecutorError
from engine_runtime.executors.torch.executor import TorchExecutor
from engine_runtime.executors.torch.single_row import SingleRow
from engine_runtime.lm.block_manager import Sequence
from engine_runtime.lm.step import BOTH_TAILS, ScheduledBatch, ScheduledSequence, StepOutput, Tails
from engine_runtime.models.moss_lm import MossLM
from tests.factories.tiny_lm import as_ids, layers_of, load_tiny, make_llama, make_paged

TOLERANCE = 1e-4


def scheduled(
    rows: int = 1, text_computed: int = 5, audio_computed: int = 5, tails: Tails = BOTH_TAILS
) -> ScheduledSequence:
    return ScheduledSequence([3] * rows, 5, [0], text_computed, audio_computed, 5, rows > 1, tails)


def assert_close(actual: StepOutput, wanted: StepOutput) -> None:
    for one, other in (
        (actual.text_logits, wanted.text_logits),
        (actual.audio_logits, wanted.audio_logits),
    ):
        assert one is not None
        assert other is not None
        torch.testing.assert_close(one, other, rtol=0, atol=TOLERANCE)


def rows_in_pool(pool: torch.Tensor, sequence: Sequence) -> torch.Tensor:
    """K/V of the rows of a sequence. [rows, layers, 2, kv_heads, head_dim]"""
    return pool[sequence.block_table].movedim(4, 1).flatten(0, 1)[: sequence.num_tokens]


@pytest.fixture(params=["qwen3", "llama"])
def model(request: pytest.FixtureRequest) -> MossLM:
    """With norm weights that are not 1."""
    model = make_llama() if request.param == "llama" else load_tiny()[0]
    generator = torch.Generator().manual_seed(3)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.data *= 1.0 + 0.3 * torch.randn(parameter.shape, generator=generator)
    return model


def test_steps_equal_a_prefill_of_the_same_rows(model: MossLM) -> None:
    _, cases = load_tiny()
    ids, paged = as_ids(cases["a.rows"], model), make_paged(model, num_blocks=16)
    others = [Sequence() for _ in range(3)]
    for other in others:
        paged.prefill(other, [7] * 20)
    paged.blocks.release(others[1])  # the blocks of the sequence are scattered
    sequence, whole = Sequence(), Sequence()
    for row in range(40):
        actual = paged.decode(sequence, ids[row])
        paged.blocks.rollback(whole, 0)
        if row:
            assert_close(actual, paged.prefill(whole, ids[: row + 1]))
    kept, wanted = (rows_in_pool(paged.cache.pool, one) for one in (sequence, whole))
    torch.testing.assert_close(kept, wanted, rtol=0, atol=TOLERANCE)


def test_rows_of_tails_that_did_not_run_are_kept(model: MossLM) -> None:
    _, cases = load_tiny()
    ids, paged = as_ids(cases["a.rows"], model), make_paged(model)
    sequence, whole = Sequence(), Sequence()
    paged.prefill(sequence, ids[:10])
    for row in range(10, 20):
        output = paged.decode(sequence, ids[row], Tails(text=False))
        assert output.text_logits is None
    assert_close(paged.decode(sequence, ids[20]), paged.prefill(whole, ids[:21]))


def test_the_step_must_be_one_row_of_one_sequence_with_no_tail_behind() -> None:
    accepted = [
        scheduled(),
        scheduled(text_computed=2, tails=Tails(text=False)),
        scheduled(audio_computed=2, tails=Tails(audio=False)),
    ]
    refused = [scheduled(rows=2), scheduled(text_computed=4), scheduled(audio_computed=4)]
    assert all(SingleRow.accepts(ScheduledBatch((one,))) for one in accepted)
    assert not any(SingleRow.accepts(ScheduledBatch((one,))) for one in refused)
    assert not SingleRow.accepts(ScheduledBatch((scheduled(), scheduled())))


def test_norm_weights_become_part_of_the_matrices(model: MossLM) -> None:
    executor = make_paged(model).executor
    assert isinstance(executor, TorchExecutor)
    layer, own = executor.network.trunk[0], layers_of(model.model.shared_block)[0]
    x = torch.randn(3, model.config.hidden_size)
    torch.testing.assert_close(
        layer.gate_up(x)[:, : own.mlp.gate_proj.out_features],
        (x * own.post_attention_layernorm.weight) @ own.mlp.gate_proj.weight.T,
        rtol=1e-4,
        atol=1e-5,
    )
    assert bool((layer.post_norm == 1.0).all())


def test_a_gate_that_overflows_is_zero_without_a_warning(model: MossLM) -> None:
    for layer in layers_of(model.model.shared_block):
        layer.mlp.gate_proj.weight.data *= 1e4
    paged, sequence, whole = make_paged(model), Sequence(), Sequence()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        paged.decode(sequence, 3)
        actual = paged.decode(sequence, 5)
    wanted = paged.prefill(whole, [3, 5])
    assert actual.text_logits is not None
    assert wanted.text_logits is not None
    torch.testing.assert_close(actual.text_logits, wanted.text_logits, rtol=1e-2, atol=1e-2)


def test_values_that_are_not_finite_are_an_error(model: MossLM) -> None:
    model.model.embed_tokens.weight.data[4, 0] = float("nan")
    paged = make_paged(model)
    with pytest.raises(ExecutorError, match="not finite"):
        paged.decode(Sequence(), 4)
