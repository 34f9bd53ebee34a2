"""A tiny ONNX network, written byte by byte, so that tests need no package that writes ONNX.

The format is a protocol buffer: fields of (number, wire type) with a varint or bytes behind them; the numbers
are those of onnx.proto.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_FLOAT, _INTS = 1, 7


def mean_and_project(weight: NDArray[np.float32]) -> bytes:
    """A network: features [1, T, n] -> mean of their sizes over T, times weight [n, dim] -> [1, dim].

    Sizes, because the features come without their mean.
    """
    size = _text(1, "features") + _text(2, "size") + _text(4, "Abs")
    axes = _text(1, "axes") + _varint(8, 1) + _varint(20, _INTS)
    mean = _text(1, "size") + _text(2, "mean") + _text(4, "ReduceMean")
    mean += _bytes(5, axes) + _bytes(5, _text(1, "keepdims") + _varint(3, 0) + _varint(20, 2))
    project = _text(1, "mean") + _text(1, "weight") + _text(2, "xvector") + _text(4, "MatMul")
    tensor = b"".join(_varint(1, size) for size in weight.shape) + _varint(2, _FLOAT) + _text(8, "weight")
    tensor += _bytes(9, np.ascontiguousarray(weight, dtype="<f4").tobytes())
    graph = _bytes(1, size) + _bytes(1, mean) + _bytes(1, project) + _text(2, "speaker") + _bytes(5, tensor)
    graph += _bytes(11, _value("features", (1, "T", weight.shape[0])))
    graph += _bytes(12, _value("xvector", (1, weight.shape[1])))
    return _varint(1, 8) + _bytes(7, graph) + _bytes(8, _text(1, "") + _varint(2, 13))


def _value(name: str, shape: tuple[int | str, ...]) -> bytes:
    sizes = [_varint(1, size) if isinstance(size, int) else _text(2, size) for size in shape]
    tensor = _varint(1, _FLOAT) + _bytes(2, b"".join(_bytes(1, size) for size in sizes))
    return _text(1, name) + _bytes(2, _bytes(1, tensor))


def _varint(field: int, value: int) -> bytes:
    return _number(field << 3) + _number(value)


def _bytes(field: int, content: bytes) -> bytes:
    return _number(field << 3 | 2) + _number(len(content)) + content


def _text(field: int, content: str) -> bytes:
    return _bytes(field, content.encode())


def _number(value: int) -> bytes:
    groups = []
    while True:
        value, group = value >> 7, value & 0x7F
        groups.append(group | (0x80 if value else 0))
        if not value:
            return bytes(groups)
