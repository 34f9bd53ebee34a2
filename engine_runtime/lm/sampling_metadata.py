"""Sampling requests: what an executor needs to sample the next ids itself.

In: the state of a reply, as lm/generation.py sees it. Out: plain values passed with the step, and ids
returned in place of logits. Engine thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engine_runtime.types import SamplingParams


@dataclass(frozen=True, slots=True, eq=False)
class ReplySampling:
    """What stays the same for all steps of a reply; an executor copies it at the first of them.

    Attributes:
        params: `can_sample_on_device` checks which ones an executor must support.
        audio_banned_from, eosp: first of the audio ids that are never sampled; the end-of-speech id.
        seen_text, seen_audio: ids subject to the repetition penalty so far. [vocab] bool
    """

    params: SamplingParams
    audio_banned_from: int
    eosp: int
    seen_text: Tensor
    seen_audio: Tensor


@dataclass(slots=True)
class SamplingMetadata:
    """What an executor needs to sample the ids of one token, by the rules of lm/sampler.py.

    Attributes:
        reply: the same object at every step of one reply.
        draw_text, draw_audio: the uniform samples of this step, in [0, 1).
        last_text, last_audio: the ids of the token that is run, which are subject to the penalty from now on.
        bans_eosp: whether the end of speech is still banned.
        wants_subtitle: whether to return the most likely text id in addition to the sampled one.
    """

    reply: ReplySampling
    draw_text: float
    draw_audio: float
    last_text: int
    last_audio: int
    bans_eosp: bool
    wants_subtitle: bool


MAX_TOP_K = 64
"""Number of candidates that an executor samples from."""


def can_sample_on_device(params: SamplingParams) -> bool:
    """Whether an executor can sample with these parameters; otherwise the Sampler gets the logits."""
    return not params.do_sample or 0 < params.top_k <= MAX_TOP_K


@dataclass(slots=True)
class SampledIds:
    """Ids that an executor sampled; None for a skipped tail. `subtitle` only if requested."""

    text: int | None
    audio: int | None
    subtitle: int | None = None
