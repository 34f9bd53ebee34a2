"""EncodeWork: the next frames of an encoder stream, as work that those of other streams can join.

In: frames and caches of a segment. Out: codes, or their arrival, and the new caches. Engine thread.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from engine_runtime.codec.speech_tokenizer.encoder_pool import JOINT_CODES, MOST_STREAMS
from engine_runtime.codec.speech_tokenizer.encoder_streams import CodesArrival, EncoderStreams
from engine_runtime.models.whisper_vq import EncoderState, WhisperVQ
from engine_runtime.types import Codes
from engine_runtime.work import Stage

MOST_BATCHED_CODES = JOINT_CODES[-1]
"""Codes per stream of such a call; more keep the device busy alone."""


class Encoding(Protocol):
    """The tokenizer as its works call it; see `SpeechTokenizer`."""

    model: WhisperVQ
    streams: EncoderStreams | None

    @property
    def takes_batches(self) -> bool:
        """Whether several streams can be encoded in one call."""

    @property
    def is_free(self) -> bool:
        """Whether the device has done all calls."""

    def encode_step(self, mel: Tensor, state: EncoderState) -> tuple[Codes, EncoderState]:
        """Codes of the next frames of a stream."""

    def encode_batch(
        self, mels: Sequence[Tensor], states: Sequence[EncoderState]
    ) -> list[tuple[Codes, EncoderState]]:
        """Codes of the next frames of several streams."""

    def start_batch(
        self, mels: Sequence[Tensor], states: Sequence[EncoderState]
    ) -> list[tuple[CodesArrival, EncoderState]]:
        """The same without waiting for the codes."""


@dataclass(frozen=True, slots=True, eq=False)
class EncodeWork:
    """The next frames of a segment [n_mels, T]; its result is their codes and the new caches. See `Work`."""

    tokenizer: Encoding
    mel: Tensor
    state: EncoderState
    is_in_flight: bool = False

    @property
    def stage(self) -> Stage:
        return "encode"

    @property
    def batch_key(self) -> Hashable:
        is_short = self.mel.shape[1] <= MOST_BATCHED_CODES * self.tokenizer.model.config.frames_per_code
        if not (is_short and self.tokenizer.takes_batches):
            return None
        # In a pool each stream can have its own number of codes.
        size = 0 if self.state.slot >= 0 else self.mel.shape[1]
        return "encode", id(self.tokenizer), size

    @property
    def is_ready(self) -> bool:
        """While the device encodes, the next frames gather."""
        return self.tokenizer.is_free

    def waits_for_memory(self, beside: Sequence[Any] = ()) -> bool:
        return False

    def fits(self, batch: Sequence[EncodeWork]) -> bool:
        return len(batch) < MOST_STREAMS

    def run(self) -> tuple[Codes | CodesArrival, EncoderState]:
        if self.tokenizer.streams is None:
            return self.tokenizer.encode_step(self.mel, self.state)
        return self.tokenizer.start_batch([self.mel], [self.state])[0]

    def run_together(self, batch: Sequence[EncodeWork]) -> list[Any]:
        tokenizer = self.tokenizer
        start = tokenizer.encode_batch if tokenizer.streams is None else tokenizer.start_batch
        return list(start([work.mel for work in batch], [work.state for work in batch]))
