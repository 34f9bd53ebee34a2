"""The measures of a conversation that come from the segments of both channels alone.

In: the user's annotated segments and those of the assistant's channel. Out: one outcome per event, and sums
of them as the tau-voice panel and as the quantities of Full-Duplex-Bench. The definitions that are printed
stand beside the measures in `DEFINITIONS`. Nothing of the session is known here. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from app.duplex.segments import (
    MODEL_GAP_S,
    Segment,
    SegmentKind,
    UserSegment,
    first_start,
    merge,
    overlap_s,
    sounding_at,
    without,
)
from engine_runtime.bench.measuring import p50_p95

YIELD_S = 2.0
"""To yield to an interruption."""
IGNORE_S, NO_ANSWER_S = 1.0, 2.0
"""Time limits within which the assistant yields to, or answers, speech that it should ignore."""
LOWERED_S = 0.7
"""A reply that is 10 dB down for longer than this has yielded to speech that it should ignore."""
STOP = "stop"
"""The interruption that is measured from its end: until then nobody can know the word."""
ANSWER_S = 10.0
"""To answer a turn."""
SHORTEST_REPLY_S = 1.0
"""A shorter sound takes no turn."""
SHORT_PAUSE_S = 1.0
LEAST_EVENTS = 10
"""A rate needs at least this many events."""
IGNORED: tuple[SegmentKind, ...] = ("backchannel", "tic", "not_directed")

DEFINITIONS = {
    "L_R": "end of a turn -> the assistant starts to speak, of turns answered after their end",
    "L_Y": "start of an interruption -> the assistant is silent, of those it yields to",
    "R_R": f"turns answered: the assistant starts within {ANSWER_S:g} s of their end, before the next turn",
    "R_Y": f"interruptions, begun while the assistant speaks, after which it is silent, or its reply is "
    f"cut, within {YIELD_S:g} s",
    "I_A": "turns in which the assistant starts to speak before their end",
    "S_BC": f"backchannels that it neither yields to (silent within {IGNORE_S:g} s of their start; gaps up "
    f"to {MODEL_GAP_S:g} s are none; 10 dB down for more than {LOWERED_S:g} s is silent) nor answers (starts "
    f"within {NO_ANSWER_S:g} s of their end)",
    "S_VT": "the same of coughs and clicks",
    "S_ND": "the same of speech that is not directed at it",
    "pause TOR": f"pauses within a turn in which the assistant starts and speaks for at least "
    f"{SHORTEST_REPLY_S:g} s",
    "cut off": f"turns with a pause of at most {SHORT_PAUSE_S:g} s in which the assistant is heard in it",
    "turn TOR": f"turns after which the assistant speaks for at least {SHORTEST_REPLY_S:g} s",
    "turn latency": "end of a turn -> start of the reply; 0 where it started before",
    "interruption TOR": f"interruptions after which it speaks for at least {SHORTEST_REPLY_S:g} s",
    "stop latency": f"time in which user and assistant speak at once, from the start of an interruption on; "
    f"gaps of the user up to 0.6 s and of the assistant up to {MODEL_GAP_S:g} s count as speech",
    "silent after stop": f'end of "{STOP}", said alone -> the assistant is silent; 0 if it is before',
    "silent after others": "start of any other interruption -> the assistant is silent",
    "response latency": "end of an interruption -> next start of the assistant",
}


@dataclass(frozen=True, slots=True)
class TurnOutcome:
    """Outcome of a turn."""

    is_answered: bool
    latency_s: float | None
    """Latency of a reply that started after the end."""
    is_interrupted: bool
    takes_turn: bool
    """The reply is long enough."""
    fdb_latency_s: float | None
    pauses: tuple[tuple[float, bool, bool], ...] = ()
    """(length in seconds, the assistant was heard in it, it took the turn) of each pause."""


@dataclass(frozen=True, slots=True)
class InterruptionOutcome:
    """Outcome of an interruption."""

    is_yielded: bool
    yield_s: float | None
    stop_s: float
    takes_turn: bool
    response_s: float | None
    stop_word_s: float | None = None
    """From the end of a "stop" to silence; None for any other interruption."""


@dataclass(frozen=True, slots=True)
class IgnoredOutcome:
    """Outcome of something that is to be ignored."""

    kind: SegmentKind
    is_over_speech: bool
    """Whether the assistant spoke when it began."""
    is_yielded: bool
    is_answered: bool

    @property
    def is_ignored(self) -> bool:
        """Whether it was rightly ignored."""
        return not (self.is_yielded or self.is_answered)


@dataclass(slots=True)
class Outcomes:
    """All outcomes of one or several conversations."""

    turns: list[TurnOutcome] = field(default_factory=list)
    interruptions: list[InterruptionOutcome] = field(default_factory=list)
    ignored: list[IgnoredOutcome] = field(default_factory=list)

    def __iadd__(self, other: Outcomes) -> Outcomes:
        self.turns += other.turns
        self.interruptions += other.interruptions
        self.ignored += other.ignored
        return self


def judge(
    user: Sequence[UserSegment],
    model: Sequence[Segment],
    yielded_s: Sequence[float] | None = None,
    lowered: Sequence[Segment] = (),
    cut_s: Sequence[float] = (),
) -> Outcomes:
    """The outcomes of one conversation. `model` are the unmerged segments of the assistant's channel, and in
    `lowered` it is 10 dB down: too long, that is silence for speech which it should ignore, and never for an
    interruption. At `cut_s` the session ended a reply: what sounds next is another one, however soon it
    begins. With `yielded_s`, when the session gave up a reply, one that ends by itself has not
    yielded."""
    speech = merge(model, MODEL_GAP_S, cut_s)
    loud = without(model, (span for span in lowered if span.seconds > LOWERED_S))
    full = merge(loud, MODEL_GAP_S, cut_s)
    outcomes = Outcomes()
    for place, segment in enumerate(user):
        later = (other.start_s for other in user[place + 1 :] if other.kind not in IGNORED)
        until_s = min(next(later, np.inf), segment.end_s + ANSWER_S)
        if segment.kind in IGNORED:
            outcomes.ignored.append(_judge_ignored(segment, full, yielded_s))
        elif segment.kind == "interruption" and sounding_at(speech, segment.start_s) is not None:
            outcomes.interruptions.append(_judge_interruption(segment, speech, until_s))
        else:
            outcomes.turns.append(_judge_turn(segment, speech, model, until_s))
    return outcomes


def _judge_turn(
    turn: UserSegment, speech: Sequence[Segment], model: Sequence[Segment], until_s: float
) -> TurnOutcome:
    early = first_start(speech, turn.start_s, turn.end_s)
    after = first_start(speech, turn.end_s, until_s)
    goes_on = early is not None and sounding_at(speech, turn.end_s) is not None
    reply_s = early if goes_on else after
    return TurnOutcome(
        is_answered=after is not None or goes_on,
        latency_s=None if after is None else after - turn.end_s,
        is_interrupted=early is not None,
        takes_turn=_takes_turn(speech, reply_s),
        fdb_latency_s=None if reply_s is None else max(reply_s - turn.end_s, 0.0),
        pauses=tuple(_judge_pause(pause, speech, model) for pause in turn.pauses),
    )


def _judge_pause(
    pause: tuple[float, float], speech: Sequence[Segment], model: Sequence[Segment]
) -> tuple[float, bool, bool]:
    began = first_start(speech, *pause)
    is_heard = first_start(model, *pause) is not None
    return pause[1] - pause[0], is_heard, _takes_turn(speech, began)


def _takes_turn(speech: Sequence[Segment], start_s: float | None) -> bool:
    reply = None if start_s is None else sounding_at(speech, start_s)
    return reply is not None and reply.seconds >= SHORTEST_REPLY_S


def _judge_interruption(
    interruption: UserSegment, speech: Sequence[Segment], until_s: float
) -> InterruptionOutcome:
    reply = sounding_at(speech, interruption.start_s)
    if reply is None:
        raise ValueError(f"nothing is interrupted at {interruption.start_s} s")
    yield_s = reply.end_s - interruption.start_s
    response = first_start(speech, interruption.end_s, until_s)
    return InterruptionOutcome(
        is_yielded=yield_s <= YIELD_S,
        yield_s=yield_s if yield_s <= YIELD_S else None,
        stop_s=overlap_s(interruption, [reply]),
        takes_turn=_takes_turn(speech, response),
        response_s=None if response is None else response - interruption.end_s,
        stop_word_s=max(reply.end_s - interruption.end_s, 0.0) if interruption.text == STOP else None,
    )


def _judge_ignored(
    segment: UserSegment, speech: Sequence[Segment], yielded_s: Sequence[float] | None
) -> IgnoredOutcome:
    reply = sounding_at(speech, segment.start_s)
    ends_soon = reply is not None and reply.end_s - segment.start_s <= IGNORE_S
    in_time = segment.start_s, segment.start_s + IGNORE_S
    is_given_up = yielded_s is None or any(in_time[0] <= at_s <= in_time[1] for at_s in yielded_s)
    answer = first_start(speech, segment.start_s + 1e-6, segment.end_s + NO_ANSWER_S)
    return IgnoredOutcome(
        segment.kind,
        is_over_speech=reply is not None,
        is_yielded=ends_soon and is_given_up,
        is_answered=answer is not None,
    )


@dataclass(frozen=True, slots=True)
class Share:
    """`hits` of `total` events."""

    hits: int
    total: int

    @classmethod
    def of(cls, outcomes: Iterable[bool]) -> Share:
        """The share of true outcomes."""
        known = list(outcomes)
        return cls(sum(known), len(known))

    @property
    def rate(self) -> float | None:
        """None where there are too few events."""
        return self.hits / self.total if self.total >= LEAST_EVENTS else None


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles of some values; None without any."""

    count: int
    p50: float | None
    p95: float | None

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """The percentiles, interpolated."""
        known = list(values)
        if not known:
            return cls(0, None, None)
        return cls(len(known), *p50_p95(known))


@dataclass(frozen=True, slots=True)
class Panel:
    """The sums: shares and latencies by the names of `DEFINITIONS`."""

    shares: dict[str, Share]
    spreads: dict[str, Spread]
    """In seconds."""


def summarize_outcomes(outcomes: Outcomes) -> Panel:
    """The tau-voice panel and the quantities of Full-Duplex-Bench."""
    turns, interruptions = outcomes.turns, outcomes.interruptions
    pauses = [pause for turn in turns for pause in turn.pauses]
    short = [
        [heard for seconds, heard, _ in turn.pauses if seconds <= SHORT_PAUSE_S]
        for turn in turns
        if any(seconds <= SHORT_PAUSE_S for seconds, _, _ in turn.pauses)
    ]
    shares = {
        "R_R": Share.of(turn.is_answered for turn in turns),
        "R_Y": Share.of(event.is_yielded for event in interruptions),
        "I_A": Share.of(turn.is_interrupted for turn in turns),
        "S_BC": _ignored(outcomes.ignored, "backchannel"),
        "S_VT": _ignored(outcomes.ignored, "tic"),
        "S_ND": _ignored(outcomes.ignored, "not_directed"),
        "pause TOR": Share.of(taken for _, _, taken in pauses),
        "cut off": Share.of(any(heard) for heard in short),
        "turn TOR": Share.of(turn.takes_turn for turn in turns),
        "interruption TOR": Share.of(event.takes_turn for event in interruptions),
    }
    spreads = {
        "L_R": _spread(turn.latency_s for turn in turns),
        "L_Y": _spread(event.yield_s for event in interruptions),
        "turn latency": _spread(turn.fdb_latency_s for turn in turns),
        "stop latency": _spread(event.stop_s for event in interruptions),
        "silent after stop": _spread(event.stop_word_s for event in interruptions if event.is_yielded),
        "silent after others": _spread(event.yield_s for event in interruptions if event.stop_word_s is None),
        "response latency": _spread(event.response_s for event in interruptions),
    }
    return Panel(shares, spreads)


def _ignored(events: Iterable[IgnoredOutcome], kind: SegmentKind) -> Share:
    return Share.of(event.is_ignored for event in events if event.kind == kind)


def _spread(values: Iterable[float | None]) -> Spread:
    return Spread.of(value for value in values if value is not None)
