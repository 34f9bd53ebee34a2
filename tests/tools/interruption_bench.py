"""What becomes of a reply that is spoken over, and when. Run by hand; needs espeak-ng and flite:

    python -m tests.tools.interruption_bench [COUNT] [--json FILE]

Whole sessions on a virtual clock, with the real VAD and end-of-turn detector; sample questions are replies.
COUNT of each kind are said at random moments: backchannels, short commands and interruptions by synthetic
voices, coughs as bursts of noise, clicks.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.audio.devices import DeviceList
from app.audio.wav import read_wav
from app.dialog.vad import SileroVad
from app.duplex.room import RATE, SPEAKER_RATE, EchoRoom
from app.main import load_turn_end_detector
from app.session.clocks import VirtualClock
from app.session.commands import Start
from app.session.events import PlaybackFinished, PlaybackStarted, Timing
from app.session.session import Session
from app.session.session_settings import SessionSettings
from engine_runtime.bench.measuring import p50_p95
from engine_runtime.table import Cell, Section
from engine_runtime.types import Pcm
from tests.app.session.test_session_echo import SpeakingEngine, spoken
from tests.doubles.scripted_engine import ScriptedEngine
from tests.tools.output_record import resampled
from tests.tools.session_driver import Driver
from tests.tools.tool_report import parse, tool_report

_COLUMNS = {
    "kind": "of sound, said at random moments over a reply",
    "count": "how many",
    "paused": "the reply was paused, percent",
    "resumed": "it was resumed, percent",
    "cut": "it was cut, percent",
    "stop_ms": "first sound of the speech to the last of the reply, median",
    "stop_ms_p95": "95th percentile",
    "resume_ms": "decision to resume to the first sound after it, median",
    "resume_ms_p95": "95th percentile",
    "gap_ms": "gap in a reply that was resumed, median",
    "gap_ms_p95": "95th percentile",
}
WORDS = {
    "backchannel": ("mm hmm", "uh huh", "yeah", "okay", "right", "I see", "sure", "yes", "ah", "hmm"),
    "short command": ("stop", "what?", "no wait", "wait", "hold on", "why?", "no"),
    "interruption": (
        "wait what about monday",
        "no I meant the capital of Spain",
        "stop tell me a joke instead",
        "okay but what is two plus three",
        "can you repeat that please",
        "hello who are you",
        "I have another question",
        "how do you know that",
    ),
}
FLITE = ("slt", "rms", "kal16", "awb")
ESPEAK = ("en-us", "en-gb", "en-us+f3", "en-us+m3", "en-gb+f2")
HUMS = {"mm hmm": "[[m:hm:]]", "uh huh": "[[V'hV]]", "hmm": "[[hm:]]"}
"""For espeak-ng, which would spell them."""
_LEVEL = 0.08


@dataclass
class Outcomes:
    """Of one kind of sound."""

    count: int = 0
    paused: int = 0
    resumed: int = 0
    cut: int = 0
    stop_ms: list[float] = field(default_factory=list)
    resume_ms: list[float] = field(default_factory=list)
    gap_ms: list[float] = field(default_factory=list)


class Room(EchoRoom):
    """Without an echo; keeps what the loudspeaker plays."""

    def __init__(self) -> None:
        super().__init__(60.0, 100.0)
        self.echo_gain = 0.0
        self.record: list[Pcm] = []

    def hear(self, block: Pcm) -> None:
        self.record.append(block.copy())
        super().hear(block)

    def say(self, pcm: Pcm, after_s: float) -> float:
        """Say it; when it begins, in seconds of the session's clock."""
        self.speak(pcm, after_s)
        return self.sample_time_ns(self._count + after_s * RATE) / 1e9

    def sound_s(self, start_s: float) -> NDArray[np.float64]:
        """Times of all sound of the loudspeaker from `start_s` on."""
        pcm = np.concatenate(self.record)
        origin_s = self.speaker._pace.time_ns(0) / 1e9
        first = max(round((start_s - origin_s) * SPEAKER_RATE), 0)
        return (np.flatnonzero(pcm[first:]) + first) / SPEAKER_RATE + origin_s


def synthesized(words: str, voice: int, folder: Path) -> Pcm:
    """Spoken by one of the voices, without silence around it."""
    file = folder / "words.wav"
    if voice < len(FLITE):
        command = ["flite", "-voice", FLITE[voice], "-t", words, "-o", str(file)]
    else:
        name = ESPEAK[voice - len(FLITE)]
        command = ["espeak-ng", "-v", name, "-s", "170", "-w", str(file), HUMS.get(words, words)]
    subprocess.run(command, check=True)
    pcm = resampled(*read_wav(file), RATE)
    loud = np.flatnonzero(np.abs(pcm) > 0.01 * np.abs(pcm).max())
    pcm = pcm[loud[0] : loud[-1] + 1]
    return np.asarray(_LEVEL * pcm / np.sqrt(np.mean(pcm**2)), dtype=np.float32)


def cough(rng: np.random.Generator) -> Pcm:
    """One to three bursts of noise that begin suddenly and decay, low frequencies first."""
    bursts = []
    for _ in range(int(rng.integers(1, 4))):
        count = round(rng.uniform(0.1, 0.25) * RATE)
        noise = np.convolve(rng.standard_normal(count), np.ones(6) / 6, "same")
        bursts += [
            noise * np.exp(-4 * np.arange(count) / count),
            np.zeros(round(rng.uniform(0.05, 0.2) * RATE)),
        ]
    pcm = np.concatenate(bursts)
    return np.asarray(4.5 * _LEVEL * pcm / np.abs(pcm).max(), dtype=np.float32)


def click(rng: np.random.Generator) -> Pcm:
    """A few milliseconds of noise."""
    count = round(rng.uniform(0.002, 0.03) * RATE)
    return np.asarray(0.4 * rng.standard_normal(count) * np.hanning(count), dtype=np.float32)


def decisions(driver: Driver, after_s: float) -> list[dict[str, Any]]:
    """Interruptions, resumptions and cuts since then."""
    events = [event.event.attributes for event in driver.of(Timing) if event.event.name == "decision"]
    wanted = [dict(known) for known in events if known["kind"] in ("interrupt", "resume", "cut")]
    return [known for known in wanted if float(known["at_s"]) >= after_s]


def hold(sounds: list[Pcm], rng: np.random.Generator) -> Outcomes:
    """A conversation with one sound over each reply."""
    room, outcomes = Room(), Outcomes()
    engine: ScriptedEngine = SpeakingEngine()
    session = Session(
        lambda: engine,
        SessionSettings(speculate="off"),
        room,
        room.speaker,
        clock=VirtualClock(),
        vad=SileroVad(),
        end_of_turn=load_turn_end_detector,
        find_devices=lambda: DeviceList((), ()),
        look_for_devices=lambda: None,
    )
    session.start()
    driver = Driver(session, engine)
    try:
        session.send(Start())
        for sound in sounds:
            started, finished = len(driver.of(PlaybackStarted)), len(driver.of(PlaybackFinished))
            room.speak(0.6 * spoken("question", RATE), 1.0)
            driver.until(lambda started=started: len(driver.of(PlaybackStarted)) > started, 60)  # type: ignore[misc]
            onset_s = room.say(sound, rng.uniform(0.5, 2.0))
            driver.until(lambda finished=finished: len(driver.of(PlaybackFinished)) > finished, 60)  # type: ignore[misc]
            note(outcomes, room, decisions(driver, onset_s), onset_s)
    finally:
        session.stop()
    return outcomes


def note(outcomes: Outcomes, room: Room, made: list[dict[str, Any]], onset_s: float) -> None:
    """What became of the reply, by the record."""
    outcomes.count += 1
    outcomes.paused += any(decision["kind"] == "interrupt" for decision in made)
    outcomes.cut += any(decision["kind"] == "cut" for decision in made)
    outcomes.resumed += bool(made) and all(decision["kind"] != "cut" for decision in made)
    if not made:
        return
    times, decided_s = room.sound_s(onset_s), float(made[1]["at_s"])
    stop_s = times[times < decided_s].max(initial=onset_s)
    outcomes.stop_ms.append((stop_s - onset_s) * 1e3)
    if made[1]["kind"] == "resume":
        back_s = times[times >= decided_s].min()
        outcomes.resume_ms.append((back_s - decided_s) * 1e3)
        outcomes.gap_ms.append((back_s - stop_s) * 1e3)


def main(arguments: argparse.Namespace) -> None:
    """Report one row for each kind."""
    rng, count = np.random.default_rng(0), arguments.count
    section = Section("sounds over replies", _COLUMNS)
    with tool_report("interruption_bench", arguments) as report:
        with tempfile.TemporaryDirectory() as folder:
            for kind, words in WORDS.items():
                pairs = [(word, voice) for word in words for voice in range(len(FLITE) + len(ESPEAK))]
                chosen = [pairs[index] for index in rng.permutation(len(pairs))[:count]]
                spoken_words = [synthesized(word, voice, Path(folder)) for word, voice in chosen]
                outcomes = hold(spoken_words, rng)
                section.rows.append(_row(kind, outcomes))
        section.rows.append(_row("cough", hold([cough(rng) for _ in range(count)], rng)))
        section.rows.append(_row("click", hold([click(rng) for _ in range(count)], rng)))
        report.add(section)


def _row(kind: str, outcomes: Outcomes) -> dict[str, Cell]:
    row: dict[str, Cell] = {"kind": kind, "count": outcomes.count}
    for name in ("paused", "resumed", "cut"):
        row[name] = 100 * getattr(outcomes, name) / outcomes.count
    for name in ("stop_ms", "resume_ms", "gap_ms"):
        if values := getattr(outcomes, name):
            row[name], row[f"{name}_p95"] = p50_p95(values)
    return row


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("count", type=int, nargs="?", default=30, help="of each kind (default: 30)")
    main(parse(parser))
