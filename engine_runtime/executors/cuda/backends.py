"""Makes the decode backends of a CudaExecutor; those in Triton or CUDA C++ only where they can run.

In: network, cache and the buffers of a step. Out: backends. Called once, at load, on the engine thread.
Modules that need Triton are imported inside of the functions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine_runtime.cuda.availability import first_line
from engine_runtime.cuda.graphs import GraphedCalls
from engine_runtime.executors.cuda.decode_backend import DecodeBackend, DecodeOutputs
from engine_runtime.executors.cuda.inputs import StepInputs
from engine_runtime.executors.cuda.persistent_backend import PersistentBackend, unsupported_reason
from engine_runtime.executors.cuda.prefill import RowOperations
from engine_runtime.executors.cuda.weights import Network
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.lm.step import ExecutorLimits

if TYPE_CHECKING:
    from engine_runtime.executors.cuda.batched_steps import BatchedSteps
    from engine_runtime.executors.cuda.triton_linear import ConfigKey, KernelConfig

_log = logging.getLogger(__name__)


def taking() -> Callable[[Tensor, Tensor], None]:
    """The Triton kernel that copies a step's inputs to the device."""
    from engine_runtime.executors.cuda.triton_backend import take_inputs

    return take_inputs


def triton_backend(
    network: Network,
    cache: KVCache,
    inputs: StepInputs,
    outputs: DecodeOutputs,
    kernel_configs: Mapping[ConfigKey, KernelConfig] | None,
) -> tuple[DecodeBackend, RowOperations]:
    """Decode and prefill by Triton kernels."""
    from engine_runtime.executors.cuda.triton_backend import TritonBackend
    from engine_runtime.executors.cuda.triton_prefill import TritonRowOperations

    backend = TritonBackend(network, cache, inputs, outputs, kernel_configs)
    return backend, TritonRowOperations(network, cache, inputs)


def batched_steps(
    network: Network, cache: KVCache, limits: ExecutorLimits, graphs: GraphedCalls
) -> BatchedSteps:
    """Steps of several sequences by Triton kernels."""
    from engine_runtime.executors.cuda.batched_steps import BatchedSteps

    with torch.inference_mode():
        return BatchedSteps(network, cache, limits, graphs)


def persistent_backends(
    network: Network, cache: KVCache, inputs: StepInputs, outputs: DecodeOutputs, other: DecodeBackend
) -> tuple[list[DecodeBackend], str]:
    """The persistent kernel, which samples as `other` does; none, and the reason, if it cannot run."""
    reason = unsupported_reason(network, cache)
    if reason is None:
        try:
            return [PersistentBackend(network, cache, inputs, outputs, other.sampler)], ""
        except (RuntimeError, ImportError, OSError, AttributeError) as error:
            reason = f"it could not be compiled ({first_line(error)})"
    _log.info("Decode steps run as separate kernels, not as the persistent one: %s", reason)
    return [], reason
