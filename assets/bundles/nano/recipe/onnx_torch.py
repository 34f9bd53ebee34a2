"""Runs an ONNX graph with torch, so that a synthesizer that is distributed for CPUs speaks on a GPU.

In: an ONNX file with dynamically quantized products (int8 weights). Out: its outputs for given inputs.
Weights are dequantized and activations stay float: what quantized them passes them on with a scale of one.
Integers (shapes, lengths, indexes) stay on the CPU, so that no shape is waited for. Only the operators of
Kokoro's graph are there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import numpy_helper
from torch import Tensor

Attributes = dict[str, Any]
Operator = Callable[[Sequence[Any], Attributes], Any]
TYPES = {
    1: torch.float32,
    6: torch.int64,
    7: torch.int64,
    9: torch.bool,
    10: torch.float32,
    11: torch.float32,
}


class OnnxGraph:
    """A graph on a device."""

    def __init__(self, file: Path, device: str) -> None:
        graph = onnx.load(file).graph
        self.device = torch.device(device)
        self.constants = {item.name: self._place(numpy_helper.to_array(item)) for item in graph.initializer}
        self.outputs = [output.name for output in graph.output]
        self.nodes = [(node, _attributes(node)) for node in graph.node]
        self.last_use: dict[str, int] = {}
        for index, (node, _) in enumerate(self.nodes):
            self.last_use.update(dict.fromkeys(node.input, index))
        missing = {node.op_type for node, _ in self.nodes} - set(OPERATORS)
        if missing:
            raise SystemExit(f"{file}: operators that are not supported: {sorted(missing)}")

    def _place(self, value: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(value.copy())
        if tensor.dtype in {torch.float16, torch.float64}:
            tensor = tensor.float()
        if tensor.dtype in {torch.int8, torch.uint8}:  # weights; zero points
            tensor = tensor.float()
        return tensor.to(self.device) if tensor.is_floating_point() else tensor

    @torch.no_grad()
    def run(self, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
        """The outputs, float32."""
        values = dict(self.constants)
        values |= {name: self._place(value) for name, value in feed.items()}
        for index, (node, attributes) in enumerate(self.nodes):
            given = [values[name] if name else None for name in node.input]
            # Bias of a quantized product: rounded to its scale, which is no longer that of the activation.
            is_bias = "bias_quant" in node.name and node.op_type in {"Floor", "Cast"}
            made = given[0] if is_bias else OPERATORS[node.op_type](given, attributes)
            for name, value in zip(node.output, made if isinstance(made, tuple) else (made,), strict=False):
                values[name] = value
            for name in node.input:
                if self.last_use[name] == index and name not in self.constants:
                    values.pop(name, None)
        return [values[name].float().cpu().numpy() for name in self.outputs]


def _attributes(node: onnx.NodeProto) -> Attributes:
    found = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in found.items()}


def _together(values: Sequence[Any]) -> list[Tensor]:
    """On one device: that of any value on a GPU."""
    device = next((v.device for v in values if v is not None and v.is_cuda), torch.device("cpu"))
    return [v if v is None or v.device == device else v.to(device) for v in values]


def _elementwise(function: Callable[..., Tensor]) -> Operator:
    return lambda given, _: function(*_together(given))


def _ints(tensor: Tensor) -> list[int]:
    return [int(value) for value in tensor.reshape(-1).tolist()]


def _divide(a: Tensor, b: Tensor) -> Tensor:
    if not a.is_floating_point():
        return torch.div(a, b, rounding_mode="trunc")
    # The phase of nothing is zero, as by atan2.
    return torch.where((a == 0) & (b == 0), 0.0, a / b)


def _conv(given: Sequence[Any], a: Attributes) -> Tensor:
    x, weight = given[0], given[1]
    bias = given[2] if len(given) == 3 else None  # of four inputs the last ones are zero points
    if len(given) == 4:
        weight = weight - _column(given[3], weight.ndim, 0)
    left, right = a["pads"]
    return F.conv1d(
        F.pad(x, (left, right)), weight, bias, a["strides"][0], 0, a["dilations"][0], a.get("group", 1)
    )


def _column(value: Tensor, dimensions: int, axis: int) -> Tensor:
    shape = [1] * dimensions
    if value.numel() > 1:
        shape[axis] = -1
    return value.reshape(shape)


def _matmul_integer(given: Sequence[Any], _: Attributes) -> Tensor:
    right = given[1]
    zero = given[3] if len(given) == 4 and given[3] is not None else torch.zeros(1, device=right.device)
    return given[0] @ (right - _column(zero, right.ndim, right.ndim - 1))


def _fused_matmul(given: Sequence[Any], a: Attributes) -> Tensor:
    left = given[0].transpose(-1, -2) if a.get("transA") else given[0]
    right = given[1].transpose(-1, -2) if a.get("transB") else given[1]
    return a.get("alpha", 1.0) * (left @ right)


def _conv_transpose(given: Sequence[Any], a: Attributes) -> Tensor:
    extra = a.get("output_padding", [0])[0]
    bias = given[2] if len(given) == 3 else None
    return F.conv_transpose1d(
        given[0], given[1], bias, a["strides"][0], a["pads"][0], extra, a.get("group", 1), a["dilations"][0]
    )


def _lstm(given: Sequence[Any], a: Attributes) -> tuple[Tensor, Tensor, Tensor]:
    """Bidirectional, gates in the order i, o, f, c; torch wants i, f, c, o."""
    x, inner, outer, bias = given[:4]
    size = a["hidden_size"]
    order = torch.cat([torch.arange(size) + part * size for part in (0, 2, 3, 1)]).to(x.device)
    scales, zeros = (given[8], given[10]), (given[9], given[11])
    flat: list[Tensor] = []
    for direction in range(len(inner)):
        for weight, scale, zero in zip((inner, outer), scales, zeros, strict=True):
            whole = (weight[direction] - zero[direction]) * scale[direction]
            flat.append(whole.T[order].contiguous())
        halves = bias[direction].split(4 * size)
        flat += [half[order].contiguous() for half in halves]
    state = (given[5].to(x.device), given[6].to(x.device))
    with warnings.catch_warnings():
        # On a GPU: that weights are not in one piece, which costs less than keeping a module for each node.
        warnings.filterwarnings("ignore", message="RNN module weights")
        made, hidden, cell = torch._VF.lstm(  # type: ignore[attr-defined]
            x, state, flat, True, 1, 0.0, False, len(inner) == 2, False
        )
    steps, batch, _ = made.shape
    return made.view(steps, batch, len(inner), size).transpose(1, 2), hidden, cell


def _layer_norm(given: Sequence[Any], a: Attributes) -> Tensor:
    return F.layer_norm(given[0], given[0].shape[-1:], given[1], given[2], a["epsilon"])


def _skip_layer_norm(given: Sequence[Any], a: Attributes) -> tuple[Tensor, None, None, Tensor]:
    total = given[0] + given[1]
    if len(given) == 5 and given[4] is not None:
        total = total + given[4]
    return F.layer_norm(total, total.shape[-1:], given[2], given[3], a["epsilon"]), None, None, total


def _resize(given: Sequence[Any], a: Attributes) -> Tensor:
    x, scale = given[0], float(given[2].reshape(-1)[-1])
    size = int(x.shape[-1] * scale)
    if a["mode"] == "linear":
        return F.interpolate(x, size, mode="linear", align_corners=False)
    index = torch.clamp((torch.arange(size, device=x.device) / scale).floor().long(), max=x.shape[-1] - 1)
    return x[..., index]


def _slice(given: Sequence[Any], _: Attributes) -> Tensor:
    x, starts, ends = given[0], _ints(given[1]), _ints(given[2])
    axes = _ints(given[3]) if len(given) > 3 and given[3] is not None else range(len(starts))
    steps = _ints(given[4]) if len(given) > 4 and given[4] is not None else [1] * len(starts)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        picked = range(x.shape[axis])[start:end:step]
        if step == 1:
            x = x.narrow(axis, picked.start, len(picked))
        else:
            x = x.index_select(axis, torch.tensor(list(picked), device=x.device))
    return x


def _gather(given: Sequence[Any], a: Attributes) -> Tensor:
    x, index = given[0], given[1].long().to(given[0].device)
    axis = a.get("axis", 0) % x.ndim
    index = torch.where(index < 0, index + x.shape[axis], index)
    picked = x.index_select(axis, index.reshape(-1))
    return picked.reshape((*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]))


def _reshape(given: Sequence[Any], _: Attributes) -> Tensor:
    shape = [given[0].shape[i] if size == 0 else size for i, size in enumerate(_ints(given[1]))]
    return given[0].reshape(shape)


def _reduce(function: Callable[..., Tensor]) -> Operator:
    def run(given: Sequence[Any], a: Attributes) -> Tensor:
        axes = _ints(given[1]) if len(given) > 1 else list(range(given[0].ndim))
        return function(given[0], dim=axes, keepdim=bool(a.get("keepdims", 1)))

    return run


def _unsqueeze(given: Sequence[Any], _: Attributes) -> Tensor:
    x = given[0]
    axes = _ints(given[1])
    for axis in sorted(axis % (x.ndim + len(axes)) for axis in axes):
        x = x.unsqueeze(axis)
    return x


def _squeeze(given: Sequence[Any], _: Attributes) -> Tensor:
    x = given[0]
    for axis in sorted((axis % x.ndim for axis in _ints(given[1])), reverse=True):
        x = x.squeeze(axis)
    return x


def _pad(given: Sequence[Any], a: Attributes) -> Tensor:
    x, pads = given[0], _ints(given[1])
    both = [(pads[axis], pads[axis + x.ndim]) for axis in range(x.ndim)]
    last = both[-1]
    flat = x.reshape(1, -1, x.shape[-1]) if a["mode"] == "reflect" else x
    return F.pad(flat, last, mode=a["mode"]).reshape(*x.shape[:-1], x.shape[-1] + sum(last))


def _stft(given: Sequence[Any], _: Attributes) -> Tensor:
    x, step, window, length = given[0], int(given[1]), given[2], int(given[3])
    frames = x.reshape(x.shape[0], -1).unfold(1, length, step) * window
    return torch.view_as_real(torch.fft.rfft(frames))


def _scatter(given: Sequence[Any], _: Attributes) -> Tensor:
    x, index, updates = _together(given)
    made = x.clone()
    made[tuple(index.long().unbind(-1))] = updates
    return made


def _cast(given: Sequence[Any], a: Attributes) -> Tensor:
    return given[0].to(TYPES[a["to"]])


def _range(given: Sequence[Any], _: Attributes) -> Tensor:
    start, end, step = (value.item() for value in given)
    return torch.arange(start, end, step, dtype=given[0].dtype)


def _constant(given: Sequence[Any], a: Attributes) -> Tensor:
    value = numpy_helper.to_array(a["value"])
    return torch.from_numpy(np.full(_ints(given[0]), value[0]))


def _quantize(given: Sequence[Any], _: Attributes) -> tuple[Tensor, Tensor, Tensor]:
    x = given[0]
    return x, torch.ones((), device=x.device), torch.zeros((), device=x.device)


OPERATORS: dict[str, Operator] = {
    "Add": _elementwise(torch.add), "And": _elementwise(torch.logical_and), "Atan": _elementwise(torch.atan),
    "Cast": _cast, "Clip": _elementwise(torch.clamp),
    "Concat": lambda given, a: torch.cat(_together(given), a["axis"]), "ConstantOfShape": _constant,
    "Conv": _conv, "ConvInteger": _conv, "ConvTranspose": _conv_transpose, "Cos": _elementwise(torch.cos),
    "CumSum": lambda given, _: torch.cumsum(given[0], int(given[1])),
    "DequantizeLinear": lambda given, _: (given[0] - given[2]) * given[1], "Div": _elementwise(_divide),
    "DynamicQuantizeLSTM": _lstm, "DynamicQuantizeLinear": _quantize, "Equal": _elementwise(torch.eq),
    "Exp": _elementwise(torch.exp), "Expand": lambda given, _: given[0] * torch.ones(
        _ints(given[1]), dtype=given[0].dtype, device=given[0].device
    ),
    "FastGelu": lambda given, _: F.gelu(given[0] + given[1], approximate="tanh"),
    "Floor": _elementwise(torch.floor), "FusedMatMul": _fused_matmul, "Gather": _gather,
    "Greater": _elementwise(torch.gt), "GreaterOrEqual": _elementwise(torch.ge),
    "LayerNormalization": _layer_norm, "LeakyRelu": lambda given, a: F.leaky_relu(given[0], a["alpha"]),
    "Less": _elementwise(torch.lt), "MatMul": lambda given, _: given[0] @ given[1],
    "MatMulInteger": _matmul_integer, "Mul": _elementwise(torch.mul),
    "NonZero": lambda given, _: torch.nonzero(given[0]).T, "Pad": _pad, "Pow": _elementwise(torch.pow),
    "Range": _range, "ReduceMean": _reduce(torch.mean), "ReduceSum": _reduce(torch.sum),
    "Reshape": _reshape, "Resize": _resize, "Round": _elementwise(torch.round), "STFT": _stft,
    "ScatterND": _scatter, "Shape": lambda given, _: torch.tensor(given[0].shape),
    "Sigmoid": _elementwise(torch.sigmoid), "Sin": _elementwise(torch.sin),
    "SkipLayerNormalization": _skip_layer_norm, "Slice": _slice,
    "Softmax": lambda given, a: F.softmax(given[0], a["axis"]),
    "Split": lambda given, a: given[0].split(_ints(given[1]), a["axis"]), "Sqrt": _elementwise(torch.sqrt),
    "Squeeze": _squeeze, "Sub": _elementwise(torch.sub), "Tanh": _elementwise(torch.tanh),
    "Transpose": lambda given, a: given[0].permute(a["perm"]), "Unsqueeze": _unsqueeze,
    "Where": _elementwise(torch.where),
}  # fmt: skip
