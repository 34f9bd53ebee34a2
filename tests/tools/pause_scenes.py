"""Utterances as scenes: speech with a pause in it, or to its end, as the VAD and turn-taking hear it.

For the measurements of the end of a turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from app.dialog.turn_events import TurnAction, TurnEvent
from app.dialog.turn_taking import TurnTaking
from app.dialog.turn_taking_settings import TurnTakingSettings
from app.dialog.vad import SileroVad
from engine_runtime.types import Pcm
from tests.tools.pause_corpus import LEAD_S, RATE, Utterance

FRAME_MS = SileroVad.frame_samples * 1e3 / RATE
PAUSES_S = (0.3, 0.6, 1.0, 1.5)
_REST_S = 0.5
"""What is heard after a pause: enough to reopen the turn."""
_TAIL_S = 3.0


@dataclass
class Scene:
    """What the VAD made of some sound, and the detector's answers about it."""

    utterance: Utterance
    pcm: Pcm
    vad: list[float]
    pause_s: float | None
    """None: the whole utterance, which is finished."""
    cut_ms: float
    """Where the pause begins, or the end of the utterance."""


def scenes_of(utterance: Utterance) -> Iterator[Scene]:
    """The whole utterance, then each of its gaps with each of the pauses."""
    vad = SileroVad()
    whole = utterance.scene(len(utterance.pcm), _TAIL_S, 0.0)
    yield Scene(utterance, whole, _speech(vad, whole), None, (LEAD_S + utterance.end / RATE) * 1e3)
    for cut in utterance.gaps:
        for pause_s in PAUSES_S:
            pcm = utterance.scene(cut, pause_s, _REST_S)
            yield Scene(utterance, pcm, _speech(vad, pcm), pause_s, (LEAD_S + cut / RATE) * 1e3)


def pauses_of(scene: Scene, action: TurnAction = TurnAction.PAUSE) -> list[TurnEvent]:
    """The pauses that turn-taking finds by silence alone, before it takes the longest for the end; or where
    it would make a speculative reply."""
    machine = TurnTaking(TurnTakingSettings(eagerness="off", end_ms=round(_TAIL_S * 1e3)))
    events = [
        event
        for frame, probability in enumerate(scene.vad)
        for event in machine.update(probability, frame * FRAME_MS, (frame + 1) * FRAME_MS)
    ]
    return [event for event in events if event.action is action]


def _speech(vad: SileroVad, pcm: Pcm) -> list[float]:
    vad.reset()
    size = vad.frame_samples
    return [vad.probability(pcm[first : first + size]) for first in range(0, len(pcm) - size + 1, size)]
