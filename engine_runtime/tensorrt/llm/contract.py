"""The input contract of a TensorRT-LLM engine: one of two known sets of tensors.

In: the tensor list of an engine. Out: the `Contract` that maps a step (step_tensors.py) to it, or an
EngineError that names every mismatched tensor. A step has the form of the library's 1.x releases (17 inputs).
An engine of 0.13 (15 inputs) has no pool axis in its block tables and pool pointers, no pool mapping and no
context progress. Any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from engine_runtime.errors import EngineError
from engine_runtime.lm.step import ExecutorLimits
from engine_runtime.tensorrt.engine import EngineTensor, Shape
from engine_runtime.tensorrt.llm.step_tensors import (
    CACHE_INDIRECTION,
    StepTensors,
    TensorSpec,
    step_spec,
)

ContractName = Literal["1.x", "0.13"]
BUILD_ANEW = "Rebuild the engine with `moss-voice trt build`."
_ROWS, _SEQUENCES = "input_ids", "host_request_types"
_WINDOW, _BLOCKS = CACHE_INDIRECTION, "kv_cache_block_offsets"


@dataclass(frozen=True, slots=True)
class Contract:
    """Maps the tensors of a step to those of an engine.

    Attributes:
        absent: inputs of a step that such an engine does not have.
        without_pool_axis: inputs whose first axis, the pool, such an engine does not have.
        requires_block_aligned_prefill: a prefill must start at a block boundary. Prefill from within a block
            was added with the reuse of partial blocks, after 0.13.
    """

    name: ContractName
    absent: frozenset[str] = frozenset()
    without_pool_axis: frozenset[str] = frozenset()
    requires_block_aligned_prefill: bool = False

    def inputs(self, limits: ExecutorLimits) -> tuple[TensorSpec, ...]:
        """Every input with its dtype, device and shape in this engine."""
        return tuple(
            TensorSpec(
                spec.name,
                spec.dtype,
                spec.place,
                spec.shape[1:] if spec.name in self.without_pool_axis else spec.shape,
            )
            for spec in step_spec(limits)
            if spec.name not in self.absent
        )

    def adapt(self, tensors: StepTensors) -> dict[str, Tensor]:
        """The tensors of a step as this engine takes them: some omitted, some without their first axis."""
        return {
            name: value[0] if name in self.without_pool_axis else value
            for name, value in tensors.items()
            if name not in self.absent
        }


CONTRACTS = (
    Contract("1.x"),
    Contract(
        "0.13",
        absent=frozenset({"host_kv_cache_pool_mapping", "host_context_progress"}),
        without_pool_axis=frozenset(
            {"kv_cache_block_offsets", "host_kv_cache_block_offsets", "host_kv_cache_pool_pointers"}
        ),
        requires_block_aligned_prefill=True,
    ),
)
_ANY_SIZE = ExecutorLimits(1, 1, 1, 1, 1, 1, 1)


def choose_contract(tensors: Iterable[EngineTensor]) -> Contract:
    """The contract whose inputs match the engine's by name and rank. EngineError if none does."""
    ranks = {tensor.name: len(tensor.shape) for tensor in tensors if tensor.is_input}
    problems = []
    for contract in CONTRACTS:
        wanted = {spec.name: len(spec.shape) for spec in contract.inputs(_ANY_SIZE)}
        if ranks == wanted:
            return contract
        strange = [f"requires {name}" for name in sorted(ranks.keys() - wanted.keys())]
        strange += [f"lacks {name}" for name in sorted(wanted.keys() - ranks.keys())]
        strange += [
            f"takes {name} with {ranks[name]} axes"
            for name in sorted(ranks.keys() & wanted.keys())
            if ranks[name] != wanted[name]
        ]
        problems.append((strange, contract))
    strange, nearest = min(problems, key=lambda problem: len(problem[0]))
    raise EngineError(
        "The engine's {count} inputs are neither those of TensorRT-LLM 1.x nor those of 0.13; unlike "
        "{nearest} it {strange}.",
        "Build it with release 1.2.1 and its GPT attention plugin, a paged KV cache and packed input.",
        count=len(ranks),
        nearest=nearest.name,
        strange=", ".join(strange),
    )


@dataclass(frozen=True, slots=True)
class Capacity:
    """The maximum sizes of an engine, read from its tensors: rows of a call, rows of a sequence, blocks of a
    sequence, sequences of a call."""

    num_tokens: int
    seq_len: int
    max_blocks: int
    batch_size: int


def capacity_of(tensors: Iterable[EngineTensor]) -> Capacity:
    """Read from the ranges of the profiles. The tensors follow one of the contracts."""
    most = {tensor.name: _most(tensor) for tensor in tensors if tensor.is_input}
    return Capacity(most[_ROWS][0], most[_WINDOW][2], most[_BLOCKS][-1], most[_SEQUENCES][0])


def check_tensors(
    tensors: Sequence[EngineTensor], contract: Contract, limits: ExecutorLimits, outputs: Mapping[str, int]
) -> None:
    """Reject an engine to which a step within `limits` cannot be bound, or that has other outputs.

    `outputs` maps each output to its width. The EngineError names every mismatched tensor.
    """
    by_name = {tensor.name: tensor for tensor in tensors}
    problems = []
    for spec in contract.inputs(limits):
        for size in ((1, 1), (limits.max_num_tokens, limits.max_batch_size)):
            if problem := _misfit(by_name[spec.name], spec.dtype, spec.sized(*size)):
                problems.append(problem)
                break
    found = {tensor.name: tensor for tensor in tensors if not tensor.is_input}
    problems += [f"{name}: the engine has no such output" for name in outputs.keys() - found.keys()]
    problems += [f"{name}: unexpected output" for name in found.keys() - outputs.keys()]
    for name in outputs.keys() & found.keys():
        shape = found[name].shape
        if len(shape) != 2 or shape[1] != outputs[name]:
            problems.append(f"{name}: expected [sequences, {outputs[name]}], got {list(shape)}")
        if found[name].dtype not in (torch.float32, torch.float16, torch.bfloat16):
            problems.append(f"{name}: expected floating-point numbers, got {found[name].dtype}")
    if problems:
        raise EngineError(
            "The engine does not fit this bundle: {problems}.",
            BUILD_ANEW,
            problems="; ".join(sorted(problems)),
        )


def profile_for(tensors: Iterable[EngineTensor], rows: int) -> int:
    """The profile for this number of rows: the narrowest that supports it, then the first."""
    (ids,) = (tensor for tensor in tensors if tensor.name == _ROWS)
    fitting = [
        (most[0] - least[0], index)
        for index, (least, _, most) in enumerate(ids.ranges)
        if least[0] <= rows <= most[0]
    ]
    if not fitting:
        raise EngineError("No profile of the engine supports {rows} tokens at once.", BUILD_ANEW, rows=rows)
    return min(fitting)[1]


def _misfit(tensor: EngineTensor, dtype: torch.dtype, shape: Shape) -> str | None:
    """The problem of binding `shape` of `dtype`, or None."""
    if tensor.dtype != dtype:
        return f"{tensor.name}: expected {dtype}, got {tensor.dtype}"
    if any(size not in (-1, wanted) for size, wanted in zip(tensor.shape, shape, strict=True)):
        return f"{tensor.name}: needs shape {list(shape)}, but the engine takes {list(tensor.shape)}"
    if tensor.ranges and not any(_takes(bounds, shape) for bounds in tensor.ranges):
        least, most = tensor.ranges[0][0], _most(tensor)
        return f"{tensor.name}: needs shape {list(shape)}, but the engine takes {list(least)} to {list(most)}"
    return None


def _takes(bounds: tuple[Shape, Shape, Shape], shape: Shape) -> bool:
    least, _, most = bounds
    return all(low <= size <= high for low, size, high in zip(least, shape, most, strict=True))


def _most(tensor: EngineTensor) -> Shape:
    if not tensor.ranges:
        return tensor.shape
    return tuple(max(sizes) for sizes in zip(*(most for _, _, most in tensor.ranges), strict=True))
