"""The voice-to-voice latency that the session reports, against a record of both sides. Run by hand:

    python -m tests.tools.latency_bench [--turns N]

A PulseAudio daemon of its own has one sink with two channels: the questions of assets/samples are played into
one, which is the microphone, and the session answers on the other with a tone, so that both have one clock.
Each row is a turn: reported and recorded latency, and their difference. The record's end of speech is the end
of the last 10 ms whose level is within 40 dB of the loudest; its start of the reply is the first sample above
-50 dBFS. Ends with median, mean and extremes of the differences.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.dialog.turn_taking_settings import TurnTakingSettings
from app.session.commands import Start
from app.session.events import (
    PlaybackFinished,
    SessionState,
    StateChanged,
    Timing,
)
from app.session.session import Session
from app.session.session_settings import SessionSettings
from engine_runtime.types import Pcm
from tests.doubles.pulse_server import PulseServer
from tests.doubles.scripted_engine import Script, ScriptedEngine
from tests.tools.session_driver import Driver

_SAMPLES = Path(__file__).parents[2] / "assets" / "samples"
_RATE = 48_000
_WINDOW = _RATE // 100
_SPEECH_RANGE_DB = 40.0
_REPLY_DBFS = -50.0
_SILENCE_S = 1.0


def main() -> None:
    """Print one row per turn."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=11)
    parser.add_argument("--latency-ms", type=float, default=40.0)
    arguments = parser.parse_args()
    server = PulseServer(one_clock=True)
    os.environ.update({name: value for name, value in server.environment.items() if name != "HOME"})
    try:
        server.start()
        with tempfile.TemporaryDirectory() as folder:
            record = Path(folder) / "both.raw"
            reported = _converse(server, record, arguments.turns, arguments.latency_ms / 1e3)
            _compare(reported, np.fromfile(record, np.int16).reshape(-1, 2) / np.float32(32_768))
    finally:
        server.remove()


def _converse(server: PulseServer, record: Path, turns: int, latency_s: float) -> list[dict[str, float]]:
    """Ask the sample questions in turn; returns the timings of each turn in ms."""
    engine = ScriptedEngine(Script(chunks=2, step_s=0.02))
    whole_questions = TurnTakingSettings(end_ms=1_000, barge_in=False)
    session = Session(
        lambda: engine, SessionSettings(device_latency_s=latency_s, turn_taking=whole_questions)
    )
    driver = Driver(session, engine)
    questions = sorted(_SAMPLES.glob("*.wav"))
    session.start()
    try:
        session.send(Start())
        driver.until(lambda: driver.of(StateChanged)[-1:] == [StateChanged(SessionState.LISTENING)])
        recording = server.record_both(record)
        time.sleep(1.0)
        for turn in range(turns):
            server.speak(questions[turn % len(questions)]).wait(30)
            driver.await_event(PlaybackFinished, turn + 1)
            time.sleep(_SILENCE_S)
        recording.terminate()
        recording.wait(5)
        driver.events += session.poll()
    finally:
        session.stop()
    rows: list[dict[str, float]] = [{} for _ in range(turns)]
    for event in driver.of(Timing):
        if 0 < event.event.turn_id <= turns:
            rows[event.event.turn_id - 1][event.event.name] = event.event.duration_ms
    return rows


def _compare(reported: list[dict[str, float]], record: Pcm) -> None:
    """Find the turns in the record [n, loudspeaker and microphone] and print the differences."""
    differences = []
    sys.stdout.write("turn  reported ms  recorded ms  difference\n")
    for turn, (speech_end, reply_start) in enumerate(_turns(record)):
        recorded_ms = (reply_start - speech_end) * 1e3 / _RATE
        shown_ms = reported[turn]["voice_to_voice"]
        differences.append(shown_ms - recorded_ms)
        row = f"{turn + 1:4}  {shown_ms:11.0f}  {recorded_ms:11.0f}  {differences[-1]:10.1f}\n"
        sys.stdout.write(row)
    low, high = min(differences), max(differences)
    sys.stdout.write(
        f"{len(differences)} turns: median {np.median(differences):.1f} ms, mean {np.mean(differences):.1f}, "
        f"{low:.1f} to {high:.1f}\n"
    )


def _turns(record: Pcm) -> list[tuple[int, int]]:
    """Last sample of each question and first sample of its reply."""
    replies = _segments(np.abs(record[:, 0]) > 10 ** (_REPLY_DBFS / 20))
    frames = record[: len(record) // _WINDOW * _WINDOW, 1].reshape(-1, _WINDOW)
    levels = np.sqrt(np.mean(frames**2, axis=1))
    loud = np.repeat(levels > levels.max() * 10 ** (-_SPEECH_RANGE_DB / 20), _WINDOW)
    ends = [end for _, end in _segments(loud)]
    return [(end, min(start for start, _ in replies if start > end)) for end in ends]


def _segments(is_loud: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """First and last sample of each sound; gaps below `_SILENCE_S` are bridged."""
    loud = np.flatnonzero(is_loud)
    parts = np.split(loud, np.flatnonzero(np.diff(loud) > _SILENCE_S * _RATE) + 1)
    return [(int(part[0]), int(part[-1])) for part in parts]


if __name__ == "__main__":
    main()
