"""The bundle's language model on the executor for GPUs, here on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from engine_runtime.bundle.bundle import Bundle
from engine_runtime.engine import Engine
from engine_runtime.errors import BundleError
from engine_runtime.executors.cuda.decode_backend import DecodeBackend, StepShape
from engine_runtime.executors.cuda.executor import CudaExecutor
from engine_runtime.executors.cuda.loading import load_lm, shapes_of_replies, stored_weights
from engine_runtime.lm.block_manager import Sequence
from engine_runtime.models.moss_lm import MossLM, MossLMConfig
from engine_runtime.options import EngineOptions, WeightFormat
from engine_runtime.types import Modality, ReplyDone, SamplingParams
from engine_runtime.work import run_alone


@pytest.mark.slow
@pytest.mark.parametrize("weight_format", ["native", "int8", "int4"])
def test_the_options_reach_the_executor(random_bundle: Path, weight_format: WeightFormat) -> None:
    bundle = Bundle.open(random_bundle)
    options = EngineOptions(
        weight_format=weight_format, kv_dtype="fp8", kernels="torch", kv_blocks=8, prefill_tokens=96
    )
    tensors = {name: value for file in bundle.lm.weights for name, value in load_file(file).items()}
    paged = load_lm(
        bundle.lm, MossLMConfig.from_dict(bundle.lm.config), torch.device("cpu"), options, tensors.__getitem__
    )
    plain = Engine.load(bundle, options).stages.lm
    ids = list(range(20))
    mine, other = paged.prefill(Sequence(), ids), plain.prefill(Sequence(), ids)
    assert mine.text_logits is not None
    assert other.text_logits is not None
    torch.testing.assert_close(mine.text_logits, other.text_logits, atol=5e-3, rtol=0)
    assert paged.blocks.num_blocks == 8
    assert paged.executor.limits.max_num_tokens == plain.executor.limits.max_num_tokens == 96
    assert paged.cache.pool.dtype == torch.float8_e4m3fn


def test_weights_are_read_by_name_and_followed(random_bundle: Path) -> None:
    section, shares = Bundle.open(random_bundle).lm, list[float]()
    with torch.device("meta"):
        model = MossLM(MossLMConfig.from_dict(section.config))
    source = stored_weights(section, model, shares.append)
    tensors = {name: value for file in section.weights for name, value in load_file(file).items()}
    for name in reversed(list(tensors)):
        assert torch.equal(source(name), tensors[name])
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)
    other = dict(section.config, hidden_size=section.config["hidden_size"] + 4)
    with torch.device("meta"):
        model = MossLM(MossLMConfig.from_dict(other))
    with pytest.raises(BundleError, match="wrong shape"):
        stored_weights(section, model, shares.append)


def on_cuda_path(engine: Engine, options: EngineOptions) -> Engine:
    """The same engine with its language model behind the executor for GPUs."""
    section = engine.bundle.lm
    tensors = {name: value for file in section.weights for name, value in load_file(file).items()}
    config = MossLMConfig.from_dict(section.config)
    lm = load_lm(section, config, torch.device("cpu"), options, tensors.__getitem__)
    return Engine(replace(engine.stages, lm=lm))


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampling",
    [None, SamplingParams(True, 0.8, 20, 0.95, 1.1, min_new=5, max_new=40, seed=7)],
    ids=["greedy", "sampled"],
)
def test_turns_of_a_conversation_are_the_same(nano_bundle: Path, sampling: SamplingParams | None) -> None:
    plain = Engine.load(Bundle.open(nano_bundle))
    replies = []
    for engine in (plain, on_cuda_path(plain, EngineOptions(kernels="torch"))):
        conversation = engine.new_conversation()
        said = []
        for turn_id, modality in enumerate([Modality.SPEECH, Modality.TEXT, Modality.SPEECH]):
            turn = run_alone(engine.open_turn(conversation, turn_id, modality))
            run_alone(turn.push_text("What is three plus four?"))
            done = [
                event for event in run_alone(turn.commit(modality, sampling)) if isinstance(event, ReplyDone)
            ]
            said.append((done[0].finish_reason, done[0].text, done[0].codes, done[0].audio_samples))
        replies.append(said)
    assert replies[0] == replies[1]
    assert replies[0][0][3] > 0


@pytest.mark.slow
def test_the_steps_of_replies_are_those_that_are_captured(
    nano_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is captured at load is what conversations then ask for, bucket by bucket."""
    plain = Engine.load(Bundle.open(nano_bundle))
    engine = on_cuda_path(plain, EngineOptions(kernels="torch"))
    executor = engine.stages.lm.executor
    assert isinstance(executor, CudaExecutor)
    asked = set()
    monkeypatch.setattr(executor, "_capture_or_run", lambda backend, shape: asked.add((backend.name, shape)))
    executor.capture(shapes_of_replies(engine.bundle.lm))
    captured = set(asked)
    asked.clear()

    def run(backend: DecodeBackend, shape: StepShape) -> None:
        asked.add((backend.name, shape))
        backend.run(shape)

    monkeypatch.setattr(executor, "_capture_or_run", run)
    for turn_id, modality in enumerate(Modality):
        turn = run_alone(engine.open_turn(engine.new_conversation(), turn_id, modality))
        run_alone(turn.push_text("Hello, how are you?"))
        assert list(run_alone(turn.commit(modality)))
    assert asked
    assert asked <= captured


@pytest.mark.slow
def test_capture_leaves_no_trace(nano_bundle: Path) -> None:
    plain = Engine.load(Bundle.open(nano_bundle))
    engine = on_cuda_path(plain, EngineOptions(kernels="torch"))
    executor, lm = engine.stages.lm.executor, engine.stages.lm
    assert isinstance(executor, CudaExecutor)
    ids = list(range(30, 50))
    executor.capture(shapes_of_replies(engine.bundle.lm))
    after = lm.prefill(Sequence(), ids)
    before = on_cuda_path(plain, EngineOptions(kernels="torch")).stages.lm.prefill(Sequence(), ids)
    assert before.text_logits is not None
    assert after.text_logits is not None
    assert torch.equal(before.text_logits, after.text_logits)


@pytest.fixture
def bound_to_be_lifted() -> Iterator[None]:
    """What torch may take is a setting of the process, and other tests need more."""
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.usefixtures("bound_to_be_lifted")
@pytest.mark.parametrize("weight_format", ["native", "fp8", "int8", "int4"])
def test_a_bundle_loads_onto_a_gpu(nano_bundle: Path, weight_format: WeightFormat) -> None:
    bundle = Bundle.open(nano_bundle)
    on_gpu = EngineOptions(device="cuda", dtype="float32", weight_format=weight_format, gpu_memory_gb=8.0)
    lms = [Engine.load(bundle, options).stages.lm for options in (on_gpu, replace(on_gpu, device="cpu"))]
    found = [lm.prefill(Sequence(), list(range(30, 60))).text_logits for lm in lms]
    assert found[0] is not None
    assert found[1] is not None
    # With integer weights the kernels round a row to 16 bits relative to its maximum.
    tolerance = 5e-2 if weight_format in ("int8", "int4") else 5e-3
    torch.testing.assert_close(found[0], found[1], atol=tolerance, rtol=0)
    executor = lms[0].executor
    assert isinstance(executor, CudaExecutor)
    assert executor.num_captured > 0
