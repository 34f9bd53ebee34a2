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
from operator import itemgetter

import numpy as np

from app.dialog.end_of_turn import POLICIES, EndOfTurnPolicy, TurnEndFusion
from app.duplex.measures import SHORT_PAUSE_S, Share
from app.duplex.segments import UserSegment
from app.duplex.simulator import DuplexRecord

SILENCES_MS = (200, 300, 400, 500, 640, 800, 1_000, 1_200, 1_500)
_NEAR_S = 0.35
"""Longest delay between the end of speech and the detection of the pause, beyond its silence."""


@dataclass(frozen=True, slots=True)
class HeardPause:
    """A silence of the user, and the answers in it."""

    length_s: float
    """Infinite after the end of a turn."""
    answers: tuple[tuple[float, float], ...]
    """Answers of the detector: (silence in ms when it came, probability that the turn is over)."""
    predictions: tuple[tuple[float, float], ...] = ()
    """Answers of the language model, likewise."""


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One way to end turns."""

    name: str
    cut_off: Share
    """Share of the turns that have a pause of at most a second."""
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
        return _wait_ms(pause, policy, end_ms, uses_model=uses_model)

    cut = Share.of(
        any(pause.length_s <= SHORT_PAUSE_S and wait_ms(pause) < pause.length_s * 1e3 for pause in turn)
        for turn in paused
    )
    waits = [wait_ms(pause) for turn in turns for pause in turn if np.isinf(pause.length_s)]
    return CurvePoint(name, cut, float(np.mean(waits)), 0.0)


def _wait_ms(pause: HeardPause, policy: EndOfTurnPolicy | None, end_ms: int, *, uses_model: bool) -> float:
    """Silence until the commit, which at each moment depends on the answers known by then."""
    if policy is None:
        return end_ms
    rated = predicted = None
    since_ms = 0.0
    answers = [(ms, probability, None) for ms, probability in pause.answers[:1]]
    predictions = [(ms, None, probability) for ms, probability in pause.predictions[:1] if uses_model]
    for until_ms, heard, said in sorted([*answers, *predictions], key=itemgetter(0)):
        wait_ms = max(TurnEndFusion().silence_ms(policy, rated, predicted, end_ms), since_ms)
        if wait_ms <= until_ms:
            return wait_ms
        rated, predicted = (heard, predicted) if said is None else (rated, said)
        since_ms = until_ms
    return max(TurnEndFusion().silence_ms(policy, rated, predicted, end_ms), since_ms)


_Answers = Sequence[tuple[float, float, float]]
"""Answers, each with its time in seconds, the silence in ms and the probability."""


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
    """The answers about the silence from `start_s` to `end_s`."""
    return tuple(
        (silence_ms, probability)
        for at_s, silence_ms, probability in answers
        if start_s < at_s < end_s and abs(at_s - silence_ms / 1e3 - start_s) < _NEAR_S
    )
