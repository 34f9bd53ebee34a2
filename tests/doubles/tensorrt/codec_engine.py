"""A double of the modules `tensorrt` and `tensorrt_rtx` that computes ONNX files on the CPU.

Follows the Python interface of TensorRT for RTX 1.7. An engine is the ONNX file with its optimization
profile; a context computes with onnxruntime on exactly the memory at the bound addresses, with the checks of
the library (runtime.py). `faults` names calls that fail, to test that every return value is checked.
"""

from __future__ import annotations

import ctypes
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from engine_runtime.onnx_runtime import create_session
from engine_runtime.tensorrt.library import RuntimeLibrary
from tests.doubles.tensorrt.runtime import (
    BoundContext,
    DataType,
    ILogger,
    ListedEngine,
    Shape,
    TensorIOMode,
    TensorLocation,
)

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
        self.say(message or f"{name} fails by request")
        return True

    def say(self, message: str) -> None:
        if self.log is not None:
            self.log.log(ILogger.ERROR, message)


def double_library(faults: Faults | None = None, is_rtx: bool = True) -> RuntimeLibrary:
    """The library; every call makes one of its own."""
    return RuntimeLibrary(_Module(faults or Faults(), is_rtx), is_rtx)


class _Module(ModuleType):
    """The result of `import tensorrt_rtx`."""

    def __init__(self, faults: Faults, is_rtx: bool) -> None:
        super().__init__("tensorrt_rtx")
        vars(self).update(
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


class Engine(ListedEngine):
    """`ICudaEngine`."""

    num_optimization_profiles = 1

    def __init__(self, faults: Faults, profile: Profile, session: Any) -> None:
        self._faults, self.profile, self.session = faults, profile, session
        inputs, outputs = (
            {tensor.name: tensor for tensor in map(_Tensor, arguments)}
            for arguments in (session.get_inputs(), session.get_outputs())
        )
        super().__init__(inputs | outputs, outputs.keys(), faults.log)

    @property
    def num_io_tensors(self) -> int:
        return super().num_io_tensors - ("lost tensor" in self._faults.names)

    def get_tensor_shape(self, name: str) -> Shape:
        shape = super().get_tensor_shape(name)
        return (*shape, 1) if "wrong rank" in self._faults.names else shape

    def get_tensor_dtype(self, name: str) -> DataType:
        return DataType.HALF if "wrong format" in self._faults.names else super().get_tensor_dtype(name)

    def get_tensor_location(self, name: str) -> TensorLocation:
        return (
            TensorLocation.HOST if "on the host" in self._faults.names else super().get_tensor_location(name)
        )

    def get_tensor_profile_shape(self, name: str, profile: int) -> list[Shape]:
        least, usual, most = map(tuple, self.profile.get(name, [self.tensors[name].shape] * 3))
        return [least, usual, usual if "narrow" in self._faults.names else most]

    def create_runtime_config(self) -> _RuntimeConfig:
        return _RuntimeConfig(self._faults)

    def create_execution_context(self, config: _RuntimeConfig | None = None) -> Context | None:
        return None if self._faults.hits("context", "out of memory") else Context(self._faults, self)


class _RuntimeCache:
    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def serialize(self) -> bytes:
        return b"compiled"

    def deserialize(self, blob: bytes) -> bool:
        self._faults.compiled.append(blob)
        return True


class _RuntimeConfig:
    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def create_runtime_cache(self) -> _RuntimeCache:
        return _RuntimeCache(self._faults)

    def set_runtime_cache(self, cache: _RuntimeCache) -> bool | None:
        return False if self._faults.hits("runtime cache") else None


class Context(BoundContext):
    """`IExecutionContext`."""

    def __init__(self, faults: Faults, engine: Engine) -> None:
        super().__init__(engine)
        self._faults = faults

    def set_input_shape(self, name: str, shape: Shape) -> bool:
        return not self._faults.hits(f"shape of {name}") and super().set_input_shape(name, shape)

    def set_tensor_address(self, name: str, address: int) -> bool:
        return not self._faults.hits(f"address of {name}") and super().set_tensor_address(name, address)

    def infer_shapes(self) -> list[str]:
        return ["mask"] if self._faults.hits("infer") else super().infer_shapes()

    def get_tensor_shape(self, name: str) -> Shape:
        if name in self.shapes:
            return self.shapes[name]
        if "odd output" in self._faults.names:
            return (0, *self.engine.tensors[name].shape[1:])
        zeros = {
            each: np.zeros(shape, _NUMPY[self.engine.tensors[each].dtype])
            for each, shape in self.shapes.items()
        }
        (value,) = self.engine.session.run([name], zeros)
        return tuple(value.shape)

    def execute_async_v3(self, stream: int) -> bool:
        if unset := self._unset():
            return self._refuse(unset)
        if self._faults.hits("execute", "illegal memory access"):
            return False
        inputs = {name: self._memory(name, shape).copy() for name, shape in self.shapes.items()}
        results = self.engine.session.run(list(self.engine.outputs), inputs)
        for name, value in zip(self.engine.outputs, results, strict=True):
            self._memory(name, value.shape)[...] = value + ("wrong numbers" in self._faults.names)
        return True

    def _memory(self, name: str, shape: Shape) -> np.ndarray[Any, Any]:
        kind = np.dtype(_NUMPY[self.engine.tensors[name].dtype])
        bytes_there = (ctypes.c_char * (math.prod(shape) * kind.itemsize)).from_address(self.addresses[name])
        return np.ndarray(shape, kind, memoryview(bytes_there))
