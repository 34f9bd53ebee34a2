"""Symbolic tensors, the network that records their operations, and its evaluation with torch.

As in the library, a forward pass runs once on tensors with only a shape and a dtype, and builds a network.
Here that network is then evaluated with torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any, NamedTuple

import torch

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int32": torch.int32,
    "int64": torch.int64,
    "fp8": torch.float8_e4m3fn,
    "int8": torch.int8,
}
Memory = dict[int, torch.Tensor]
"""Tensors that an input may point to, by address."""
Compute = Callable[..., torch.Tensor]


@dataclass
class Network:
    """A network under construction: `nodes` in the order in which they were described."""

    plugin_config: Any
    nodes: list[Tensor] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    memory: Memory = field(default_factory=dict)

    @property
    def trt_network(self) -> NetworkDefinition:
        return NetworkDefinition(self)

    def memory_of(self) -> Memory:
        """What the inputs of the step that is evaluated point to."""
        return self.memory

    def evaluate(self, values: dict[str, torch.Tensor], memory: Memory) -> dict[str, torch.Tensor]:
        """The outputs for these inputs, which must be complete and have no others."""
        assert set(values) == {tensor.name for tensor in self.inputs}, "the network has other inputs"
        self.memory = memory
        known: dict[Tensor, torch.Tensor] = {}
        for tensor in self.inputs:
            value = values[tensor.name]
            assert value.dtype == DTYPES[tensor.dtype], (tensor.name, value.dtype)
            _check_shape(tensor, value)
            known[tensor] = value
        for node in self.nodes:
            known[node] = node.compute(*(known[parent] for parent in node.parents))
            _check_shape(node, known[node])
        return {tensor.name: known[tensor] for tensor in self.outputs}


class DataType(Enum):
    """TensorRT's names."""

    FLOAT = "float32"
    BF16 = "bfloat16"
    HALF = "float16"
    INT32 = "int32"
    INT64 = "int64"


class Described(NamedTuple):
    """What of TensorRT's ITensor is used."""

    name: str
    dtype: DataType
    shape: tuple[int, ...]


@dataclass(frozen=True)
class NetworkDefinition:
    """What of TensorRT's INetworkDefinition is used."""

    network: Network

    @property
    def num_inputs(self) -> int:
        return len(self.network.inputs)

    @property
    def num_outputs(self) -> int:
        return len(self.network.outputs)

    def get_input(self, index: int) -> Described:
        return self._describe(self.network.inputs[index])

    def get_output(self, index: int) -> Described:
        return self._describe(self.network.outputs[index])

    @staticmethod
    def _describe(tensor: Tensor) -> Described:
        return Described(tensor.name, DataType(tensor.dtype), tensor.shape)


_current: list[Network] = []


def default_net() -> Network:
    assert _current, "there is no network under construction"
    return _current[-1]


@contextmanager
def net_guard(network: Network) -> Iterator[None]:
    _current.append(network)
    try:
        yield
    finally:
        _current.pop()


class Tensor:
    """A tensor of the network under construction; -1 is a size that may vary."""

    def __init__(self, *, name: str, dtype: str, shape: list[int]) -> None:
        """An input."""
        assert dtype in DTYPES, dtype
        self.name, self.dtype, self.shape = name, dtype, tuple(shape)
        self.parents: tuple[Tensor, ...] = ()
        self.compute: Compute
        default_net().inputs.append(self)

    @classmethod
    def made_by(cls, compute: Compute, *parents: Tensor, dtype: str, shape: tuple[int, ...]) -> Tensor:
        tensor = cls.__new__(cls)
        tensor.name, tensor.dtype, tensor.shape = "", dtype, shape
        tensor.parents, tensor.compute = parents, compute
        default_net().nodes.append(tensor)
        return tensor

    def __bool__(self) -> bool:
        raise TypeError("a tensor has no value while the network is described")

    def ndim(self) -> int:
        return len(self.shape)

    def __add__(self, other: Tensor) -> Tensor:
        return self._elementwise(torch.add, other)

    def __mul__(self, other: Tensor) -> Tensor:
        return self._elementwise(torch.mul, other)

    def cast(self, dtype: str) -> Tensor:
        return Tensor.made_by(lambda x: x.to(DTYPES[dtype]), self, dtype=dtype, shape=self.shape)

    def mark_output(self, name: str, dtype: str) -> None:
        assert name not in {tensor.name for tensor in default_net().outputs}, f"{name} is marked twice"
        marked = self.cast(dtype)
        marked.name = name
        default_net().outputs.append(marked)

    def _elementwise(self, function: Compute, other: Tensor) -> Tensor:
        assert isinstance(other, Tensor)
        assert self.dtype == other.dtype, "a strongly typed network casts nothing by itself"
        assert self.shape == other.shape, (self.shape, other.shape)
        return Tensor.made_by(function, self, other, dtype=self.dtype, shape=self.shape)


def gather_last_token_logits(
    hidden_states: Tensor, last_token_ids: Tensor, remove_input_padding: bool
) -> Tensor:
    assert remove_input_padding, "only packed rows are known here"
    return Tensor.made_by(
        lambda x, last: x[last.long() - 1],  # they count from 1
        hidden_states,
        last_token_ids,
        dtype=hidden_states.dtype,
        shape=(*last_token_ids.shape, hidden_states.shape[-1]),
    )


class AttentionMaskType(IntEnum):
    padding = 0
    causal = 1


class LayerNormType(IntEnum):
    LayerNorm = 0
    RmsNorm = 1


class PositionEmbeddingType(IntEnum):
    learned_absolute = 0
    rope_gptj = 1
    rope_gpt_neox = 2

    def is_rope(self) -> bool:
        return self in (self.rope_gptj, self.rope_gpt_neox)

    def __str__(self) -> str:
        return self.name

    @staticmethod
    def from_string(name: str) -> PositionEmbeddingType:
        return PositionEmbeddingType[name]


def _check_shape(tensor: Tensor, value: torch.Tensor) -> None:
    fits = len(tensor.shape) == value.dim() and all(
        wanted in (-1, got) for wanted, got in zip(tensor.shape, value.shape, strict=True)
    )
    assert fits, (tensor.name, tensor.shape, tuple(value.shape))
