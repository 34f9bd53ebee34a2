"""An engine of the codec: built from a graph, run on tensors, and every failing call of TensorRT."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from engine_runtime.codec.flow.token2mel import Token2Mel
from engine_runtime.codec.graph import Graph, GraphTensor
from engine_runtime.codec.speech_tokenizer.encoder_graph import speech_encoder_graph
from engine_runtime.codec.speech_tokenizer.speech_tokenizer import SpeechTokenizer
from engine_runtime.errors import EngineError, ExecutorError
from engine_runtime.tensorrt.codec.engine import EngineRunner, build_engine
from engine_runtime.tensorrt.codec.graphs import estimator_graph
from engine_runtime.tensorrt.library import RuntimeLibrary, logger, tensorrt_rtx
from tests.doubles.tensorrt.codec_engine import Faults, double_library
from tests.engine_runtime.tensorrt.codec.conftest import PACKETS
from tests.factories.graphs import Exported, scaled_sum


@pytest.mark.slow
@pytest.mark.parametrize("is_rtx", [True, False])
def test_an_engine_is_built(exported: Exported, is_rtx: bool) -> None:
    graph = scaled_sum()
    plan = build_engine(graph, exported("scaled_sum", graph), double_library(is_rtx=is_rtx), "8.9")
    assert b"past" in plan


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("parse", r"reading scaled_sum.onnx failed \(operator Nonsense is not supported\)"),
        ("profile", "adding the range of sizes failed"),
        ("capability", "choosing compute capability 8.9 failed"),
        ("build", r"building failed \(build fails by request\)"),
    ],
)
def test_every_answer_is_looked_at(exported: Exported, fault: str, text: str) -> None:
    graph = scaled_sum()
    file, library = exported("scaled_sum", graph), double_library(Faults({fault}))
    with pytest.raises(EngineError, match=text):
        build_engine(graph, file, library, "8.9")


@pytest.mark.slow
def test_rtx_does_not_know_every_gpu(exported: Exported) -> None:
    graph = scaled_sum()
    with pytest.raises(EngineError, match=r"capability 9\.0\. .* install TensorRT itself"):
        build_engine(graph, exported("scaled_sum", graph), double_library(), "9.0")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ((GraphTensor("x", (1, 4, 4)), GraphTensor("past", (2, 4))), r"tensor x is .* not .*\[1, 4, 4\]"),
        ((GraphTensor("y", (1, 4, 4)), GraphTensor("past", (2, 4))), r"with the inputs \['x', 'past'\]"),
    ],
)
def test_a_file_of_another_graph_is_refused(
    exported: Exported, inputs: tuple[GraphTensor, ...], text: str
) -> None:
    file = exported("scaled_sum", scaled_sum())
    other = dataclasses.replace(scaled_sum(), inputs=inputs)
    with pytest.raises(EngineError, match=text):
        build_engine(other, file, double_library(), "8.9")


def test_bfloat16_is_refused_with_what_to_do(tmp_path: Path) -> None:
    graph = scaled_sum()
    specs = tuple(dataclasses.replace(spec, dtype=torch.bfloat16) for spec in graph.inputs)
    with pytest.raises(EngineError, match="Use --codec-dtype float16 or float32"):
        build_engine(dataclasses.replace(graph, inputs=specs), tmp_path / "no.onnx", double_library(), "8.9")


@pytest.mark.slow
def test_number_formats_are_compared(exported: Exported) -> None:
    graph = scaled_sum()
    lower = [dataclasses.replace(spec, dtype=torch.float16) for spec in graph.inputs]
    other = dataclasses.replace(graph, inputs=tuple(lower))
    with pytest.raises(EngineError, match=r"is torch.float32 .* not torch.float16"):
        build_engine(other, exported("scaled_sum", graph), double_library(), "8.9")


@pytest.fixture(scope="module")
def rtx() -> RuntimeLibrary:
    pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")
    return RuntimeLibrary(tensorrt_rtx(), is_rtx=True)


@pytest.mark.slow
@pytest.mark.tensorrt_rtx
def test_rtx_builds_estimator_and_encoder_for_an_rtx_4090(
    rtx: RuntimeLibrary, exported: Exported, flow: Token2Mel, tokenizer: SpeechTokenizer
) -> None:
    estimator = estimator_graph(flow.estimator, list(PACKETS))
    graphs: list[tuple[str, Graph]] = [
        ("flow_tiny", estimator),
        ("encoder_tiny", speech_encoder_graph(tokenizer.model)),
    ]
    for name, graph in graphs:
        # compares what the parser found with the graph before it builds
        plan = build_engine(graph, exported(name, graph), rtx, "8.9")
        weights = sum(value.nbytes for value in graph.module.state_dict().values())
        assert len(plan) > max(weights, 10_000)


@pytest.mark.tensorrt_rtx
@pytest.mark.slow
def test_rtx_refuses_a_file_that_is_none(rtx: RuntimeLibrary, tmp_path: Path) -> None:
    file = tmp_path / "scaled_sum.onnx"
    file.write_bytes(b"not a graph")
    with pytest.raises(EngineError, match=r"reading scaled_sum\.onnx failed"):
        build_engine(scaled_sum(), file, rtx, "8.9")


CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def graph() -> Graph:
    return scaled_sum()


@pytest.fixture
def plan(graph: Graph, exported: Exported) -> bytes:
    return build_engine(graph, exported("scaled_sum", graph), double_library(), "8.9")


@pytest.mark.slow
@pytest.mark.parametrize("is_rtx", [True, False])
def test_every_size_yields_torchs_numbers(graph: Graph, plan: bytes, is_rtx: bool) -> None:
    runner = EngineRunner(graph, plan, double_library(is_rtx=is_rtx), CPU)
    kept = []
    for frames, past in ((4, 4), (8, 1), (2, 16), (4, 4)):
        inputs = (torch.randn(1, frames, 4), torch.randn(past, 4))
        outputs = runner(*inputs)
        kept.append((outputs, graph.module(*inputs)))
    for outputs, want in kept:  # outputs are not written over by later calls
        torch.testing.assert_close(outputs, want)


@pytest.mark.slow
def test_tensors_with_strides_are_laid_out_first(graph: Graph, plan: bytes) -> None:
    runner = EngineRunner(graph, plan, double_library(), CPU)
    x, past = torch.randn(4, 4).T[None], torch.randn(16, 8)[::2, ::2]
    assert not x.is_contiguous()
    torch.testing.assert_close(runner(x, past), graph.module(x, past))


def test_what_was_compiled_is_handed_on(graph: Graph, plan: bytes) -> None:
    faults = Faults()
    runner = EngineRunner(graph, plan, double_library(faults), CPU, b"from the last time")
    assert faults.compiled == [b"from the last time"]
    assert runner.compiled() == b"compiled"
    assert EngineRunner(graph, plan, double_library(is_rtx=False), CPU).compiled() is None


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (
            "deserialize",
            r"cannot load the engine \(the plan is of another version\)\. Run without",
        ),
        ("context", r"cannot create an execution context \(out of memory\)"),
        ("lost tensor", "do not both have"),
        ("wrong rank", "tensor x is"),
        ("wrong format", "tensor x is torch.float16"),
        ("on the host", "tensor x is read on the host"),
        ("narrow", r"takes x from \[1, 2, 4\] to \[1, 4, 4\], not \[1, 2, 4\] to \[1, 8, 4\]"),
    ],
)
def test_an_engine_that_is_not_the_graphs_is_refused(
    graph: Graph, plan: bytes, fault: str, text: str
) -> None:
    with pytest.raises(EngineError, match=text):
        EngineRunner(graph, plan, double_library(Faults({fault})), CPU)


def test_a_refused_cache_of_kernels_is_an_error(graph: Graph, plan: bytes) -> None:
    with pytest.raises(EngineError, match="rejects the cache of kernels"):
        EngineRunner(graph, plan, double_library(Faults({"runtime cache"})), CPU)


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("shape of past", r"past: the engine does not accept shape \[4, 4\]"),
        ("address of x", "x: address is not set"),
        ("address of kept", "kept: address is not set"),
        ("infer", "mask: shape or address is not set"),
        ("odd output", r"y: the engine returns \[0, .* instead of \[1, -1"),
        ("execute", r"The scaled_sum failed: .* did not start \(illegal memory access\)\. Run without"),
    ],
)
def test_every_answer_of_a_call_is_looked_at(graph: Graph, plan: bytes, fault: str, text: str) -> None:
    faults = Faults()
    runner = EngineRunner(graph, plan, double_library(faults), CPU)
    runner(*graph.examples())
    faults.names.add(fault)
    with pytest.raises(ExecutorError, match=text):
        runner(*graph.examples())


def test_inputs_that_do_not_fit_never_reach_the_library(graph: Graph, plan: bytes) -> None:
    runner = EngineRunner(graph, plan, double_library(), CPU)
    with pytest.raises(ExecutorError, match=r"input past is torch.float32 \[17, 4\]"):
        runner(torch.zeros(1, 4, 4), torch.zeros(17, 4))
    with pytest.raises(ExecutorError, match="input x is not on cpu"):
        runner(torch.zeros(1, 4, 4, device="meta"), torch.zeros(4, 4))


def test_the_double_refuses_what_the_library_refuses(graph: Graph, plan: bytes) -> None:
    """The double itself detects the mistakes that the tests make."""
    library = double_library()
    engine = library.module.Runtime(logger(library)).deserialize_cuda_engine(plan)
    context = engine.create_execution_context()
    assert context.infer_shapes() == ["x", "past"]
    assert not context.set_input_shape("x", (4, 4))  # rank
    assert not context.set_input_shape("x", (1, 9, 4))  # outside of the profile
    assert not context.set_input_shape("mel", (1, 4, 4))  # no such tensor
    assert not context.set_tensor_address("mel", 64)
    assert context.set_input_shape("x", (1, 4, 4))
    assert context.set_input_shape("past", (4, 4))
    assert context.set_tensor_address("x", 0)  # refused by the step
    assert not context.execute_async_v3(0)
