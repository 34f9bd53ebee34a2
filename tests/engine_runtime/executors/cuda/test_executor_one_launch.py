"""When the executor runs a step in one launch; on the CPU the chain of operations stands for that launch."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest
import torch

from engine_runtime.executors.cuda.decode_step import DecodeStep, StepShape
from engine_runtime.executors.cuda.executor import CudaExecutor
from engine_runtime.executors.cuda.persistent_decode import PersistentDecode
from engine_runtime.lm.generation import Generation
from engine_runtime.lm.sequence import Sequence
from engine_runtime.lm.step import Tails
from engine_runtime.models.moss_lm import MossLM
from engine_runtime.types import SamplingParams
from tests.factories.tiny_lm import as_ids, as_rows, load_special_ids, load_tiny, make_cuda_paged, make_paged
from tests.tools.lm_scenarios import SAMPLINGS, reply

Tiny = tuple[MossLM, dict[str, torch.Tensor]]


@pytest.fixture(scope="module")
def tiny() -> Tiny:
    return load_tiny()


class ChainAsPersistent:
    """Stands for the step in one launch: runs the chain, and counts."""

    def __init__(self, step: DecodeStep, bucket: int) -> None:
        self.step, self.bucket, self.runs = step, bucket, 0

    def run(self, *, text: bool, audio: bool) -> None:
        self.runs += 1
        self.step._run_layers(StepShape(self.bucket, text, audio))


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> list[ChainAsPersistent]:
    """Every executor that is asked to can run a step in one launch; what stands for it."""
    made: list[ChainAsPersistent] = []

    def use_persistent_kernel(step: DecodeStep, *_: object) -> None:
        made.append(ChainAsPersistent(step, 1024))
        step.persistent = cast(PersistentDecode, made[-1])

    monkeypatch.setattr(DecodeStep, "use_persistent_kernel", use_persistent_kernel)
    return made


def test_a_step_is_one_launch_where_it_is_alone(tiny: Tiny, pretended: list[ChainAsPersistent]) -> None:
    model, cases = tiny
    prompt = cases["a.rows"][:50]
    mine = reply(model, make_cuda_paged(model, uses_persistent_kernel=True), prompt, SAMPLINGS[0])
    assert mine == reply(model, make_paged(model), prompt, SAMPLINGS[0])
    assert [whole.runs for whole in pretended] == [len(mine) - 1]


def test_beside_the_codec_and_for_logits_it_is_a_chain(
    tiny: Tiny, pretended: list[ChainAsPersistent]
) -> None:
    model, cases = tiny
    paged, sequence = make_cuda_paged(model, uses_persistent_kernel=True), Sequence()
    generation = Generation(
        as_rows(cases["a.rows"][:50]),
        SamplingParams(max_new=9),
        load_special_ids(),
        text_vocab=model.config.text_vocab,
        audio_vocab=model.config.audio_vocab,
        samples_on_device=True,
    )
    paged.prefill(sequence, as_ids(cases["a.rows"][:50], model))
    sampling = generation.tails.sampling
    assert sampling is not None
    paged.decode(sequence, 5, Tails(sampling=replace(sampling, exclusive_gpu=False)))
    paged.decode(sequence, 6)
    assert [whole.runs for whole in pretended] == [0]
    paged.decode(sequence, 7, Tails(sampling=sampling))
    assert [whole.runs for whole in pretended] == [1]


def test_capture_covers_both_ways_of_a_step(tiny: Tiny, pretended: list[ChainAsPersistent]) -> None:
    model, _ = tiny
    executor = make_cuda_paged(model, uses_persistent_kernel=True).executor
    assert isinstance(executor, CudaExecutor)
    executor.capture({StepShape(0, text=False, audio=True, samples=True)})
    assert pretended[0].runs > 0


def test_why_a_step_is_no_single_launch_is_logged(tiny: Tiny, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        make_cuda_paged(tiny[0], uses_persistent_kernel=True)
    assert "compute capability 9.0" in caplog.text
