"""Sampling of the next ids of several sequences on the device: two launches per channel.

In: logits [capacity, vocab] of both heads and the fields of BatchInputs. Out: `result` [slots, capacity, 5],
numbers as in sampler.py, one row for each sequence in the slot of the step; the ids are those of
DeviceSampler. The host reads them, and `take` passes them to an overlapped step. The sets of seen ids stay
on the device as long as a reply runs. Imported only if Triton is available. Engine thread.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import torch
import triton
from numpy.typing import NDArray
from torch import Tensor

from engine_runtime.cuda.kernels.sampling import best_of_tile, sample_one, take_fields
from engine_runtime.cuda.transfer import sent
from engine_runtime.executors.cuda.batch_inputs import FLOATS, INTEGERS, PLACE_FIELDS, SLOTS, BatchInputs
from engine_runtime.executors.cuda.sampler import AUDIO, AUDIO_MAGNITUDE, SUBTITLE, TEXT, TEXT_MAGNITUDE
from engine_runtime.executors.cuda.triton_sampler import VOCAB_TILE
from engine_runtime.lm.sampling_metadata import MAX_TOP_K, ReplySampling, SamplingMetadata

SETS_PER_ROW = 2
"""Sets of seen ids for each row of a step, so that replies which take turns keep theirs."""
_GREEDY_TOP_P = 1e-9
"""With it, one candidate is left: the first of the highest ones, as argmax returns it."""
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


class _Channel:
    """Seen ids of every set, and the buffers between the two launches."""

    def __init__(self, vocab: int, capacity: int, sets: int, device: torch.device) -> None:
        self.num_tiles = count = triton.cdiv(vocab, VOCAB_TILE)
        self.seen = torch.zeros(sets, vocab, dtype=torch.uint8, device=device)
        self.best = torch.full((capacity, count, MAX_TOP_K), -torch.inf, device=device)
        self.best_ids = torch.zeros(capacity, count, MAX_TOP_K, dtype=torch.int32, device=device)
        self.tops, self.sums = torch.zeros(2, capacity, count, device=device)
        self.top_ids = torch.zeros(capacity, count, dtype=torch.int32, device=device)
        self.one = torch.ones((), dtype=torch.uint8, device=device)


class BatchSampler:
    def __init__(
        self, text_vocab: int, audio_vocab: int, inputs: BatchInputs, result: Tensor, device: torch.device
    ) -> None:
        self._inputs, self.result = inputs, result
        self._result: NDArray[np.float64] = result.numpy()
        capacity = inputs.capacity
        self._num_sets = SETS_PER_ROW * capacity
        # The last set belongs to rows that are not sampled here.
        self._text = _Channel(text_vocab, capacity, self._num_sets + 1, device)
        self._audio = _Channel(audio_vocab, capacity, self._num_sets + 1, device)
        self._set_of: OrderedDict[ReplySampling, int] = OrderedDict()
        """Sets of seen ids by reply, least recently used first."""
        self._last = torch.zeros(capacity, MAX_TOP_K, device=device)
        self._last_ids = torch.zeros(capacity, MAX_TOP_K, dtype=torch.int32, device=device)

    def set(self, samplings: Sequence[SamplingMetadata | None]) -> None:
        """Write the fields of a step's sequences, in order; None for one that is not sampled here."""
        # Of rows that are not sampled, and of padding: no id is banned, so that probabilities are finite.
        unread = (self._num_sets, 0, 0, False, self._audio.seen.shape[1], 0, 1)
        unread_floats = (0.0, 0.0, 1.0, _GREEDY_TOP_P, 1.0)
        integers: list[tuple[int, ...]] = []
        floats: list[tuple[float, ...]] = []
        for sampling in samplings:
            if sampling is None:
                integers.append(unread)
                floats.append(unread_floats)
                continue
            reply, params = sampling.reply, sampling.reply.params
            samples = params.do_sample
            integers.append(
                (
                    self._set(reply),
                    sampling.last_text,
                    sampling.last_audio,
                    sampling.bans_eosp,
                    reply.audio_banned_from,
                    reply.eosp,
                    params.top_k if samples else 1,
                )
            )
            floats.append(
                (
                    sampling.draw_text,
                    sampling.draw_audio,
                    params.temperature if samples else 1.0,
                    params.top_p if samples else _GREEDY_TOP_P,
                    params.repetition_penalty,
                )
            )
        names = ("seen_set", "seen_text", "seen_audio", "bans_eosp", "banned_from", "eosp", "top_k")
        for name, numbers, padding in zip(names, zip(*integers, strict=True), unread, strict=True):
            self._inputs.set(name, numbers, padding)
        for name, values, value in zip(FLOATS, zip(*floats, strict=True), unread_floats, strict=True):
            self._inputs.set(name, values, value)

    def forget(self, reply: ReplySampling) -> None:
        """Read the state of a reply again at its next step here: some of its steps run elsewhere."""
        self._set_of.pop(reply, None)

    def run(self, rows: int, text: Tensor | None, audio: Tensor | None) -> None:
        """Fill the first rows of the step's slot of `result` from logits; None for a tail that did not
        run."""
        inputs = self._inputs
        self._run(rows, self._text, text, inputs["seen_text"], inputs["draw_text"], is_audio=False)
        self._run(rows, self._audio, audio, inputs["seen_audio"], inputs["draw_audio"], is_audio=True)

    def read(self, slot: int) -> NDArray[np.float64]:
        """Wait for the step in this slot and return a copy of its result. [capacity, 5]"""
        self._inputs.wait(slot)
        found: NDArray[np.float64] = self._result[slot].copy()
        return found

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

    def _run(
        self,
        rows: int,
        channel: _Channel,
        logits: Tensor | None,
        seen_ids: Tensor,
        draws: Tensor,
        *,
        is_audio: bool,
    ) -> None:
        inputs = self._inputs
        if logits is None:
            channel.seen.index_put_((inputs["seen_set"][:rows], seen_ids[:rows]), channel.one)
            return
        between = (channel.best, channel.best_ids, channel.tops, channel.top_ids, channel.sums)
        best_of_tile[(channel.num_tiles, rows)](
            logits,
            channel.seen,
            inputs["seen_set"],
            seen_ids,
            inputs["banned_from"],
            inputs["eosp"],
            inputs["bans_eosp"],
            inputs["penalty"],
            *between,
            VOCAB=logits.shape[1],
            VOCAB_TILE=VOCAB_TILE,
            IS_AUDIO=is_audio,
            DO_SAMPLE=True,
            num_warps=8,
        )
        sample_one[(rows,)](
            *between,
            self._last,
            self._last_ids,
            inputs["top_k"],
            inputs["top_p"],
            inputs["temperature"],
            draws,
            inputs["result_row"],
            self.result,
            ID=AUDIO if is_audio else TEXT,
            TOP=-1 if is_audio else SUBTITLE,
            MAGNITUDE=AUDIO_MAGNITUDE if is_audio else TEXT_MAGNITUDE,
            NUM_TILES=channel.num_tiles,
            TILES_BLOCK=max(2, triton.next_power_of_2(channel.num_tiles)),
            DO_SAMPLE=True,
            num_warps=8,
        )
