"""Errors of an executor: engines of another shape, steps that did not run, invalid results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine_runtime.errors import EngineError, ExecutorError
from engine_runtime.lm.paged_lm import PagedLM
from engine_runtime.lm.sequence import Sequence
from engine_runtime.models.moss_lm import MossLM
from tests.factories.engine_lm import make_engine_paged
from tests.factories.steps import step_tensors
from tests.factories.tiny_lm import load_tiny, make_paged
from tests.tools.lm_scenarios import assert_same

Tiny = tuple[MossLM, dict[str, torch.Tensor]]


@pytest.fixture(scope="module")
def tiny() -> Tiny:
    return load_tiny()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engine")


def one_step(paged: PagedLM) -> dict[str, torch.Tensor]:
    """Tensors of a good decode step after 20 rows."""
    sequence = Sequence()
    paged.prefill(sequence, list(range(20)))
    return step_tensors(paged, sequence, [5])


def test_a_refused_step_is_an_error_and_no_row(tiny: Tiny, folder: Path) -> None:
    model, _ = tiny
    paged, trt = make_engine_paged(model, folder)
    plain, mine, other = make_paged(model), Sequence(), Sequence()
    assert_same(paged.prefill(mine, [1, 2, 3]), plain.prefill(other, [1, 2, 3]))
    trt.refuses = "Error Code 1: Myelin (no kernel image)"
    with pytest.raises(ExecutorError, match=r"did not start \(Error Code 1: Myelin \(no kernel image\)\)"):
        paged.decode(mine, 4)
    assert mine.num_rows == 3
    trt.refuses = None
    assert_same(paged.decode(mine, 4), plain.decode(other, 4))


def test_a_step_that_writes_nothing_is_no_result(
    tiny: Tiny, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old logits still lie in the buffers; they must not pass for new ones."""
    model, _ = tiny
    paged, _ = make_engine_paged(model, folder)
    sequence = Sequence()
    paged.prefill(sequence, [1, 2, 3])
    monkeypatch.setattr("tests.doubles.tensorrt.llm_engine.compute", lambda *_: {})
    with pytest.raises(ExecutorError, match="not finite"):
        paged.decode(sequence, 4)


def test_an_engine_without_weights_is_found_out(folder: Path) -> None:
    model, _ = load_tiny()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    paged, _ = make_engine_paged(model, folder)
    with pytest.raises(ExecutorError, match="only zeros"):
        paged.prefill(Sequence(), [1, 2, 3])


def test_an_error_of_the_gpu_is_one_sentence(
    tiny: Tiny, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = tiny
    paged, _ = make_engine_paged(model, folder)

    def fail(*_: Any) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might")

    monkeypatch.setattr("tests.doubles.tensorrt.llm_engine.compute", fail)
    with pytest.raises(ExecutorError, match=r"\(CUDA error: an illegal memory access .*\)\. Start"):
        paged.prefill(Sequence(), [1])


def test_outputs_of_every_row_are_refused(tiny: Tiny, folder: Path) -> None:
    """TensorRT would write them past the end of the buffers."""
    model, _ = tiny
    paged, trt = make_engine_paged(model, folder, gathers_last_row=False)
    with pytest.raises(ExecutorError, match=r"logits: the engine returns \[3, .* must gather the last row"):
        paged.prefill(Sequence(), [1, 2, 3])
    assert trt.num_enqueues == 0


def test_a_second_pool_is_refused(tiny: Tiny, folder: Path) -> None:
    model, _ = tiny
    paged, _ = make_engine_paged(model, folder)
    tensors = one_step(paged)
    name = "host_kv_cache_pool_pointers"
    address = int(tensors[name][0, 0])
    for pointers in ([[address, address]], [[address + 4096, 0]]):
        with pytest.raises(ExecutorError, match=f"^{name}: "):
            paged.executor.run(tensors | {name: torch.tensor(pointers)})


def test_a_call_of_less_than_a_block_cannot_go_on_from_one(tiny: Tiny, folder: Path) -> None:
    model, _ = tiny
    make_engine_paged(model, folder, "1.x", chunk=8)
    with pytest.raises(EngineError, match="takes 8 rows at once, fewer than a block of 16"):
        make_engine_paged(model, folder, "0.13", chunk=8)
