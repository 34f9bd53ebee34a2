"""The report of the duplex bench: tables with definitions, counts and targets, and one JSON document.

In: recordings. Out: sections (engine_runtime/table.py), plain values, targets with their verdicts. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from app.dialog.turn_taking_settings import TurnTakingSettings
from app.duplex import measures, session_measures
from app.duplex.cut_off_curve import CurvePoint, measure_curve
from app.duplex.measures import LEAST_EVENTS, Outcomes, Panel, Share, Spread, judge, summarize_outcomes
from app.duplex.room import RATE
from app.duplex.segments import bridge, find_segments
from app.duplex.session_measures import (
    SessionMeasures,
    cut_s,
    lowered,
    measure_sessions,
    resumed_s,
    yielded_s,
)
from app.duplex.simulator import DuplexRecord
from engine_runtime.table import Cell, Section

Surroundings = Literal["clean", "echo", "noise"]
_TITLES: dict[Surroundings, str] = {
    "clean": "headphones, no noise",
    "echo": "open loudspeaker",
    "noise": "background noise",
}
_ALL = "all conversations"
_SHARE_COLUMNS = {
    "share of": "see below",
    "rate": f"hits / events; - of fewer than {LEAST_EVENTS} events",
    "hits": "events of which it is true",
    "events": "those that count",
}
_SPREAD_COLUMNS = {
    "latency": "see below",
    "p50": "median",
    "p95": "95th percentile",
    "events": "those that count",
}
_CURVE_COLUMNS = {
    "ends by": "what ends a turn: silence alone, or a policy",
    "wait_ms": "mean silence until the commit at the ends of turns",
    "cut_off": "turns whose wait would end in a pause of at most 1 s",
    "turns": "those with such a pause",
    "silence_alone": "the rate of silence alone with the same wait",
}
_TARGET_COLUMNS = {
    "target": "the figure, with its unit",
    "measured": "its value; - if it was not measured",
    "limit": "what it has to keep",
    "result": "met, NOT MET, or not measured",
}
_IGNORED = {"S_BC": 0.9, "S_VT": 0.95, "S_ND": 0.9}
"""Shares of events that were rightly ignored, with their targets."""
_RESUMED = {
    f"{name} resumed": f"{name}; by the session's report, a reply that pauses and is resumed, or that ends "
    "by itself, has not yielded"
    for name in _IGNORED
}


@dataclass(frozen=True, slots=True)
class Target:
    """A target; `value` is None if it was not measured."""

    name: str
    value: float | None
    limit: float
    is_upper: bool
    """The value has to be at most the limit, else at least."""

    @property
    def is_met(self) -> bool | None:
        """None where it was not measured."""
        if self.value is None:
            return None
        return self.value <= self.limit if self.is_upper else self.value >= self.limit

    def row(self) -> dict[str, Cell]:
        """As a row of a table."""
        sign = "<=" if self.is_upper else ">="
        result = {True: "met", False: "NOT MET", None: "not measured"}[self.is_met]
        return {
            "target": self.name,
            "measured": self.value,
            "limit": f"{sign} {self.limit:.4g}",
            "result": result,
        }


class DuplexReport:
    """All recordings of a run."""

    def __init__(
        self, recordings: Sequence[DuplexRecord], turn_taking: TurnTakingSettings, device: str = "cpu"
    ) -> None:
        self._recordings = recordings
        self._pause_ms = turn_taking.pause_ms
        self._has_gpu = device != "cpu"
        clean = [recording for recording in recordings if _surroundings(recording) == "clean"]
        self._curve = measure_curve(clean, turn_taking.end_ms)
        self._panels: dict[Surroundings, Panel] = {}
        self._sessions: dict[Surroundings, SessionMeasures] = {}
        for place in _TITLES:
            chosen = [recording for recording in recordings if _surroundings(recording) == place]
            if chosen:
                outcomes, bridged = Outcomes(), Outcomes()
                for recording in chosen:
                    sounds = find_segments(recording.assistant, RATE)
                    cuts = cut_s(recording)
                    outcomes += judge(recording.segments, sounds, lowered=lowered(recording), cut_s=cuts)
                    whole = bridge(sounds, resumed_s(recording))
                    bridged += judge(recording.segments, whole, yielded_s(recording), cut_s=cuts)
                panel = self._panels[place] = summarize_outcomes(outcomes)
                resumed = summarize_outcomes(bridged).shares
                panel.shares.update({f"{name} resumed": resumed[name] for name in _IGNORED})
                self._sessions[place] = measure_sessions(chosen)
        self._all = measure_sessions(recordings)

    @property
    def targets(self) -> list[Target]:
        """The targets of a run of this kind, in the order of the printout."""
        clean, echo = self._panels.get("clean"), self._panels.get("echo")
        late = self._sessions["clean"].spreads if clean else {}
        targets = []
        if clean is not None:
            voice, ttfa, shares = late["voice-to-voice"], late["TTFA"], clean.shares
            if ttfa.p50 is not None:
                sum_ms = self._pause_ms + ttfa.p50 + 100
                targets.append(Target("voice-to-voice p50, ms (pause + TTFA + 100)", voice.p50, sum_ms, True))
            targets += [
                Target("voice-to-voice p95, ms", voice.p95, 900, True),
                Target("turns cut off at pauses up to 1 s", shares["cut off"].rate, 0.1, True),
                Target("fall p95, ms", late["fall"].p95, 60, True),
                Target("silent after stop p95, s", clean.spreads["silent after stop"].p95, 0.3, True),
                Target("silent after others p50, s", clean.spreads["silent after others"].p50, 0.6, True),
                Target("R_Y", shares["R_Y"].rate, 0.97, False),
            ]
            for name, least in _IGNORED.items():
                targets.append(Target(name, shares[name].rate, least, False))
                targets.append(Target(f"{name} resumed", shares[f"{name} resumed"].rate, least, False))
        if echo is not None:
            counts = self._sessions["echo"].counts
            targets += [
                Target("self-interruptions under echo", counts["self-interruptions"], 0, True),
                Target("answers to itself under echo", counts["answers to itself"], 0, True),
                Target("R_Y under echo", echo.shares["R_Y"].rate, 0.9, False),
            ]
        spreads = self._all.spreads
        if self._has_gpu:
            targets.append(Target("confirmed to sound p50, ms", spreads["confirmed to sound"].p50, 10, True))
        return [
            *targets,
            Target("resume -> sound p95, ms", spreads["resume -> sound"].p95, 300, True),
            Target("lost at a resume p95, ms", spreads["lost at a resume"].p95, 0, True),
            Target("doubled at a resume p95, ms", spreads["doubled at a resume"].p95, 0, True),
            Target("under-runs", self._all.counts["under-runs"], 0, True),
            Target("KV blocks lost", self._all.counts["KV blocks lost"], 0, True),
        ]

    def sections(self) -> Iterator[tuple[str, Section]]:
        """Tables, each with the part of the report that it belongs to."""
        known = measures.DEFINITIONS | _RESUMED | session_measures.DEFINITIONS
        for place, panel in self._panels.items():
            chosen = [recording for recording in self._recordings if _surroundings(recording) == place]
            minutes = sum(recording.seconds for recording in chosen) / 60
            part = f"{_TITLES[place]}: {len(chosen)} conversations, {minutes:.1f} minutes"
            session = self._sessions[place]
            for section in (
                _shares_section(panel.shares),
                _spreads_section("latencies, s", panel.spreads),
                _spreads_section("latencies by the session, ms", session.spreads),
                Section(
                    "counts",
                    {"count of": "see below", "count": "of the conversations above"},
                    [{"count of": name, "count": count} for name, count in session.counts.items()],
                ),
            ):
                first = next(iter(section.columns))
                names = [str(row[first]) for row in section.rows]
                section.terms = {name: known[name] for name in names if name in known}
                yield part, section
        errors = Counter(error for recording in self._recordings for error in recording.errors)
        if self._curve:
            yield _ALL, _curve_section(self._curve)
        targets = Section("targets", _TARGET_COLUMNS, [target.row() for target in self.targets])
        targets.note = "; ".join(f"{count} x {error}" for error, count in errors.items())
        yield _ALL, targets

    def document(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {
            "candidate_pause_ms": self._pause_ms,
            "panels": {place: asdict(panel) for place, panel in self._panels.items()},
            "sessions": {place: asdict(session) for place, session in self._sessions.items()},
            "curve": [asdict(point) for point in self._curve],
            "targets": [asdict(target) | {"is_met": target.is_met} for target in self.targets],
            "conversations": [_conversation(recording) for recording in self._recordings],
        }


def _surroundings(recording: DuplexRecord) -> Surroundings:
    if recording.room.loss_db is not None:
        return "echo"
    return "noise" if recording.room.noise_rms else "clean"


def _conversation(recording: DuplexRecord) -> dict[str, Any]:
    return {
        "name": recording.name,
        "group": recording.group,
        "seconds": round(recording.seconds, 2),
        "segments": Counter(segment.kind for segment in recording.segments),
        "decisions": Counter(str(event.attributes["kind"]) for event in recording.decisions),
        "errors": recording.errors,
    }


def _shares_section(shares: Mapping[str, Share]) -> Section:
    rows: list[dict[str, Cell]] = [
        {"share of": name, "rate": share.rate, "hits": share.hits, "events": share.total}
        for name, share in shares.items()
    ]
    return Section("shares", _SHARE_COLUMNS, rows)


def _spreads_section(title: str, spreads: Mapping[str, Spread]) -> Section:
    rows: list[dict[str, Cell]] = [
        {"latency": name, "p50": spread.p50, "p95": spread.p95, "events": spread.count}
        for name, spread in spreads.items()
    ]
    return Section(title, _SPREAD_COLUMNS, rows)


def _curve_section(curve: Sequence[CurvePoint]) -> Section:
    rows: list[dict[str, Cell]] = [
        {
            "ends by": point.name,
            "wait_ms": point.wait_ms,
            "cut_off": point.cut_off.hits,
            "turns": point.cut_off.total,
            "silence_alone": point.vad_cut_off,
        }
        for point in curve
    ]
    return Section("cut-offs against latency, computed from the pauses above", _CURVE_COLUMNS, rows)


def unmet(targets: Iterable[Target]) -> list[Target]:
    """The targets that were measured and missed."""
    return [target for target in targets if target.is_met is False]
