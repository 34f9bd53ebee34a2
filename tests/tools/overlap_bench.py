"""What turn-taking makes of speech over a reply, by length alone and with the words. Run by hand:

    python -m tests.tools.overlap_bench [--events N] [--answer-ms MS] [--json FILE]

The voices of `moss-voice bench --duplex` say each backchannel and each interruption, and there are coughs,
clicks and bystanders, over a reply in headphones. VAD, end-of-turn detector and state machine are those of
the program, frame by frame, without engine and devices: so every row has at least N events at a tenth of the
cost. An answer of the detector counts MS after the question: 50, or 130 as on a busy processor.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, cycle, islice

import numpy as np

from app import paths
from app.audio.ring import DUCK_S, FADE_S
from app.dialog.backchannel import backchannel_file, load_backchannel_head
from app.dialog.smart_turn import SmartTurn
from app.dialog.turn_end import TurnEndDetector, head_file, load_head
from app.dialog.turn_events import TurnAction, TurnEvent
from app.dialog.turn_taking import TurnTaking
from app.dialog.turn_taking_settings import TurnTakingSettings
from app.dialog.vad import SileroVad
from app.dialog.voice_level import voiced_level
from app.duplex.clips import Clip, click, cough, load_clips
from app.duplex.measures import LOWERED_S, STOP, YIELD_S
from app.duplex.room import RATE
from app.duplex.segments import MODEL_GAP_S, SegmentKind
from engine_runtime.bench.measuring import p50_p95
from engine_runtime.table import Cell, Section
from engine_runtime.types import Pcm
from tests.tools.tool_report import parse, tool_report

_LEAD_S, _AFTER_S = 1.0, 2.2
_NOISE = 10 ** (-62 / 20)
_GAIN = (0.4, 0.7)
_BYSTANDER_DB = (-18.0, -12.0)
_USER_TURNS = 2
"""After so many turns the user's level is known."""
_FRAME_MS, _TURN_FRAMES = 32.0, 20
_COLUMNS = {
    "reply": "what happens to it at first, and what decides",
    "S_BC": f"backchannels not taken for a turn, the reply silent for at most {MODEL_GAP_S:g} s or soft for "
    f"at most {LOWERED_S:g} s",
    "S_VT": "the same of coughs and clicks",
    "S_ND": "the same of a bystander",
    "R_Y": f"interruptions taken for a turn within {YIELD_S:g} s",
    "ducked": "start of the speech -> the reply is ducked or silent, p50 and p95 in ms",
    "undone": "start of what is to be ignored -> the reply is back, p50 and p95 in ms",
    "stop": 'end of "stop", said alone -> silence, p50 and p95 in ms',
    "others": "start of any other interruption -> silence, p50 and p95 in ms",
}
_TEXT_COLUMNS = {
    "said": "over the reply",
    "right": "not taken for a turn, or taken for one if it is an interruption",
    "events": "how often it was said",
}


@dataclass(frozen=True)
class Event:
    """Something said over a reply; times in seconds."""

    kind: SegmentKind
    text: str
    speaker: str
    pcm: Pcm
    start_s: float
    end_s: float

    @property
    def length_ms(self) -> float:
        return (self.end_s - self.start_s) * 1e3


@dataclass(frozen=True)
class Outcome:
    """What became of it: times in ms from the start of the speech, None if that did not happen."""

    event: Event
    ducked_ms: float | None
    undone_ms: float | None
    cut_ms: float | None
    low_ms: float
    """Longest time for which the reply was ducked."""

    def is_ignored(self, longest_s: float) -> bool:
        """Whether it was not taken for a turn, and the reply was ducked for at most so long."""
        return self.cut_ms is None and self.low_ms <= longest_s * 1e3

    @property
    def is_yielded(self) -> bool:
        """Whether it was taken for a turn in time."""
        return self.cut_ms is not None and self.cut_ms <= YIELD_S * 1e3


def draw(events: int, seed: int = 1) -> Iterator[Event]:
    """At least `events` of each kind: each clip in turn, at drawn levels."""
    rng, clips = np.random.default_rng(seed), load_clips(paths.assets_dir() / "duplex")
    for kind in ("backchannel", "interruption", "not_directed"):
        known = [clip for clip in clips if clip.kind == kind]
        rounds = -(-events // len(known)) * len(known)
        for clip in islice(cycle(known), rounds):
            gain = rng.uniform(*_GAIN)
            if kind == "not_directed":
                gain *= 10 ** (rng.uniform(*_BYSTANDER_DB) / 20)
            yield _event(kind, clip, np.float32(gain))
    for place in range(events):
        is_cough = place % 5 < 3
        pcm = rng.uniform(*_GAIN) * (cough(rng) if is_cough else 0.4 * click(rng))
        name = "cough" if is_cough else "click"
        yield Event("tic", name, "", pcm.astype(np.float32), 0.0, len(pcm) / RATE)


def _event(kind: SegmentKind, clip: Clip, gain: np.float32) -> Event:
    return Event(kind, clip.text, clip.speaker, gain * clip.pcm, clip.start_s, clip.end_s)


class Listener:
    """VAD, detector and machine, anew for each event."""

    def __init__(self, *, with_words: bool, answer_ms: float) -> None:
        """An answer of the detector comes `answer_ms` after the question."""
        self._answer_ms = answer_ms
        head = load_backchannel_head(backchannel_file()) if with_words else None
        self._detector = TurnEndDetector(SmartTurn(), load_head(head_file()), head)
        self._vad = SileroVad()
        self._rng = np.random.default_rng(7)

    def hear(self, event: Event) -> Outcome:
        """The outcome of one event over a reply."""
        settings = TurnTakingSettings()
        machine = TurnTaking(settings)
        since = self._prime(machine)
        lead_s = _LEAD_S + self._rng.uniform(0.0, _FRAME_MS / 1e3)
        ends = [np.zeros(round(seconds * RATE), dtype=np.float32) for seconds in (lead_s, _AFTER_S)]
        sound = np.concatenate([ends[0], event.pcm, ends[1]])
        sound += (_NOISE * self._rng.standard_normal(len(sound))).astype(np.float32)
        self._vad.reset()
        start_ms, size = (lead_s + event.start_s) * 1e3, self._vad.frame_samples
        answers: list[tuple[float, TurnEvent, float]] = []
        found: dict[TurnAction, float] = {}
        down_ms, low_ms = None, 0.0
        for first in range(0, len(sound) - size + 1, size):
            frame = sound[first : first + size]
            begin, end = since + first * 1e3 / RATE, since + (first + size) * 1e3 / RATE
            for due_ms, asked, answer in [own for own in answers if own[0] <= end]:
                answers.remove((due_ms, asked, answer))
                if asked.action is TurnAction.LISTEN:
                    machine.judge_overlap(asked.speech_start_ms, answer)
                else:
                    machine.rate_pause(asked.speech_end_ms, answer)
            for own in machine.update(self._vad.probability(frame), begin, end, voiced_level(frame)):
                at_ms = end - since - start_ms
                if own.action in (TurnAction.LISTEN, TurnAction.PAUSE) and not machine.is_hearing:
                    began_ms = own.speech_start_ms - since - settings.pre_roll_ms
                    said = sound[max(round(began_ms * RATE / 1e3), 0) : first + size]
                    length_s = (end - own.speech_start_ms) / 1e3
                    rated = (
                        self._detector.backchannel(said, length_s)
                        if own.action is TurnAction.LISTEN
                        else self._detector.probability(said)
                    )
                    if rated is not None:
                        answers.append((end + self._answer_ms, own, rated))
                elif own.action is TurnAction.INTERRUPT:
                    down_ms = at_ms
                    found.setdefault(own.action, at_ms)
                elif own.action in (TurnAction.RESUME_REPLY, TurnAction.BARGE_IN):
                    found[own.action] = at_ms
                    low_ms = max(low_ms, at_ms - (at_ms if down_ms is None else down_ms))
            if TurnAction.BARGE_IN in found:
                break
        ramp_ms = DUCK_S * 1e3
        ducked, undone, cut = (
            found.get(action)
            for action in (TurnAction.INTERRUPT, TurnAction.RESUME_REPLY, TurnAction.BARGE_IN)
        )
        return Outcome(
            event,
            None if ducked is None else ducked + ramp_ms,
            None if undone is None else undone + ramp_ms,
            None if cut is None else cut + FADE_S * 1e3,
            low_ms,
        )

    def _prime(self, machine: TurnTaking) -> float:
        """Some turns of the user at the usual level; then a reply is heard. Returns the time in ms."""
        level_db, now_ms = 20 * np.log10(0.55 * 0.3), 0.0
        for _ in range(_USER_TURNS):
            for place in count():
                is_speech = place < _TURN_FRAMES
                begin, now_ms = now_ms, now_ms + _FRAME_MS
                machine.update(0.9 if is_speech else 0.0, begin, now_ms, level_db if is_speech else None)
                if machine.is_replying:
                    break
            machine.reply_heard()
            machine.end_turn()
        machine.begin_reply()
        machine.reply_heard()
        return now_ms


def row(name: str, outcomes: list[Outcome], longest_s: float) -> dict[str, Cell]:
    """The row of one way to decide."""
    found: dict[str, Cell] = {"reply": name}
    for share, kind in (("S_BC", "backchannel"), ("S_VT", "tic"), ("S_ND", "not_directed")):
        own = [outcome for outcome in outcomes if outcome.event.kind == kind]
        found[share] = f"{sum(outcome.is_ignored(longest_s) for outcome in own)} of {len(own)}"
    interruptions = [outcome for outcome in outcomes if outcome.event.kind == "interruption"]
    taken = [own for own in interruptions if own.is_yielded]
    found["R_Y"] = f"{len(taken)} of {len(interruptions)}"
    stops = [own for own in taken if own.event.text == STOP]
    clocks: dict[str, list[float | None]] = {
        "ducked": [own.ducked_ms for own in outcomes],
        "undone": [own.undone_ms for own in outcomes if own.event.kind != "interruption"],
        "stop": [max((own.cut_ms or 0.0) - own.event.length_ms, 0.0) for own in stops],
        "others": [own.cut_ms for own in taken if own.event.text != STOP],
    }
    for clock, values in clocks.items():
        known = [value for value in values if value is not None]
        found[clock] = ", ".join(f"{value:.0f}" for value in p50_p95(known)) if known else "-"
    return found


def by_text(outcomes: list[Outcome]) -> list[dict[str, Cell]]:
    """How often each text was taken for what it is."""
    counts: dict[str, list[int]] = {}
    for outcome in outcomes:
        is_right = outcome.is_yielded if outcome.event.kind == "interruption" else outcome.cut_ms is None
        hits = counts.setdefault(outcome.event.text, [0, 0])
        hits[0] += is_right
        hits[1] += 1
    return [{"said": text, "right": right, "events": events} for text, (right, events) in counts.items()]


def main(arguments: argparse.Namespace) -> None:
    """Hear all events, once without and once with the words."""
    events = list(draw(arguments.events))
    with tool_report("overlap_bench", arguments) as report:
        section = Section("speech over a reply", _COLUMNS)
        for decides, with_words in (("length", False), ("words", True)):
            listener = Listener(with_words=with_words, answer_ms=arguments.answer_ms)
            outcomes = [listener.hear(event) for event in events]
            for manner, longest_s in (("pause", MODEL_GAP_S), ("duck", LOWERED_S)):
                section.rows.append(row(f"{manner}, {decides}", outcomes, longest_s))
            if with_words:
                report.add(Section("with the words", _TEXT_COLUMNS, by_text(outcomes)))
        report.add(section)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--events", type=int, default=100, help="least events of a kind (default: 100)")
    parser.add_argument(
        "--answer-ms", type=float, default=50.0, help="from a question to the answer (default: 50)"
    )
    main(parse(parser))
