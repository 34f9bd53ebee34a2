"""The executor on a real GPU, with its kernels and its captured graphs, against plain torch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine_runtime.executors.cuda.executor import CudaExecutor
from engine_runtime.lm.block_manager import Sequence
from engine_runtime.lm.generation import Generation
from engine_runtime.lm.step import Tails
from engine_runtime.models.moss_lm import MossLM
from engine_runtime.options import BlockFormats, WeightFormat
from engine_runtime.types import SamplingParams
from tests.factories.tiny_lm import (
    RELEASED,
    CudaOptions,
    as_ids,
    as_tokens,
    load_special_ids,
    load_tiny,
    make_cuda_paged,
    make_paged,
)
from tests.tools.lm_scenarios import SAMPLINGS, converse, reply

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
GPU_TOLERANCE = 2e-3
"""Both compute in float32, in another order, through seven layers."""
INTEGER_TOLERANCE = 2e-2
"""With integer weights the kernels round a row to 16 bits relative to its maximum."""
FORMATS: list[WeightFormat] = ["native", "fp8", "int8", "int4"]
WIDE = replace(
    RELEASED,
    shared_layers=2,
    text_layers=1,
    audio_layers=1,
    text_vocab=20000,
    audio_vocab=16512,
    modality_pad=19999,
)


@pytest.fixture(scope="module")
def wide() -> MossLM:
    """Layers of the released width, with random weights."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = MossLM(WIDE)
        model.reset_parameters()
    return model.to(torch.bfloat16).eval()


@pytest.mark.parametrize("uses_triton", [False, True])
@pytest.mark.parametrize("uses_graphs", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_conversations_are_the_same_as_on_the_cpu(uses_triton: bool, uses_graphs: bool, seed: int) -> None:
    model, _ = load_tiny()
    cuda = make_cuda_paged(
        model, num_blocks=128, device="cuda", uses_triton=uses_triton, uses_graphs=uses_graphs
    )
    converse(model, cuda, make_paged(model, num_blocks=128), seed, GPU_TOLERANCE)


@pytest.mark.parametrize("weight_format", FORMATS)
def test_formats_are_the_same_as_on_the_cpu(weight_format: WeightFormat) -> None:
    model, _ = load_tiny()
    cuda = make_cuda_paged(model, formats=BlockFormats(weight_format), device="cuda", uses_triton=True)
    tolerance = INTEGER_TOLERANCE if weight_format in ("int8", "int4") else GPU_TOLERANCE
    converse(model, cuda, make_paged(model, weight_format=weight_format), 3, tolerance)


@pytest.mark.parametrize("params", SAMPLINGS)
def test_ids_picked_on_the_gpu_are_those_of_the_sampler(params: SamplingParams) -> None:
    model, cases = load_tiny()
    for prompt in (cases["a.rows"][:50], cases["a.rows"][:33]):
        cuda = make_cuda_paged(model, device="cuda", uses_triton=True)
        assert reply(model, cuda, prompt, params) == reply(model, make_paged(model), prompt, params)


@pytest.mark.parametrize("kv_dtype", [None, torch.float8_e4m3fn])
@pytest.mark.parametrize("weight_format", FORMATS)
def test_kernels_at_full_width(
    wide: MossLM, weight_format: WeightFormat, kv_dtype: torch.dtype | None
) -> None:
    ids = [(7919 * index) % 36000 for index in range(700)]
    outputs = []
    for uses_triton in (False, True):
        paged = make_cuda_paged(
            wide,
            formats=BlockFormats(weight_format),
            dtype=torch.bfloat16,
            kv_dtype=kv_dtype,
            device="cuda",
            uses_triton=uses_triton,
            multiplies_fp8=False,
        )
        sequence = Sequence()
        found = [paged.prefill(sequence, ids[:300])]
        found += [paged.decode(sequence, token, Tails(text=False)) for token in ids[300:310]]
        found.append(paged.decode(sequence, ids[310]))
        found.append(paged.prefill(sequence, ids[311:320]))  # rounded weights as they are stored
        found.append(paged.prefill(sequence, ids[320:370]))
        found.append(paged.prefill(sequence, ids[370:690]))
        found += [paged.decode(sequence, token) for token in ids[690:]]
        outputs.append(found)
    for plain, kernels in zip(*outputs, strict=True):
        pairs = ((plain.text_logits, kernels.text_logits), (plain.audio_logits, kernels.audio_logits))
        for one, other in pairs:
            assert (one is None) == (other is None)
            if one is not None and other is not None:
                # A K or V that is rounded to fp8 may fall on the other side of a border.
                assert torch.cosine_similarity(one, other, dim=0) > (0.999 if kv_dtype is None else 0.998)


@pytest.mark.parametrize("weight_format", ["native", "fp8"])
def test_complete_chunks_of_a_prompt_at_full_width(wide: MossLM, weight_format: WeightFormat) -> None:
    ids = [(7919 * index) % 36000 for index in range(1100)]
    found = []
    ways: tuple[CudaOptions, ...] = ({"uses_graphs": False}, {"uses_triton": True})
    for choices in ways:
        paged = make_cuda_paged(
            wide,
            num_blocks=160,
            max_seq_len=1280,
            formats=BlockFormats(weight_format),
            dtype=torch.bfloat16,
            device="cuda",
            **choices | {"multiplies_fp8": False},
        )
        for _ in range(2):  # captured, then replayed with other blocks
            sequence = Sequence()
            found.append(paged.prefill(sequence, ids))
            ids = ids[::-1]
    for plain, captured in zip(found[:2], found[2:], strict=True):
        pairs = ((plain.text_logits, captured.text_logits), (plain.audio_logits, captured.audio_logits))
        for one, other in pairs:
            assert one is not None
            assert other is not None
            assert torch.cosine_similarity(one, other, dim=0) > 0.999


def test_fp8_rows_times_fp8_weights_stay_close(wide: MossLM) -> None:
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this GPU does not multiply fp8")
    ids = [(7919 * index) % 36000 for index in range(300)]
    both = [
        make_cuda_paged(
            wide,
            formats=BlockFormats("fp8"),
            dtype=torch.bfloat16,
            device="cuda",
            uses_triton=True,
            multiplies_fp8=multiplies,
        ).prefill(Sequence(), ids)
        for multiplies in (None, False)
    ]
    rounded, plain = both[0].audio_logits, both[1].audio_logits
    assert rounded is not None
    assert plain is not None
    assert not torch.equal(rounded, plain)
    assert torch.cosine_similarity(rounded, plain, dim=0) > 0.99


def test_many_steps_take_no_more_memory() -> None:
    model, cases = load_tiny()
    paged, sequence = make_cuda_paged(model, device="cuda", uses_triton=True), Sequence()
    ids = as_ids(cases["c.rows"], model)
    paged.prefill(sequence, ids[:40])
    generation = Generation(
        as_tokens(cases["c.rows"][:40]),
        SamplingParams(True, 0.6, 20, 0.95, 1.1, max_new=400, seed=0),
        load_special_ids(),
        text_vocab=model.config.text_vocab,
        audio_vocab=model.config.audio_vocab,
        samples_on_device=True,
    )
    taken = []
    for row in range(40, 300):
        generation.sample(paged.decode(sequence, ids[row], generation.tails, generation.sampling))
        taken.append(torch.cuda.memory_allocated())
    assert len(set(taken[20:])) == 1
    assert isinstance(paged.executor, CudaExecutor)
    assert paged.executor.num_captured == 2  # the prefill of a few rows, and the step
