"""Steps of several sequences by the kernels, run by Triton's interpreter, against single steps of plain
torch."""

from __future__ import annotations

import random
from dataclasses import fields, replace
from itertools import product
from typing import Any

import pytest
import torch

from engine_runtime.cuda.driver import LARGE_SHARED_MEMORY
from engine_runtime.cuda.gpu_memory import batch_bytes, batch_rows
from engine_runtime.errors import ExecutorError
from engine_runtime.executors.cuda import executor as cuda_executor
from engine_runtime.executors.cuda.executor import CudaExecutor
from engine_runtime.executors.cuda.paged_attention import PartitionBuffers
from engine_runtime.executors.cuda.prefill import TorchRowOperations
from engine_runtime.lm.block_manager import Sequence
from engine_runtime.lm.paged_lm import PagedLM, StepRequest
from engine_runtime.lm.step import ScheduledSequence, Tails
from engine_runtime.models.moss_lm import MossLM
from engine_runtime.options import BlockFormats, WeightFormat
from engine_runtime.quantization import Matrix, quantize
from engine_runtime.types import SamplingParams
from tests.doubles.graphs import FirstFunctions
from tests.doubles.interpreted_triton import HAS_TRITON, needs_triton, patch_interpreter
from tests.factories.tiny_lm import load_tiny, make_cuda_paged, make_llama, make_paged, make_thin
from tests.tools.lm_scenarios import NAMED_SAMPLINGS, assert_same, noted_takes, replies_together, reply

pytestmark = needs_triton
patch_interpreter()
if HAS_TRITON:
    from engine_runtime.executors.cuda import batched_linear, triton_linear, triton_prefill
    from engine_runtime.executors.cuda.batched_backend import attention_tiling_of
    from engine_runtime.executors.cuda.batched_linear import (
        BatchedLinear,
        BatchTiling,
        tiling_of,
        triton_splits,
    )
    from engine_runtime.executors.cuda.batched_steps import plan_forwards
    from engine_runtime.executors.cuda.triton_linear import KernelConfig


@pytest.fixture(scope="module")
def model() -> MossLM:
    return make_thin()


@pytest.fixture(autouse=True)
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the interpreter, which runs one after the other; also plain torch for prefill."""
    monkeypatch.setattr(triton_linear, "default_config", lambda key: KernelConfig(32, 4, 1, 2))
    monkeypatch.setattr(triton_prefill, "TritonRowOperations", TorchRowOperations)


def make_batched(
    model: MossLM, max_batch_size: int = 8, max_seq_len: int = 320, formats: BlockFormats | None = None
) -> PagedLM:
    """The model on the executor for GPUs with its kernels for decode."""
    return make_cuda_paged(
        model,
        num_blocks=96,
        max_seq_len=max_seq_len,
        uses_triton=True,
        max_batch_size=max_batch_size,
        formats=formats,
    )


@pytest.mark.slow
@pytest.mark.parametrize("model", [make_thin(), make_llama(layers=1)], ids=["qwen3", "llama"])
def test_mixed_steps_equal_single_steps(model: MossLM) -> None:
    """Decode rows and short prefills, lengths on both sides of a partition, tails that are filled later."""
    choose = random.Random(3)
    vocab = model.config.text_vocab + model.config.audio_vocab
    batched, plain = make_batched(model), make_paged(model, num_blocks=96)
    pairs = [(Sequence(), Sequence()) for _ in range(4)]
    for (mine, other), length in zip(pairs, (3, 40, 253, 270), strict=True):
        ids = [choose.randrange(vocab) for _ in range(length)]
        batched.prefill(mine, ids)
        plain.prefill(other, ids)
    for _ in range(4):
        requests, wanted = [], []
        for mine, other in choose.sample(pairs, choose.randrange(2, 5)):
            is_prefill = choose.random() < 0.3
            ids = [choose.randrange(vocab) for _ in range(choose.randrange(2, 8) if is_prefill else 1)]
            tails = Tails(text=choose.random() < 0.6, audio=choose.random() < 0.8)
            requests.append(StepRequest(mine, ids, tails, is_prefill=is_prefill))
            wanted += plain.step([StepRequest(other, ids, tails, is_prefill=is_prefill)])
        for got, alone in zip(batched.step(requests), wanted, strict=True):
            assert_same(got, alone)
    batched.blocks.check_integrity([mine for mine, _ in pairs])


@pytest.mark.slow
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_replies_in_shared_steps_are_those_of_single_replies(
    model: MossLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parameters, draws and seen ids of a reply are its own, also when it goes on alone at the end. Some of
    their steps are overlapped."""
    taken = noted_takes(monkeypatch)
    prompts = [load_tiny()[1]["a.rows"][index : 20 - index] for index in range(3)]
    lengths = {"greedy with a penalty": 5, "as released": 7, "hot": 6}
    samplings = [replace(NAMED_SAMPLINGS[name], max_new=length) for name, length in lengths.items()]
    alike = [
        one.name for one in fields(SamplingParams) if len({getattr(p, one.name) for p in samplings}) == 1
    ]
    assert not alike, "each parameter has to be that of its own sequence"
    together = replies_together(model, make_batched(model), prompts, samplings)
    alone = [
        reply(model, make_paged(model), prompt, params)
        for prompt, params in zip(prompts, samplings, strict=True)
    ]
    assert together == alone
    assert sum(taken) >= 3


@pytest.mark.slow
def test_a_captured_step_serves_other_sequences(model: MossLM, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = FirstFunctions()
    monkeypatch.setattr(cuda_executor, "GraphedCalls", lambda device, enabled: calls)
    batched, plain = make_batched(model), make_paged(model, num_blocks=96)
    pairs = [(Sequence(), Sequence()) for _ in range(4)]
    for index, (mine, other) in enumerate(pairs):
        batched.prefill(mine, [7 + index] * (5 + 20 * index))
        plain.prefill(other, [7 + index] * (5 + 20 * index))
    for chosen in ((0, 1, 2), (3, 1, 2), (2, 3, 0, 1)):
        requests = [StepRequest(pairs[index][0], [30 + index], Tails(text=False)) for index in chosen]
        wanted = [plain.decode(pairs[index][1], 30 + index, Tails(text=False)) for index in chosen]
        for got, alone in zip(batched.step(requests), wanted, strict=True):
            assert_same(got, alone)
    assert [(key.rows, key.text, key.audio) for key in calls.kept] == [(4, False, True)]


def test_a_batch_with_one_bad_sequence_changes_none(model: MossLM) -> None:
    batched = make_batched(model)
    first, second = Sequence(), Sequence()
    for sequence in (first, second):
        batched.prefill(sequence, [5, 6, 7])
    with pytest.raises(ExecutorError, match=r"^token_ids: "):
        batched.step([StepRequest(first, [8]), StepRequest(second, [512 + 160])])
    assert (first.num_tokens, second.num_tokens) == (3, 3)
    batched.blocks.check_integrity([first, second])


@pytest.mark.parametrize("kernels", [False, True])
def test_more_sequences_than_the_limit_are_refused(model: MossLM, kernels: bool) -> None:
    paged = make_cuda_paged(model, uses_triton=kernels, max_batch_size=2)
    requests = [StepRequest(Sequence(), [token]) for token in (5, 6, 7)]
    with pytest.raises(ExecutorError, match="runs 1 to 2 sequences per step, got 3"):
        paged.step(requests)


def test_without_kernels_sequences_run_one_after_the_other(model: MossLM) -> None:
    paged, plain = make_cuda_paged(model, max_batch_size=4), make_paged(model)
    requests = [StepRequest(Sequence(), ids, is_prefill=True) for ids in ([5, 6], [7, 8, 9], [4])]
    wanted = [plain.prefill(Sequence(), request.token_ids) for request in requests]
    for got, alone in zip(paged.step(requests), wanted, strict=True):
        assert_same(got, alone)


def scheduled(rows: int) -> ScheduledSequence:
    return ScheduledSequence([1] * rows, 0, [0], 0, 0, 0, is_prefill=rows > 1)


@pytest.mark.parametrize(
    ("rows", "planned"),
    [
        ((1, 1, 1), [[0, 1, 2]]),
        ((5, 1, 40, 1), [[1, 3, 0], [2]]),
        ((16, 1, 1), [[1, 2], [0]]),
        ((1,) * 17, [list(range(16)), [16]]),
        ((40, 50), [[0], [1]]),
    ],
)
def test_decode_rows_come_first_and_long_prefills_alone(
    rows: tuple[int, ...], planned: list[list[int]]
) -> None:
    assert plan_forwards([scheduled(count) for count in rows], capacity=16) == planned


@pytest.mark.slow
@pytest.mark.parametrize("weight_format", ["native", "fp8", "int8", "int4"])
@pytest.mark.parametrize("shape", [(72, 256), (40, 208), (40, 200)])
@pytest.mark.parametrize("uses_tma", [False, True])
def test_a_few_rows_times_a_matrix(
    weight_format: WeightFormat, shape: tuple[int, int], uses_tma: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By TMA where rows are multiples of 16 values, not 200 inputs."""
    monkeypatch.setattr(batched_linear, "_MIN_COLUMNS", 64)
    torch.manual_seed(1)
    matrix, linear = quantize(torch.randn(shape), weight_format), BatchedLinear(16, torch.device("cpu"))
    tiling = BatchTiling(64, 128, 4, 4, uses_tma=uses_tma, smallest_rows=8)
    monkeypatch.setattr(linear, "tiling", lambda rows, matrix, is_gated: tiling)
    splits = linear.num_splits(matrix)
    assert (splits > 1) == (shape[1] == 256 and weight_format != "int4")
    x = torch.randn(16, shape[1])
    product = x @ matrix.dense(torch.float32).t()
    sums = torch.full((splits * 16 * shape[0],), torch.nan)
    linear.run(5, x, matrix, sums)
    found = sums.view(splits, 16, shape[0])[:, :5].sum(0)
    torch.testing.assert_close(found, product[:5], atol=1e-4, rtol=1e-4)
    whole = torch.full((16, shape[0]), torch.nan)
    linear.run(5, x, matrix, whole, is_split=False)
    torch.testing.assert_close(whole[:5], product[:5], atol=1e-4, rtol=1e-4)
    gated = torch.full((16, shape[0] // 2), torch.nan)
    linear.run_gated(5, x, matrix, gated)
    gate, up = product[:5].chunk(2, dim=1)
    wanted = torch.nn.functional.silu(gate) * up
    torch.testing.assert_close(gated[:5], wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("weight_format", "uses_pdl"), [("native", True), ("fp8", True), ("int8", False)])
def test_products_with_int8_weights_are_launched_without_pdl(
    weight_format: WeightFormat, uses_pdl: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next kernel's waiting programs slow down their conversion."""
    launched: list[dict[str, Any]] = []

    class Recorder:
        def __getitem__(self, grid: object) -> Any:
            return lambda *_, **flags: launched.append(flags)

    monkeypatch.setattr(batched_linear, "batch_linear", Recorder())
    pdl = {"USES_PDL": True, "launch_pdl": True}
    monkeypatch.setattr(batched_linear, "pdl_launch_args", lambda device: pdl)
    linear = BatchedLinear(16, torch.device("cpu"))
    matrix, x = quantize(torch.randn(64, 256), weight_format), torch.randn(16, 256)
    linear.run(5, x, matrix, torch.empty(4096))
    linear.run_gated(5, x, matrix, torch.empty(16, 32))
    for flags in launched:
        assert (flags["USES_PDL"], flags.get("launch_pdl", False)) == (uses_pdl, uses_pdl)
        assert (flags["PREFETCH"] > 0) == uses_pdl
    assert len(launched) == 2


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("weight_format", ["native", "fp8", "int8"])
def test_the_pipeline_of_every_tiling_fits_into_shared_memory(
    weight_format: WeightFormat, is_large: bool
) -> None:
    matrix = quantize(torch.randn(64, 128, dtype=torch.bfloat16), weight_format)
    for rows, is_gated in product((2, 8, 16, 32, 64), (False, True)):
        tiling = tiling_of(rows, matrix, is_gated=is_gated, is_large=is_large)
        assert is_large or not tiling.uses_tma
        weights = tiling.outputs * (2 if is_gated else 1) * matrix.weight.element_size()
        stage = tiling.block * (weights + 2 * max(tiling.smallest_rows, rows))
        assert stage * tiling.stages < (LARGE_SHARED_MEMORY if is_large else 99 << 10)


def test_products_of_a_layer_keep_a_large_gpu_busy() -> None:
    """The parts of q, k and v, of o, of down and of the audio head."""
    shapes = ((6144, 4096), (4096, 4096), (4096, 12288), (16512, 4096))
    assert [triton_splits(Matrix("native", shape, torch.empty(0))) for shape in shapes] == [2, 4, 4, 1]


@pytest.mark.slow
def test_partitions_of_a_larger_step_give_the_same(model: MossLM) -> None:
    """Sequences on both sides of the larger partition, whose size depends on the number of rows."""
    batched, plain = make_batched(model, max_seq_len=640), make_paged(model, num_blocks=96)
    assert isinstance(batched.executor, CudaExecutor)
    steps = batched.executor.batched
    assert steps is not None
    steps.backend.attention_tiling = lambda rows: attention_tiling_of(32)
    sizes = [attention_tiling_of(rows).split_rows for rows in (2, 32, 64)]
    assert sizes == [256, 512, 1024]
    pairs = [(Sequence(), Sequence()) for _ in range(3)]
    for (mine, other), length in zip(pairs, (300, 511, 530), strict=True):
        batched.prefill(mine, [7] * length)
        plain.prefill(other, [7] * length)
    wanted = [plain.decode(other, 9) for _, other in pairs]
    for got, alone in zip(batched.step([StepRequest(mine, [9]) for mine, _ in pairs]), wanted, strict=True):
        assert_same(got, alone)


@pytest.mark.parametrize("max_batch_size", [2, 20, 64])
def test_the_memory_plan_knows_the_buffers(model: MossLM, max_batch_size: int) -> None:
    executor = make_batched(model, max_batch_size).executor
    assert isinstance(executor, CudaExecutor)
    steps = executor.batched
    assert steps is not None
    tensors: dict[int, torch.Tensor] = {}
    owners = (steps.backend, steps._sampler, steps._sampler._text, steps._sampler._audio, steps._inputs)
    values = [value for owner in owners for value in vars(owner).values()]
    values += [getattr(steps.backend._partitions, field.name) for field in fields(PartitionBuffers)]
    for value in values:
        for tensor in value.values() if isinstance(value, dict) else [value]:
            if isinstance(tensor, torch.Tensor):
                tensors[tensor.untyped_storage().data_ptr()] = tensor
    shared = {executor.cache.trunk.data_ptr()}
    taken = sum(t.untyped_storage().nbytes() for address, t in tensors.items() if address not in shared)
    planned = batch_bytes(model.config, batch_rows(max_batch_size), executor.limits.max_seq_len, 4)
    assert steps.capacity == batch_rows(max_batch_size)
    assert planned / 4 < taken <= planned
