"""The measures of a conversation that need what the session reported: latencies, decisions, losses.

In: recordings. Out: spreads in milliseconds and counts. `DEFINITIONS` are printed. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from app.duplex.room import RATE
from app.duplex.segments import Segment, UserSegment, find_segments, first_start
from app.duplex.simulator import DuplexRecord
from app.duplex.statistics import Spread
from engine_runtime.timing import TimingEvent

_REACTION_S = 1.5
"""Speech that ended longer ago did not cause a decision."""
_SOON_S = 10.0
_RESUME_S = 3.0
_ROUND_S = 0.02
"""A decision and its sound may fall into the same round of the session."""

DEFINITIONS = {
    "voice-to-voice": "last speech sample -> first sample of the reply, by the session's own timing",
    "TTFA": "commit of a turn -> first PCM sample ready; under 0 or none where the reply was speculative",
    "endpointing": "last speech sample -> commit",
    "confirm -> sound": "decision that a turn is over -> first sound of the reply in the record",
    "resume -> sound": "decision to resume a reply -> its sound goes on in the record",
    "self-interruptions": f"replies interrupted while no user has spoken within {_REACTION_S:g} s before",
    "answers to itself": "committed turns during which no user spoke",
    "speculative replies": "replies begun at a candidate pause, and how many of them were rolled back",
    "under-runs": "gaps in the playback",
    "samples lost": "on capture",
    "KV blocks lost": "in use after the conversation was forgotten",
}


@dataclass(frozen=True, slots=True)
class SessionMeasures:
    """Sums over recordings; spreads in milliseconds."""

    spreads: dict[str, Spread]
    counts: dict[str, int]


def measure_sessions(recordings: Sequence[DuplexRecord]) -> SessionMeasures:
    """The sums over these conversations."""
    spreads = {
        "voice-to-voice": _timed(recordings, "voice_to_voice"),
        "TTFA": _timed(recordings, "first_audio"),
        "endpointing": _timed(recordings, "endpointing"),
        "confirm -> sound": Spread.of(
            late for recording in recordings for late in _lags(recording, "confirm", _SOON_S)
        ),
        "resume -> sound": Spread.of(
            late for recording in recordings for late in _lags(recording, "resume", _RESUME_S)
        ),
    }
    kinds = [event.attributes["kind"] for recording in recordings for event in recording.decisions]
    counts = {
        "self-interruptions": sum(map(_self_interruptions, recordings)),
        "answers to itself": sum(map(_answers_to_itself, recordings)),
        "interrupts": kinds.count("interrupt"),
        "resumes": kinds.count("resume"),
        "speculative replies": kinds.count("speculate"),
        "rolled back": kinds.count("roll_back"),
        "under-runs": sum(recording.underruns for recording in recordings),
        "samples lost": sum(recording.samples_lost for recording in recordings),
        "KV blocks lost": sum(recording.blocks_lost for recording in recordings),
        "errors": sum(len(recording.errors) for recording in recordings),
    }
    return SessionMeasures(spreads, counts)


def _timed(recordings: Iterable[DuplexRecord], name: str) -> Spread:
    return Spread.of(
        event.duration_ms for recording in recordings for event in recording.timings if event.name == name
    )


def _lags(recording: DuplexRecord, kind: str, limit_s: float) -> list[float]:
    """From each decision of a kind to the next start of a sound, in milliseconds; none where the next such
    decision comes first."""
    sounds = find_segments(recording.assistant, RATE)
    times = [_at_s(event) for event in recording.decisions if event.attributes["kind"] == kind]
    lags = []
    for at_s, next_s in pairwise([*times, float("inf")]):
        start_s = first_start(sounds, at_s - _ROUND_S, min(next_s, at_s + limit_s))
        if start_s is not None:
            lags.append(max(start_s - at_s, 0.0) * 1e3)
    return lags


def _self_interruptions(recording: DuplexRecord) -> int:
    cuts = [
        event
        for event in recording.decisions
        if event.attributes["kind"] == "interrupt"
        or (event.attributes["kind"] == "cut" and event.attributes.get("reason") == "barge_in")
    ]
    # An interruption that is not taken back is decided twice: the reply stops, then it is cut.
    turns = {event.turn_id for event in cuts if not _is_spoken(recording.segments, _at_s(event))}
    return len(turns)


def _answers_to_itself(recording: DuplexRecord) -> int:
    return sum(
        not any(_overlaps(segment, Segment(turn.start_s, turn.end_s)) for segment in recording.segments)
        for turn in recording.committed
    )


def _is_spoken(segments: Iterable[UserSegment], at_s: float) -> bool:
    before = Segment(at_s - _REACTION_S, at_s)
    return any(_overlaps(segment, before) for segment in segments)


def _overlaps(one: UserSegment, other: Segment) -> bool:
    return one.start_s < other.end_s and other.start_s < one.end_s


def _at_s(event: TimingEvent) -> float:
    return float(event.attributes["at_s"])
