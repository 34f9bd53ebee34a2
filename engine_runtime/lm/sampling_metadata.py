"""What an executor needs to sample the next ids itself, and what it sampled.

In: a step of a reply, as lm/generation.py sees it. Out: plain values that go to the executor with the step,
and ids that come back in place of logits. Engine thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engine_runtime.types import SamplingParams


@dataclass(frozen=True, slots=True)
class SamplingMetadata:
    """Inputs of sampling in an executor, by the rules of lm/sampler.py.

    Attributes:
        params: of the reply; `can_sample_on_device` says which ones an executor has to know.
        draw_text, draw_audio: the uniform draws of this step, in [0, 1).
        last_text, last_audio: the ids of the row that is run, which the penalty concerns from now on.
        forbid_eosp: whether the speech may not end yet.
        audio_forbidden_from, eosp: audio ids that are never sampled start here; the end of speech.
        wants_subtitle: whether the likeliest text id is wanted beside the sampled one.
        owner: the same object at every step of one reply; at another one, `seen_text` and `seen_audio`
            ([vocab] bool, ids that the penalty concerns so far) have to be taken over.
        exclusive_gpu: whether the step may take the whole device, since nothing runs beside it.
    """

    params: SamplingParams
    draw_text: float
    draw_audio: float
    last_text: int
    last_audio: int
    forbid_eosp: bool
    audio_forbidden_from: int
    eosp: int
    wants_subtitle: bool
    owner: object
    seen_text: Tensor
    seen_audio: Tensor
    exclusive_gpu: bool = True


MAX_TOP_K = 64
"""Candidates that an executor looks at when it samples."""


def can_sample_on_device(params: SamplingParams) -> bool:
    """Whether an executor can sample with these parameters; otherwise the logits go to the Sampler."""
    return not params.do_sample or 0 < params.top_k <= MAX_TOP_K


@dataclass(frozen=True, slots=True)
class SampledIds:
    """Ids that an executor sampled; None for a tail that was left out. `subtitle` only if it was wanted."""

    text: int | None
    audio: int | None
    subtitle: int | None = None
