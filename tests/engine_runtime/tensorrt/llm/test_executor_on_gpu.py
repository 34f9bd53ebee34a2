"""The executor of engines with real streams, events and CUDA graphs, on the double of TensorRT."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine_runtime.lm.block_manager import Sequence
from engine_runtime.lm.paged_lm import PagedLM
from engine_runtime.tensorrt.llm.executor import TrtllmExecutor
from tests.factories.engine_lm import make_engine_paged
from tests.factories.tiny_lm import load_tiny, make_paged
from tests.tools.lm_scenarios import SAMPLINGS, assert_same, converse, replies_together, reply

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
TOLERANCE = 2e-3
"""Products of float32 are summed in another order than on the CPU."""


def executor_of(paged: PagedLM) -> TrtllmExecutor:
    assert isinstance(paged.executor, TrtllmExecutor)
    return paged.executor


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("uses_graphs", [False, True])
@pytest.mark.parametrize("contract", ["1.x", "0.13"])
def test_conversations_are_those_of_the_torch_executor(
    tmp_path: Path, contract: str, uses_graphs: bool, seed: int
) -> None:
    model, on_gpu = load_tiny()[0], load_tiny()[0].to("cuda")
    paged, _ = make_engine_paged(on_gpu, tmp_path, contract, device="cuda", uses_graphs=uses_graphs)
    converse(model, paged, make_paged(model), seed, TOLERANCE)
    assert (executor_of(paged).num_graphs > 0) == uses_graphs


def test_replies_are_those_of_the_torch_executor(tmp_path: Path) -> None:
    (model, cases), on_gpu = load_tiny(), load_tiny()[0].to("cuda")
    for params in SAMPLINGS[:3]:
        paged, _ = make_engine_paged(on_gpu, tmp_path, device="cuda")
        prompt = cases["a.rows"][:50]
        assert reply(model, paged, prompt, params) == reply(model, make_paged(model), prompt, params)


@pytest.mark.parametrize("contract", ["1.x", "0.13"])
def test_replies_in_shared_steps_are_those_of_the_torch_executor(tmp_path: Path, contract: str) -> None:
    (model, cases), on_gpu = load_tiny(), load_tiny()[0].to("cuda")
    prompts = [cases["a.rows"][index : 40 - index] for index in range(3)]
    paged, _ = make_engine_paged(on_gpu, tmp_path, contract, device="cuda", max_batch_size=3)
    together = replies_together(model, paged, prompts, SAMPLINGS[:3])
    pairs = zip(prompts, SAMPLINGS[:3], strict=True)
    assert together == [reply(model, make_paged(model), *pair) for pair in pairs]


def test_a_replayed_step_is_not_enqueued_and_follows_its_inputs(tmp_path: Path) -> None:
    model, on_gpu = load_tiny()[0], load_tiny()[0].to("cuda")
    paged, trt = make_engine_paged(on_gpu, tmp_path, device="cuda")
    plain, mine, other = make_paged(model), Sequence(), Sequence()
    assert_same(paged.prefill(mine, [3] * 250), plain.prefill(other, [3] * 250), TOLERANCE)
    counts = []
    for token in range(12):
        assert_same(paged.decode(mine, token), plain.decode(other, token), TOLERANCE)
        counts.append(trt.num_enqueues)
    assert executor_of(paged).num_graphs == 2
    assert counts[0] == counts[5] < counts[6] == counts[11]


def test_the_time_of_a_step_is_that_of_its_work(tmp_path: Path) -> None:
    """This many cycles are 50 ms and more on any GPU, far above what a launch costs; on another stream than
    the engine's they are not seen."""
    on_gpu = load_tiny()[0].to("cuda")
    paged, trt = make_engine_paged(on_gpu, tmp_path, device="cuda")
    sequence, executor = Sequence(), executor_of(paged)
    times = []
    for cycles in (0, 200_000_000):
        trt.cycles = cycles
        for _ in range(2):
            paged.prefill(sequence, [1, 2, 3])
        assert executor.last_step_ms is not None
        times.append(executor.last_step_ms)
    assert times[0] > 0
    assert times[1] > times[0] + 25


def test_closing_frees_the_memory(tmp_path: Path) -> None:
    import gc

    on_gpu = load_tiny()[0].to("cuda")
    paged, trt = make_engine_paged(on_gpu, tmp_path, device="cuda")
    sequence = Sequence()
    paged.prefill(sequence, [1, 2, 3])
    paged.decode(sequence, 4)
    assert trt.live_contexts == 2
    paged.close()
    gc.collect()
    assert trt.live_contexts == 0
