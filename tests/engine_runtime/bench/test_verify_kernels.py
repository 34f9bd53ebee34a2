"""Kernels against plain torch: equal ones pass, and each kind of error is found where it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import pytest
import torch

from engine_runtime.bench import verify_kernels
from engine_runtime.bench.verdict import Check, VerifyError
from engine_runtime.bench.verify_kernels import (
    MOST_ERROR,
    ForcedReply,
    compare_language_models,
    plain_language_model,
)
from engine_runtime.bench.verify_kernels import verify_kernels as compare
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.engine import Engine
from engine_runtime.lm.paged_lm import PagedLM, StepRequest
from engine_runtime.lm.step import StepOutput
from engine_runtime.options import BlockFormats, EngineOptions, WeightFormat
from engine_runtime.quantization import Matrix
from engine_runtime.types import Pcm
from tests.doubles.interpreted_triton import needs_triton, patch_interpreter
from tests.factories.tiny_lm import CudaOptions, make_cuda_paged, make_thin

patch_interpreter()
LIMIT = MOST_ERROR[torch.float32]
REPLIES = [
    ForcedReply([(7919 * index + shift) % 300 for index in range(40)], 30, np.zeros(0, np.int64))
    for shift in (0, 5)
]


@pytest.fixture
def question() -> dict[str, Pcm]:
    """Loud enough to be encoded."""
    return {"q": np.random.default_rng(0).normal(0, 0.1, 16_000).astype(np.float32)}


@pytest.fixture
def engine(random_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setattr(verify_kernels, "TOKENS_PER_REPLY", 8)
    return Engine.load(Bundle.open(random_bundle), EngineOptions())


def failed(checks: list[Check]) -> set[str]:
    return {check.name.partition(", error")[0] for check in checks if not check.is_aligned}


def pair(weight_format: WeightFormat = "native", **choices: Unpack[CudaOptions]) -> tuple[PagedLM, PagedLM]:
    """Tested and reference, each with weights of its own."""
    model = make_thin()
    tested = make_cuda_paged(model, formats=BlockFormats(weight_format, weight_format), **choices)
    reference = make_cuda_paged(model, formats=BlockFormats(weight_format, weight_format))
    return tested, reference


def test_an_engine_on_a_cpu_is_aligned(engine: Engine, question: dict[str, Pcm]) -> None:
    seen: list[float] = []
    verdict = compare(engine, question, seen.append)
    assert verdict.is_aligned, verdict.checks
    assert seen[-1] == 1.0
    names = [check.name for check in verdict.checks]
    assert sum(name.startswith("decode alone") for name in names) == 5
    assert names[-3:] == ["speech encoder: equal codes", "flow: mel distance", "vocoder: spectrum, error"]
    assert all(check.count > 0 for check in verdict.checks)
    assert engine.stats.used == 0


def test_without_questions_there_is_nothing_to_compare(engine: Engine) -> None:
    with pytest.raises(VerifyError, match="--wavs"):
        compare(engine, {})


def test_a_quantized_engine_is_compared_in_its_format(random_bundle: Path, question: dict[str, Pcm]) -> None:
    engine = Engine.load(Bundle.open(random_bundle), EngineOptions(weight_format="int8", rounds_tails=True))
    reference = plain_language_model(engine, REPLIES)
    network: Any = reference.executor
    assert network.network.trunk[0].qkv.format == "int8"
    assert not failed(compare_language_models(engine.stages.lm, reference, REPLIES, LIMIT, LIMIT))


@pytest.mark.slow
def test_keys_and_values_in_fp8_are_compared_with_a_limit_of_their_own(
    random_bundle: Path, question: dict[str, Pcm], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify_kernels, "TOKENS_PER_REPLY", 8)
    engine = Engine.load(Bundle.open(random_bundle), EngineOptions(kv_dtype="fp8"))
    verdict = compare(engine, question)
    assert verdict.is_aligned, verdict.checks
    limits = {check.threshold for check in verdict.checks if "error (layer" in check.name}
    assert limits == {verify_kernels.MOST_ERROR_OF_FP8_CACHE}


def test_the_language_model_of_an_engine_folder_is_refused(engine: Engine, question: dict[str, Pcm]) -> None:
    stages = replace(engine.stages, lm=replace_executor(engine.stages.lm, object()))
    with pytest.raises(VerifyError, match="trt verify"):
        plain_language_model(Engine(stages), REPLIES)


def replace_executor(lm: PagedLM, executor: Any) -> PagedLM:
    return PagedLM(executor, lm.cache, lm.blocks)


# ---- errors of a kernel ----


def off(
    change: Callable[[Matrix], None], number: int = 0, weight_format: WeightFormat = "native"
) -> set[str]:
    """What is found when a matrix of the first layer is another one for the tested kernels."""
    tested, reference = pair(weight_format)
    executor: Any = tested.executor
    with torch.inference_mode():
        change(executor.network.trunk[0].matrices[number])
    return failed(compare_language_models(tested, reference, REPLIES, LIMIT, LIMIT))


@pytest.mark.parametrize("number", range(4))
def test_a_product_that_is_slightly_off_is_found(number: int) -> None:
    def change(matrix: Matrix) -> None:
        matrix.weight.mul_(1.001)

    found = off(change, number)
    assert {"prefill: keys and values", "decode alone: keys and values"} <= found
    assert "prefill: audio logits" in found


def test_the_lowest_bit_of_integer_weights_is_found() -> None:
    def change(matrix: Matrix) -> None:
        matrix.weight.bitwise_xor_(1)

    assert "prefill: keys and values" in off(change, 0, "int8")


def test_the_lowest_bit_of_int4_weights_is_found() -> None:
    def change(matrix: Matrix) -> None:
        matrix.weight.bitwise_xor_(0x11)

    assert "prefill: keys and values" in off(change, 0, "int4")


def test_the_first_layer_over_the_limit_is_named() -> None:
    tested, reference = pair()
    executor: Any = tested.executor
    with torch.inference_mode():
        executor.network.text.layers[0].qkv.weight.mul_(1.01)
    checks = compare_language_models(tested, reference, REPLIES, LIMIT, LIMIT)
    (row,) = [check for check in checks if check.name.startswith("prefill: keys and values")]
    assert "(layer 1, over the limit from layer 1 on)" in row.name
    assert "prefill: audio logits" not in failed(checks)


def scaled(logits: torch.Tensor | None, factor: float) -> torch.Tensor:
    assert logits is not None
    return factor * logits


def test_a_decode_path_that_is_off_does_not_hide_behind_the_prefill(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does one of the paths behind the other."""
    tested, reference = pair()
    step = tested.step

    def wrong_alone(requests: list[StepRequest], *, exclusive_gpu: bool = False) -> list[StepOutput]:
        outputs = step(requests, exclusive_gpu=exclusive_gpu)
        return (
            [replace(one, audio_logits=scaled(one.audio_logits, 1.01)) for one in outputs]
            if exclusive_gpu
            else outputs
        )

    monkeypatch.setattr(tested, "step", wrong_alone)
    checks = compare_language_models(tested, reference, REPLIES, LIMIT, LIMIT)
    assert failed(checks) == {"decode alone: audio logits"}


def test_a_value_that_is_not_finite_keeps_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    tested, reference = pair()
    step = tested.step

    def broken(requests: list[StepRequest], *, exclusive_gpu: bool = False) -> list[StepOutput]:
        outputs = step(requests, exclusive_gpu=exclusive_gpu)
        return [replace(one, text_logits=scaled(one.text_logits, float("nan"))) for one in outputs]

    monkeypatch.setattr(tested, "step", broken)
    found = failed(compare_language_models(tested, reference, REPLIES, LIMIT, LIMIT))
    assert {"prefill: text logits", "decode alone: text logits"} <= found


@pytest.mark.slow
@needs_triton
def test_the_triton_kernels_are_compared_alone_and_together() -> None:
    tested, reference = pair(uses_triton=True, max_batch_size=2)
    replies = [ForcedReply(ids, 3, np.zeros(0, np.int64)) for ids in ([5, 7, 9, 11], [6, 8, 10, 12])]
    checks = compare_language_models(tested, reference, replies, LIMIT, LIMIT)
    assert not failed(checks), checks
    assert sum(check.name.startswith("decode of 2") for check in checks) == 5


@pytest.mark.slow
def test_each_part_of_the_codec_is_compared(
    engine: Engine, question: dict[str, Pcm], monkeypatch: pytest.MonkeyPatch
) -> None:
    stages: Any = engine.stages
    encode, convert, stream = stages.speech_tokenizer.encode, stages.token2mel.convert, stages.vocoder.stream

    def louder() -> Any:
        found = stream()
        push = found.push
        found.push = lambda mel: 1.05 * push(mel)
        return found

    wrong = {
        "speech encoder: equal codes": (
            stages.speech_tokenizer,
            "encode",
            lambda pcm: (encode(pcm) + 1) % 64,
        ),
        "flow: mel distance": (stages.token2mel, "convert", lambda codes: convert(codes) + np.float32(0.01)),
        "vocoder: spectrum": (stages.vocoder, "stream", louder),
    }
    for name, change in wrong.items():
        with monkeypatch.context() as patch:
            patch.setattr(*change)
            assert failed(compare(engine, question).checks) == {name}
