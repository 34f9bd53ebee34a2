"""An engine in memory, under both runtimes: its list of tensors, and every call of TensorRT that fails."""

from __future__ import annotations

import gc
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from engine_runtime.errors import EngineError, ExecutorError
from engine_runtime.models.moss_lm import MossLM
from engine_runtime.tensorrt.engine import Binding, EngineTensor, TensorRTEngine, network_tensors
from tests.doubles.tensorrt.llm_engine import TensorRT
from tests.doubles.tensorrt.memory import KnownMemory
from tests.doubles.tensorrt.runtime import DataType
from tests.factories.engine_plans import Plan, plan_of
from tests.factories.tiny_lm import load_tiny


@pytest.fixture(scope="module")
def model() -> MossLM:
    return load_tiny()[0]


def load(plan: Plan, folder: Path) -> tuple[TensorRTEngine, TensorRT]:
    trt = TensorRT(KnownMemory())
    return TensorRTEngine(trt.write(folder / "e.engine", plan).read_bytes(), trt.library), trt


def test_tensors_with_one_range_for_each_profile(model: MossLM, tmp_path: Path) -> None:
    engine, _ = load(plan_of(model, rows_of_profiles=((1, 1), (2, 64))), tmp_path)
    tensors = {tensor.name: tensor for tensor in engine.tensors}
    ids = tensors["input_ids"]
    assert (ids.dtype, ids.shape, engine.num_profiles) == (torch.int32, (-1,), 2)
    assert ids.ranges == (((1,), (1,), (1,)), ((2,), (64,), (64,)))
    assert tensors["host_runtime_perf_knobs"].dtype == torch.int64
    assert not tensors["host_runtime_perf_knobs"].is_on_host  # only the plugin reads it there
    assert (tensors["logits"].is_input, tensors["logits"].ranges) == (False, ())


def test_a_dtype_that_torch_does_not_have(model: MossLM, tmp_path: Path) -> None:
    engine, _ = load(plan_of(model, logits=DataType.FP4), tmp_path)
    assert {tensor.dtype for tensor in engine.tensors if not tensor.is_input} == {None}


def test_tensors_of_a_network_definition() -> None:
    ids = SimpleNamespace(name="ids", dtype=DataType.INT32, shape=[-1])
    logits = SimpleNamespace(name="logits", dtype=DataType.HALF, shape=[-1, 8])
    network = SimpleNamespace(
        num_inputs=1, num_outputs=1, get_input=[ids].__getitem__, get_output=[logits].__getitem__
    )
    assert network_tensors(network) == (
        EngineTensor("ids", True, torch.int32, (-1,)),
        EngineTensor("logits", False, torch.float16, (-1, 8)),
    )


def test_an_engine_that_is_none() -> None:
    trt = TensorRT(KnownMemory())
    with pytest.raises(EngineError) as caught:
        TensorRTEngine(b"garbage", trt.library)
    said = (
        "TensorRT 10.14.1 cannot load the engine (Serialization assertion failed: magic tag does not match)."
    )
    assert str(caught.value) == said


def test_contexts_allocate_activations_or_share_them(model: MossLM, tmp_path: Path) -> None:
    engine, trt = load(plan_of(model), tmp_path)
    memory = trt.memory.on_device(engine.activation_bytes)
    first, second = engine.new_context(memory), engine.new_context(memory)
    assert first._context.activations == second._context.activations == (memory.data_ptr(), 4096)
    own = engine.new_context()
    assert own._context.activations not in ((0, 0), first._context.activations)
    assert own.compiled() is None


def test_an_error_has_the_reason_of_its_own_call_only(model: MossLM, tmp_path: Path) -> None:
    engine, trt = load(plan_of(model), tmp_path)
    context = engine.new_context()
    context.set_profile(0, 7)
    with pytest.raises(ExecutorError, match=r"input_ids: .*does not satisfy profile"):
        context.set_inputs([Binding("input_ids", (513,), 256)])
    with pytest.raises(ExecutorError) as caught:
        context.set_inputs([Binding("input_ids", (3,), 0)])
    assert str(caught.value) == "input_ids: address is not set"
    with pytest.raises(ExecutorError, match=r"^logits: address is not set$"):
        context.set_output("logits", 0)
    with pytest.raises(EngineError, match=r"^TensorRT rejects profile 3\.$"):
        context.set_profile(3, 7)
    trt.refuses = "no kernel image"
    with pytest.raises(ExecutorError, match=r"the step did not start \(no kernel image\)$"):
        context.enqueue(7)


def test_a_closed_engine_is_released(model: MossLM, tmp_path: Path) -> None:
    engine, trt = load(plan_of(model), tmp_path)
    context = engine.new_context()
    del context
    engine.close()
    gc.collect()
    assert trt.live_contexts == 0


def test_the_doubles_have_the_names_of_tensorrt() -> None:
    """Whatever is called on a double exists in TensorRT, as a method or as a property alike."""
    trt = pytest.importorskip("tensorrt_rtx")
    from tests.doubles.tensorrt import codec_engine, llm_engine, runtime

    own = {"trt", "logger", "plan", "tensors", "rows"}
    for ours, theirs in (
        (llm_engine.Runtime, trt.Runtime),
        (llm_engine.Engine, trt.ICudaEngine),
        (llm_engine.Context, trt.IExecutionContext),
        (codec_engine.Engine, trt.ICudaEngine),
        (codec_engine.Context, trt.IExecutionContext),
    ):
        public = {name for name in dir(ours) if not name.startswith("_")}
        for name in public - own:
            assert callable(getattr(ours, name)) == callable(getattr(theirs, name)), name
    for enum in (
        runtime.DataType,
        runtime.TensorIOMode,
        runtime.TensorLocation,
        runtime.ExecutionContextAllocationStrategy,
    ):
        names = set(getattr(trt, enum.__name__).__members__)
        assert {member.name for member in enum} <= names
    for severity in ("INTERNAL_ERROR", "ERROR", "WARNING"):
        assert hasattr(trt.ILogger, severity)
