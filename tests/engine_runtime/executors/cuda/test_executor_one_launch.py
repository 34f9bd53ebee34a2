"""When the executor runs a step in one launch; on the CPU the chain of operations stands for that launch."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest
import torch

from engine_runtime.executors.cuda.decode_step import DecodeStep, StepShape
from engine_runtime.executors.cuda.executor import CudaExecutor
from engine_runtime.executors.cuda.persistent_decode import WholeStep
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


class ChainAsWhole:
    """Stands for the step in one launch: runs the chain, and counts."""

    def __init__(self, step: DecodeStep, bucket: int) -> None:
        self.step, self.bucket, self.runs = step, bucket, 0

    def run(self, *, text: bool, audio: bool) -> None:
        self.runs += 1
        self.step._run_layers(StepShape(self.bucket, text, audio))


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> list[ChainAsWhole]:
    """Every executor that is asked to can run a step in one launch; what stands for it."""
    made: list[ChainAsWhole] = []

    def use_whole_step(step: DecodeStep, *_: object) -> None:
        made.append(ChainAsWhole(step, 1024))
        step.whole = cast(WholeStep, made[-1])

    monkeypatch.setattr(DecodeStep, "use_whole_step", use_whole_step)
    return made


def test_a_step_is_one_launch_where_it_is_alone(tiny: Tiny, pretended: list[ChainAsWhole]) -> None:
    model, cases = tiny
    prompt = cases["a.rows"][:50]
    mine = reply(model, make_cuda_paged(model, uses_whole_step=True), prompt, SAMPLINGS[0])
    assert mine == reply(model, make_paged(model), prompt, SAMPLINGS[0])
    assert [whole.runs for whole in pretended] == [len(mine) - 1]


def test_beside_the_codec_and_for_logits_it_is_a_chain(tiny: Tiny, pretended: list[ChainAsWhole]) -> None:
    model, cases = tiny
    paged, sequence = make_cuda_paged(model, uses_whole_step=True), Sequence()
    generation = Generation(
        as_rows(cases["a.rows"][:50]),
        SamplingParams(max_new=9),
        load_special_ids(),
        text_vocab=model.config.text_vocab,
        audio_vocab=model.config.audio_vocab,
        picks_on_device=True,
    )
    paged.prefill(sequence, as_ids(cases["a.rows"][:50], model))
    pick = generation.tails.pick
    assert pick is not None
    paged.decode(sequence, 5, Tails(pick=replace(pick, alone=False)))
    paged.decode(sequence, 6)
    assert [whole.runs for whole in pretended] == [0]
    paged.decode(sequence, 7, Tails(pick=pick))
    assert [whole.runs for whole in pretended] == [1]


def test_recording_covers_both_ways_of_a_step(tiny: Tiny, pretended: list[ChainAsWhole]) -> None:
    model, _ = tiny
    executor = make_cuda_paged(model, uses_whole_step=True).executor
    assert isinstance(executor, CudaExecutor)
    executor.record({StepShape(0, text=False, audio=True, picks=True)})
    assert pretended[0].runs > 0


def test_why_a_step_is_no_single_launch_is_logged(tiny: Tiny, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        make_cuda_paged(tiny[0], uses_whole_step=True)
    assert "compute capability 9.0" in caplog.text
