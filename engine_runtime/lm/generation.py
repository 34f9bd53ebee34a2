"""State machine of a reply: which head is active, when it switches, when the reply ends.

In: step outputs: logits of both heads, or sampled ids. Out: tokens (text id, audio id) with the mode they
were made in. All four combinations work: speech or text in, speech or text out; one reply may switch from
text to speech and back.

The previous token determines the mode of each token: `sosp` on the text channel switches to audio, `eosp` on
the audio channel switches to text. Both channels are sampled at every step; in audio mode the text id becomes
`modality_pad`. The reply ends with a stop id on the text channel, after `max_new` tokens, or when the context
is full. Engine thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import torch
from torch import Tensor

from engine_runtime.bundle.bundle import SpecialIds
from engine_runtime.lm.sampler import Sampler, draws
from engine_runtime.lm.step import (
    BOTH_TAILS,
    ReplySampling,
    SamplingMetadata,
    StepOutput,
    Tails,
    can_sample_on_device,
)
from engine_runtime.types import FinishReason, SamplingParams


class Token(NamedTuple):
    """One position: the id of the text channel and of the audio channel. Exactly one of them is read."""

    text: int
    audio: int


class Mode(Enum):
    """The channel that carries the reply at a token."""

    TEXT = "text"
    AUDIO = "audio"


@dataclass(slots=True)
class GeneratedToken:
    """A token of the reply.

    `sampled` holds what both channels sampled before the text id was overwritten. `subtitle` is the most
    likely text id at an audio token (None if the text head did not run). `is_stop` marks the token that ended
    the reply: it stays in the grid and is not output. `certainty` is the probability of the most likely text
    id, among those that may stand there; None where it was not asked for or the text head did not run.
    """

    token: Token
    mode: Mode
    index: int
    sampled: Token
    subtitle: int | None = None
    is_stop: bool = False
    certainty: float | None = None


def merged_ids(tokens: Iterable[Token], special: SpecialIds, text_vocab: int) -> list[int]:
    """The ids that the model reads: the text id, or text_vocab + code where the text channel holds the
    modality pad."""
    pad = special.modality_pad
    return [text_vocab + audio if text == pad else text for text, audio in tokens]


def merged_id(token: Token, special: SpecialIds, text_vocab: int) -> int:
    """`merged_ids` of one token."""
    return merged_ids((token,), special, text_vocab)[0]


def initial_mode(last: Token, special: SpecialIds) -> Mode:
    """Mode before the first step. The text test comes second and wins, as in the released generation code."""
    mode = Mode.AUDIO if last.text == special.modality_pad else Mode.TEXT
    return Mode.TEXT if last.audio == special.audio_pad else mode


def next_mode(mode: Mode, last: Token, special: SpecialIds) -> Mode:
    """Mode of the next token, decided from the token before it."""
    if mode is Mode.TEXT and last.text == special.sosp:
        return Mode.AUDIO
    if mode is Mode.AUDIO and last.audio == special.eosp:
        return Mode.TEXT
    return mode


class Generation:
    """One reply, token by token.

    The caller alternates: `token = generation.sample(output)`, run the token with `generation.tails` and
    `generation.sampling`, sample again, until `finish_reason` is set.

    Args:
        prompt: all tokens before the reply (they count for the repetition penalty).
        want_subtitles: read the text head at audio tokens, too.
        predict_turn_end: compute `turn_end_probability` at the first token.
        rated_tokens: number of the first tokens whose `certainty` is computed, from logits.
        skip_unused_tails: skip the tail whose logits the next token does not need. Speech codes and text ids
            do not change: uniform samples are consumed for both channels in any case. The audio tail of a
            text token is skipped only without a repetition penalty, because the penalty counts ids that were
            sampled but not read.
        samples_on_device: let the executor sample, if these parameters allow it; not the tokens for which
            more than ids is needed.
    """

    def __init__(
        self,
        prompt: Sequence[Token],
        params: SamplingParams,
        special: SpecialIds,
        *,
        text_vocab: int,
        audio_vocab: int,
        want_subtitles: bool = False,
        predict_turn_end: bool = False,
        rated_tokens: int = 0,
        skip_unused_tails: bool = False,
        samples_on_device: bool = False,
        device: str = "cpu",
        given_draws: Tensor | None = None,
    ) -> None:
        self._params, self._special = params, special
        self._want_subtitles, self._skip = want_subtitles, skip_unused_tails
        self._predicts_turn_end, self._rated_tokens = predict_turn_end, rated_tokens
        self._text = Sampler(params, text_vocab, (token.text for token in prompt), device)
        self._audio = Sampler(params, audio_vocab, (token.audio for token in prompt), device)
        self._draws: list[list[float]] = []
        if params.do_sample:
            self._draws = (draws(params) if given_draws is None else given_draws).tolist()
        self._num_tokens = 0
        self._last = prompt[-1]
        self._tails_of = {mode: self._needed_tails(mode) for mode in Mode}
        self._reply_sampling: ReplySampling | None = None
        if samples_on_device and can_sample_on_device(params):
            self._reply_sampling = ReplySampling(
                params, special.audio_forbidden_from, special.eosp, self._text.seen, self._audio.seen
            )
        self.mode = next_mode(initial_mode(prompt[-1], special), prompt[-1], special)
        self.finish_reason: FinishReason | None = None
        self.turn_end_probability: float | None = None
        """1 - the probability of an empty reply, whatever `min_new` forbids; None if it is not wanted."""

    @property
    def tails(self) -> Tails:
        """Tails whose logits the next token needs."""
        return self._tails_of[self.mode]

    def _needed_tails(self, mode: Mode) -> Tails:
        if not self._skip:
            return BOTH_TAILS
        if mode is Mode.AUDIO:
            return Tails(text=self._want_subtitles, audio=True)
        return Tails(text=True, audio=self._params.repetition_penalty != 1.0)

    @property
    def sampling(self) -> SamplingMetadata | None:
        """Sampling metadata of the next token; None if the ids are sampled here, from logits."""
        if self._needs_logits:
            return None
        return self._sampling_of(self._num_tokens, self._last)

    @property
    def sampling_ahead(self) -> SamplingMetadata | None:
        """Sampling metadata of the token after the next one if that is a speech code, whose id stands as the
        audio pad in them; None if the token after it may be none, or ids are sampled here."""
        index = self._num_tokens + 1
        if self.mode is not Mode.AUDIO or self._needs_logits or index >= self._params.max_new:
            return None
        return self._sampling_of(index, Token(self._special.modality_pad, self._special.audio_pad))

    def _sampling_of(self, index: int, last: Token) -> SamplingMetadata | None:
        """Sampling metadata of the token with this index, which follows `last` in the present mode."""
        if self._reply_sampling is None:
            return None
        # NOTE: may still be requested after the last token; there is no uniform sample for that, and no use.
        draw = self._draws[index] if index < len(self._draws) else [0.0, 0.0]
        return SamplingMetadata(
            reply=self._reply_sampling,
            draw_text=draw[0],
            draw_audio=draw[1],
            last_text=last.text,
            last_audio=last.audio,
            bans_eosp=self._may_not_end(index),
            wants_subtitle=self._want_subtitles and self.mode is Mode.AUDIO,
        )

    def sample(self, output: StepOutput) -> GeneratedToken:
        """Sample the next token; afterwards `mode`, `tails` and `sampling` describe the token after it."""
        index, mode = self._num_tokens, self.mode
        draw = self._draws[index] if self._draws else [0.0, 0.0]
        if index == 0 and self._predicts_turn_end:
            self.turn_end_probability = 1.0 - self._empty_probability(output)
        if output.sampled is None:
            sampled = Token(
                self._sample_text(output.text_logits, draw[0]),
                self._sample_audio(output.audio_logits, draw[1]),
            )
        else:
            text, audio = output.sampled.text, output.sampled.audio
            sampled = Token(
                self._special.modality_pad if text is None else text,
                self._special.audio_pad if audio is None else audio,
            )
        # Whatever the text head said at a code, the model reads the modality pad there: that makes the token
        # an audio token.
        token = Token(self._special.modality_pad, sampled.audio) if mode is Mode.AUDIO else sampled
        certainty = self._certainty(output) if index < self._rated_tokens else None
        subtitle = self._subtitle(output) if mode is Mode.AUDIO and self._want_subtitles else None
        # Both channels of the token count for the penalty, also the audio id of a text token, which the model
        # does not read: as in the released generation code.
        self._text.note(token.text)
        self._audio.note(token.audio)
        self._num_tokens += 1
        self._last = token
        is_stop = token.text in self._stops
        if is_stop:
            self.finish_reason = "stop"
        elif self._num_tokens >= self._params.max_new:
            self.finish_reason = "length"
        self.mode = next_mode(mode, token, self._special)
        return GeneratedToken(token, mode, index, sampled, subtitle, is_stop, certainty)

    def _subtitle(self, output: StepOutput) -> int | None:
        if output.sampled is not None:
            return output.sampled.subtitle
        return None if output.text_logits is None else int(self._possible(output.text_logits).argmax())

    def _certainty(self, output: StepOutput) -> float | None:
        """`certainty` of the token that is being sampled."""
        if output.text_logits is None:
            return None
        return float(self._possible(output.text_logits).double().softmax(-1).max())

    def _possible(self, text_logits: Tensor) -> Tensor:
        """Text logits of the token that is being sampled, those of an empty reply banned where it may not be.

        Both heads predict an empty reply. If the audio head is kept from it alone, the text head shows the
        end of that reply as the first word of another one.
        """
        if self._num_tokens or not (self._predicts_turn_end and self._may_not_end(0)):
            return text_logits
        logits, empty = text_logits.clone(), self._special.empty
        logits[[*self._stops, *(() if empty is None else (empty,))]] = -torch.inf
        return logits

    def _may_not_end(self, index: int) -> bool:
        """Whether `min_new` forbids the end of speech, or of a text reply, at the token with this index."""
        return index + 1 < self._params.min_new

    @property
    def _needs_logits(self) -> bool:
        """Whether the next token takes more than the ids that an executor samples: a probability, or a ban
        that executors do not know."""
        is_predicted = self._predicts_turn_end and self._num_tokens == 0
        is_rated = self._num_tokens < self._rated_tokens
        return is_predicted or is_rated or (self.mode is Mode.TEXT and self._may_not_end(self._num_tokens))

    @property
    def _stops(self) -> tuple[int, int]:
        """The text ids that end a reply."""
        return self._special.im_end, self._special.endoftext

    def _empty_probability(self, output: StepOutput) -> float:
        """Probability that the reply ends with its first token."""
        if self.mode is Mode.AUDIO:
            logits, ends = output.audio_logits, [self._special.eosp]
            logits = None if logits is None else logits[: self._special.audio_forbidden_from]
        else:
            logits, ends = output.text_logits, list(self._stops)
        if logits is None:
            raise ValueError("the probability of an empty reply needs the logits of the first token")
        return float(logits.double().softmax(-1)[ends].sum())

    def _sample_text(self, logits: Tensor | None, draw: float) -> int:
        if logits is None:
            return self._special.modality_pad
        is_held = self.mode is Mode.TEXT and self._may_not_end(self._num_tokens)
        forbidden = self._stops if is_held else ()
        return self._text.sample(self._text.scores(logits, forbidden), draw)

    def _sample_audio(self, logits: Tensor | None, draw: float) -> int:
        if logits is None:
            return self._special.audio_pad
        forbidden: list[slice | int] = [slice(self._special.audio_forbidden_from, None)]
        if self._may_not_end(self._num_tokens):
            forbidden.append(self._special.eosp)
        return self._audio.sample(self._audio.scores(logits, forbidden), draw)


def speech_codes(tokens: Sequence[GeneratedToken], special: SpecialIds) -> Iterator[int]:
    """The speech codes among the tokens of a reply."""
    for generated in tokens:
        if generated.mode is Mode.AUDIO and generated.token.audio < special.eosp:
            yield generated.token.audio
