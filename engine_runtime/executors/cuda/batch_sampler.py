"""Sampling of the next ids of several sequences on the device: two launches per channel.

In: logits [capacity, vocab] of both heads and the fields of BatchInputs. Out: `result` [slots, capacity, 5],
numbers as in sampler.py, one row for each sequence in the slot of the step; the ids are those of
DeviceSampler. The host reads them, and `take` passes them to an overlapped step. The sets of seen ids stay
on the device as long as a reply runs. Imported only if Triton is available. Engine thread.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine_runtime.cuda.kernels.sampling import take_fields
from engine_runtime.cuda.transfer import sent
from engine_runtime.executors.cuda.batch_inputs import FLOATS, INTEGERS, PLACE_FIELDS, SLOTS, BatchInputs
from engine_runtime.executors.cuda.sampler import AUDIO, AUDIO_MAGNITUDE
from engine_runtime.executors.cuda.sampling_fields import (
    SamplingFloats,
    SamplingIntegers,
    floats_of,
    integers_of,
)
from engine_runtime.executors.cuda.triton_sampler import SamplingChannel
from engine_runtime.lm.step import ReplySampling, SamplingMetadata

SETS_PER_ROW = 2
"""Sets of seen ids for each row of a step, so that replies which take turns keep theirs."""
_Numbers = TypeVar("_Numbers", SamplingIntegers, SamplingFloats)
UNREAD_INTEGERS, UNREAD_FLOATS = SamplingIntegers(), SamplingFloats()
"""Sampling numbers of tokens that are not sampled, and of padding."""
_RESULTS = 5
TAKEN = {
    "TOKEN": INTEGERS.index("token"),
    "FIRST_PLACE": INTEGERS.index(PLACE_FIELDS[0]),
    "LAST_PLACE": INTEGERS.index(PLACE_FIELDS[-1]),
    "FOLLOWS": INTEGERS.index("follows"),
    "SEEN_AUDIO": INTEGERS.index("seen_audio"),
    "EOSP": INTEGERS.index("eosp"),
    "AUDIO": AUDIO,
    "MAGNITUDE": AUDIO_MAGNITUDE,
}
"""Constants of `take_fields`: indices of fields, and of the numbers of a result."""


def make_result(capacity: int, device: torch.device) -> Tensor:
    """Zeros [slots, capacity, 5], in pinned host memory: the kernels write to it directly."""
    is_cuda = device.type == "cuda"
    return torch.zeros(SLOTS, capacity, _RESULTS, dtype=torch.float64, pin_memory=is_cuda)


def take(host: Tensor, device: Tensor, result: Tensor, text_vocab: int) -> None:
    """Copy the fields of a step, and fill in the rows that follow one in `result`, which no step before this
    one writes any more. The kernel reads pinned host memory directly."""
    num_fields, rows = len(INTEGERS) + len(FLOATS), host.shape[1]
    take_fields[(num_fields,)](host, device, result, text_vocab, ROWS=rows, **TAKEN, num_warps=2)


class BatchSampler:
    def __init__(
        self, text_vocab: int, audio_vocab: int, inputs: BatchInputs, result: Tensor, device: torch.device
    ) -> None:
        self._inputs, self.result = inputs, result
        self._result: NDArray[np.float64] = result.numpy()
        capacity = inputs.capacity
        self._num_sets = SETS_PER_ROW * capacity
        # The last set belongs to rows that are not sampled here.
        self._text, self._audio = (
            SamplingChannel(
                torch.zeros(self._num_sets + 1, vocab, dtype=torch.uint8, device=device),
                capacity,
                is_audio=is_audio,
            )
            for vocab, is_audio in ((text_vocab, False), (audio_vocab, True))
        )
        self._set_of: OrderedDict[ReplySampling, int] = OrderedDict()
        """Sets of seen ids by reply, least recently used first."""

    def set(self, samplings: Sequence[SamplingMetadata | None]) -> None:
        """Write the fields of a step's sequences, in order; None for one that is not sampled here."""
        sets = [self._num_sets if sampling is None else self._set(sampling.reply) for sampling in samplings]
        integers = [UNREAD_INTEGERS if one is None else integers_of(one) for one in samplings]
        floats = [UNREAD_FLOATS if one is None else floats_of(one) for one in samplings]
        self._inputs.set("seen_set", sets, padding=self._num_sets)
        self._set_fields(UNREAD_INTEGERS, integers)
        self._set_fields(UNREAD_FLOATS, floats)

    def forget(self, reply: ReplySampling) -> None:
        """Read the state of a reply again at its next step here: some of its steps run elsewhere."""
        self._set_of.pop(reply, None)

    def run(self, rows: int, text: Tensor | None, audio: Tensor | None) -> None:
        """Fill the first rows of the step's slot of `result` from logits; None for a tail that did not
        run."""
        inputs, result = self._inputs, self.result
        self._text.run(rows, text, inputs, result, do_sample=True, finds_top=True)
        self._audio.run(rows, audio, inputs, result, do_sample=True, finds_top=False)

    def read(self, slot: int) -> NDArray[np.float64]:
        """Wait for the step in this slot and return a copy of its result. [capacity, 5]"""
        self._inputs.wait(slot)
        found: NDArray[np.float64] = self._result[slot].copy()
        return found

    def _set_fields(self, unread: _Numbers, sequences: Sequence[_Numbers]) -> None:
        for name, values, padding in zip(unread._fields, zip(*sequences, strict=True), unread, strict=True):
            self._inputs.set(name, values, padding)

    def _set(self, reply: ReplySampling) -> int:
        """The set of a reply's seen ids, written now if it is not there. There is one more than the sequences
        of a step, so that the least recently used one is of no sequence of this step."""
        if reply in self._set_of:
            self._set_of.move_to_end(reply)
            return self._set_of[reply]
        used = len(self._set_of)
        if used < self._num_sets:
            free = min(set(range(self._num_sets)).difference(self._set_of.values()))
        else:
            _, free = self._set_of.popitem(last=False)
        if reply.params.repetition_penalty != 1.0:  # else whatever is there has no effect
            for channel, seen in ((self._text, reply.seen_text), (self._audio, reply.seen_audio)):
                channel.seen[free].copy_(sent(seen, channel.seen.device))
        self._set_of[reply] = free
        return free
