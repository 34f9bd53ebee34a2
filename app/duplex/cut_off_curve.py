"""Cut-offs against latency, for other thresholds on the same pauses.

In: recordings, with the pauses that turn-taking found and the answers of detector and language model. Out:
one point per way to end a turn: silence alone of several lengths, the policies of the detector, and these
with the language model where it has answered. A turn is cut off if the wait
ends within one of its pauses of at most a second; the delay from the commit to the sound is left out in all
of them. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from app.dialog.end_of_turn import POLICIES, EndOfTurnPolicy
from app.dialog.turn_end_fusion import TurnEndFusion
from app.duplex.measures import SHORT_PAUSE_S
from app.duplex.segments import UserSegment
from app.duplex.simulator import DuplexRecord
from app.duplex.statistics import Share

SILENCES_MS = (200, 300, 400, 500, 640, 800, 1_000, 1_200, 1_500)
_NEAR_S = 0.35
"""Longest delay between the end of speech and the detection of the pause, beyond its silence."""


@dataclass(frozen=True, slots=True)
class HeardPause:
    """A silence of the user, and the answers in it."""

    length_s: float
    """Infinite after the end of a turn."""
    answers: tuple[tuple[float, float], ...]
    """Of the detector: (silence in ms when it was there, probability that the turn is over)."""
    predictions: tuple[tuple[float, float], ...] = ()
    """Of the language model."""


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One way to end turns."""

    name: str
    cut_off: Share
    """Of the turns with a pause of at most a second."""
    wait_ms: float
    """Mean silence until the commit, at the ends of turns."""
    vad_cut_off: float
    """Rate of cut-offs of silence alone with the same mean wait, between the points that were computed."""


def measure_curve(records: Iterable[DuplexRecord], end_ms: int) -> list[CurvePoint]:
    """The points for silence alone, then for the detector; none where no turn has such a pause. `end_ms` is
    the silence of the settings."""
    turns = [turn for record in records for turn in _turns(record)]
    paused = [turn for turn in turns if any(pause.length_s <= SHORT_PAUSE_S for pause in turn)]
    if not paused:
        return []
    alone = [_point(f"silence {silence}", turns, paused, None, silence) for silence in SILENCES_MS]
    waits = [point.wait_ms for point in alone]
    rates = [point.cut_off.hits / point.cut_off.total for point in alone]

    def compared(point: CurvePoint) -> CurvePoint:
        vad = float(np.interp(point.wait_ms, waits, rates))
        return CurvePoint(point.name, point.cut_off, point.wait_ms, vad)

    policies = {name: policy for name, policy in POLICIES.items() if policy is not None}
    detector = [_point(name, turns, paused, policy, end_ms) for name, policy in policies.items()]
    if any(pause.predictions for turn in turns for pause in turn):
        detector += [
            _point(f"{name} + model", turns, paused, policy, end_ms, uses_model=True)
            for name, policy in policies.items()
        ]
    return [compared(point) for point in (*alone, *detector)]


def _point(
    name: str,
    turns: Sequence[Sequence[HeardPause]],
    paused: Sequence[Sequence[HeardPause]],
    policy: EndOfTurnPolicy | None,
    end_ms: int,
    *,
    uses_model: bool = False,
) -> CurvePoint:
    def wait_ms(pause: HeardPause) -> float:
        alone_ms = _wait_ms(pause, policy, end_ms)
        return _fused_ms(pause, policy, end_ms, alone_ms) if policy and uses_model else alone_ms

    cut = Share.of(
        any(pause.length_s <= SHORT_PAUSE_S and wait_ms(pause) < pause.length_s * 1e3 for pause in turn)
        for turn in paused
    )
    waits = [wait_ms(pause) for turn in turns for pause in turn if np.isinf(pause.length_s)]
    return CurvePoint(name, cut, float(np.mean(waits)), 0.0)


def _wait_ms(pause: HeardPause, policy: EndOfTurnPolicy | None, end_ms: int) -> float:
    """Silence until the commit."""
    if policy is None or not pause.answers:
        return end_ms
    first_ms, probability = pause.answers[0]
    return max(policy.silence_ms(probability, end_ms), first_ms)


def _fused_ms(pause: HeardPause, policy: EndOfTurnPolicy, end_ms: int, alone_ms: float) -> float:
    """The same with the language model, unless that answers too late."""
    if not pause.predictions or pause.predictions[0][0] >= alone_ms:
        return alone_ms
    answered_ms, predicted = pause.predictions[0]
    rated = pause.answers[0][1] if pause.answers else None
    return max(TurnEndFusion().silence_ms(policy, rated, predicted, end_ms), answered_ms)


_Answers = Sequence[tuple[float, float, float]]
"""Each with its time in seconds, the silence in ms and the probability."""


def _turns(record: DuplexRecord) -> list[list[HeardPause]]:
    """The pauses of each turn that was noticed, its end last."""
    answers, predictions = (_answers(record, kind) for kind in ("pause", "predict"))
    return [_pauses(segment, answers, predictions) for segment in record.segments if segment.kind == "turn"]


def _answers(record: DuplexRecord, kind: str) -> _Answers:
    return [
        (float(known["at_s"]), float(known["silence_ms"]), float(known["probability"]))
        for known in (event.attributes for event in record.decisions)
        if known["kind"] == kind and "probability" in known
    ]


def _pauses(segment: UserSegment, answers: _Answers, predictions: _Answers) -> list[HeardPause]:
    silences = [*segment.pauses, (segment.end_s, float("inf"))]
    return [
        HeardPause(end_s - start_s, _within(start_s, end_s, answers), _within(start_s, end_s, predictions))
        for start_s, end_s in silences
    ]


def _within(start_s: float, end_s: float, answers: _Answers) -> tuple[tuple[float, float], ...]:
    """Those about the silence from `start_s` to `end_s`."""
    return tuple(
        (silence_ms, probability)
        for at_s, silence_ms, probability in answers
        if start_s < at_s < end_s and abs(at_s - silence_ms / 1e3 - start_s) < _NEAR_S
    )
