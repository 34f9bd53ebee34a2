"""Sampling request to an executor, and the ids that it sampled.

In: a step of a reply, as lm/generation.py sees it. Out: plain values passed with the step, and ids returned
in place of logits. Engine thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engine_runtime.types import SamplingParams


@dataclass(frozen=True, slots=True)
class SamplingMetadata:
    """What an executor needs to sample the next ids, by the rules of lm/sampler.py.

    Attributes:
        params: of the reply; `can_sample_on_device` checks which ones an executor must support.
        draw_text, draw_audio: the uniform samples of this step, in [0, 1).
        last_text, last_audio: the ids of the row that is run, which are subject to the penalty from now on.
        forbid_eosp: whether the end of speech is still banned.
        audio_forbidden_from, eosp: first of the audio ids that are never sampled; the end-of-speech id.
        wants_subtitle: whether to return the most likely text id in addition to the sampled one.
        owner: the same object at every step of one reply; when it changes, the executor must copy `seen_text`
            and `seen_audio` ([vocab] bool, ids subject to the penalty so far).
        exclusive_gpu: whether the step may occupy the entire device, since nothing else runs on it.
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
"""Number of candidates that an executor samples from."""


def can_sample_on_device(params: SamplingParams) -> bool:
    """Whether an executor can sample with these parameters; otherwise the Sampler gets the logits."""
    return not params.do_sample or 0 < params.top_k <= MAX_TOP_K


@dataclass(frozen=True, slots=True)
class SampledIds:
    """Ids that an executor sampled; None for a skipped tail. `subtitle` only if requested."""

    text: int | None
    audio: int | None
    subtitle: int | None = None
