"""A stand-in for the modules `tensorrt` and `tensorrt_rtx` that keeps their rules and computes on the CPU.

Written after the Python interface of TensorRT for RTX 1.7. An engine is the ONNX file with the profile of its
sizes; a context computes with onnxruntime from exactly the memory whose addresses it was given. It refuses as
the library does: an unknown name, another rank, a size outside the profile, a null or missing address, a call
before all shapes are known. `faults` names calls that shall fail, to see that every answer is looked at.
"""

from __future__ import annotations

import ctypes
import json
import math
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from engine_runtime.cuda.tensorrt_library import RuntimeLibrary
from engine_runtime.onnx_runtime import create_session

DataType = Enum("DataType", "FLOAT HALF BF16 INT64")
TensorIOMode = Enum("TensorIOMode", "INPUT OUTPUT")
TensorLocation = Enum("TensorLocation", "DEVICE HOST")
_FORMATS = {
    "tensor(float)": DataType.FLOAT,
    "tensor(float16)": DataType.HALF,
    "tensor(int64)": DataType.INT64,
}
_NUMPY = {DataType.FLOAT: np.float32, DataType.HALF: np.float16, DataType.INT64: np.int64}
Profile = dict[str, list[list[int]]]


@dataclass
class Faults:
    """Calls that fail; what they were asked meanwhile."""

    names: set[str] = field(default_factory=set)
    log: Any = None
    compiled: list[bytes] = field(default_factory=list)

    def hits(self, name: str, message: str = "") -> bool:
        if name not in self.names:
            return False
        self.say(message or f"{name} was told to fail")
        return True

    def say(self, message: str) -> None:
        if self.log is not None:
            self.log.log(1, message)


def double_library(faults: Faults | None = None, is_rtx: bool = True) -> RuntimeLibrary:
    """The library; every call makes one of its own."""
    return RuntimeLibrary(_Module(faults or Faults(), is_rtx), is_rtx)


class _Module(SimpleNamespace):
    """What `import tensorrt_rtx` gives. Hashable, as a module is."""

    def __init__(self, faults: Faults, is_rtx: bool) -> None:
        class ILogger:
            INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = range(5)

        super().__init__(
            __version__="0.0-double",
            ILogger=ILogger,
            DataType=DataType,
            TensorIOMode=TensorIOMode,
            TensorLocation=TensorLocation,
            NetworkDefinitionCreationFlag=SimpleNamespace(STRONGLY_TYPED=1),
            BuilderFlag=SimpleNamespace(TF32="TF32"),
            ComputeCapability=SimpleNamespace(SM89="SM89", SM120="SM120"),
            Builder=lambda log: _Builder(faults, log),
            OnnxParser=lambda network, log: _Parser(faults, network),
            Runtime=lambda log: _Runtime(faults, log),
        )

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


class _Tensor:
    def __init__(self, argument: Any) -> None:
        self.name = argument.name
        self.shape = tuple(size if isinstance(size, int) else -1 for size in argument.shape)
        self.dtype = _FORMATS[argument.type]


class _Network:
    def __init__(self) -> None:
        self.inputs: list[_Tensor] = []
        self.outputs: list[_Tensor] = []
        self.model = b""

    num_inputs = property(lambda self: len(self.inputs))
    num_outputs = property(lambda self: len(self.outputs))

    def get_input(self, index: int) -> _Tensor:
        return self.inputs[index]

    def get_output(self, index: int) -> _Tensor:
        return self.outputs[index]


class _Parser:
    def __init__(self, faults: Faults, network: _Network) -> None:
        self._faults, self._network, self.num_errors = faults, network, 0

    def parse_from_file(self, path: str) -> bool:
        if self._faults.hits("parse"):
            self.num_errors = 1
            return False
        self._network.model = Path(path).read_bytes()
        session = create_session(self._network.model, purpose="stand in for TensorRT")
        self._network.inputs = [_Tensor(argument) for argument in session.get_inputs()]
        self._network.outputs = [_Tensor(argument) for argument in session.get_outputs()]
        return True

    def get_error(self, index: int) -> str:
        return "operator Nonsense is not supported"


class _Profile:
    def __init__(self) -> None:
        self.shapes: Profile = {}

    def set_shape(self, name: str, least: Any, usual: Any, most: Any) -> None:
        assert all(a <= b <= c for a, b, c in zip(least, usual, most, strict=True)), (
            name,
            least,
            usual,
            most,
        )
        self.shapes[name] = [list(least), list(usual), list(most)]


class _Config:
    def __init__(self, faults: Faults) -> None:
        self._faults, self.profile, self.flags = faults, _Profile(), {"TF32"}
        self.num_compute_capabilities = 0

    def clear_flag(self, flag: str) -> None:
        self.flags.discard(flag)

    def add_optimization_profile(self, profile: _Profile) -> int:
        self.profile = profile
        return -1 if self._faults.hits("profile") else 0

    def set_compute_capability(self, target: str, index: int) -> bool:
        return index < self.num_compute_capabilities and not self._faults.hits("capability")


class _Builder:
    def __init__(self, faults: Faults, log: Any) -> None:
        self._faults = faults
        faults.log = log

    def create_network(self, flags: int) -> _Network:
        assert flags == 1 << 1, "the network must be strongly typed"
        return _Network()

    def create_builder_config(self) -> _Config:
        return _Config(self._faults)

    def create_optimization_profile(self) -> _Profile:
        return _Profile()

    def build_serialized_network(self, network: _Network, config: _Config) -> bytes | None:
        if self._faults.hits("build"):
            return None
        assert "TF32" not in config.flags, "float32 would be rounded"
        dynamic = {tensor.name for tensor in network.inputs if -1 in tensor.shape}
        assert dynamic == set(config.profile.shapes), "a profile is missing"
        header = json.dumps(config.profile.shapes).encode()
        return len(header).to_bytes(8, "little") + header + network.model


class _Runtime:
    def __init__(self, faults: Faults, log: Any) -> None:
        self._faults = faults
        faults.log = log

    def deserialize_cuda_engine(self, plan: bytes) -> Engine | None:
        if self._faults.hits("deserialize", "the plan is of another version"):
            return None
        size = int.from_bytes(plan[:8], "little")
        session = create_session(plan[8 + size :], purpose="stand in for TensorRT")
        return Engine(self._faults, json.loads(plan[8 : 8 + size]), session)


class Engine:
    """`ICudaEngine`."""

    def __init__(self, faults: Faults, profile: Profile, session: Any) -> None:
        self._faults, self.profile, self.session = faults, profile, session
        self.inputs = {tensor.name: tensor for tensor in map(_Tensor, session.get_inputs())}
        self.outputs = {tensor.name: tensor for tensor in map(_Tensor, session.get_outputs())}
        self.tensors = self.inputs | self.outputs

    @property
    def num_io_tensors(self) -> int:
        return len(self.tensors) - ("lost tensor" in self._faults.names)

    def get_tensor_name(self, index: int) -> str:
        return list(self.tensors)[index]

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        shape = self.tensors[name].shape
        return (*shape, 1) if "wrong rank" in self._faults.names else shape

    def get_tensor_dtype(self, name: str) -> DataType:
        return DataType.HALF if "wrong format" in self._faults.names else self.tensors[name].dtype

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        return TensorIOMode.INPUT if name in self.inputs else TensorIOMode.OUTPUT

    def get_tensor_location(self, name: str) -> TensorLocation:
        return TensorLocation.HOST if "on the host" in self._faults.names else TensorLocation.DEVICE

    def get_tensor_profile_shape(self, name: str, index: int) -> list[tuple[int, ...]]:
        shapes = [tuple(shape) for shape in self.profile[name]]
        return [shapes[0], shapes[1], shapes[1]] if "narrow" in self._faults.names else shapes

    def create_runtime_config(self) -> _RuntimeConfig:
        return _RuntimeConfig(self._faults)

    def create_execution_context(self, config: _RuntimeConfig | None = None) -> Context | None:
        return None if self._faults.hits("context", "out of memory") else Context(self._faults, self)


class _RuntimeConfig:
    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def create_runtime_cache(self) -> SimpleNamespace:
        return SimpleNamespace(
            serialize=lambda: b"compiled", deserialize=lambda blob: self._faults.compiled.append(blob) or True
        )

    def set_runtime_cache(self, cache: SimpleNamespace) -> bool | None:
        return False if self._faults.hits("runtime cache") else None


class Context:
    """`IExecutionContext`."""

    def __init__(self, faults: Faults, engine: Engine) -> None:
        self._faults, self._engine = faults, engine
        self.shapes = {name: tensor.shape for name, tensor in engine.inputs.items()}
        self.addresses: dict[str, int] = {}

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        if self._faults.hits(f"shape of {name}"):
            return False
        if name not in self._engine.inputs or len(shape) != len(self._engine.inputs[name].shape):
            return False
        least, _, most = self._engine.profile[name]
        if not all(low <= size <= high for low, size, high in zip(least, shape, most, strict=True)):
            self._faults.say(f"{name} {shape} is outside of the profile")
            return False
        self.shapes[name] = shape
        return True

    def set_tensor_address(self, name: str, address: int) -> bool:
        if name not in self._engine.tensors or address == 0 or self._faults.hits(f"address of {name}"):
            return False
        self.addresses[name] = address
        return True

    def infer_shapes(self) -> list[str]:
        missing = [name for name, shape in self.shapes.items() if -1 in shape]
        return ["mask"] if self._faults.hits("infer") else missing

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        if name in self.shapes:
            return self.shapes[name]
        if "odd output" in self._faults.names:
            return (0, *self._engine.outputs[name].shape[1:])
        zeros = {
            each: np.zeros(shape, _NUMPY[self._engine.inputs[each].dtype])
            for each, shape in self.shapes.items()
        }
        (value,) = self._engine.session.run([name], zeros)
        return tuple(value.shape)

    def execute_async_v3(self, stream: int) -> bool:
        for name in self._engine.tensors:
            if name not in self.addresses:
                self._faults.say(f"Address is not set for tensor {name}")
                return False
        if self._faults.hits("execute", "illegal memory access"):
            return False
        inputs = {name: self._memory(name, shape).copy() for name, shape in self.shapes.items()}
        results = self._engine.session.run(list(self._engine.outputs), inputs)
        for name, value in zip(self._engine.outputs, results, strict=True):
            self._memory(name, value.shape)[...] = value + ("wrong numbers" in self._faults.names)
        return True

    def _memory(self, name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        kind = np.dtype(_NUMPY[self._engine.tensors[name].dtype])
        bytes_there = (ctypes.c_char * (math.prod(shape) * kind.itemsize)).from_address(self.addresses[name])
        return np.frombuffer(bytes_there, kind).reshape(shape)
