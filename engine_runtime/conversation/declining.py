"""Declining: when a model that is not sure of its answer says that it does not know, and the tokens of that.

In: the first tokens of a reply, as many as the first packet of speech needs, before anything of them is
given. Out: whether to decline, and the tokens of the reply that takes its place. Those tokens are forced, not
generated: the model would go on from its own first word, and the sound is known. The next turn prefills them
with the rest of the history. Pure functions. Engine thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine_runtime.bundle.bundle import SpecialIds
from engine_runtime.bundle.sections import DecliningSection
from engine_runtime.lm.generation import GeneratedToken, Mode, Token
from engine_runtime.types import Modality, SamplingParams


def certainty_of(tokens: Sequence[GeneratedToken]) -> float | None:
    """The least certainty of tokens; None if it was not computed."""
    return min((token.certainty for token in tokens if token.certainty is not None), default=None)


def is_declined(section: DecliningSection, tokens: Sequence[GeneratedToken], params: SamplingParams) -> bool:
    """Whether a reply that begins with these tokens is replaced. If they are all of it, they end with a token
    that is a stop.

    A caller who requires an answer (`min_new` of 2 or more) does not get a reply that ends as soon as it may.
    """
    certainty = certainty_of(tokens)
    if certainty is not None and certainty < section.least_probability:
        return True
    is_over = tokens[-1].is_stop
    # Of a spoken reply the end of speech and the end of the turn are two tokens.
    return is_over and params.min_new > 1 and len(tokens) <= params.min_new + (tokens[0].mode is Mode.AUDIO)


def correct_subtitles(section: DecliningSection, tokens: Sequence[GeneratedToken]) -> None:
    """Give tokens that sound like the beginning of the declining reply its subtitles.

    Both heads choose their first id from the same state, neither knows the choice of the other: where an
    answer and a refusal are about as likely, the text head may begin the one and the audio head the other.
    """
    if tuple(token.token.audio for token in tokens) == section.codes[: len(tokens)]:
        for token, subtitle in zip(tokens, section.subtitles, strict=False):
            token.subtitle = subtitle


def declining_tokens(
    section: DecliningSection, special: SpecialIds, modality: Modality
) -> list[GeneratedToken]:
    """The declining reply, with the end of the turn."""
    if modality is Modality.SPEECH:
        said = [*zip(section.codes, section.subtitles, strict=True), (special.eosp, None)]
        tokens = [
            GeneratedToken(token, Mode.AUDIO, index, token, subtitle)
            for index, (code, subtitle) in enumerate(said)
            for token in [Token(special.modality_pad, code)]
        ]
    else:
        written = [
            Token(text_id, special.audio_pad) for text_id in section.subtitles if text_id != special.empty
        ]
        tokens = [GeneratedToken(token, Mode.TEXT, index, token) for index, token in enumerate(written)]
    end = Token(special.im_end, special.audio_pad)
    return [*tokens, GeneratedToken(end, Mode.TEXT, len(tokens), end, is_stop=True)]
