"""Validation of the named tensors of a step.

In: the tensors of a step and their declarations by `step_spec`. Out: the lengths of the step, or an
ExecutorError that names the tensor where an engine would reject the step or compute wrong values. Engine
thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import is_

from torch import Tensor

from engine_runtime.errors import ExecutorError
from engine_runtime.executors.trtllm.step_tensors import CONTEXT, GENERATION, StepTensors, TensorSpec
from engine_runtime.lm.step import ExecutorLimits


@dataclass(frozen=True, slots=True)
class StepLengths:
    """Lengths of a checked step: rows in the cache before (`past`) and after (`total`)."""

    past: int
    total: int

    @property
    def num_new(self) -> int:
        """Rows of this call."""
        return self.total - self.past


class StepMemory:
    """Tensors that passed the checks: the same, unmodified tensor is not checked again. For a long sequence
    the block table has hundreds of values, and most steps pass the same one as the step before.
    """

    def __init__(self) -> None:
        self._right: dict[str, tuple[Tensor, int, int]] = {}
        self._last: tuple[tuple[str, ...], tuple[Tensor, ...]] = (), ()

    def check_forms(self, spec: tuple[TensorSpec, ...], tensors: StepTensors) -> None:
        """Reject undeclared tensors, and those that do not match their declaration."""
        names, values = tuple(tensors), tuple(tensors.values())
        if names == self._last[0] and all(map(is_, values, self._last[1])):
            return  # the same tensors as in the last step, with other values
        if len(tensors) > len(spec) or not tensors.keys() <= {entry.name for entry in spec}:
            unknown = sorted(set(tensors) - {entry.name for entry in spec})
            raise ExecutorError(
                f"{unknown[0]}: unknown input; the executor and its caller have different versions"
            )
        for entry in spec:
            _check_form(entry, tensors.get(entry.name))
        self._last = names, values

    def holds(self, name: str, value: Tensor, extent: int) -> bool:
        """Whether the first `extent` values of this tensor passed and it was not modified since."""
        known = self._right.get(name)
        return known is not None and known[0] is value and known[1] == value._version and extent <= known[2]

    def note(self, name: str, value: Tensor, extent: int) -> None:
        """Record that the first `extent` values passed."""
        if not value.is_inference():  # an inference tensor has no version counter
            self._right[name] = (value, value._version, extent)


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
    memory.check_forms(spec, tensors)
    lengths = _read_lengths(tensors, limits)
    _check_rows(tensors, limits, lengths)
    _check_cache(tensors, limits, lengths, memory)
    return lengths


def _check_form(entry: TensorSpec, value: Tensor | None) -> None:
    if value is None:
        raise ExecutorError(f"{entry.name}: address is not set; every input of a step is required")
    if value.dtype != entry.dtype:
        raise ExecutorError(f"{entry.name}: expected {entry.dtype}, got {value.dtype}")
    if value.dim() != len(entry.shape):
        raise ExecutorError(f"{entry.name}: expected rank {len(entry.shape)}, got shape {list(value.shape)}")
    for wanted, got in zip(entry.shape, value.shape, strict=True):
        if got != wanted and (wanted is not None or got < 1):
            raise ExecutorError(f"{entry.name}: expected shape {list(entry.shape)}, got {list(value.shape)}")
    if entry.place == "host" and value.device.type != "cpu":
        raise ExecutorError(f"{entry.name}: must lie in host memory, got {value.device}")


def _read_lengths(tensors: StepTensors, limits: ExecutorLimits) -> StepLengths:
    num_new = tensors["input_ids"].shape[0]
    past_or_total = int(tensors["host_past_key_value_lengths"])
    request_type = int(tensors["host_request_types"])
    if request_type not in (CONTEXT, GENERATION):
        raise ExecutorError(f"host_request_types: expected 0 (context) or 1 (generation), got {request_type}")
    if request_type == GENERATION and num_new != 1:
        raise ExecutorError(f"input_ids: a generation step takes exactly 1 row, got {num_new}")
    if num_new > limits.max_num_tokens:
        raise ExecutorError(f"input_ids: {num_new} rows exceed max_num_tokens {limits.max_num_tokens}")
    # NOTE: in a context step this tensor holds the total including the new rows, in a generation step the
    # past.
    total = past_or_total if request_type == CONTEXT else past_or_total + 1
    past = total - num_new
    if past < 0 or total > limits.max_seq_len:
        raise ExecutorError(
            f"host_past_key_value_lengths: {past_or_total} does not fit {num_new} new rows "
            f"and a sequence of at most {limits.max_seq_len}"
        )
    return StepLengths(past, total)


def _check_rows(tensors: StepTensors, limits: ExecutorLimits, lengths: StepLengths) -> None:
    num_new, total = lengths.num_new, lengths.total
    ids, positions = tensors["input_ids"], tensors["position_ids"]
    if positions.shape[0] != num_new:
        raise ExecutorError(
            f"position_ids: expected {num_new} values as in input_ids, got {positions.shape[0]}"
        )
    if int(tensors["host_request_types"]) == CONTEXT:
        _check_value(tensors, "host_context_lengths", num_new)
    # NOTE: values in device memory are read only where that needs no synchronization with a GPU.
    if ids.device.type != "cpu":
        return
    values = ids.tolist()
    low, high = min(values), max(values)
    if low < 0 or high >= limits.text_vocab + limits.audio_vocab:
        raise ExecutorError(
            f"input_ids: ids {low}..{high} leave the merged vocabulary of "
            f"{limits.text_vocab} + {limits.audio_vocab}"
        )
    values = positions.tolist()
    if values[0] != lengths.past or values[-1] != total - 1:
        raise ExecutorError(f"position_ids: expected {lengths.past}..{total - 1}")
    _check_value(tensors, "last_token_ids", num_new)
    _check_value(tensors, "sequence_length", total)
    _check_value(tensors, "context_lengths", int(tensors["host_context_lengths"]))


def _check_value(tensors: StepTensors, name: str, wanted: int) -> None:
    got = int(tensors[name])
    if got != wanted:
        raise ExecutorError(f"{name}: expected {wanted} for this step, got {got}")


def _check_cache(
    tensors: StepTensors, limits: ExecutorLimits, lengths: StepLengths, memory: StepMemory
) -> None:
    needed = -(-lengths.total // limits.tokens_per_block)
    stride = limits.num_layers * 2
    for name in ("host_kv_cache_block_offsets", "kv_cache_block_offsets"):
        if tensors[name].device.type != "cpu" or memory.holds(name, tensors[name], needed):
            continue
        k_offsets, v_offsets = tensors[name][0, 0, :, :needed].tolist()
        for k_offset, v_offset in zip(k_offsets, v_offsets, strict=True):
            if (
                not 0 <= k_offset < limits.num_blocks * stride
                or k_offset % stride
                or v_offset != k_offset + 1
            ):
                raise ExecutorError(
                    f"{name}: ({k_offset}, {v_offset}) is not a (K, V) offset of {limits.num_blocks} blocks"
                )
        if len(set(k_offsets)) != needed:
            raise ExecutorError(
                f"{name}: a block is listed twice; K/V of different rows would overwrite each other"
            )
        memory.note(name, tensors[name], needed)
    if tensors["host_kv_cache_pool_pointers"].tolist()[0][0] == 0:
        raise ExecutorError("host_kv_cache_pool_pointers: the address of the pool is not set")
    name, mapping = "host_kv_cache_pool_mapping", tensors["host_kv_cache_pool_mapping"]
    if not memory.holds(name, mapping, limits.num_layers):
        if mapping.tolist() != [[0, layer] for layer in range(limits.num_layers)]:
            raise ExecutorError(f"{name}: expected (0, layer) for every layer")
        memory.note(name, mapping, limits.num_layers)
    name, windows = "host_max_attention_window_sizes", tensors["host_max_attention_window_sizes"]
    if not memory.holds(name, windows, lengths.total):
        shortest = min(windows.tolist())
        if shortest < lengths.total:
            raise ExecutorError(f"{name}: a window is shorter than the sequence")
        memory.note(name, windows, shortest)
    if int(tensors["host_sink_token_length"]) != 0:
        raise ExecutorError("host_sink_token_length: sink tokens are not supported, expected 0")
