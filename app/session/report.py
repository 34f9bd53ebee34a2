"""The measurements of a session as documents: the report of a conversation, and the trace of its timings.

In: events of a session. Out: a dict of turns, replies and latencies, ready for JSON; a file of timing events,
CSV for a spreadsheet, Chrome trace JSON for chrome://tracing and Perfetto (ExportError if it cannot be
written). Any one thread.
"""

from __future__ import annotations

import csv
import io
import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from app.audio.echo_cancellation import EchoMeasurement
from app.export import ExportFile
from app.session.events import (
    Counters,
    EchoMeasured,
    EngineReady,
    Event,
    ReplyCut,
    ReplyFinished,
    SpeculationMeasured,
    SpeculationStats,
    Timing,
    TurnCommitted,
    TurnTranscribed,
)
from engine_runtime.timing import TimingEvent

_MEDIANS = {"step_ms": "step", "token2mel_ms": "token2mel", "vocoder_ms": "vocoder"}
_LAST = {
    "ttfa_ms": "first_audio",
    "endpointing_ms": "endpointing",
    "playback_hold_ms": "playback_hold",
    "confirm_to_sound_ms": "confirm_to_sound",
    "voice_to_voice_ms": "voice_to_voice",
}
_OF_SERVER = {"server_ms": "server", "network_ms": "network"}
_OF_REPLY = ("rtf_total", "rtf_steady", "first_chunk_ratio")
_Reply = ReplyFinished | ReplyCut
_CSV_COLUMNS = ("name", "turn_id", "start_ms", "duration_ms", "thread")


class ConversationReport:
    """Collects the events of one session."""

    def __init__(self) -> None:
        self.timings: list[TimingEvent] = []
        """All timing events, in the order of their arrival."""
        self._bundle = ""
        self._underruns = 0
        self._echo = EchoMeasurement()
        self._speculation = SpeculationStats()
        self._committed: dict[int, TurnCommitted] = {}
        self._texts: dict[int, str] = {}
        self._finished: dict[int, ReplyFinished] = {}
        self._cut: dict[int, ReplyCut] = {}
        self._of_turn: dict[int, list[TimingEvent]] = defaultdict(list)

    @property
    def has_turns(self) -> bool:
        """Whether a question was asked."""
        return bool(self._committed)

    def add(self, event: Event) -> None:
        """The next event of the session."""
        match event:
            case EngineReady(bundle=bundle):
                self._bundle = bundle
            case TurnCommitted(turn_id=turn_id):
                self._committed[turn_id] = event
            case TurnTranscribed(turn_id, text):
                self._texts[turn_id] = text
            case ReplyFinished(turn_id=turn_id):
                self._finished[turn_id] = event
            case ReplyCut(turn_id=turn_id):
                self._cut[turn_id] = event
            case Timing(timing):
                self.timings.append(timing)
                self._of_turn[timing.turn_id].append(timing)
            case EchoMeasured(echo):
                self._echo = echo
            case SpeculationMeasured(stats):
                self._speculation = stats
            case Counters(underruns, _):
                self._underruns = underruns

    def document(self) -> dict[str, Any]:
        """{"bundle", "turns", "decisions", "speculation", "underruns", "echo"}; a turn is included once
        its reply is finished or was cut.

        echo: the latest EchoMeasurement of the microphone; "off" for a file, which is not processed.
        user: `start_s`, `end_s` in the file (0 for a typed question), `codes` = number of complete speech
        codes, `text` = its caption, "" for none. reply: `modality`, `text` (subtitle of a spoken reply, if
        the bundle has them), `codes` = number of speech codes, `audio_s`, `finish_reason`, and `cut`, which
        is null for a reply that was fully played. For a cut reply the other values describe the heard part,
        from which the conversation continues; `cut` has the `reason`, the `unheard_text`, and the generated
        seconds (`made_s`). timings, in ms, null where there is none: `prefill_ms` and `prefill_tokens` of all
        prefill calls together, `prefill_speaking_ms` the median of a call while the user spoke,
        `prefill_at_commit_ms` of all calls since the commit together, `tokens_at_commit` = tokens left to
        prefill then, `step_ms` the median of a decode step, `token2mel_ms` and `vocoder_ms` the medians of a
        chunk, all as in the latency view, `ttfa_ms` commit to first PCM, of a server divided into `server_ms`
        and `network_ms`, `endpointing_ms` last speech to commit,
        `playback_hold_ms` first PCM to the start of its playback and `playback_hold_reason` its cause
        (start_policy.StartReason), `confirm_to_sound_ms` confirmed turn to first sample handed to the device,
        `voice_to_voice_ms` last speech to first sample played. A turn during which the server was away or the
        computer slept has `outage_ms`, too.

        decisions: all decisions of turn-taking in order, also of turns that were dropped, each with its
        `kind`, its `turn` and `at_s`, by the session's clock: `pause` (the turn may be over; `silence_ms`
        since the last speech), once more with the calibrated `probability` that it is, the `shift` of its
        log-odds by what is known of the voice, the `stage` (end_of_turn.Stage, or "late") and the `cost_ms`
        of the detector when that has answered; `speculate` (a reply is made and held); `predict` (the
        language model has answered, too) with `probability`, `stage` and `cost_ms`; `confirm` (the turn is
        committed) with its `silence_ms`, `reason` (the stage, "silence" or "length") and `is_speculative` (1
        if there is a held reply); `roll_back` (the user continued: the held
        reply, or with `is_speculative` 0 that of a committed turn, is discarded); `ignore` (a bystander
        speaks) with its `level_db` and that of the user, `user_db`, or with `reason` "backchannel" (short
        speech to which the language model has nothing to reply); `cut` (the reply was stopped) with its
        `reason`, `heard_ms`, `made_ms`.

        speculation: SpeculationStats.
        """
        answered = self._finished.keys() | self._cut.keys()
        turns = [self._turn(turn) for turn_id, turn in self._committed.items() if turn_id in answered]
        return {
            "bundle": self._bundle,
            "turns": turns,
            "decisions": [_decision(event) for event in self.timings if event.name == "decision"],
            "speculation": _rounded(asdict(self._speculation)),
            "underruns": self._underruns,
            "echo": asdict(self._echo),
        }

    def _turn(self, committed: TurnCommitted) -> dict[str, Any]:
        cut = self._cut.get(committed.turn_id)
        reply = self._finished[committed.turn_id] if cut is None else cut
        return {
            "user": {
                "start_s": round(committed.start_s, 3),
                "end_s": round(committed.start_s + committed.seconds, 3),
                "codes": reply.user_codes,
                "text": self._texts.get(committed.turn_id, ""),
            },
            "reply": _heard(reply),
            "timings": _timings(self._of_turn[committed.turn_id]),
        }


def _heard(reply: _Reply) -> dict[str, Any]:
    """The heard part of a reply: all of it, or the part before the cut."""
    if isinstance(reply, ReplyFinished):
        return _entry(reply, reply.text, reply.codes, reply.seconds, reply.finish_reason, None)
    cut = {"reason": reply.reason, "unheard_text": reply.unheard_text, "made_s": round(reply.made_s, 3)}
    return _entry(reply, reply.heard_text, reply.heard_codes, reply.heard_s, "cancelled", cut)


def _entry(
    reply: _Reply, text: str, codes: int, seconds: float, finish_reason: str, cut: dict[str, Any] | None
) -> dict[str, Any]:
    return {
        "modality": reply.modality.value,
        "text": text,
        "codes": codes,
        "audio_s": round(seconds, 3),
        "finish_reason": finish_reason,
        "cut": cut,
    }


def _decision(event: TimingEvent) -> dict[str, Any]:
    known = dict(event.attributes)
    decision: dict[str, Any] = {"kind": known.pop("kind"), "turn": event.turn_id}
    return decision | _rounded(known)


def _rounded(values: dict[str, Any]) -> dict[str, Any]:
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in values.items()}


def _timings(events: list[TimingEvent]) -> dict[str, float | int | str | None]:
    by_name: dict[str, list[TimingEvent]] = defaultdict(list)
    for event in events:
        if event.name == "commit":
            # The results of an earlier commit were rolled back: only work that was done while listening still
            # counts, and the endpointing, which the session reports just before the engine commits.
            heard = [
                prefill for prefill in by_name["prefill"] if "tokens_at_commit" not in prefill.attributes
            ]
            by_name = defaultdict(list, prefill=heard, endpointing=by_name["endpointing"][-1:])
        by_name[event.name].append(event)
    prefills = by_name["prefill"]
    replies = by_name["reply"]
    holds, outages = by_name["playback_hold"], by_name["outage"]
    speaking, at_commit = (
        [event.duration_ms for event in prefills if ("tokens_at_commit" in event.attributes) is is_last]
        for is_last in (False, True)
    )
    known: dict[str, float | int | str | None] = {
        "prefill_ms": sum(speaking + at_commit) if prefills else None,
        "prefill_speaking_ms": median(speaking) if speaking else None,
        "prefill_at_commit_ms": sum(at_commit) if at_commit else None,
        "prefill_tokens": sum(int(event.attributes.get("tokens", 0)) for event in prefills),
        "tokens_at_commit": sum(int(event.attributes.get("tokens_at_commit", 0)) for event in prefills),
    }
    for key, name in _MEDIANS.items():
        known[key] = median(event.duration_ms for event in by_name[name]) if by_name[name] else None
    for key, name in _LAST.items():
        known[key] = by_name[name][-1].duration_ms if by_name[name] else None
    known |= {key: by_name[name][-1].duration_ms for key, name in _OF_SERVER.items() if by_name[name]}
    if outages:
        known["outage_ms"] = sum(event.duration_ms for event in outages)
    known["playback_hold_reason"] = str(holds[-1].attributes["reason"]) if holds else None
    for key in _OF_REPLY:
        value = replies[-1].attributes.get(key) if replies else None
        known[key] = float(value) if value is not None else None
    return {
        key: round(value, 4 if key in _OF_REPLY else 3) if isinstance(value, float) else value
        for key, value in known.items()
    }


def write_csv(path: Path, events: Iterable[TimingEvent]) -> None:
    """One line per event, by start; times in milliseconds since the first one, then one column per
    attribute."""
    ordered = sorted(events, key=lambda event: event.start_ns)
    origin_ns = ordered[0].start_ns if ordered else 0
    names = dict.fromkeys(name for event in ordered for name in event.attributes)
    table = io.StringIO()
    writer = csv.DictWriter(table, [*_CSV_COLUMNS, *names], lineterminator="\n")
    writer.writeheader()
    for event in ordered:
        fixed = {
            "name": event.name,
            "turn_id": event.turn_id,
            "start_ms": f"{(event.start_ns - origin_ns) / 1e6:.3f}",
            "duration_ms": f"{event.duration_ms:.3f}",
            "thread": event.thread,
        }
        writer.writerow(fixed | {name: event.attributes.get(name, "") for name in names})
    with ExportFile(path) as file:
        file.write(table.getvalue().encode())


def write_chrome_trace(path: Path, events: Iterable[TimingEvent]) -> None:
    """Spans by thread, moments without length as instants, the playback buffer as a curve."""
    ordered = sorted(events, key=lambda event: event.start_ns)
    origin_ns = ordered[0].start_ns if ordered else 0
    threads = {
        name: number for number, name in enumerate(dict.fromkeys(event.thread for event in ordered), 1)
    }
    entries: list[dict[str, Any]] = [
        {"name": "thread_name", "ph": "M", "pid": 1, "tid": number, "args": {"name": name}}
        for name, number in threads.items()
    ]
    entries += [_trace_entry(event, origin_ns, threads[event.thread]) for event in ordered]
    with ExportFile(path) as file:
        file.write(json.dumps({"traceEvents": entries, "displayTimeUnit": "ms"}).encode())


def _trace_entry(event: TimingEvent, origin_ns: int, thread: int) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": event.name,
        "cat": f"turn {event.turn_id}",
        "ts": (event.start_ns - origin_ns) / 1e3,
        "pid": 1,
        "tid": thread,
    }
    if event.name == "playback_buffer":
        return entry | {"ph": "C", "args": {"ms": event.attributes.get("level_ms", 0)}}
    arguments = {"turn_id": event.turn_id, **event.attributes}
    if event.duration_ns == 0:
        return entry | {"ph": "i", "s": "p", "args": arguments}
    return entry | {"ph": "X", "dur": event.duration_ns / 1e3, "args": arguments}
