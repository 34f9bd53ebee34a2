"""Runs the sequences of a step together: plans forwards of at most `capacity` rows, and reads their results.

In: ScheduledSequences whose skipped tails were filled. Out: a StepOutput each. Decode rows share a forward,
and so do short prefills beside them; each forward is captured as a CUDA graph for the next larger power of
two of its rows. Imported only if Triton is available. Engine thread.

Look-ahead: if every sequence of a step may go on (`ScheduledSequence.ahead`), the following step is launched
before the host waits for the ids of the present one, so that the device always has the next graph in its
queue. Its ids are filled in on the device, from the results of the present step (batch_inputs.py). Its own
results are taken if it is what is asked for next (step_ahead.py), and otherwise dropped. At most one step is
launched beyond the one whose results are waited for: inputs and results have two slots.

A dropped step still runs. It writes K/V and kept trunk outputs of the next row of each sequence, to a block
that was reserved and is in no prefix cache, and marks ids as seen that the next step of each reply marks as
well. Copies of blocks and of sets of seen ids, and the steps of any sequence that gets such a block, follow
on the same stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import product

import torch

from engine_runtime.cuda.gpu_memory import batch_rows
from engine_runtime.cuda.graphs import GraphedCalls, padded_size
from engine_runtime.errors import ExecutorError
from engine_runtime.executors.cuda.batch_inputs import BatchInputs
from engine_runtime.executors.cuda.batch_sampler import BatchSampler, make_result, take
from engine_runtime.executors.cuda.batched_backend import BatchedBackend, BatchShape
from engine_runtime.executors.cuda.decode_backend import StepShape, bucket_of
from engine_runtime.executors.cuda.sampler import sampled_output
from engine_runtime.executors.cuda.step_ahead import StepAhead
from engine_runtime.executors.cuda.weights import Network
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.lm.step import (
    MAX_JOINT_TOKENS,
    ExecutorLimits,
    ReplySampling,
    ScheduledSequence,
    StepOutput,
    logits_output,
)


def plan_forwards(sequences: Sequence[ScheduledSequence], capacity: int) -> list[list[int]]:
    """Indices of the sequences of each forward, decode rows first; a forward of one sequence runs alone."""
    short = [i for i, scheduled in enumerate(sequences) if len(scheduled.token_ids) <= MAX_JOINT_TOKENS]
    forwards: list[list[int]] = []
    room = 0
    for index in sorted(short, key=lambda index: len(sequences[index].token_ids)):
        rows = len(sequences[index].token_ids)
        if rows > room:
            forwards.append([])
            room = capacity
        forwards[-1].append(index)
        room -= rows
    forwards += [[i] for i, scheduled in enumerate(sequences) if len(scheduled.token_ids) > MAX_JOINT_TOKENS]
    return forwards


class BatchedSteps:
    """`graphs` captures the forwards."""

    def __init__(
        self, network: Network, cache: KVCache, limits: ExecutorLimits, graphs: GraphedCalls
    ) -> None:
        config, device = network.config, cache.pool.device
        self._limits, self._graphs, self._device = limits, graphs, device
        self._block_stride = cache.block_stride
        self.capacity = batch_rows(limits.max_batch_size)
        result = make_result(self.capacity, device)
        copy = partial(take, result=result, text_vocab=config.text_vocab)
        self._inputs = BatchInputs(self.capacity, limits.max_blocks, device, copy)
        self.backend = BatchedBackend(network, cache, self._inputs, limits.max_seq_len)
        self._samples_both = False
        """Whether forwards with both tails sample in any case."""
        self._sampler = BatchSampler(config.text_vocab, config.audio_vocab, self._inputs, result, device)
        self._text_vocab = config.text_vocab
        self._ahead: StepAhead | None = None
        """The step in flight whose results were not taken yet."""

    def plan(self, sequences: Sequence[ScheduledSequence]) -> list[list[int]]:
        """The forwards of a step: see `plan_forwards`."""
        return plan_forwards(sequences, self.capacity)

    def is_in_flight(self, reply: ReplySampling) -> bool:
        return self._ahead is not None and reply in self._ahead

    def take(self, sequences: Sequence[ScheduledSequence]) -> list[StepOutput] | None:
        """The outputs of these sequences if their step is in flight. Otherwise None, and that step is
        dropped: nobody waits for it or reads its results."""
        # Taken or dropped, it is not in flight any more: results are read at most once, since its slot is
        # used again by the step after the next.
        step, self._ahead = self._ahead, None
        places = None if step is None else step.places(sequences)
        if step is None or places is None:
            return None
        return self._results(sequences, step.slot, places, looks_ahead=True)

    def run(self, sequences: Sequence[ScheduledSequence], *, looks_ahead: bool) -> list[StepOutput]:
        """One forward; a StepOutput for each sequence. `looks_ahead`: whether it is all of the step, so that
        the one that follows may be overlapped with it."""
        self._ahead = None
        shape = self._shape_of(sequences)
        self._set(sequences, shape)
        slot = self._launch(shape)
        return self._results(sequences, slot, list(range(len(sequences))), looks_ahead=looks_ahead)

    def _shape_of(self, sequences: Sequence[ScheduledSequence]) -> BatchShape:
        text = any(scheduled.tails.text for scheduled in sequences)
        audio = any(scheduled.tails.audio for scheduled in sequences)
        is_sampled = any(scheduled.sampling is not None for scheduled in sequences)
        return BatchShape(
            rows=padded_size(sum(len(scheduled.token_ids) for scheduled in sequences)),
            bucket=bucket_of(max(scheduled.num_tokens for scheduled in sequences), self._limits.max_seq_len),
            text=text,
            audio=audio,
            # Rows of listeners run both tails, alone or beside decode steps: the same capture serves.
            samples=is_sampled or (text and audio and self._samples_both),
        )

    def _set(self, sequences: Sequence[ScheduledSequence], shape: BatchShape) -> None:
        """Set the inputs of a step, also while another one runs."""
        self._inputs.set_rows(sequences, self._limits.tokens_per_block, self._block_stride)
        if shape.samples:
            self._sampler.set([scheduled.sampling for scheduled in sequences])

    def _launch(self, shape: BatchShape) -> int:
        """Launch the step that was set. Returns its slot."""
        slot = self._inputs.send()
        try:
            self._run(shape)
        finally:
            self._inputs.note_use()
        return slot

    def _launch_ahead(
        self, sequences: Sequence[ScheduledSequence], slot: int, places: list[int]
    ) -> StepAhead | None:
        """Launch the step that follows the one in this slot, where these sequences have these places, if all
        of them may go on."""
        step = StepAhead.after(sequences, self._text_vocab, self._limits.tokens_per_block)
        if step is not None:
            shape = self._shape_of(step.sequences)
            self._set(step.sequences, shape)
            self._inputs.follow(slot, places)
            step.slot = self._launch(shape)
        return step

    def _results(
        self, sequences: Sequence[ScheduledSequence], slot: int, places: list[int], *, looks_ahead: bool
    ) -> list[StepOutput]:
        """The outputs of the step in this slot, where these sequences have these places. Before the host
        waits for them, the following step is launched."""
        if all(scheduled.sampling is None for scheduled in sequences):
            return [
                self._logits(index, scheduled) for index, scheduled in zip(places, sequences, strict=True)
            ]
        # Before the ids are read: the device must have the next graph in its queue while the host waits. The
        # other order costs the whole host time of a step.
        ahead = self._launch_ahead(sequences, slot, places) if looks_ahead else None
        found = self._sampler.read(slot)[places]
        rows = zip(places, sequences, found.tolist(), strict=True)
        try:
            outputs = [
                self._logits(index, one)
                if one.sampling is None
                else sampled_output(ids, one.tails, wants_subtitle=one.sampling.wants_subtitle)
                for index, one, ids in rows
            ]
        except ExecutorError:
            self._drop(ahead)
            raise
        if ahead is not None:
            ahead.begin(found)
            self._ahead = ahead
        return outputs

    def _drop(self, step: StepAhead | None) -> None:
        """Drop a step that follows refused results: the ids that it marks as seen are of no reply."""
        for scheduled in () if step is None else step.sequences:
            assert scheduled.sampling is not None
            self._sampler.forget(scheduled.sampling.reply)

    def capture(self, shapes: Iterable[StepShape], buckets: Iterable[int]) -> None:
        """Capture the forwards of decode steps of these shapes, alone and beside rows of listeners, in every
        size and these length buckets."""
        self._ahead = None
        self._inputs.pad_all()
        self._sampler.set([None])
        self._inputs.send()
        shapes = list(shapes)
        self._samples_both = any(shape.samples for shape in shapes)
        tails = {(shape.text, shape.audio, shape.samples) for shape in shapes}
        tails.add((True, True, self._samples_both))
        sizes, size = [], 2
        while size // 2 < min(self.capacity, self._limits.max_batch_size):
            sizes.append(size)
            size *= 2
        wanted = {
            BatchShape(size, bucket, text, audio, samples)
            for (text, audio, samples), size, bucket in product(tails, sizes, buckets)
        }
        # Largest first: the graphs share a memory pool, and smaller ones fit into what larger ones have
        # allocated.
        for one in sorted(wanted, key=lambda shape: (-shape.rows, shape.bucket)):
            self._run(one)
        self._inputs.note_use()

    def forget(self, reply: ReplySampling) -> None:
        """A step of this reply runs elsewhere."""
        self._sampler.forget(reply)

    def close(self) -> None:
        """Drop an overlapped step, and wait until it has ended: then graphs and buffers may be freed."""
        self._ahead = None
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    def _run(self, shape: BatchShape) -> None:
        def forward() -> None:
            self.backend.forward(shape)
            if shape.samples:
                self._sampler.run(
                    shape.rows,
                    self.backend.text_logits if shape.text else None,
                    self.backend.audio_logits if shape.audio else None,
                )

        self._graphs.run(shape, forward)

    def _logits(self, index: int, scheduled: ScheduledSequence) -> StepOutput:
        """Copies of a sequence's logits in host memory, if they are wanted."""
        if not scheduled.wants_output:
            return StepOutput(None, None)
        tails, backend = scheduled.tails, self.backend
        text = backend.text_logits[index].to("cpu", copy=True) if tails.text else None
        audio = backend.audio_logits[index].to("cpu", copy=True) if tails.audio else None
        return logits_output(text, audio, self._limits)
