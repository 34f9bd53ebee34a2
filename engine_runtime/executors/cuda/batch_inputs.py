"""The inputs of a decode step of several sequences, in buffers with fixed addresses.

In: the rows of the scheduled sequences as plain numbers. Out: on the device, one array of `capacity` numbers
for each name in `INTEGERS` and `FLOATS`, and a block table for each sequence, at the addresses that a
captured graph reads. Counterpart for a single row: inputs.py. Engine thread.

A step may be sent while the one before it runs. Fields are set in staging arrays and sent in two slots of
pinned memory in turn; before a slot is written again, the host waits for the end of the step that was sent
in it, the one before last. The host names the slot in both places where it matters: the copy to the device
gets its address, and the field `result_row` says where the step writes its results. So there is no state of
the device that the host must agree with: a captured graph reads the same addresses for either slot, and runs
of it before a capture change nothing. Copies and steps run in the order of the stream, hence fields and
tables on the device are those of the step that runs.

A row may follow one of the step before, whose results the host has not read: the device fills in its ids, or
turns it into padding (`take_fields` in kernels/sampling.py).

A step may be padded: a row at position -1, a group without rows and a sequence with the spare set of seen ids
are computed by no one or read by no one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine_runtime.executors.cuda.sampling_fields import SamplingFloats, SamplingIntegers
from engine_runtime.lm.step import ScheduledSequence

PLACE_FIELDS = ("position", "text_position", "audio_position", "kept_row")
"""For each token: its position in the sequence, -1 for padding and for a tail that does not run there; and
its row in the kept trunk outputs, or -1."""
ROW_FIELDS = ("token", *PLACE_FIELDS, "sequence")
"""All fields of a token: also its merged id, and the index of its sequence."""
GROUP_FIELDS = ("group_row", "group_count", "group_first")
"""For each group of consecutive tokens of a sequence (kernels/batched_attention.py): the first, how many,
and the first new token of the sequence."""
INTEGERS = (
    *ROW_FIELDS,
    *GROUP_FIELDS,
    "last_row",
    "follows",
    "result_row",
    "seen_set",
    *SamplingIntegers._fields,
)
"""Among those of a sequence: the row of the results that it `follows`, or -1; and the one that it writes."""
FLOATS = SamplingFloats._fields
GROUP_ROWS = 4
"""Rows of a group: with four query heads for each K/V head they fill the 16 rows of a matrix instruction."""
SLOTS = 2
"""Steps whose inputs and results are in host memory at a time: one that runs, and the one after it."""
_NUM_FIELDS = 32
"""The fields, up to a power of two."""


class BatchInputs:
    """Static buffers on `device` for up to `capacity` rows (of as many sequences, at most).

    `table` [capacity, max_blocks] int32 holds, for each sequence, the offsets of its K blocks for layer 0.
    `take` copies the fields of a slot to the device; without it no row follows another one.
    """

    def __init__(
        self,
        capacity: int,
        max_blocks: int,
        device: torch.device,
        take: Callable[[Tensor, Tensor], None] | None = None,
    ) -> None:
        is_cuda = device.type == "cuda"
        self.capacity, self._take = capacity, take or _copy
        self._slot = 0
        """The slot of the step that was sent last."""
        self._uses, self._table_use = [_Use(device) for _ in range(SLOTS)], _Use(device)
        self._staged: NDArray[np.int64] = np.zeros((_NUM_FIELDS, capacity), np.int64)
        self._host = torch.zeros(SLOTS, _NUM_FIELDS, capacity, dtype=torch.int64, pin_memory=is_cuda)
        self._pinned: NDArray[np.int64] = self._host.numpy()
        self._slots = list(self._host)
        self._device = torch.zeros(_NUM_FIELDS, capacity, dtype=torch.int64, device=device)
        floats = self._staged.view(np.float64)
        self._fields: dict[str, NDArray[Any]] = {
            name: self._staged[index] for index, name in enumerate(INTEGERS)
        }
        self._fields |= {name: floats[len(INTEGERS) + index] for index, name in enumerate(FLOATS)}
        self._on_device = {name: self._device[index] for index, name in enumerate(INTEGERS)}
        on_device = self._device.view(torch.float64)
        self._on_device |= {name: on_device[len(INTEGERS) + index] for index, name in enumerate(FLOATS)}
        self._offsets: NDArray[np.int32] = np.zeros((capacity, max_blocks), np.int32)
        self._host_table = torch.zeros(capacity, max_blocks, dtype=torch.int32, pin_memory=is_cuda)
        self._pinned_table: NDArray[np.int32] = self._host_table.numpy()
        self._tables: list[list[int]] = [[] for _ in range(capacity)]
        """The block tables that `_offsets` was written from."""
        self._is_new_table = True
        self.table = torch.zeros(capacity, max_blocks, dtype=torch.int32, device=device)

    def __getitem__(self, name: str) -> Tensor:
        """The field on the device. [capacity] int64 or float64"""
        return self._on_device[name]

    def set_rows(self, sequences: Sequence[ScheduledSequence], tokens_per_block: int, stride: int) -> None:
        """Set the rows of these sequences, one sequence after the other; pads the rest. `stride` is the
        distance of two blocks' offsets."""
        rows: list[tuple[int, ...]] = []
        groups: list[tuple[int, int, int]] = []
        last: list[int] = []
        for index, scheduled in enumerate(sequences):
            tails, table = scheduled.tails, scheduled.block_table
            first, count = len(rows), len(scheduled.token_ids)
            keeps = not (tails.text and tails.audio)
            for place, token in enumerate(scheduled.token_ids, scheduled.first_position):
                block, slot = divmod(place, tokens_per_block)
                kept = table[block] * tokens_per_block + slot if keeps else -1
                text, audio = place if tails.text else -1, place if tails.audio else -1
                rows.append((token, place, text, audio, kept, index))
            groups += [(first + at, min(GROUP_ROWS, count - at), first) for at in range(0, count, GROUP_ROWS)]
            last.append(first + count - 1)
            self._set_table(index, table, stride)
        for name, values in zip(ROW_FIELDS, zip(*rows, strict=True), strict=True):
            self.set(name, values, padding=_padding(name))
        for name, values in zip(GROUP_FIELDS, zip(*groups, strict=True), strict=True):
            self.set(name, values)
        self.set("last_row", last)
        self.set("follows", (), padding=-1)

    def pad_all(self) -> None:
        """Set padding rows only: a step that reads and writes no sequence."""
        for name in ROW_FIELDS:
            self.set(name, (), padding=_padding(name))
        for name in (*GROUP_FIELDS, "last_row"):
            self.set(name, ())
        self.set("follows", (), padding=-1)

    def set(self, name: str, values: Iterable[float], padding: float = 0) -> None:
        """Set the first values of a field; the others are `padding`."""
        field, given = self._fields[name], list(values)
        field[: len(given)] = given
        field[len(given) :] = padding

    def follow(self, slot: int, rows: Sequence[int]) -> None:
        """Make the first sequences, of one row each, follow these ones of the step in `slot`, the last one
        that was sent."""
        self.set("follows", [slot * self.capacity + row for row in rows], padding=-1)

    def _set_table(self, index: int, block_table: Sequence[int], stride: int) -> None:
        if self._tables[index] != block_table:
            self._tables[index] = list(block_table)
            # Offsets beyond the last block stay: no row refers to them.
            self._offsets[index, : len(block_table)] = block_table
            self._offsets[index, : len(block_table)] *= stride
            self._is_new_table = True

    def _send_table(self) -> None:
        """Copy the block tables to the device if they changed, after all steps on the stream."""
        if self._is_new_table:
            # There is one table for both slots. It is sent only when it changed, once in tokens_per_block
            # steps, so this wait is rare.
            self._table_use.wait()
            np.copyto(self._pinned_table, self._offsets)
            self._copy_table()
            self._table_use.note()
            self._is_new_table = False

    def _copy_table(self) -> None:
        self.table.copy_(self._host_table, non_blocking=True)

    def send(self) -> int:
        """Copy what was set to the device; the step follows on the same stream. Returns its slot, also that
        of its results. Waits for the end of the step before last, whose results must have been read."""
        self._send_table()
        self._slot = slot = (self._slot + 1) % SLOTS
        # The device may still read this pinned memory: without the wait a running step would get the next
        # one's inputs.
        self._uses[slot].wait()
        first = slot * self.capacity
        self._fields["result_row"][:] = np.arange(first, first + self.capacity)
        np.copyto(self._pinned[slot], self._staged)
        self._take(self._slots[slot], self._device)
        return slot

    def note_use(self) -> None:
        """The step that was sent last ends with the work enqueued on the stream so far."""
        self._uses[self._slot].note()

    def wait(self, slot: int) -> None:
        """Wait for the end of the step in this slot, not for what was enqueued after it."""
        self._uses[slot].wait()


class _Use:
    """The last use of a pinned buffer by the device."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event() if device.type == "cuda" else None
        self._is_pending = False

    def note(self) -> None:
        """The use ends with the work enqueued on the stream so far."""
        if self._event is not None:
            self._event.record()
            self._is_pending = True

    def wait(self) -> None:
        """Wait until it is over, so that the buffer may be written again."""
        if self._event is not None and self._is_pending:
            self._event.synchronize()
            self._is_pending = False


def _copy(host: Tensor, device: Tensor) -> None:
    device.copy_(host, non_blocking=True)


def _padding(name: str) -> int:
    return -1 if name in PLACE_FIELDS else 0
