"""End-of-turn detection: Smart Turn and prosody, weighed together by a logistic model.

In: the audio of the present turn at 16 kHz, 160 ms of pause at its end. Out: the probability that the user
has finished. Smart Turn alone takes many words in mid-sentence for the last one; whether pitch and loudness
have fallen separates most of these. Later in the pause both know less, not more: Smart Turn's probability
rises with silence of any kind. Runs in the end of turn thread.
"""

from __future__ import annotations

import math

from app.dialog.end_of_turn import log_odds
from app.dialog.prosody import measure
from app.dialog.smart_turn import EndOfTurnDetector
from engine_runtime.types import Pcm

_BIAS, _NETWORK, _PITCH_FALL, _LEVEL_FALL = -5.103, 0.423, 0.193, 0.347
"""Fitted by tests/tools/fit_turn_end.py."""
_BIAS_ALONE, _NETWORK_ALONE = -1.853, 0.656
"""Likewise, for turns without prosody."""


class TurnEndDetector:
    """A network's answer, corrected by prosody; it has no state."""

    def __init__(self, network: EndOfTurnDetector) -> None:
        self._network = network

    def probability(self, pcm: Pcm) -> float:
        """How likely the turn `pcm` [n] is finished."""
        certainty = log_odds(self._network.probability(pcm))
        prosody = measure(pcm)
        if prosody is None:
            score = _BIAS_ALONE + _NETWORK_ALONE * certainty
        else:
            falls = _PITCH_FALL * prosody.pitch_fall_st + _LEVEL_FALL * prosody.level_fall_db
            score = _BIAS + _NETWORK * certainty + falls
        return 1.0 / (1.0 + math.exp(-score))
