"""The measures of a conversation that need what the session reported: latencies, decisions, losses.

In: recordings. Out: spreads in milliseconds and counts. `DEFINITIONS` are printed. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from app.audio.levels import rms
from app.audio.ring import DUCK_S, FADE_S
from app.duplex.measures import IGNORED, Spread
from app.duplex.room import RATE
from app.duplex.segments import Segment, UserSegment, find_segments, first_start
from app.duplex.simulator import DuplexRecord
from engine_runtime.timing import TimingEvent
from engine_runtime.types import Pcm

_REACTION_S = 1.5
"""Speech that ended longer ago is not taken for the cause of a decision."""
_RESUME_S = 3.0
_ROUND_S = 0.02
"""A decision and its sound may fall into the same round of the session."""
TOLERANCE_MS = 10.0
"""A decision takes effect with the next block of the device."""
_PIECE = round(0.4 * RATE)
_MARGIN = round((FADE_S + 2 * TOLERANCE_MS / 1e3) * RATE)
"""After the decision to resume: the block, and the fade."""
_ALIKE = 0.8
_QUIET = 1e-3
_FALL_DB = 12.0
_FALL_LIMIT_S = 0.2
_WINDOW = round(0.005 * RATE)

_TIMED = {
    "voice-to-voice": "voice_to_voice",
    "TTFA": "first_audio",
    "endpointing": "endpointing",
    "confirmed to sound": "confirm_to_sound",
}
"""Names of the session's timing events."""

DEFINITIONS = {
    "voice-to-voice": "last speech sample -> first sample of the reply, by the session's own timing",
    "TTFA": "commit of a turn to the engine, a speculative one included -> first PCM sample ready",
    "endpointing": "last speech sample -> commit",
    "confirmed to sound": "decision that a turn is over -> first sample of the reply",
    "ducked": "start of an interruption or a backchannel -> the reply is ducked or silent: most of it is the "
    "time until a frame is speech, and as loud as the user",
    "fall": f"decision that somebody speaks over a reply -> it is {_FALL_DB:g} dB softer than it was made, "
    "of replies that came back",
    "undone": "start of a backchannel, cough or bystander's speech -> the reply is as loud as before",
    "resume -> sound": "decision to resume a paused reply -> its sound continues, if it is not paused again "
    "before",
    "lost at a resume": f"of the reply, by its sound as made, in ms beyond {TOLERANCE_MS:g} ms",
    "doubled at a resume": "the same, of what is heard twice; what was faded out is faded in again",
    "self-interruptions": f"replies paused or cut while no user had spoken for {_REACTION_S:g} s",
    "answers to itself": "committed turns during which no user spoke",
    "interrupts": "replies paused or ducked because somebody spoke",
    "resumes": "of these, replies that continued",
    "cuts": "replies that ended because somebody spoke",
    "speculative replies": "replies begun at a candidate pause",
    "rolled back": "of these, replies discarded because the user continued",
    "reopened turns": "turns that were continued after their commit",
    "under-runs": "gaps in the playback",
    "samples lost": "on capture",
    "KV blocks lost": "in use after the conversation was forgotten",
    "errors": "reported by the session",
}


@dataclass(frozen=True, slots=True)
class SessionMeasures:
    """Sums over recordings; spreads in milliseconds."""

    spreads: dict[str, Spread]
    counts: dict[str, int]


def measure_sessions(recordings: Sequence[DuplexRecord]) -> SessionMeasures:
    """The sums over these conversations."""
    clocks = [clock for recording in recordings for clock in overlap_clocks(recording)]
    shifts = [shift for recording in recordings for shift in _shifts(recording)]
    spreads = {name: _timed(recordings, event) for name, event in _TIMED.items()} | {
        "ducked": Spread.of(clock.ducked_ms for clock in clocks if clock.ducked_ms is not None),
        "undone": Spread.of(clock.undone_ms for clock in clocks if clock.undone_ms is not None),
        "fall": Spread.of(late for recording in recordings for late in _falls(recording)),
        "resume -> sound": Spread.of(late for recording in recordings for late in _resume_lags(recording)),
        "lost at a resume": Spread.of(max(shift - TOLERANCE_MS, 0.0) for shift in shifts),
        "doubled at a resume": Spread.of(max(-shift - TOLERANCE_MS, 0.0) for shift in shifts),
    }
    rolled_back = [event for recording in recordings for event in recording.of("roll_back")]
    speculative = [event for event in rolled_back if event.attributes.get("is_speculative")]
    counts = {
        "self-interruptions": sum(map(_self_interruptions, recordings)),
        "answers to itself": sum(map(_answers_to_itself, recordings)),
        "interrupts": sum(len(recording.of("interrupt")) for recording in recordings),
        "resumes": sum(len(recording.of("resume")) for recording in recordings),
        "cuts": sum(len(recording.of("cut")) for recording in recordings),
        "speculative replies": sum(len(recording.of("speculate")) for recording in recordings),
        "rolled back": len(speculative),
        "reopened turns": len(rolled_back) - len(speculative),
        "under-runs": sum(recording.underruns for recording in recordings),
        "samples lost": sum(recording.samples_lost for recording in recordings),
        "KV blocks lost": sum(recording.blocks_lost for recording in recordings),
        "errors": sum(len(recording.errors) for recording in recordings),
    }
    return SessionMeasures(spreads, counts)


@dataclass(frozen=True, slots=True)
class OverlapClock:
    """Speech over a reply, from its start."""

    ducked_ms: float | None
    """When the reply was ducked or silent; None for a noise or a bystander, for whom it need not be."""
    undone_ms: float | None
    """When it was as loud as before; None where it is an interruption, or the reply did not come back."""


def overlap_clocks(recording: DuplexRecord) -> list[OverlapClock]:
    """One for each utterance that paused or ducked a reply."""
    spans = [span for span in overlaps(recording) if span.manner != "off"]
    clocks = []
    for segment in recording.segments:
        until_s = segment.end_s + _REACTION_S
        span = next((own for own in spans if segment.start_s <= own.start_s < until_s), None)
        if span is None or segment.kind == "turn":
            continue
        ducked_ms = undone_ms = None
        if segment.kind in ("interruption", "backchannel"):
            ducked_ms = (span.start_s + span.ramp_s - segment.start_s) * 1e3
        if segment.kind in IGNORED and span.is_resumed:
            undone_ms = (span.end_s + span.ramp_s - segment.start_s) * 1e3
        clocks.append(OverlapClock(ducked_ms, undone_ms))
    return clocks


@dataclass(frozen=True, slots=True)
class OverlapSpan:
    """From the decision that somebody speaks over a reply to the verdict."""

    start_s: float
    end_s: float
    turn_id: int
    manner: str
    """What happened to the reply: an `OverlapManner`."""
    is_resumed: bool

    @property
    def ramp_s(self) -> float:
        """From a decision to its effect."""
        return {"duck": DUCK_S, "pause": FADE_S}.get(self.manner, 0.0)


def overlaps(recording: DuplexRecord) -> list[OverlapSpan]:
    """Each time that somebody spoke over a reply, in order."""
    spans, present = [], None
    for event in sorted(_stops(recording), key=_at_s):
        kind = event.attributes["kind"]
        if kind != "interrupt" and present is not None:
            manner = str(present.attributes.get("overlap", "pause"))
            spans.append(OverlapSpan(_at_s(present), _at_s(event), present.turn_id, manner, kind == "resume"))
        present = event if kind == "interrupt" else None
    return spans


def lowered(recording: DuplexRecord) -> list[Segment]:
    """Where a reply was 10 dB down or more, and went on."""
    return [
        Segment(span.start_s + span.ramp_s, span.end_s + span.ramp_s)
        for span in overlaps(recording)
        if span.manner == "duck"
    ]


def resumed_s(recording: DuplexRecord) -> list[float]:
    """When replies were resumed."""
    return [_at_s(event) for event in recording.of("resume")]


def cut_s(recording: DuplexRecord) -> list[float]:
    """When replies were cut."""
    return [_at_s(event) for event in recording.of("cut")]


def yielded_s(recording: DuplexRecord) -> list[float]:
    """When replies were paused that were not resumed, or were cut without a pause."""
    gave_up, paused = [], {}
    for event in sorted(_stops(recording), key=_at_s):
        kind = event.attributes["kind"]
        if kind == "interrupt":
            paused[event.turn_id] = _at_s(event)
        elif kind == "resume":
            paused.pop(event.turn_id, None)
        else:
            gave_up.append(paused.pop(event.turn_id, _at_s(event)))
    return gave_up


def _shifts(recording: DuplexRecord) -> list[float]:
    """The shift of each resumed reply whose sound is known."""
    spans, shifts = overlaps(recording), []
    for place, span in enumerate(spans):
        reply = recording.replies.get(span.turn_id)
        if reply is None or not span.is_resumed:
            continue
        before, after = spans[:place], spans[place + 1 :]
        since_s = max((own.end_s + FADE_S for own in before if own.turn_id == span.turn_id), default=0.0)
        until_s = min((own.start_s for own in after if own.turn_id == span.turn_id), default=inf)
        pause_s = span.end_s - span.start_s if span.manner == "pause" else 0.0
        shifts.append(
            shift_ms(
                recording.assistant,
                span.start_s,
                span.end_s,
                reply,
                pause_s=pause_s,
                since_s=since_s,
                until_s=until_s,
            )
        )
    return [shift for shift in shifts if shift is not None]


def _falls(recording: DuplexRecord) -> Iterator[float]:
    """How long each reply that came back took to fall."""
    spans = overlaps(recording)
    for place, span in enumerate(spans):
        reply = recording.replies.get(span.turn_id)
        if reply is None or span.manner == "off":
            continue
        # A reply that still rises after the last time is not as loud as it was made.
        earlier = [own.end_s + own.ramp_s for own in spans[:place] if own.turn_id == span.turn_id]
        took_ms = fall_ms(recording.assistant, span.start_s, reply, since_s=max(earlier, default=0.0))
        if took_ms is not None:
            yield took_ms


def _timed(recordings: Iterable[DuplexRecord], name: str) -> Spread:
    return Spread.of(
        event.duration_ms for recording in recordings for event in recording.timings if event.name == name
    )


def _resume_lags(recording: DuplexRecord) -> list[float]:
    """From each decision to resume to the next start of a sound, in milliseconds; none where the next
    decision about a reply comes first."""
    sounds = find_segments(recording.assistant, RATE)
    decisions = sorted(map(_at_s, _stops(recording)))
    resumed = [span.end_s for span in overlaps(recording) if span.is_resumed and span.manner == "pause"]
    lags = []
    for at_s in resumed:
        next_s = min((other_s for other_s in decisions if other_s > at_s), default=inf)
        start_s = first_start(sounds, at_s - _ROUND_S, min(next_s, at_s + _RESUME_S))
        if start_s is not None:
            lags.append(max(start_s - at_s, 0.0) * 1e3)
    return lags


def _stops(recording: DuplexRecord) -> list[TimingEvent]:
    """Every decision to pause, resume or cut a reply."""
    return [*recording.of("interrupt"), *recording.of("resume"), *recording.of("cut")]


def _self_interruptions(recording: DuplexRecord) -> int:
    """Replies that were paused, or cut without a pause before, while nobody had spoken."""
    paused = {event.turn_id for event in recording.of("interrupt")}
    cuts = [event for event in recording.of("cut") if event.attributes.get("reason") == "barge_in"]
    stops = recording.of("interrupt") + [event for event in cuts if event.turn_id not in paused]
    return sum(not _is_spoken(recording.segments, _at_s(event)) for event in stops)


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


def shift_ms(
    channel: Pcm,
    paused_s: float,
    resumed_s: float,
    reply: Pcm,
    *,
    pause_s: float | None = None,
    since_s: float = 0.0,
    until_s: float = np.inf,
) -> float | None:
    """How many milliseconds of a reply are missing in the assistant's channel where it was paused and resumed
    (above 0), or played twice (below 0). `pause_s` of silence are in between, by default all of that time.
    None where a side is too short, too quiet or not found in the reply,
    which is played without another pause from `since_s` to `until_s`."""
    before_end = round(paused_s * RATE)
    after_start = round(resumed_s * RATE) + _MARGIN
    first = max(before_end - _PIECE, round(since_s * RATE))
    end = int(min(after_start + _PIECE, until_s * RATE))
    before = _place(reply, channel[first:before_end])
    after = _place(reply, channel[after_start:end])
    if before is None or after is None:
        return None
    # From the start of one piece to that of the other, without the pause.
    pause_s = resumed_s - paused_s if pause_s is None else pause_s
    in_record = after_start - (before_end - _PIECE) - pause_s * RATE
    return float((after - before - in_record) * 1e3 / RATE)


def fall_ms(channel: Pcm, at_s: float, reply: Pcm, *, since_s: float = 0.0) -> float | None:
    """Milliseconds from `at_s` until the assistant's channel is 12 dB softer than the reply as made, to 5 ms.
    None if the reply is too quiet then, or what was played before, from `since_s` on, is not found in it.
    200 if it does not fall within 0.2 s."""
    end = round(at_s * RATE)
    before = channel[max(end - _PIECE, round(since_s * RATE)) : end]
    place = _place(reply, before)
    if place is None:
        return None
    made = reply[place + len(before) :]
    is_known = False
    for first in range(0, round(_FALL_LIMIT_S * RATE), _WINDOW):
        expected, heard = made[first : first + _WINDOW], channel[end + first : end + first + _WINDOW]
        if len(expected) < _WINDOW or len(heard) < _WINDOW or rms(expected) < _QUIET:
            is_known = False
            continue
        if rms(heard) <= rms(expected) * 10 ** (-_FALL_DB / 20):
            # After a pause of the reply nobody knows when it fell.
            return (first + _WINDOW) * 1e3 / RATE if is_known or not first else None
        is_known = True
    return _FALL_LIMIT_S * 1e3 if is_known else None


def _place(reply: Pcm, piece: Pcm) -> int | None:
    """Where the piece is in the reply."""
    if len(piece) < _PIECE or len(reply) < _PIECE or rms(piece) < _QUIET:
        return None
    size = 1 << (len(reply) + _PIECE).bit_length()
    product = np.fft.rfft(reply, size) * np.conj(np.fft.rfft(piece, size))
    likeness = np.fft.irfft(product, size)[: len(reply) - _PIECE + 1]
    energy = np.concatenate([[0.0], np.cumsum(reply.astype(np.float64) ** 2)])
    levels = np.sqrt(np.maximum((energy[_PIECE:] - energy[:-_PIECE]) / _PIECE, _QUIET**2))
    likeness = likeness / (levels * rms(piece) * _PIECE)
    place = int(np.argmax(likeness))
    return place if likeness[place] >= _ALIKE else None
