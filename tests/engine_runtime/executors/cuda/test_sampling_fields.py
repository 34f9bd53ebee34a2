"""The numbers of sampling are the same ones in both layouts, and reach the kernels in their order."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine_runtime.executors.cuda.batch_inputs import FLOATS, INTEGERS, BatchInputs
from engine_runtime.executors.cuda.inputs import StepInputs
from engine_runtime.executors.cuda.sampling_fields import (
    SAMPLE_ARGUMENTS,
    SCORE_ARGUMENTS,
    SamplingFloats,
    SamplingIntegers,
    arguments,
)
from engine_runtime.lm.step import ReplySampling, SamplingMetadata
from engine_runtime.types import SamplingParams
from tests.doubles.interpreted_triton import HAS_TRITON, needs_triton, patch_interpreter

patch_interpreter()
if HAS_TRITON:
    from engine_runtime.cuda.kernels.sampling import best_of_tile, sample_one
    from engine_runtime.executors.cuda.batch_sampler import BatchSampler, make_result

CPU = torch.device("cpu")
NAMES = (*SamplingIntegers._fields, *SamplingFloats._fields)
SEEN = torch.zeros(9, dtype=torch.bool)


def sampling(params: SamplingParams) -> SamplingMetadata:
    """A step whose numbers all differ."""
    return SamplingMetadata(ReplySampling(params, 7, 8, SEEN, SEEN), 0.25, 0.75, 3, 5, True, False)


SAMPLED = sampling(SamplingParams(True, temperature=0.6, top_k=20, top_p=0.9, repetition_penalty=1.1))
WANTED = {
    "seen_text": 3, "seen_audio": 5, "bans_eosp": 1, "banned_from": 7, "eosp": 8, "top_k": 20,
    "draw_text": 0.25, "draw_audio": 0.75, "temperature": 0.6, "top_p": 0.9, "penalty": 1.1,
}  # fmt: skip


def one_sequence(of_step: SamplingMetadata) -> dict[str, float]:
    inputs = StepInputs(4, CPU)
    inputs.set_row(11, 12, 13)
    inputs.set_sampling(of_step)
    inputs.send(with_table=False)
    assert [inputs.token.item(), inputs.position.item(), inputs.trunk_row.item()] == [11, 12, 13]
    assert inputs["seen_set"].item() == inputs["result_row"].item() == 0
    return {name: inputs[name].item() for name in NAMES}


def several(*of_steps: SamplingMetadata | None) -> list[dict[str, float]]:
    inputs = BatchInputs(4, 4, CPU)
    inputs.pad_all()
    BatchSampler(9, 9, inputs, make_result(4, CPU), CPU).set(of_steps)
    inputs.send()
    return [{name: inputs[name][row].item() for name in NAMES} for row in range(4)]


def test_every_number_is_tested() -> None:
    assert list(WANTED) == [*NAMES]
    assert len(set(WANTED.values())) == len(WANTED)


def test_one_sequence_has_the_numbers_of_its_step() -> None:
    assert one_sequence(SAMPLED) == WANTED


def test_greedy_sampling_takes_the_highest_score() -> None:
    params = SamplingParams(temperature=0.6, top_k=20, top_p=0.9, repetition_penalty=1.1)
    unread = SamplingIntegers()._asdict() | SamplingFloats()._asdict()
    of_greedy = {name: unread[name] for name in ("temperature", "top_k", "top_p")}
    assert one_sequence(sampling(params)) == WANTED | of_greedy


@needs_triton
def test_each_of_several_sequences_has_the_numbers_of_its_step() -> None:
    greedy = sampling(SamplingParams())
    unread = SamplingIntegers()._asdict() | SamplingFloats()._asdict()
    assert several(greedy, None, SAMPLED) == [one_sequence(greedy), unread, WANTED, unread]


@needs_triton
@pytest.mark.parametrize("is_audio", [False, True])
def test_a_kernel_gets_its_arguments_in_its_order(is_audio: bool) -> None:
    """Both layouts, by the names of the kernels' parameters."""
    for kernel, names, first in (
        (best_of_tile, SCORE_ARGUMENTS, "seen"),
        (sample_one, SAMPLE_ARGUMENTS, "last_ids"),
    ):
        parameters = list(kernel.arg_names)
        at = parameters.index(first) + 1
        assert tuple(parameters[at : at + len(names)]) == names
    channel = "audio" if is_audio else "text"
    inputs: list[StepInputs | BatchInputs] = [StepInputs(4, CPU), BatchInputs(4, 4, CPU)]
    for one in inputs:
        got: tuple[Tensor, ...] = arguments((*SCORE_ARGUMENTS, *SAMPLE_ARGUMENTS), one, is_audio=is_audio)
        named = {"seen_id": f"seen_{channel}", "draw": f"draw_{channel}"}
        wanted = [one[named.get(name, name)] for name in (*SCORE_ARGUMENTS, *SAMPLE_ARGUMENTS)]
        assert [tensor.data_ptr() for tensor in got] == [tensor.data_ptr() for tensor in wanted]


def test_fields_of_a_batch_have_names_of_their_own() -> None:
    assert len({*INTEGERS, *FLOATS}) == len(INTEGERS) + len(FLOATS) <= 32
