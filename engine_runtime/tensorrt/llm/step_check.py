"""Validation of the named tensors of a step.

In: the tensors of a step and their declarations by `step_spec`. Out: the lengths of each sequence, or an
ExecutorError that names the tensor where an engine would reject the step or compute wrong values. Engine
thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import is_

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from engine_runtime.errors import ExecutorError
from engine_runtime.lm.step import ExecutorLimits
from engine_runtime.tensorrt.llm.step_tensors import CONTEXT, GENERATION, StepTensors, TensorSpec


@dataclass(frozen=True, slots=True)
class SequenceLengths:
    """Lengths of one sequence of a checked step: rows in the cache before (`past`) and after (`total`)."""

    past: int
    total: int

    @property
    def num_new(self) -> int:
        """Its rows in this call."""
        return self.total - self.past


StepLengths = tuple[SequenceLengths, ...]
Extents = Sequence[tuple[int, int]]
"""First and end of what is used of each entry of a tensor."""


class StepMemory:
    """Tensors that passed the checks: the same, unmodified tensor is not checked again. For a long sequence
    the block table has hundreds of values, and most steps pass the same one as the step before.
    """

    def __init__(self) -> None:
        self._right: dict[str, tuple[Tensor, int, Extents]] = {}
        self._last: tuple[tuple[str, ...], tuple[Tensor, ...]] = (), ()

    def check_forms(self, spec: tuple[TensorSpec, ...], tensors: StepTensors, sequences: int) -> None:
        """Reject undeclared tensors, and those that do not match their declaration."""
        names, values = tuple(tensors), tuple(tensors.values())
        if names == self._last[0] and all(map(is_, values, self._last[1])):
            return  # the same tensors as in the last step, with other values
        if len(tensors) > len(spec) or not tensors.keys() <= {entry.name for entry in spec}:
            unknown = sorted(set(tensors) - {entry.name for entry in spec})
            raise ExecutorError(
                "{unknown}: unknown input; the executor and its caller have different versions",
                unknown=unknown[0],
            )
        for entry in spec:
            _check_form(entry, tensors.get(entry.name), sequences)
        self._last = names, values

    def holds(self, name: str, value: Tensor, extents: Extents) -> bool:
        """Whether these extents of this tensor passed and it was not modified since."""
        known = self._right.get(name)
        return (
            known is not None
            and known[0] is value
            and known[1] == value._version
            and all(
                now[0] >= then[0] and now[1] <= then[1] for now, then in zip(extents, known[2], strict=True)
            )
        )

    def note(self, name: str, value: Tensor, extents: Extents) -> None:
        """Record that these extents passed."""
        if not value.is_inference():  # an inference tensor has no version counter
            self._right[name] = (value, value._version, extents)


def check_step(
    spec: tuple[TensorSpec, ...],
    limits: ExecutorLimits,
    tensors: StepTensors,
    memory: StepMemory | None = None,
) -> StepLengths:
    """Reject a step whose tensors do not match their declarations; the ExecutorError names the tensor.

    With a `memory`, tensors unchanged since the last step are not checked again.
    """
    memory = memory or StepMemory()
    types = tensors.get("host_request_types")
    sequences = 1 if types is None or types.dim() != 1 else len(types)
    if not 1 <= sequences <= limits.max_batch_size:
        raise ExecutorError(
            "host_request_types: expected 1 to {max_batch_size} sequences, got {sequences}",
            max_batch_size=limits.max_batch_size,
            sequences=sequences,
        )
    memory.check_forms(spec, tensors, sequences)
    lengths = _read_lengths(tensors, limits)
    _check_rows(tensors, limits, lengths)
    _check_cache(tensors, limits, lengths, memory)
    return lengths


def _check_form(entry: TensorSpec, value: Tensor | None, sequences: int) -> None:
    if value is None:
        raise ExecutorError(
            "{entry}: address is not set; every input of a step is required", entry=entry.name
        )
    if value.dtype != entry.dtype:
        raise ExecutorError(
            "{entry}: expected {dtype}, got {value_dtype}",
            entry=entry.name,
            dtype=entry.dtype,
            value_dtype=value.dtype,
        )
    if value.dim() != len(entry.shape):
        raise ExecutorError(
            "{entry}: expected rank {count}, got shape {shape}",
            entry=entry.name,
            count=len(entry.shape),
            shape=list(value.shape),
        )
    rows = max(value.shape[0], 1) if "rows" in entry.shape else 1
    if tuple(value.shape) != entry.sized(rows, sequences):
        sizes = zip(entry.shape, entry.sized(0, sequences), strict=True)
        wanted = [size if size == "rows" else count for size, count in sizes]
        raise ExecutorError(
            "{entry}: expected shape {wanted}, got {shape}",
            entry=entry.name,
            wanted=wanted,
            shape=list(value.shape),
        )
    if entry.place == "host" and value.device.type != "cpu":
        raise ExecutorError(
            "{entry}: must lie in host memory, got {device}", entry=entry.name, device=value.device
        )


def _read_lengths(tensors: StepTensors, limits: ExecutorLimits) -> StepLengths:
    rows = tensors["input_ids"].shape[0]
    types, context_lengths = tensors["host_request_types"].tolist(), tensors["host_context_lengths"].tolist()
    if not set(types) <= {CONTEXT, GENERATION}:
        raise ExecutorError(
            "host_request_types: expected 0 (context) or 1 (generation), got {types}", types=types
        )
    if types != sorted(types):
        raise ExecutorError(
            "host_request_types: context requests must come before generation requests in a step"
        )
    if rows > limits.max_num_tokens:
        raise ExecutorError(
            "input_ids: {rows} tokens exceed max_num_tokens {max_num_tokens}",
            rows=rows,
            max_num_tokens=limits.max_num_tokens,
        )
    new = [n if kind == CONTEXT else 1 for kind, n in zip(types, context_lengths, strict=True)]
    if sum(new) != rows or min(new) < 1:
        if CONTEXT in types:
            raise ExecutorError(
                "host_context_lengths: the sequences have {new} new tokens, but input_ids has {rows}",
                new=new,
                rows=rows,
            )
        raise ExecutorError(
            "input_ids: a generation step takes exactly 1 token per sequence, got {rows}", rows=rows
        )
    return tuple(
        _lengths_of(kind, n, past_or_total, limits)
        for kind, n, past_or_total in zip(
            types, new, tensors["host_past_key_value_lengths"].tolist(), strict=True
        )
    )


def _lengths_of(
    request_type: int, num_new: int, past_or_total: int, limits: ExecutorLimits
) -> SequenceLengths:
    # NOTE: of a context request the tensor holds the total including the new rows, of a generation request
    # the past.
    total = past_or_total if request_type == CONTEXT else past_or_total + 1
    past = total - num_new
    if past < 0 or total > limits.max_seq_len:
        raise ExecutorError(
            "host_past_key_value_lengths: {past_or_total} does not fit {num_new} new tokens and "
            "a sequence of at most {max_seq_len}",
            past_or_total=past_or_total,
            num_new=num_new,
            max_seq_len=limits.max_seq_len,
        )
    return SequenceLengths(past, total)


def _check_rows(tensors: StepTensors, limits: ExecutorLimits, lengths: StepLengths) -> None:
    num_new = sum(one.num_new for one in lengths)
    ids, positions = tensors["input_ids"], tensors["position_ids"]
    if positions.shape[0] != num_new:
        raise ExecutorError(
            "position_ids: expected {num_new} values as in input_ids, got {shape}",
            num_new=num_new,
            shape=positions.shape[0],
        )
    # NOTE: values in device memory are read only where that needs no synchronization with a GPU.
    if ids.device.type != "cpu":
        return
    values = ids.tolist()
    low, high = min(values), max(values)
    if low < 0 or high >= limits.text_vocab + limits.audio_vocab:
        raise ExecutorError(
            "input_ids: ids {low}..{high} leave the merged vocabulary of {text_vocab} + {audio_vocab}",
            low=low,
            high=high,
            text_vocab=limits.text_vocab,
            audio_vocab=limits.audio_vocab,
        )
    ends = list(accumulate(one.num_new for one in lengths))
    values = positions.tolist()
    for end, one in zip(ends, lengths, strict=True):
        if values[end - one.num_new] != one.past or values[end - 1] != one.total - 1:
            raise ExecutorError(
                "position_ids: expected {past}..{total} for tokens {first}..{last}",
                past=one.past,
                total=one.total - 1,
                first=end - one.num_new,
                last=end - 1,
            )
    _check_values(tensors, "last_token_ids", ends)
    _check_values(tensors, "sequence_length", [one.total for one in lengths])
    _check_values(tensors, "context_lengths", tensors["host_context_lengths"].tolist())


def _check_values(tensors: StepTensors, name: str, wanted: list[int]) -> None:
    got = tensors[name].tolist()
    if got != wanted:
        raise ExecutorError(
            "{name}: expected {wanted} for this step, got {got}", name=name, wanted=wanted, got=got
        )


def _check_cache(
    tensors: StepTensors, limits: ExecutorLimits, lengths: StepLengths, memory: StepMemory
) -> None:
    size = limits.tokens_per_block
    extents = [(one.past // size, -(-one.total // size)) for one in lengths]
    for name in ("host_kv_cache_block_offsets", "kv_cache_block_offsets"):
        if tensors[name].device.type == "cpu" and not memory.holds(name, tensors[name], extents):
            _check_offsets(name, tensors[name], limits, extents)
            memory.note(name, tensors[name], extents)
    if tensors["host_kv_cache_pool_pointers"].tolist()[0][0] == 0:
        raise ExecutorError("host_kv_cache_pool_pointers: the address of the pool is not set")
    name, mapping = "host_kv_cache_pool_mapping", tensors["host_kv_cache_pool_mapping"]
    if not memory.holds(name, mapping, ()):
        if mapping.tolist() != [[0, layer] for layer in range(limits.num_layers)]:
            raise ExecutorError("{name}: expected (0, layer) for every layer", name=name)
        memory.note(name, mapping, ())
    name, windows = "host_max_attention_window_sizes", tensors["host_max_attention_window_sizes"]
    longest = max(one.total for one in lengths)
    if not memory.holds(name, windows, [(0, longest)]):
        shortest = min(windows.tolist())
        if shortest < longest:
            raise ExecutorError("{name}: a window is shorter than the sequence", name=name)
        memory.note(name, windows, [(0, shortest)])
    if int(tensors["host_sink_token_length"]) != 0:
        raise ExecutorError("host_sink_token_length: sink tokens are not supported, expected 0")


def _check_offsets(name: str, offsets: Tensor, limits: ExecutorLimits, extents: Extents) -> None:
    """Reject entries that are no (K, V) offsets of a block, a block that a sequence lists twice, and one that
    a sequence writes and another one uses."""
    stride = limits.num_layers * 2
    uses = np.zeros(limits.num_blocks, dtype=np.int64)
    written: list[NDArray[np.int32]] = []
    for table, (first_written, end) in zip(offsets[0].numpy(), extents, strict=True):
        k_offsets, v_offsets = table[:, :end]
        is_right = (k_offsets >= 0) & (k_offsets < limits.num_blocks * stride) & (k_offsets % stride == 0)
        is_right &= v_offsets == k_offsets + 1
        if not is_right.all():
            wrong = table[:, int(np.argmin(is_right))].tolist()
            raise ExecutorError(
                "{name}: {wrong} is not a (K, V) offset of {num_blocks} blocks",
                name=name,
                wrong=tuple(wrong),
                num_blocks=limits.num_blocks,
            )
        blocks = k_offsets // stride
        if len(np.unique(blocks)) != end:
            raise ExecutorError(
                "{name}: a block is listed twice; K/V of different tokens would overwrite each other",
                name=name,
            )
        uses[blocks] += 1
        written.append(blocks[first_written:])
    if (uses[np.concatenate(written)] > 1).any():
        raise ExecutorError("{name}: a sequence would write to a block of another one", name=name)
