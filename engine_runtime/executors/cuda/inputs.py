"""The inputs that change from one decode step to the next, in buffers with fixed addresses.

In: plain numbers of one step. Out: one small copy to the device (and another when the block table grew), to
the addresses that a captured graph reads; with kernels the copy is part of the graph. Engine thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor

from engine_runtime.executors.cuda.sampling_fields import (
    SamplingFloats,
    SamplingIntegers,
    floats_of,
    integers_of,
)
from engine_runtime.lm.step import SamplingMetadata

_INTEGERS = ("token", "position", "trunk_row", *SamplingIntegers._fields)
_FLOATS = SamplingFloats._fields
_FIRST_SAMPLED, _FIRST_FLOAT = _INTEGERS.index(SamplingIntegers._fields[0]), len(_INTEGERS)
_ZERO: Final = _FIRST_FLOAT + len(_FLOATS)
"""Always 0: there is one set of seen ids, and one result."""
_NUM_SLOTS: Final = 16
"""The fields, up to a power of two."""


class StepInputs:
    """Static buffers on `device`: eight-byte slots (integers and float64), and the block table.

    `table` [max_blocks] int32 holds the offset of each block's K for layer 0, as lm/kv_cache.py counts them.
    The order of a step is wait, set_..., send. `take` is a kernel that copies the slots from host memory to
    the device; with it a decode step fetches its slots itself, and only a new table is sent.
    """

    def __init__(
        self, max_blocks: int, device: torch.device, take: Callable[[Tensor, Tensor], None] | None = None
    ) -> None:
        is_cuda = device.type == "cuda"
        self._take, self._is_in_flight = take, False
        self._sent = torch.cuda.Event() if is_cuda else None
        self._host = torch.zeros(_NUM_SLOTS, dtype=torch.int64, pin_memory=is_cuda)
        self._integers = self._host.numpy()
        self._floats = self._integers.view("float64")
        self._device = torch.zeros(_NUM_SLOTS, dtype=torch.int64, device=device)
        self._host_table = torch.zeros(max_blocks, dtype=torch.int32, pin_memory=is_cuda)
        self._offsets = self._host_table.numpy()
        self._block_table: list[int] = []
        """The block table that `_host_table` was written from."""
        self.table = torch.zeros(max_blocks, dtype=torch.int32, device=device)
        names = (*_INTEGERS, *_FLOATS, "seen_set")
        assert len(names) <= _NUM_SLOTS
        floats = self._device.view(torch.float64)
        self._fields = {
            name: (floats if name in _FLOATS else self._device)[slot : slot + 1]
            for slot, name in enumerate(names)
        }
        self._fields["result_row"] = self._fields["seen_set"]
        self.token, self.position = self["token"], self["position"]
        self.trunk_row = self["trunk_row"]

    def __getitem__(self, name: str) -> Tensor:
        """The field on the device. [1] int64 or float64"""
        return self._fields[name]

    def wait(self) -> None:
        """Wait until the last transfer has read the host buffers, so that they may be written again."""
        if self._sent is not None and self._is_in_flight:
            self._sent.synchronize()
            self._is_in_flight = False

    def set_row(self, token: int, position: int, trunk_row: int) -> None:
        """Set the token to run: its merged id, its position, and its index in the kept trunk outputs."""
        self._integers[:_FIRST_SAMPLED] = token, position, trunk_row

    def set_sampling(self, sampling: SamplingMetadata) -> None:
        """Set what the next ids are sampled by."""
        self._integers[_FIRST_SAMPLED:_FIRST_FLOAT] = integers_of(sampling)
        self._floats[_FIRST_FLOAT:_ZERO] = floats_of(sampling)

    def set_table(self, block_table: Sequence[int], stride: int) -> bool:
        """Set the blocks of the sequence, whose offsets are `stride` apart; returns whether they changed."""
        if block_table == self._block_table:
            return False
        self._block_table = list(block_table)
        self._offsets.fill(0)
        self._offsets[: len(block_table)] = self._block_table
        self._offsets *= stride
        return True

    def take(self) -> None:
        """At the beginning of a decode step: fetch its slots, if the kernel for that is set."""
        if self._take is not None:
            self._take(self._host, self._device)

    def send(self, *, with_table: bool, for_step: bool = False) -> None:
        """Copy the values to the device; their readers follow on the same stream. `for_step`: for a decode
        step, which may fetch its slots itself."""
        with_slots = not for_step or self._take is None
        if with_slots:
            self._device.copy_(self._host, non_blocking=True)
        if with_table:
            self.table.copy_(self._host_table, non_blocking=True)
        if with_slots or with_table:
            self.note_use()

    def note_use(self) -> None:
        """Make the next `wait` cover all work enqueued on the stream so far."""
        if self._sent is not None:
            self._sent.record()
            self._is_in_flight = True
