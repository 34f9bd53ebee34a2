"""Initial weights of the speech encoder: the Whisper-tiny encoder that Smart Turn v3.2 was made of.

In: the int8 ONNX file inside the package `pipecat-ai` (Smart Turn: BSD-2-Clause, Whisper: MIT). Out: weights
under the names of `WhisperVQ`, float32. It has heard people, who are in no other training data of the recipe.
The network it belongs to sees 8 s in both directions; training makes it causal.

    python whisper_weights.py INIT.safetensors
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from safetensors.torch import save_file
from torch import Tensor

MODEL = "audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx"
PREFIX = "inner.encoder."


def find_model() -> Path:
    """The ONNX file of the installed package; SystemExit when it is not installed."""
    package = importlib.util.find_spec("pipecat")
    if package is None or package.origin is None:
        raise SystemExit("pipecat-ai is not installed: pip install --no-deps pipecat-ai==1.14.0")
    return Path(package.origin).parent / MODEL


def read_encoder(file: Path) -> dict[str, Tensor]:
    """The encoder's weights, dequantized."""
    graph = _Graph(onnx.load(file).graph)
    found = {
        name.removeprefix("inner."): torch.from_numpy(value.astype(np.float32))
        for name, value in graph.values.items()
        if name.startswith(PREFIX + "layers.") and not name.endswith(("_scale", "_point", "_quantized"))
    }
    found |= graph.convolutions() | graph.products()
    return found


class _Graph:
    """Reads a graph in which each weight is int8 with a scale for each output."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.nodes = list(graph.node)
        self.values = {item.name: numpy_helper.to_array(item) for item in graph.initializer}
        self.maker = {output: node for node in self.nodes for output in node.output}
        self.users: dict[str, list[onnx.NodeProto]] = {}
        for node in self.nodes:
            for name in node.input:
                self.users.setdefault(name, []).append(node)

    def dequantized(self, name: str) -> np.ndarray | None:
        """The tensor `name`, if it is a dequantized constant."""
        node = self.maker.get(name)
        if node is None or node.op_type != "DequantizeLinear" or node.input[0] not in self.values:
            return None
        whole, scale, zero = (self.values[part] for part in node.input)
        axis = next((item.i for item in node.attribute if item.name == "axis"), 1)
        shape = [1] * whole.ndim
        if scale.ndim:
            shape[axis] = -1
        return (whole.astype(np.float32) - zero.astype(np.float32).reshape(shape)) * scale.reshape(shape)

    def convolutions(self) -> dict[str, Tensor]:
        """Weight and bias of both convolutions."""
        found = {}
        nodes = [node for node in self.nodes if node.op_type == "Conv"]
        for name, node in zip(("conv1", "conv2"), nodes, strict=True):
            for part, source in zip(("weight", "bias"), node.input[1:], strict=True):
                value = self.dequantized(source)
                assert value is not None
                found[f"encoder.{name}.{part}"] = torch.from_numpy(value)
        return found

    def products(self) -> dict[str, Tensor]:
        """Weights of the layers; a product is named by the bias that follows it, keys have none."""
        found: dict[str, Tensor] = {}
        layer = 0
        for node in (node for node in self.nodes if node.op_type == "MatMul"):
            weight = self.dequantized(node.input[1])
            if weight is None:
                continue
            bias = self._bias_after(node)
            if bias is None:
                name = f"encoder.layers.{layer}.self_attn.k_proj"
                layer += 1
            elif bias.startswith(PREFIX):
                name = bias.removeprefix("inner.").removesuffix(".bias")
            else:
                continue
            found[f"{name}.weight"] = torch.from_numpy(weight.T.copy())
        return found

    def _bias_after(self, node: onnx.NodeProto) -> str | None:
        outputs = list(node.output)
        while outputs:
            following = [user for name in outputs for user in self.users.get(name, [])]
            for user in following:
                bias = [name for name in user.input if user.op_type == "Add" and name.endswith(".bias")]
                if bias:
                    return bias[0]
            outputs = [
                name
                for user in following
                if user.op_type in {"QuantizeLinear", "DequantizeLinear"}
                for name in user.output
            ]
        return None


if __name__ == "__main__":
    save_file(read_encoder(find_model()), sys.argv[1])
