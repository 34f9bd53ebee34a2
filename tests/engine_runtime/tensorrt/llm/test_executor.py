"""An engine under the paged runtime equals the torch executor, and rejects invalid input."""

from __future__ import annotations

import gc
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine_runtime.errors import ExecutorError
from engine_runtime.lm.paged_lm import PagedLM
from engine_runtime.lm.sequence import Sequence
from engine_runtime.lm.step import ScheduledBatch, Tails
from engine_runtime.models.moss_lm import MossLM
from engine_runtime.tensorrt.llm.executor import TrtllmExecutor
from tests.doubles.tensorrt.runtime import DataType
from tests.factories.engine_lm import make_engine_paged
from tests.factories.steps import next_row, step_tensors
from tests.factories.tiny_lm import LOGIT_TOLERANCE, as_ids, load_tiny, make_paged
from tests.tools.lm_scenarios import SAMPLINGS, assert_same, converse, reply

Tiny = tuple[MossLM, dict[str, torch.Tensor]]
CONTRACTS = ("1.x", "0.13")


@pytest.fixture(scope="module")
def tiny() -> Tiny:
    return load_tiny()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engine")


def executor_of(paged: PagedLM) -> TrtllmExecutor:
    assert isinstance(paged.executor, TrtllmExecutor)
    return paged.executor


@pytest.mark.slow
@pytest.mark.parametrize("captures", [False, True])
@pytest.mark.parametrize("contract", CONTRACTS)
@pytest.mark.parametrize("seed", range(4))
def test_conversations_are_those_of_the_torch_executor(
    tiny: Tiny, folder: Path, contract: str, captures: bool, seed: int
) -> None:
    """Chunked turns, unused tails, rollback, forks, cached prefixes."""
    model, _ = tiny
    paged, _ = make_engine_paged(model, folder, contract, captures=captures)
    converse(model, paged, make_paged(model), seed, LOGIT_TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("contract", CONTRACTS)
def test_replies_are_those_of_the_torch_executor(tiny: Tiny, folder: Path, contract: str) -> None:
    model, cases = tiny
    for params in SAMPLINGS[:: 1 if contract == "1.x" else 2]:
        paged, _ = make_engine_paged(model, folder, contract, captures=True)
        wanted = reply(model, make_paged(model), cases["a.rows"][:50], params)
        assert reply(model, paged, cases["a.rows"][:50], params) == wanted


@pytest.mark.slow
@pytest.mark.parametrize("contract", CONTRACTS)
@pytest.mark.parametrize("tokens_per_block", [8, 16, 32, 64])
def test_blocks_of_any_size(tiny: Tiny, folder: Path, contract: str, tokens_per_block: int) -> None:
    model, _ = tiny
    sizes = {"num_blocks": 1024 // tokens_per_block, "tokens_per_block": tokens_per_block}
    paged, _ = make_engine_paged(model, folder, contract, chunk=100, **sizes)
    converse(model, paged, make_paged(model, **sizes), 3, LOGIT_TOLERANCE)


@pytest.mark.slow
def test_the_stored_logits_of_a_long_conversation(tiny: Tiny, folder: Path) -> None:
    model, cases = tiny
    ids = as_ids(cases["c.rows"], model)
    paged, _ = make_engine_paged(model, folder, captures=True)
    sequence = Sequence()
    paged.prefill(sequence, ids[:240])
    for row in range(240, 530):
        logits = paged.decode(sequence, ids[row])
        assert logits.text_logits is not None
        torch.testing.assert_close(
            logits.text_logits, cases["c.text_logits"][row], atol=LOGIT_TOLERANCE, rtol=0
        )
    assert executor_of(paged).num_graphs == 3


def test_every_row_has_its_own_graph_bucket_and_no_more(tiny: Tiny, folder: Path) -> None:
    model, _ = tiny
    paged, trt = make_engine_paged(model, folder, captures=True, max_seq_len=300)
    executor, sequence = executor_of(paged), Sequence()
    paged.prefill(sequence, [3] * 255)
    assert executor.num_graphs == 0
    contexts = trt.live_contexts
    stated: list[int] = []
    trt.tamper = lambda device, host: stated.extend(host["host_past_key_value_lengths"].tolist())
    for expected in (1, 2, 2, 2):
        paged.decode(sequence, 7)
        assert executor.num_graphs == expected
    trt.tamper = None
    assert trt.live_contexts == contexts + 2
    assert set(stated) == {256, 299}, "the grid has to cover the last row of the bucket"
    paged.blocks.rollback(sequence, 100)
    plain, other = make_paged(model, max_seq_len=300), Sequence()
    plain.prefill(other, [3] * 100)
    assert_same(paged.decode(sequence, 9), plain.decode(other, 9))
    paged.prefill(sequence, [4] * 198)
    plain.prefill(other, [4] * 198)
    assert_same(paged.decode(sequence, 5), plain.decode(other, 5))  # the last row that fits


def test_a_step_that_cannot_be_captured_is_launched(
    tiny: Tiny, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, _ = tiny

    class NoCapture:
        is_capturing = True

        def run(self, key: object, function: Any) -> None:
            function()
            raise RuntimeError("operation not permitted when stream is capturing")

    paged, trt = make_engine_paged(model, folder)
    from engine_runtime.tensorrt.llm.session import EngineSession

    executor = TrtllmExecutor(
        EngineSession(folder / "rank0.engine", trt.library, trt.memory),
        model.config,
        paged.cache,
        trt.memory,
        max_seq_len=1024,
        max_num_tokens=512,
        calls=NoCapture(),  # type: ignore[arg-type]
    )
    captured = PagedLM(executor, paged.cache, paged.blocks)
    plain, mine, other = make_paged(model), Sequence(), Sequence()
    with caplog.at_level(logging.WARNING):
        for token in range(3):
            assert_same(captured.decode(mine, token), plain.decode(other, token))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "stream is capturing" in caplog.text
    assert "without graphs" in executor.note


def test_tails_that_are_not_wanted_are_computed_and_not_given(tiny: Tiny, folder: Path) -> None:
    model, _ = tiny
    paged, _ = make_engine_paged(model, folder)
    sequence = Sequence()
    logits = paged.prefill(sequence, list(range(20)), Tails(text=False))
    assert logits.text_logits is None
    assert logits.audio_logits is not None
    assert sequence.complete_rows == 20
    row = next_row(paged, sequence, [1])
    with pytest.raises(ExecutorError, match="cannot fill the rows of a skipped tail"):
        paged.executor.execute(ScheduledBatch((replace(row, text_rows=19),)))
    tensors = step_tensors(paged, sequence, [1])
    with pytest.raises(ExecutorError, match=r"^host_tail_start: unknown input"):
        executor_of(paged).run(tensors | {"host_tail_start": torch.tensor([21, 20], dtype=torch.int32)})


def test_profiles_for_one_row_and_for_many(tiny: Tiny, folder: Path) -> None:
    model, _ = tiny
    ranges = ((1, 512), (1, 1), (2, 64))
    paged, trt = make_engine_paged(model, folder, rows_of_profiles=ranges)
    plain, mine, other = make_paged(model), Sequence(), Sequence()
    for count in (1, 40, 200):
        ids = list(range(count))
        assert_same(paged.prefill(mine, ids), plain.prefill(other, ids))
        assert_same(paged.decode(mine, 9), plain.decode(other, 9))
    assert trt.live_contexts == 3


@pytest.mark.parametrize("dtype", [DataType.HALF, DataType.BF16])
def test_logits_in_half_precision_come_up_as_float32(tiny: Tiny, folder: Path, dtype: DataType) -> None:
    model, _ = tiny
    paged, _ = make_engine_paged(model, folder, logits=dtype)
    mine, wanted = paged.prefill(Sequence(), [1, 2, 3]), make_paged(model).prefill(Sequence(), [1, 2, 3])
    assert_same(mine, wanted, tolerance=0.05)
    assert mine.text_logits is not None
    assert mine.text_logits.dtype == torch.float32


@pytest.mark.slow
@pytest.mark.parametrize("captures", [False, True])
def test_closing_lets_everything_go(tiny: Tiny, folder: Path, captures: bool) -> None:
    model, _ = tiny
    paged, trt = make_engine_paged(model, folder, captures=captures)
    sequence = Sequence()
    paged.prefill(sequence, [1, 2, 3])
    paged.decode(sequence, 4)
    assert trt.live_contexts == 1 + captures
    paged.close()
    paged.close()
    gc.collect()
    assert trt.live_contexts == 0
    with pytest.raises(ExecutorError, match="closed"):
        paged.decode(sequence, 4)


@pytest.mark.parametrize("contract", CONTRACTS)
def test_a_prefill_continues_where_the_contract_lets_it(tiny: Tiny, folder: Path, contract: str) -> None:
    """0.13 starts at a block; rows of the block that is not full are run once more."""
    model, _ = tiny
    paged, _ = make_engine_paged(model, folder, contract, chunk=50)
    starts: list[tuple[int, int]] = []
    run = paged.executor.execute

    def spy(batch: ScheduledBatch) -> Any:
        starts.extend((row.first_position, len(row.token_ids)) for row in batch.sequences)
        return run(batch)

    paged.executor.execute = spy  # type: ignore[method-assign]
    sequence, other, plain = Sequence(), Sequence(), make_paged(model)
    for count in (20, 3, 80):
        assert_same(paged.prefill(sequence, [count] * count), plain.prefill(other, [count] * count))
    if contract == "1.x":
        assert starts == [(0, 20), (20, 3), (23, 50), (73, 30)]
    else:
        assert starts == [(0, 20), (16, 7), (16, 48), (64, 39)]
    assert sequence.ids == other.ids
    paged.blocks.check_integrity([sequence])
