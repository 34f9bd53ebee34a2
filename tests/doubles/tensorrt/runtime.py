"""Shared by the doubles of TensorRT: the list of tensors of an engine, and the rules of binding them.

codec_engine.py runs engines of the codec on it, llm_engine.py those of the language model. Names, arguments
and return values are those of TensorRT 10; a test compares them with TensorRT for RTX where that is
installed. Like TensorRT it rejects, and logs with a reason: an unknown name, a wrong rank, a size outside the
profile, an address that is not set.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum
from typing import Any

Shape = tuple[int, ...]
DataType = Enum("DataType", "FLOAT HALF BF16 INT32 INT64 FP4")
TensorIOMode = Enum("TensorIOMode", "NONE INPUT OUTPUT")
TensorLocation = Enum("TensorLocation", "DEVICE HOST")
ExecutionContextAllocationStrategy = Enum(
    "ExecutionContextAllocationStrategy", "STATIC ON_PROFILE_CHANGE USER_MANAGED"
)


class ILogger:
    INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = "INTERNAL_ERROR", "ERROR", "WARNING", "INFO", "VERBOSE"


class ListedEngine:
    """The part of `ICudaEngine` that lists its tensors. Each has a `dtype`, and a `shape` with -1 for sizes
    within the profiles (`get_tensor_profile_shape`, which every double has of its own)."""

    def __init__(self, tensors: Mapping[str, Any], outputs: Collection[str], logger: Any) -> None:
        self.tensors, self.outputs, self.logger = tensors, outputs, logger

    @property
    def num_io_tensors(self) -> int:
        return len(self.tensors)

    def get_tensor_name(self, index: int) -> str:
        return list(self.tensors)[index]

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        return TensorIOMode.OUTPUT if name in self.outputs else TensorIOMode.INPUT

    def get_tensor_dtype(self, name: str) -> DataType:
        dtype: DataType = self.tensors[name].dtype
        return dtype

    def get_tensor_shape(self, name: str) -> Shape:
        shape: Shape = self.tensors[name].shape
        return shape

    def get_tensor_location(self, name: str) -> TensorLocation:
        return TensorLocation.DEVICE  # of host inputs too: a plugin reads them, not the library


class BoundContext:
    """The part of `IExecutionContext` that binds. TensorRT answers True or False, and logs why."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.profile = 0
        self.shapes: dict[str, Shape] = {
            name: tensor.shape
            for name, tensor in engine.tensors.items()
            if name not in engine.outputs and -1 not in tensor.shape
        }
        self.addresses: dict[str, int] = {}

    def set_input_shape(self, name: str, shape: Shape) -> bool:
        wanted = self.engine.tensors.get(name)
        if wanted is None or name in self.engine.outputs:
            return self._refuse(f"Given invalid tensor name: {name}")
        if len(shape) != len(wanted.shape):
            return self._refuse(f"{name}: condition: engineDims.nbDims == dims.nbDims")
        least, _, most = self.engine.get_tensor_profile_shape(name, self.profile)
        for size, low, high, fixed in zip(shape, least, most, wanted.shape, strict=True):
            if not low <= size <= high or fixed not in (-1, size):
                return self._refuse(f"{name}: {shape} does not satisfy profile {least} {most}")
        self.shapes[name] = tuple(shape)
        return True

    def set_tensor_address(self, name: str, address: int) -> bool:
        if name not in self.engine.tensors:
            return self._refuse(f"Given invalid tensor name: {name}")
        self.addresses[name] = address
        return True

    def infer_shapes(self) -> list[str]:
        inputs = self.engine.tensors.keys() - self.engine.outputs
        return [name for name in self.engine.tensors if name in inputs and name not in self.shapes]

    def _unset(self) -> str | None:
        """What keeps a step from starting: shapes or addresses that are not set."""
        if missing := self.infer_shapes():
            return f"shapes are not set: {missing}"
        for name in self.engine.tensors:
            if not self.addresses.get(name, 0):
                kind = "output" if name in self.engine.outputs else "input"
                return f"Address is not set for {kind} tensor {name}"
        return None

    def _refuse(self, reason: str) -> bool:
        self.engine.logger.log(ILogger.ERROR, reason)
        return False
