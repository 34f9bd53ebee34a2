"""SequenceRunner: tokens of conversations in, step outputs out, over one shared KV pool.

In: the tokens that a sequence should hold, or one sampled token. Out: logits or sampled ids of the last
token. It converts tokens to merged ids, reuses tokens that the sequence or the prefix cache already holds,
and evicts the blocks of idle sequences when the pool runs out (their history remains and is prefilled again
when needed). One instance per PagedLM. Forward steps are work that others can join (work.py): `StepWork`.
Engine thread.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

from engine_runtime.bundle.bundle import SpecialIds
from engine_runtime.errors import OutOfBlocksError
from engine_runtime.lm.block_manager import Sequence
from engine_runtime.lm.generation import Token, merged_ids
from engine_runtime.lm.paged_lm import PagedLM, StepRequest
from engine_runtime.lm.step import MAX_JOINT_TOKENS, ExecutorLimits, SamplingMetadata, StepOutput, Tails
from engine_runtime.work import Stage, Task, Work


class SequenceOwner(Protocol):
    """Owner of a sequence; held by a weak reference."""

    @property
    def is_resting(self) -> bool:
        """Whether the sequence is idle, so that its blocks may be evicted."""


class SequenceRunner:
    def __init__(self, lm: PagedLM, special: SpecialIds, text_vocab: int) -> None:
        self._lm, self._special, self._text_vocab = lm, special, text_vocab
        self._entries: list[tuple[weakref.ref[SequenceOwner], Sequence]] = []
        self._num_waiting = 0
        """Works that tasks wait for."""

    @property
    def sequences(self) -> list[Sequence]:
        """All registered sequences that were not released."""
        return [sequence for _, sequence in self._entries]

    def register(self, owner: SequenceOwner, sequence: Sequence) -> None:
        """Track `sequence` until `release` or until its owner is collected; also frees blocks of collected
        owners."""
        self._collect()
        self._entries.append((weakref.ref(owner), sequence))

    def release(self, sequence: Sequence) -> None:
        """Free the blocks of `sequence`; full blocks stay in the prefix cache until they are evicted."""
        self._lm.blocks.release(sequence)
        self._entries = [entry for entry in self._entries if entry[1] is not sequence]

    def release_all(self) -> None:
        """`release` of every sequence."""
        for sequence in self.sequences:
            self.release(sequence)

    def merged_ids(self, tokens: Iterable[Token]) -> list[int]:
        """Merged ids of positions, as the language model reads them."""
        return merged_ids(tokens, self._special, self._text_vocab)

    def prefill(
        self,
        sequence: Sequence,
        tokens: list[Token],
        tails: Tails,
        sampling: SamplingMetadata | None = None,
        *,
        wants_output: bool = True,
    ) -> Task[tuple[StepOutput, int]]:
        """Make the cache hold exactly `tokens`; returns the output of the last one, which may be empty unless
        it is wanted, and the number of positions computed. Nobody else may change the sequence meanwhile.
        Errors as in `PagedLM.prefill`.
        """
        ids, lm = self.merged_ids(tokens), self._lm
        # The last token is always run, because its logits are needed.
        held = lm.align(sequence, ids[:-1])
        for request in lm.prefill_requests(sequence, ids[held:], tails, sampling, wants_output=wants_output):
            output = yield from self._result_of(StepWork(self, request))
        return output, len(ids) - held

    def decode(
        self,
        sequence: Sequence,
        token: Token,
        tails: Tails,
        sampling: SamplingMetadata | None = None,
        ahead: SamplingMetadata | None = None,
        *,
        exclusive_gpu: bool = False,
    ) -> Task[StepOutput]:
        """Run one token of a reply. `ahead`: see ScheduledSequence. Errors as in `PagedLM.step`."""
        request = StepRequest(sequence, self.merged_ids((token,)), tails, sampling, ahead=ahead)
        return (yield from self._result_of(StepWork(self, request, exclusive_gpu)))

    def _result_of(self, work: StepWork) -> Task[StepOutput]:
        self._num_waiting += 1
        try:
            return (yield work)  # type: ignore[no-any-return]
        finally:
            self._num_waiting -= 1

    def step(self, works: Seq[StepWork]) -> list[StepOutput]:
        """One forward step of one or more sequences, each listed once. Errors as in `PagedLM.step`.

        Looks ahead only if no other work waits: that would have to wait for the overlapped step, too.
        """
        requests = [work.request for work in works]
        # Another task waits for the model: with a step in flight it would wait for two steps, or that step
        # would be dropped for it.
        if len(works) < self._num_waiting:
            for request in requests:
                request.ahead = None
        is_exclusive = all(work.exclusive_gpu for work in works)
        try:
            return self._lm.step(requests, exclusive_gpu=is_exclusive)
        except OutOfBlocksError:
            # Only now, and only idle sequences: their prefix would have to be prefilled again at their next
            # turn.
            self._evict_others([request.sequence for request in requests])
            return self._lm.step(requests, exclusive_gpu=is_exclusive)

    @property
    def limits(self) -> ExecutorLimits:
        """Limits of a step."""
        return self._lm.executor.limits

    def is_in_flight(self, request: StepRequest) -> bool:
        """Whether this step is already in flight."""
        return self._lm.is_in_flight(request)

    def roll_back(self, sequence: Sequence, tokens: list[Token]) -> None:
        """Truncate the cached sequence to its common prefix with `tokens`; computes nothing."""
        self._lm.blocks.rollback(sequence, sequence.common_prefix(self.merged_ids(tokens)))

    def _evict_others(self, sequences: list[Sequence]) -> None:
        """Free the blocks of idle sequences, except these."""
        self._collect()
        for reference, other in self._entries:
            owner = reference()
            is_other = all(other is not sequence for sequence in sequences)
            if is_other and owner is not None and owner.is_resting:
                self._lm.blocks.release(other)

    def _collect(self) -> None:
        """Free the blocks of sequences whose owner was collected."""
        for reference, sequence in self._entries:
            if reference() is None:
                self._lm.blocks.release(sequence)
        self._entries = [entry for entry in self._entries if entry[0]() is not None]


@dataclass(slots=True)
class StepWork(Work[StepOutput]):
    """The tokens of one sequence in a forward step."""

    runner: SequenceRunner
    request: StepRequest
    exclusive_gpu: bool = False

    @property
    def stage(self) -> Stage:
        """Prefill or decode step."""
        return "prefill" if self.request.is_prefill else "step"

    @property
    def batch_key(self) -> Hashable:
        """A short prefill joins decode steps; nothing joins steps that are in flight."""
        is_long = len(self.request.token_ids) > MAX_JOINT_TOKENS
        return is_long, self.is_in_flight, id(self.runner)

    @property
    def is_in_flight(self) -> bool:
        return self.runner.is_in_flight(self.request)

    def fits(self, batch: Seq[StepWork]) -> bool:
        """The tokens of a joint prefill are limited like those of a single one."""
        limits = self.runner.limits
        num_tokens = sum(len(work.request.token_ids) for work in (*batch, self))
        return len(batch) < limits.max_batch_size and num_tokens <= limits.max_num_tokens

    def run(self) -> StepOutput:
        (output,) = self.runner.step([self])
        return output

    def run_together(self, batch: Seq[StepWork]) -> list[StepOutput]:
        return self.runner.step(batch)
