"""What became of questions: shares of right answers, of right silence, and of right declining.

In: `Judgement`s, by the language model alone (`held_out.py`) or by the whole chain (`evaluate.py`). Out:
shares by mode and group of voices, as text "right/all = share". What the ear mishears in the speech of the
synthesizer, it mostly mishears from a network that learned it, too: of spoken replies the share of right ones
is also counted without those answers.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import domain
import topics

NO_REPLY = ("unfinished", "cut_off", "backchannel")
OUT_OF_DOMAIN = ("unknown", "remark", "beyond")
DECLINED = domain.normalize(domain.sentence(topics.UNKNOWN_ANSWER))


@dataclass(frozen=True, slots=True)
class Judgement:
    """The answer to the last turn of a dialogue, normalized; "" is no reply.

    `original_is_recognized`: it was spoken, and the ear recognizes the wanted answer as synthesized.
    """

    mode: str
    group: str
    dialogue: domain.Dialogue
    said: str
    original_is_recognized: bool = False

    @property
    def wanted(self) -> str:
        """What should have been said."""
        return domain.normalize(domain.sentence(self.dialogue.turns[-1].units))

    @property
    def is_right(self) -> bool:
        """Word for word."""
        return self.said == self.wanted


def share(found: list[bool]) -> str:
    """ "right/all = share"; "-" of nothing."""
    return f"{sum(found)}/{len(found)} = {sum(found) / len(found):.3f}" if found else "-"


def summary(judgements: list[Judgement]) -> dict[str, dict[str, str]]:
    """By "mode group": the shares of `_shares`."""
    parts: dict[str, list[Judgement]] = defaultdict(list)
    for judgement in judgements:
        parts[f"{judgement.mode} {judgement.group}"].append(judgement)
    return {name: _shares(part) for name, part in sorted(parts.items())}


def _shares(part: list[Judgement]) -> dict[str, str]:
    """Complete questions as a whole, by what is held out and by skill; empty replies; declining."""
    complete = [j for j in part if j.dialogue.skill not in NO_REPLY]
    single = [j for j in complete if len(j.dialogue.turns) == 1]
    unknown = [j for j in complete if j.dialogue.skill in OUT_OF_DOMAIN]
    declined = [j for j in single if j.said == DECLINED]
    found = {
        "right": [j.is_right for j in single],
        "right, of answers recognized as synthesized": [
            j.is_right for j in single if j.original_is_recognized
        ],
        "held-out forms": [j.is_right for j in single if j.dialogue.held_out_form],
        "held-out combinations": [j.is_right for j in single if not j.dialogue.held_out_form],
        "two turns": [j.is_right for j in complete if len(j.dialogue.turns) > 1],
        "complete questions without a reply": [j.said == "" for j in complete],
        "of the declined, out of domain": [j.dialogue.skill in OUT_OF_DOMAIN for j in declined],
        "of what is out of domain, declined": [j.said == DECLINED for j in unknown],
    }
    for skill in sorted({j.dialogue.skill for j in part}):
        found[f"skill {skill}"] = [j.is_right for j in part if j.dialogue.skill == skill]
    return {name: share(values) for name, values in found.items()}
