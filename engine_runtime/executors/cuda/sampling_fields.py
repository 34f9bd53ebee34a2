"""The numbers that a sequence is sampled by, named once for the inputs of one sequence and of several.

In: what lm/ wants sampled. Out: the numbers of a step, in the order in which StepInputs and BatchInputs hold
them, and those that a kernel (kernels/sampling.py) gets. A new parameter is a field here, its value in
`integers_of` or `floats_of`, and its name among the arguments of the kernel that reads it. Engine thread.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from engine_runtime.lm.step import SamplingMetadata

_GREEDY_TOP_P = 1e-9
"""With it, one candidate is left: the first of the highest ones, as argmax returns it."""


class SamplingIntegers(NamedTuple):
    """Defaults: of a sequence that is not sampled. No id is banned, so that probabilities are finite."""

    seen_text: int = 0
    seen_audio: int = 0
    bans_eosp: bool = False
    banned_from: int = 1 << 31
    eosp: int = 0
    top_k: int = 1


class SamplingFloats(NamedTuple):
    """Defaults: of a sequence that is not sampled. The first of the highest scores is taken."""

    draw_text: float = 0.0
    draw_audio: float = 0.0
    temperature: float = 1.0
    top_p: float = _GREEDY_TOP_P
    penalty: float = 1.0


SCORE_ARGUMENTS = ("seen_set", "seen_id", "banned_from", "eosp", "bans_eosp", "penalty")
"""Fields that `best_of_tile` gets, in its order."""
SAMPLE_ARGUMENTS = ("top_k", "top_p", "temperature", "draw", "result_row")
"""Fields that `sample_one` gets, in its order."""
_OF_CHANNEL = {"seen_id": ("seen_text", "seen_audio"), "draw": ("draw_text", "draw_audio")}
"""Arguments that are another field for each channel."""


class NamedInputs(Protocol):
    """Fields on the device, one number for each sequence."""

    def __getitem__(self, name: str) -> Tensor: ...


def integers_of(sampling: SamplingMetadata) -> SamplingIntegers:
    """The integers of a step."""
    reply = sampling.reply
    return SamplingIntegers(
        seen_text=sampling.last_text,
        seen_audio=sampling.last_audio,
        bans_eosp=sampling.bans_eosp,
        banned_from=reply.audio_banned_from,
        eosp=reply.eosp,
        top_k=reply.params.top_k if reply.params.do_sample else SamplingIntegers().top_k,
    )


def floats_of(sampling: SamplingMetadata) -> SamplingFloats:
    """The other numbers of a step."""
    params = sampling.reply.params
    drawn = SamplingFloats(
        draw_text=sampling.draw_text, draw_audio=sampling.draw_audio, penalty=params.repetition_penalty
    )
    return drawn._replace(temperature=params.temperature, top_p=params.top_p) if params.do_sample else drawn


def arguments(names: tuple[str, ...], inputs: NamedInputs, *, is_audio: bool) -> tuple[Tensor, ...]:
    """What a kernel gets for one channel."""
    return tuple(inputs[_OF_CHANNEL[name][is_audio] if name in _OF_CHANNEL else name] for name in names)
