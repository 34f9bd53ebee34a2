"""Graphs on torch give what onnxruntime gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.helper import make_node, make_tensor_value_info

from engine_runtime.onnx_runtime import create_session
from tests.assets.conftest import Recipe

RNG = np.random.default_rng(0)


def _save(nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray], file: Path) -> None:
    graph = helper.make_graph(
        nodes,
        "graph",
        [make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["a", "b", "c"])],
        [make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    versions = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=versions, ir_version=9), file)


def _both(
    recipe: Recipe, folder: Path, nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray], x: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """What torch and what onnxruntime make of x."""
    file = folder / "graph.onnx"
    _save(nodes, constants, file)
    (made,) = recipe("onnx_torch").OnnxGraph(file, "cpu").run({"x": x})
    (wanted,) = create_session(file, purpose="compare").run(None, {"x": x})
    return made, wanted


def _floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def _bytes(*shape: int) -> np.ndarray:
    return RNG.integers(0, 255, shape).astype(np.uint8)


CASES = {
    "Conv": (
        [make_node("Conv", ["x", "w", "b"], ["y"], pads=[2, 2], dilations=[2], strides=[1], group=1)],
        {"w": _floats(5, 4, 3), "b": _floats(5)}, (1, 4, 11),
    ),
    "ConvTranspose": (
        [make_node("ConvTranspose", ["x", "w", "b"], ["y"], pads=[1, 1], dilations=[1], strides=[2],
                   output_padding=[1], group=4)],
        {"w": _floats(4, 1, 3), "b": _floats(4)}, (1, 4, 7),
    ),
    "Slice": (
        [make_node("Slice", ["x", "s", "e", "axes", "steps"], ["y"])],
        {"s": np.array([-5, 1]), "e": np.array([9_999, -1]), "axes": np.array([2, 1]),
         "steps": np.array([2, 1])}, (1, 4, 9),
    ),
    "Gather": (
        [make_node("Gather", ["x", "i"], ["y"], axis=2)], {"i": np.array([[-1, 0], [2, 2]])}, (1, 2, 4),
    ),
    "nearest": (
        [make_node("Resize", ["x", "", "s"], ["y"], mode="nearest", nearest_mode="floor",
                   coordinate_transformation_mode="asymmetric")],
        {"s": np.array([1, 1, 3], np.float32)}, (1, 2, 4),
    ),
    "linear": (
        [make_node("Resize", ["x", "", "s"], ["y"], mode="linear",
                   coordinate_transformation_mode="half_pixel")],
        {"s": np.array([1, 1, 0.5], np.float32)}, (1, 2, 8),
    ),
    "Pad": (
        [make_node("Pad", ["x", "p"], ["y"], mode="reflect")], {"p": np.array([0, 0, 2, 0, 0, 3])}, (1, 2, 8),
    ),
    "FastGelu": (
        [make_node("ReduceMean", ["x", "axes"], ["m"], keepdims=1), make_node("Sub", ["x", "m"], ["d"]),
         make_node("FastGelu", ["d", "b"], ["y"], domain="com.microsoft")],
        {"axes": np.array([-1]), "b": _floats(6)}, (2, 3, 6),
    ),
    "SkipLayerNormalization": (
        [make_node("SkipLayerNormalization", ["x", "s", "g", "b"], ["y"], domain="com.microsoft",
                   epsilon=1e-5)],
        {"s": _floats(2, 3, 6), "g": _floats(6), "b": _floats(6)}, (2, 3, 6),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_an_operator_is_onnxruntimes(recipe: Recipe, tmp_path: Path, name: str) -> None:
    nodes, constants, shape = CASES[name]
    made, wanted = _both(recipe, tmp_path, nodes, constants, _floats(*shape))
    np.testing.assert_allclose(made, wanted, atol=1e-4)


def test_a_quantized_product_is_that_of_the_weights_it_stands_for(recipe: Recipe, tmp_path: Path) -> None:
    nodes = [
        make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]),
        make_node("MatMulInteger", ["q", "w", "zero", "wz"], ["product"]),
        make_node("Cast", ["product"], ["whole"], to=onnx.TensorProto.FLOAT),
        make_node("Mul", ["scale", "ws"], ["scales"]),
        make_node("Mul", ["whole", "scales"], ["y"]),
    ]
    weight = _bytes(8, 5)
    constants = {"w": weight, "wz": np.array(120, np.uint8), "ws": np.array(0.02, np.float32)}
    x = _floats(1, 3, 8)
    made, wanted = _both(recipe, tmp_path, nodes, constants, x)
    exact = x @ ((weight.astype(np.float32) - 120) * 0.02)
    np.testing.assert_allclose(made, exact, atol=1e-4)
    np.testing.assert_allclose(made, wanted, atol=0.03 * float(np.abs(exact).max()))


def test_an_lstm_is_that_of_the_weights_it_stands_for(recipe: Recipe, tmp_path: Path) -> None:
    size, width = 3, 4
    names = ["x", "w", "r", "b", "", "h", "c", "", "ws", "wz", "rs", "rz"]
    node = make_node(
        "DynamicQuantizeLSTM", names, ["y"], domain="com.microsoft", hidden_size=size,
        direction="bidirectional",
    )  # fmt: skip
    constants = {
        "w": _bytes(2, width, 4 * size), "r": _bytes(2, size, 4 * size), "b": _floats(2, 8 * size),
        "h": np.zeros((2, 1, size), np.float32), "c": np.zeros((2, 1, size), np.float32),
        "ws": np.array([0.01, 0.02], np.float32), "wz": np.array([120, 130], np.uint8),
        "rs": np.array([0.02, 0.01], np.float32), "rz": np.array([125, 128], np.uint8),
    }  # fmt: skip
    made, wanted = _both(recipe, tmp_path, [node], constants, _floats(6, 1, width))
    assert made.shape == wanted.shape == (6, 2, 1, size)
    np.testing.assert_allclose(made, wanted, atol=0.05)


def test_unknown_operators_are_named(recipe: Recipe, tmp_path: Path) -> None:
    _save([make_node("Erf", ["x"], ["y"])], {}, tmp_path / "graph.onnx")
    with pytest.raises(SystemExit, match="Erf"):
        recipe("onnx_torch").OnnxGraph(tmp_path / "graph.onnx", "cpu")
