"""Selection of the backend of a decode step; on the CPU, the torch backend replaces the persistent kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine_runtime.executors.cuda import executor as cuda_executor
from engine_runtime.executors.cuda.decode_backend import DecodeBackend, DecodeOutputs, StepShape
from engine_runtime.executors.cuda.executor import CudaExecutor
from engine_runtime.executors.cuda.inputs import StepInputs
from engine_runtime.executors.cuda.weights import Network
from engine_runtime.lm.block_manager import Sequence
from engine_runtime.lm.generation import Generation
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.models.moss_lm import MossLM
from engine_runtime.types import SamplingParams
from tests.factories.tiny_lm import (
    as_ids,
    as_tokens,
    load_special_ids,
    load_tiny,
    make_cuda_paged,
    make_paged,
)
from tests.tools.lm_scenarios import SAMPLINGS, reply

Tiny = tuple[MossLM, dict[str, torch.Tensor]]


@pytest.fixture(scope="module")
def tiny() -> Tiny:
    return load_tiny()


class FakePersistent(DecodeBackend):
    """Replaces the persistent kernel: runs the other backend, and counts."""

    name = "persistent"
    has_buckets = False
    needs_exclusive_gpu = True

    def __init__(self, inputs: StepInputs, outputs: DecodeOutputs, other: DecodeBackend) -> None:
        super().__init__(inputs, outputs, other.sampler)
        self.other, self.shapes = other, list[StepShape]()

    def forward(self, shape: StepShape) -> None:
        self.shapes.append(shape)
        self.other.forward(replace(shape, bucket=1024))


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> list[FakePersistent]:
    """The replacements in all executors created with a persistent kernel."""
    made: list[FakePersistent] = []

    def persistent(
        network: Network, cache: KVCache, inputs: StepInputs, outputs: DecodeOutputs, other: DecodeBackend
    ) -> tuple[list[DecodeBackend], str]:
        made.append(FakePersistent(inputs, outputs, other))
        return [made[-1]], ""

    monkeypatch.setattr(cuda_executor, "persistent_backends", persistent)
    return made


def test_the_persistent_kernel_runs_steps_that_have_the_gpu(tiny: Tiny, fakes: list[FakePersistent]) -> None:
    model, cases = tiny
    prompt = cases["a.rows"][:50]
    mine = reply(model, make_cuda_paged(model, uses_persistent_kernel=True), prompt, SAMPLINGS[0])
    assert mine == reply(model, make_paged(model), prompt, SAMPLINGS[0])
    assert [len(fake.shapes) for fake in fakes] == [len(mine) - 1]


def test_beside_the_codec_and_for_logits_the_other_backend_runs(
    tiny: Tiny, fakes: list[FakePersistent]
) -> None:
    model, cases = tiny
    paged, sequence = make_cuda_paged(model, uses_persistent_kernel=True), Sequence()
    generation = Generation(
        as_tokens(cases["a.rows"][:50]),
        SamplingParams(max_new=9),
        load_special_ids(),
        text_vocab=model.config.text_vocab,
        audio_vocab=model.config.audio_vocab,
        samples_on_device=True,
    )
    paged.prefill(sequence, as_ids(cases["a.rows"][:50], model))
    sampling = generation.sampling
    assert sampling is not None
    paged.decode(sequence, 5, sampling=sampling)
    paged.decode(sequence, 6)
    assert [len(fake.shapes) for fake in fakes] == [0]
    paged.decode(sequence, 7, sampling=sampling, exclusive_gpu=True)
    assert [len(fake.shapes) for fake in fakes] == [1]


def test_capture_covers_every_backend(tiny: Tiny, fakes: list[FakePersistent]) -> None:
    model, _ = tiny
    executor = make_cuda_paged(model, uses_persistent_kernel=True).executor
    assert isinstance(executor, CudaExecutor)
    executor.capture({StepShape(0, text=False, audio=True, samples=True)})
    assert fakes[0].shapes == [StepShape(0, text=False, audio=True, samples=True)]


def test_the_reason_for_another_backend_is_logged(tiny: Tiny, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        make_cuda_paged(tiny[0], uses_persistent_kernel=True)
    assert "compute capability 9.0" in caplog.text


def test_the_kernels_of_a_step_are_named_with_the_reason(tiny: Tiny) -> None:
    executor = make_cuda_paged(tiny[0], uses_persistent_kernel=True, max_batch_size=2).executor
    assert isinstance(executor, CudaExecutor)
    reason = "it needs a GPU of compute capability 9.0 or later"
    assert executor.kernel_paths == {
        "decode_step": f"plain torch (not the persistent kernel: {reason})",
        "batched_step": "one sequence after the other, plain torch",
    }
    executor = make_cuda_paged(tiny[0]).executor
    assert isinstance(executor, CudaExecutor)
    assert executor.kernel_paths == {
        "decode_step": "plain torch (not the persistent kernel: --kernels torch)"
    }


def test_the_persistent_kernel_is_named(tiny: Tiny, fakes: list[FakePersistent]) -> None:
    executor = make_cuda_paged(tiny[0], uses_persistent_kernel=True).executor
    assert isinstance(executor, CudaExecutor)
    assert executor.kernel_paths == {"decode_step": "persistent kernel; beside the codec plain torch"}
