"""A double of the Python module `tensorrt` as the executor of TensorRT-LLM engines calls it.

It binds by the rules of runtime.py. It also rejects undefined behaviour on a GPU: an address of the wrong
kind, of too little memory, or of freed memory; and on a CPU, two sequences of a step that write to one block.
An engine computes gpt_attention.py from the bound addresses only, on the stream passed to it. On a GPU that
can be captured in a CUDA graph, as an engine can.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine_runtime.cuda.graphs import GraphedCalls
from engine_runtime.tensorrt.library import RuntimeLibrary
from tests.doubles.tensorrt.gpt_attention import check_written_blocks, compute, packing_fault
from tests.doubles.tensorrt.memory import KnownMemory, look_at
from tests.doubles.tensorrt.runtime import (
    BoundContext,
    DataType,
    ExecutionContextAllocationStrategy,
    ILogger,
    ListedEngine,
    Shape,
    TensorIOMode,
    TensorLocation,
)
from tests.factories.engine_plans import OF_EACH_SEQUENCE, OUTPUTS, VERSION, Plan

_TORCH = {
    DataType.FLOAT: torch.float32,
    DataType.HALF: torch.float16,
    DataType.BF16: torch.bfloat16,
    DataType.INT32: torch.int32,
    DataType.INT64: torch.int64,
}


class TensorRT:
    """The module. `plans` are the engines that its files can name.

    `capturing` is a list while a graph is captured: launches go there instead of being run. `tamper` changes
    what a launch finds, `refuses` is why none is started, `cycles` is how long a GPU idles in each.
    """

    __version__ = VERSION
    ILogger = ILogger
    TensorIOMode = TensorIOMode
    TensorLocation = TensorLocation
    ExecutionContextAllocationStrategy = ExecutionContextAllocationStrategy

    def __init__(self, memory: KnownMemory) -> None:
        self.memory = memory
        self.plans: dict[str, Plan] = {}
        self.capturing: list[Callable[[], None]] | None = None
        self.tamper: Callable[[dict[str, Tensor], dict[str, Tensor]], None] | None = None
        self.refuses: str | None = None
        self.live_contexts = 0
        self.num_enqueues = 0
        self.cycles = 0

    @property
    def library(self) -> RuntimeLibrary:
        return RuntimeLibrary(self, is_rtx=False)

    def write(self, file: Path, plan: Plan) -> Path:
        """A file that this module can deserialise."""
        self.plans[file.name] = plan
        file.write_bytes(json.dumps({"engine": file.name, "version": plan.version}).encode())
        return file

    def Runtime(self, logger: Any) -> Runtime:
        return Runtime(self, logger)


@dataclass
class Runtime:
    trt: TensorRT
    logger: Any

    def deserialize_cuda_engine(self, content: Any) -> Engine | None:
        try:
            said = json.loads(bytes(content))
        except ValueError:
            self.logger.log(ILogger.ERROR, "Serialization assertion failed: magic tag does not match")
            return None
        if said["version"] != VERSION:
            self.logger.log(ILogger.ERROR, f"expecting library version {said['version']} got {VERSION}")
            return None
        return Engine(self.trt, self.trt.plans[said["engine"]], self.logger)


class Engine(ListedEngine):
    num_layers = 7
    device_memory_size_v2 = 4096

    def __init__(self, trt: TensorRT, plan: Plan, logger: Any) -> None:
        super().__init__(plan.tensors(), OUTPUTS, logger)
        self.trt, self.plan = trt, plan
        self.rows = tuple(plan.rows_of_profiles) or ((1, plan.max_num_tokens),)
        self.num_optimization_profiles = len(self.rows)

    def get_tensor_profile_shape(self, name: str, profile: int) -> list[Shape]:
        tensor = self.tensors[name]
        least, most = tensor.least or tensor.shape, tensor.most or tensor.shape
        if name in ("input_ids", "position_ids"):
            least, most = ((rows,) for rows in self.rows[profile])
        return [least, most, most]

    def create_execution_context(
        self,
        strategy: ExecutionContextAllocationStrategy = ExecutionContextAllocationStrategy.STATIC,
    ) -> Context:
        context = Context(self)
        if strategy is ExecutionContextAllocationStrategy.STATIC:
            context.own = self.trt.memory.on_device(self.device_memory_size_v2)
            context.set_device_memory(context.own.data_ptr(), context.own.numel())
        return context


class Context(BoundContext):
    """An execution context."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.trt = engine.trt
        self.activations = (0, 0)
        self.own: Tensor | None = None
        self.is_captured = False
        self.trt.live_contexts += 1

    def __del__(self) -> None:
        self.trt.live_contexts -= 1

    def set_device_memory(self, memory: int, size: int) -> None:
        self.activations = (memory, size)

    def set_optimization_profile_async(self, profile: int, stream: int) -> bool:
        self.profile = profile
        return profile in range(self.engine.num_optimization_profiles)

    def set_input_shape(self, name: str, shape: Shape) -> bool:
        assert not self.is_captured, "a context was changed after it was captured"
        return super().set_input_shape(name, shape)

    def set_tensor_address(self, name: str, address: int) -> bool:
        assert not self.is_captured, "a context was changed after it was captured"
        return super().set_tensor_address(name, address)

    def infer_shapes(self) -> list[str]:
        missing = super().infer_shapes()
        if missing:
            return missing
        if self.shapes["input_ids"] != self.shapes["position_ids"]:
            raise RuntimeError("num_tokens: dimensions of one name differ")
        tables = [
            self.shapes[name][-3:-2] for name in ("kv_cache_block_offsets", "host_kv_cache_block_offsets")
        ]
        if len({*tables, *(self.shapes[name] for name in OF_EACH_SEQUENCE)}) > 1:
            raise RuntimeError("batch_size_beam_width: dimensions of one name differ")
        return []

    def get_tensor_shape(self, name: str) -> Shape:
        width = self.engine.tensors[name].shape[-1]
        gathers = self.engine.plan.build.gathers_last_row
        return ((self.shapes["last_token_ids"] if gathers else self.shapes["input_ids"])[0], width)

    def execute_async_v3(self, stream: int) -> bool:
        self.trt.num_enqueues += 1
        if self.trt.refuses is not None:
            return self._refuse(self.trt.refuses)
        needed = self.engine.device_memory_size_v2
        if self.activations[1] < needed or self.trt.memory.fault(*self.activations, "device"):
            return self._refuse("no device memory was set for activations")
        if fault := self._unset() or self._fault():
            return self._refuse(fault)
        host = {
            name: self._view(name).clone() for name, tensor in self.engine.tensors.items() if tensor.is_host
        }
        if fault := packing_fault(host, self.shapes["input_ids"][0]):
            return self._refuse(fault)
        if self.trt.capturing is not None:
            self.is_captured = True
            self.trt.capturing.append(lambda: self._launch(host))
            return True
        if self.trt.memory.device.type == "cuda":
            assert stream != 0, "TensorRT would synchronize the device on the default stream"
            with torch.cuda.stream(torch.cuda.ExternalStream(stream)):
                self.is_captured = torch.cuda.is_current_stream_capturing()
                self._launch(host)
        else:
            self._launch(host)
        return True

    def _fault(self) -> str | None:
        for name, tensor in self.engine.tensors.items():
            size = prod(self._shape(name)) * _TORCH[tensor.dtype].itemsize
            fault = self.trt.memory.fault(self.addresses[name], size, "host" if tensor.is_host else "device")
            if fault is not None:
                return f"{name}: the address {fault}"
        return None

    def _launch(self, host: dict[str, Tensor]) -> None:
        fault = self._fault()  # again: a captured launch comes much later
        assert fault is None, fault
        device = {
            name: self._view(name)
            for name, tensor in self.engine.tensors.items()
            if not tensor.is_host and name not in OUTPUTS
        }
        if self.trt.tamper is not None:
            device = {name: value.clone() for name, value in device.items()}
            host = {name: value.clone() for name, value in host.items()}
            self.trt.tamper(device, host)
        if self.trt.memory.device.type == "cpu":
            check_written_blocks(self.engine.plan.build, device, host)
        with torch.inference_mode():
            if self.trt.cycles:
                torch.cuda._sleep(self.trt.cycles)
            computed = compute(self.engine.plan.build, device, host, self._slots(host))
            for name, value in computed.items():
                self._view(name).copy_(value)

    def _slots(self, host: dict[str, Tensor]) -> Tensor:
        """All K and V blocks from where the pool is said to begin to the end of that allocation."""
        build, config = self.engine.plan.build, self.engine.plan.build.model.config
        address = int(host["host_kv_cache_pool_pointers"].view(-1)[0])
        dtype = build.dtype
        block = (config.num_key_value_heads, build.tokens_per_block, config.head_dim)
        count = self.trt.memory.room(address) // (prod(block) * dtype.itemsize)
        return look_at(address, (count, *block), dtype, str(self.trt.memory.device))

    def _shape(self, name: str) -> Shape:
        return self.get_tensor_shape(name) if name in OUTPUTS else self.shapes[name]

    def _view(self, name: str) -> Tensor:
        tensor = self.engine.tensors[name]
        device = "cpu" if tensor.is_host else str(self.trt.memory.device)
        return look_at(self.addresses[name], self._shape(name), _TORCH[tensor.dtype], device)


class CapturedCalls(GraphedCalls):
    """What cuda/graphs.py does on a GPU: the first run of a key is captured, later ones only launch it."""

    def __init__(self, trt: TensorRT) -> None:
        super().__init__("cpu")
        self.is_capturing = True
        self.captured_graphs: dict[Hashable, list[Callable[[], None]]] = {}
        self.num_replays = 0
        self._trt = trt

    def run(
        self,
        key: Hashable,
        function: Callable[..., Any],
        *inputs: Tensor,
        changes: Sequence[Tensor] = (),
        kind: Hashable = None,
    ) -> Any:
        """See GraphedCalls; for functions without tensors and results, as steps of an engine are."""
        if key not in self.captured_graphs:
            function()  # warm-up
            launches: list[Callable[[], None]] = []
            self._trt.capturing = launches
            try:
                function()
            finally:
                self._trt.capturing = None
            self.captured_graphs[key] = launches
        self.num_replays += 1
        for launch in self.captured_graphs[key]:
            launch()
