"""Building: every error of the library has a message; TensorRT for RTX builds if it is installed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from engine_runtime.codec.flow.token2mel import Token2Mel
from engine_runtime.codec.graph import Graph, GraphTensor
from engine_runtime.codec.speech_tokenizer.encoder_graph import speech_encoder_graph
from engine_runtime.codec.speech_tokenizer.speech_tokenizer import SpeechTokenizer
from engine_runtime.errors import EngineError
from engine_runtime.tensorrt.codec.engine import build_engine
from engine_runtime.tensorrt.codec.graphs import estimator_graph
from engine_runtime.tensorrt.library import RuntimeLibrary, tensorrt_rtx
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


# with the library itself, which needs no GPU to build


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
