"""Steps of several sequences in an engine equal single steps, and a batch beyond the engine is refused."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from engine_runtime.errors import EngineError, ExecutorError
from engine_runtime.lm.block_manager import Sequence
from engine_runtime.lm.paged_lm import PagedLM, StepRequest
from engine_runtime.lm.step import ScheduledBatch, Tails
from engine_runtime.models.moss_lm import MossLM
from engine_runtime.tensorrt.llm.executor import TrtllmExecutor
from tests.doubles.tensorrt.llm_engine import TensorRT
from tests.factories.engine_lm import make_engine_paged
from tests.factories.engine_plans import plan_of
from tests.factories.steps import next_row
from tests.factories.tiny_lm import load_tiny, make_paged
from tests.tools.lm_scenarios import SAMPLINGS, assert_same, replies_together, reply

CONTRACTS = ("1.x", "0.13")


@pytest.fixture(scope="module")
def model() -> MossLM:
    return load_tiny()[0]


def make_batched(
    model: MossLM, folder: Path, contract: str = "1.x", *, captures: bool = False, chunk: int = 512
) -> tuple[PagedLM, TensorRT]:
    return make_engine_paged(
        model, folder, contract, num_blocks=128, max_batch_size=6, captures=captures, chunk=chunk
    )


@pytest.mark.slow
@pytest.mark.parametrize("captures", [False, True])
@pytest.mark.parametrize("contract", CONTRACTS)
def test_mixed_steps_equal_single_steps(model: MossLM, tmp_path: Path, contract: str, captures: bool) -> None:
    """Decode rows and prefills in any order, lengths on both sides of a block, steps of one between them."""
    choose = random.Random(3)
    vocab = model.config.text_vocab + model.config.audio_vocab
    batched, _ = make_batched(model, tmp_path, contract, captures=captures)
    plain = make_paged(model, num_blocks=128)
    pairs = [(Sequence(), Sequence()) for _ in range(6)]
    for (mine, other), length in zip(pairs, (3, 16, 31, 48, 130, 270), strict=True):
        ids = [choose.randrange(vocab) for _ in range(length)]
        assert_same(batched.prefill(mine, ids), plain.prefill(other, ids))
    sizes = set()
    for _ in range(12):
        requests, wanted = [], []
        for mine, other in choose.sample(pairs, choose.randrange(1, 7)):
            is_prefill = choose.random() < 0.4
            ids = [choose.randrange(vocab) for _ in range(choose.randrange(1, 40) if is_prefill else 1)]
            tails = Tails(text=choose.random() < 0.6, audio=choose.random() < 0.8)
            if is_prefill:
                (request,) = batched.prefill_requests(mine, ids, tails)
            else:
                request = StepRequest(mine, ids, tails)
            requests.append(request)
            wanted += plain.step([StepRequest(other, ids, tails, is_prefill=is_prefill)])
        sizes.add((len(requests), sum(request.is_prefill for request in requests)))
        for got, alone in zip(batched.step(requests), wanted, strict=True):
            assert_same(got, alone)
    assert any(0 < prefills < count for count, prefills in sizes), "none was mixed"
    batched.blocks.check_integrity([mine for mine, _ in pairs])


@pytest.mark.slow
@pytest.mark.parametrize("contract", CONTRACTS)
def test_replies_in_shared_steps_are_those_of_the_torch_executor(
    model: MossLM, tmp_path: Path, contract: str
) -> None:
    """A reply joins in each step, so that its prefill runs beside decode rows, and the longest ends alone."""
    cases = load_tiny()[1]
    prompts = [cases["a.rows"][index : 40 - index] for index in range(len(SAMPLINGS))]
    batched, trt = make_batched(model, tmp_path, contract)
    together = replies_together(model, batched, prompts, SAMPLINGS)
    pairs = zip(prompts, SAMPLINGS, strict=True)
    assert together == [reply(model, make_paged(model), *pair) for pair in pairs]
    assert trt.num_enqueues < sum(len(rows) for rows in together) / 2


@pytest.mark.parametrize("contract", CONTRACTS)
def test_outputs_come_back_in_the_order_of_the_batch(model: MossLM, tmp_path: Path, contract: str) -> None:
    """The engine takes prefills first, whatever the order of the scheduler."""
    batched, trt = make_batched(model, tmp_path, contract)
    plain, sequences, others = (
        make_paged(model),
        [Sequence() for _ in range(4)],
        [Sequence() for _ in range(4)],
    )
    for index in (0, 2):
        batched.prefill(sequences[index], [index] * 20)
        plain.prefill(others[index], [index] * 20)
    seen: list[list[int]] = []
    trt.tamper = lambda device, host: seen.append(host["host_request_types"].tolist())
    rows = ([5], [1, 2, 3], [6], [4] * 17)
    tails = (Tails(), Tails(text=False), Tails(audio=False), Tails())
    requests = [
        StepRequest(sequence, ids, wanted, is_prefill=len(ids) > 1)
        for sequence, ids, wanted in zip(sequences, rows, tails, strict=True)
    ]
    outputs = batched.step(requests)
    assert seen == [[0, 0, 1, 1]]
    for output, other, ids, wanted in zip(outputs, others, rows, tails, strict=True):
        assert_same(
            output, plain.prefill(other, ids, wanted) if len(ids) > 1 else plain.decode(other, ids[0], wanted)
        )


@pytest.mark.parametrize("built_for", [1, 3])
def test_a_batch_beyond_the_size_of_the_engine_is_refused(
    model: MossLM, tmp_path: Path, built_for: int
) -> None:
    paged, trt = make_engine_paged(model, tmp_path, max_batch_size=built_for)
    sequences = [Sequence() for _ in range(built_for + 1)]
    with pytest.raises(ExecutorError, match=f"runs 1 to {built_for} sequences per step, got {built_for + 1}"):
        paged.step([StepRequest(sequence, [7]) for sequence in sequences])
    assert trt.num_enqueues == 0
    assert {sequence.num_tokens for sequence in sequences} == {0}
    paged.blocks.check_integrity(sequences)


def test_an_executor_for_more_sequences_than_the_engine_is_refused(model: MossLM, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"host_request_types: needs shape \[4\], .* takes \[1\] to \[3\]"):
        make_engine_paged(model, tmp_path, plan=plan_of(model, max_batch_size=3), max_batch_size=4)


def test_the_rows_of_all_sequences_have_to_fit_into_a_call(model: MossLM, tmp_path: Path) -> None:
    paged, trt = make_batched(model, tmp_path, chunk=50)
    requests = [StepRequest(Sequence(), list(range(30)), is_prefill=True) for _ in range(2)]
    with pytest.raises(ExecutorError, match="input_ids: 60 tokens exceed max_num_tokens 50"):
        paged.step(requests)
    assert trt.num_enqueues == 0
    first, second = paged.step([requests[0], StepRequest(requests[1].sequence, [5])])
    assert first.text_logits is not None
    assert second.text_logits is not None


def test_a_batch_with_one_bad_sequence_changes_none(model: MossLM, tmp_path: Path) -> None:
    paged, _ = make_batched(model, tmp_path)
    first, second = Sequence(), Sequence()
    for sequence in (first, second):
        paged.prefill(sequence, [5, 6, 7])
    with pytest.raises(ExecutorError, match=r"^token_ids: "):
        paged.step([StepRequest(first, [8]), StepRequest(second, [512 + 160])])
    assert (first.num_tokens, second.num_tokens) == (3, 3)
    paged.blocks.check_integrity([first, second])


def test_sequences_that_share_a_prefix_read_it_and_do_not_write_it(model: MossLM, tmp_path: Path) -> None:
    batched, _ = make_batched(model, tmp_path)
    plain = make_paged(model)
    first, other = Sequence(), Sequence()
    batched.prefill(first, list(range(40)))
    plain.prefill(other, list(range(40)))
    second, another = batched.blocks.fork(first), plain.blocks.fork(other)
    got = batched.step([StepRequest(first, [1]), StepRequest(second, [2])])
    assert_same(got[0], plain.decode(other, 1))
    assert_same(got[1], plain.decode(another, 2))
    rows = [next_row(batched, sequence, [3]) for sequence in (first, second)]
    table = list(rows[1].block_table)
    table[2] = rows[0].block_table[2]
    rows[1] = replace(rows[1], block_table=table)
    with pytest.raises(ExecutorError, match="would write to a block of another one"):
        batched.executor.execute(ScheduledBatch(tuple(rows)))


def test_steps_of_several_are_launched_and_those_of_one_captured(model: MossLM, tmp_path: Path) -> None:
    paged, trt = make_batched(model, tmp_path, captures=True)
    executor = paged.executor
    assert isinstance(executor, TrtllmExecutor)
    sequences = [Sequence() for _ in range(3)]
    for step in range(3):
        before = trt.num_enqueues
        paged.step([StepRequest(sequence, [step]) for sequence in sequences])
        assert (executor.num_graphs, trt.num_enqueues - before) == (0, 1)
    paged.decode(sequences[1], 4)
    assert executor.num_graphs == 1
