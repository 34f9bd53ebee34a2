"""Runs the sequences of a step together: plans forwards of at most `capacity` rows, and reads their results.

In: ScheduledSequences whose skipped tails were filled. Out: a StepOutput each. Decode rows share a forward,
and so do short prefills beside them; each forward is captured as a CUDA graph for the next larger power of
two of its rows. Imported only if Triton is available. Engine thread.

Look-ahead: if every sequence of a step may go on (`ScheduledSequence.ahead`), the inputs of the following
step are prepared while the device runs, and it is launched as soon as the ids of the present one are read.
Its results are taken if it is what is asked for next (step_ahead.py), and otherwise dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product

from torch import Tensor

from engine_runtime.cuda.gpu_memory import batch_rows
from engine_runtime.cuda.graphs import GraphedCalls, padded_size
from engine_runtime.cuda.kernels.prefill_elementwise import take_slots
from engine_runtime.executors.cuda.batch_inputs import BatchInputs
from engine_runtime.executors.cuda.batch_sampler import BatchSampler
from engine_runtime.executors.cuda.batched_backend import BatchedBackend, BatchShape
from engine_runtime.executors.cuda.decode_backend import StepShape, bucket_of
from engine_runtime.executors.cuda.sampler import AUDIO, AUDIO_MAGNITUDE, SUBTITLE, TEXT, TEXT_MAGNITUDE
from engine_runtime.executors.cuda.step_ahead import StepAhead
from engine_runtime.executors.cuda.weights import Network
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.lm.sampling_metadata import ReplySampling, SampledIds
from engine_runtime.lm.step import (
    MAX_JOINT_ROWS,
    ExecutorLimits,
    ScheduledSequence,
    StepOutput,
    check_logits,
    check_magnitude,
)


def plan_forwards(sequences: Sequence[ScheduledSequence], capacity: int) -> list[list[int]]:
    """Indices of the sequences of each forward, decode rows first; a forward of one sequence runs alone."""
    short = [i for i, scheduled in enumerate(sequences) if len(scheduled.token_ids) <= MAX_JOINT_ROWS]
    forwards: list[list[int]] = []
    room = 0
    for index in sorted(short, key=lambda index: len(sequences[index].token_ids)):
        rows = len(sequences[index].token_ids)
        if rows > room:
            forwards.append([])
            room = capacity
        forwards[-1].append(index)
        room -= rows
    forwards += [[i] for i, scheduled in enumerate(sequences) if len(scheduled.token_ids) > MAX_JOINT_ROWS]
    return forwards


class BatchedSteps:
    """See the module. `graphs` captures the forwards."""

    def __init__(
        self, network: Network, cache: KVCache, limits: ExecutorLimits, graphs: GraphedCalls
    ) -> None:
        device = cache.pool.device
        self._limits, self._graphs, self._block_stride = limits, graphs, cache.block_stride
        self.capacity = batch_rows(limits.max_batch_size)
        self._inputs = BatchInputs(self.capacity, limits.max_blocks, device, _take)
        self.backend = BatchedBackend(network, cache, self._inputs, limits.max_seq_len)
        config = network.config
        self._samples_both = False
        """Whether forwards with both tails sample in any case."""
        self._sampler = BatchSampler(config.text_vocab, config.audio_vocab, self._inputs, device)
        self._text_vocab = config.text_vocab
        self._ahead: StepAhead | None = None
        """The step that was launched ahead and is not taken yet."""

    def plan(self, sequences: Sequence[ScheduledSequence]) -> list[list[int]]:
        """The forwards of a step: see `plan_forwards`."""
        return plan_forwards(sequences, self.capacity)

    def is_under_way(self, reply: ReplySampling) -> bool:
        """See `Executor`."""
        return self._ahead is not None and reply in self._ahead

    def take(self, sequences: Sequence[ScheduledSequence]) -> list[StepOutput] | None:
        """The outputs of these sequences if their step was launched ahead. Otherwise None, and that step is
        dropped: nobody waits for it or reads its results."""
        step, self._ahead = self._ahead, None
        places = None if step is None else step.places(sequences)
        return None if places is None else self._results(sequences, places, looks_ahead=True)

    def run(self, sequences: Sequence[ScheduledSequence], *, looks_ahead: bool) -> list[StepOutput]:
        """One forward; a StepOutput for each sequence. `looks_ahead`: whether it is all of the step, so that
        the one that follows may be launched ahead."""
        self._ahead = None
        shape = self._shape_of(sequences)
        self._set(sequences, shape)
        self._launch(shape)
        return self._results(sequences, list(range(len(sequences))), looks_ahead=looks_ahead)

    def _shape_of(self, sequences: Sequence[ScheduledSequence]) -> BatchShape:
        text = any(scheduled.tails.text for scheduled in sequences)
        audio = any(scheduled.tails.audio for scheduled in sequences)
        is_sampled = any(scheduled.sampling is not None for scheduled in sequences)
        return BatchShape(
            rows=padded_size(sum(len(scheduled.token_ids) for scheduled in sequences)),
            bucket=bucket_of(max(scheduled.num_rows for scheduled in sequences), self._limits.max_seq_len),
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

    def _launch(self, shape: BatchShape) -> None:
        self._inputs.send()
        self._run(shape)
        self._inputs.note_use()

    def _results(
        self, sequences: Sequence[ScheduledSequence], places: list[int], *, looks_ahead: bool
    ) -> list[StepOutput]:
        """The outputs of the step that runs, where these sequences have these places. In between, the
        following one is launched, before these are looked at."""
        if all(scheduled.sampling is None for scheduled in sequences):
            return [
                self._logits(index, scheduled) for index, scheduled in zip(places, sequences, strict=True)
            ]
        ahead = shape = None
        if looks_ahead:
            ahead = StepAhead.after(sequences, self._text_vocab, self._limits.tokens_per_block)
        if ahead is not None:
            shape = self._shape_of(ahead.sequences)
            self._set(ahead.sequences, shape)
            self._inputs.send_table()
        found = self._sampler.read()[places]
        if ahead is not None and shape is not None:
            ended = ahead.set_sampled(found)
            self._inputs.set_sampled(ahead.tokens, ahead.codes)
            if ended.size:  # what they mark as seen, their next step marks as well
                self._inputs.pad_rows(ended)
            if ended.size < len(places):
                self._launch(shape)
        # NOTE: a step launched ahead is kept only if none of these results is refused.
        outputs = [
            self._logits(index, scheduled) if scheduled.sampling is None else self._sampled(scheduled, ids)
            for index, scheduled, ids in zip(places, sequences, found.tolist(), strict=True)
        ]
        if ahead is not None:
            ahead.begin()
            self._ahead = ahead
        return outputs

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
        for one in sorted(wanted, key=lambda shape: (-shape.rows, shape.bucket)):
            self._run(one)
        self._inputs.note_use()

    def forget(self, reply: ReplySampling) -> None:
        """A step of this reply runs elsewhere."""
        self._sampler.forget(reply)

    def close(self) -> None:
        """Drop a step launched ahead, and wait until it has ended: then graphs and buffers may be freed."""
        self._ahead = None
        self._sampler.wait()

    def _run(self, shape: BatchShape) -> None:
        def forward() -> None:
            self._inputs.take()
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
        text: Tensor | None = None
        audio: Tensor | None = None
        if scheduled.tails.text:
            text = self.backend.text_logits[index].to("cpu", copy=True)
            check_logits("logits", text, self._limits.text_vocab)
        if scheduled.tails.audio:
            audio = self.backend.audio_logits[index].to("cpu", copy=True)
            check_logits("audio_logits", audio, self._limits.audio_vocab)
        return StepOutput(text, audio)

    @staticmethod
    def _sampled(scheduled: ScheduledSequence, found: list[float]) -> StepOutput:
        """The ids that were sampled for a sequence."""
        tails, sampling = scheduled.tails, scheduled.sampling
        assert sampling is not None
        if tails.text:
            check_magnitude("logits", found[TEXT_MAGNITUDE])
        if tails.audio:
            check_magnitude("audio_logits", found[AUDIO_MAGNITUDE])
        ids = SampledIds(
            int(found[TEXT]) if tails.text else None,
            int(found[AUDIO]) if tails.audio else None,
            int(found[SUBTITLE]) if tails.text and sampling.wants_subtitle else None,
        )
        return StepOutput(None, None, ids)


def _take(host: Tensor, device: Tensor) -> None:
    """Copy the fields of BatchInputs; the kernel reads pinned host memory directly."""
    take_slots[(1,)](host, device, SLOTS=host.numel(), num_warps=8)
