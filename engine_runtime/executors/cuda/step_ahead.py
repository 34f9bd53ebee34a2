"""Look-ahead: the decode step after one whose ids are not known yet, launched while that one runs.

In: the sequences of a step, each with `ahead`. Out: the sequences of the following step, whose ids the device
fills in; the same ids here, once they were read; and whether a step that is asked for later is this one.
Engine thread.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine_runtime.executors.cuda.sampler import AUDIO, AUDIO_MAGNITUDE
from engine_runtime.lm.step import ReplySampling, ScheduledSequence


class StepAhead:
    """The step after one of `sequences`: their next tokens, in the same order."""

    def __init__(
        self, sequences: Sequence[ScheduledSequence], text_vocab: int, tokens_per_block: int
    ) -> None:
        self.sequences = [_following(scheduled) for scheduled in sequences]
        self._text_vocab, self._tokens_per_block = text_vocab, tokens_per_block
        self.slot = 0
        """Slot in which it was launched: see BatchInputs."""
        self._blocks = [self._written_block(one) for one in self.sequences]
        self._place_of: dict[ReplySampling, int] = {}
        """Place in the step of each reply whose next token may be asked for."""

    @classmethod
    def after(
        cls, sequences: Sequence[ScheduledSequence], text_vocab: int, tokens_per_block: int
    ) -> StepAhead | None:
        """None unless every sequence may continue: one that is left out would wait for two steps. A sequence
        alone has no overlap, as other kernels run it."""
        if len(sequences) < 2 or any(one.ahead is None or one.sampling is None for one in sequences):
            return None
        return cls(sequences, text_vocab, tokens_per_block)

    def begin(self, found: NDArray[np.float64]) -> None:
        """Set the ids from the results of the step before, [sequences, 5], by the rule of the device: a token
        that ends the speech is padding here, and so is one whose logits the caller refuses. The others can be
        asked for from now on."""
        codes, magnitudes = found[:, AUDIO], found[:, AUDIO_MAGNITUDE]
        rows = zip(self.sequences, codes.tolist(), np.isfinite(magnitudes).tolist(), strict=True)
        for place, (one, code, is_finite) in enumerate(rows):
            assert one.sampling is not None
            # NOTE: the same rule as `take_fields` in kernels/sampling.py. If the two differ, the host takes
            # the result of a step that the device computed as padding.
            if is_finite and code != one.sampling.reply.eosp:
                one.token_ids, one.sampling.last_audio = [self._text_vocab + int(code)], int(code)
                self._place_of[one.sampling.reply] = place

    def __contains__(self, reply: ReplySampling) -> bool:
        return reply in self._place_of

    def places(self, sequences: Sequence[ScheduledSequence]) -> list[int] | None:
        """The places of these sequences in this step; None if it does not run one of them just as asked."""
        places = [self._place(scheduled) for scheduled in sequences]
        found = [place for place in places if place is not None]
        return found if len(found) == len(places) else None

    def _place(self, scheduled: ScheduledSequence) -> int | None:
        if scheduled.sampling is None:
            return None
        place = self._place_of.get(scheduled.sampling.reply)
        if place is None:
            return None
        mine = self.sequences[place]
        # Everything that the device has already used must match the request, including the block that was
        # written: a rollback in between may have put another block at this place.
        is_same = (
            scheduled.sampling == mine.sampling
            and scheduled.first_position == mine.first_position
            and list(scheduled.token_ids) == mine.token_ids
            and scheduled.tails == mine.tails
            and self._written_block(scheduled) == self._blocks[place]
        )
        return place if is_same else None

    def _written_block(self, scheduled: ScheduledSequence) -> int:
        return scheduled.block_table[scheduled.first_position // self._tokens_per_block]


def _following(scheduled: ScheduledSequence) -> ScheduledSequence:
    """The next token of a sequence, its id unknown."""
    tails, position = scheduled.tails, scheduled.num_tokens
    return ScheduledSequence(
        token_ids=[0],
        first_position=position,
        block_table=scheduled.block_table,
        text_computed=position if tails.text else scheduled.text_computed,
        audio_computed=position if tails.audio else scheduled.audio_computed,
        prompt_tokens=scheduled.prompt_tokens,
        is_prefill=False,
        tails=tails,
        sampling=scheduled.ahead,
    )
