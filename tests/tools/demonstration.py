"""A demonstration by a script: the presenter shows a conversation with interruption and backchannel.

    python -m tests.tools.demonstration FOLDER

In real time, some 75 s: window, session, engine, nano bundle, sound on null sinks. The user's lines are
recordings that go into the microphone. Writes a picture of each moment, demonstration.flac (left: what the
loudspeaker plays, right: what the microphone hears) and demonstration.json (what was said, and when). Exit
status 1 if a reply was not the answer, the backchannel ended a reply, or the interruption did not. Needs
pulseaudio.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import soundfile
from PySide6.QtCore import QSize
from PySide6.QtWidgets import QWidget

from app.session.events import PlaybackFinished, PlaybackStarted, ReplyCut, TurnOpened
from tests.doubles.pulse_server import PulseServer
from tests.tools.live_window import ROOT, LiveWindow, sound_server

SAMPLES, CLIPS = ROOT / "assets" / "samples", ROOT / "assets" / "duplex"
COUNTING = "annie-long-please-count-from-one-to-seven.wav"
COUNTED = "One, two, three, four, five, six, seven."
SIZE = QSize(1280, 720)
LOOK_S = 4.0
"""For those who watch, after each reply."""
PEAK = 0.5
"""Of each recording that the user says."""
ROOM_DBFS = -75.0
"""Noise of the room: a microphone that delivers zeros is taken for a broken one."""


class Demonstration:
    """`lines` is what happened; `wrong` what should not have."""

    def __init__(self, server: PulseServer, folder: Path) -> None:
        self.lines: list[dict[str, object]] = []
        self.wrong: list[str] = []
        self._server, self._folder = server, folder
        self._live = LiveWindow(SIZE)
        self._live.window.modes.present(True)
        presenter = self._live.window.modes.presenter
        assert presenter is not None
        self._presenter = presenter
        presenter.showNormal()
        presenter.resize(SIZE)
        self._began_s = time.monotonic()

    def hold(self) -> None:
        """All of it."""
        self._ask(SAMPLES / "01-hello.wav", "Hello how can I help you.")
        self._picture("hello")
        self._ask(SAMPLES / "03-three-plus-four.wav", "Three plus four is seven.")
        self._ask(SAMPLES / "04-and-plus-two.wav", "Seven plus two is nine.")
        self._ask(SAMPLES / "06-capital-of-france.wav", "The capital of France is Paris.")
        self._picture("plots")
        self._live.window.toggle_theme()
        turn_id = self._begin(CLIPS / COUNTING)
        self._live.pause(1.5)
        self._say(CLIPS / "annie-backchannel-uh-huh.wav")
        self._live.pause(0.7)
        self._picture("backchannel")
        self._until_played(turn_id)
        self._expect(turn_id, COUNTED, is_cut=False)
        self._live.pause(LOOK_S)
        turn_id = self._begin(CLIPS / COUNTING)
        self._live.pause(1.5)
        self._ask(CLIPS / "annie-interruption-stop-what-is-two-plus-two.wav", "Two plus two is four.")
        self._expect(turn_id, COUNTED, is_cut=True)
        self._picture("interrupted")
        self._presenter.explain_button.setChecked(True)
        self._live.pause(2 * LOOK_S)
        self._picture("stages")
        self._live.window.toggle_theme()
        self._live.window.modes.present(False)
        self._live.pause(1.0)
        self._picture("window", self._live.window)

    def close(self) -> None:
        """Close the window: its threads would keep the process."""
        self._live.close()

    def _ask(self, wav: Path, expected: str) -> None:
        turn_id = self._begin(wav)
        self._until_played(turn_id)
        self._expect(turn_id, expected, is_cut=False)
        self._live.pause(LOOK_S)

    def _begin(self, wav: Path) -> int:
        """Say a question; returns its turn once the reply is heard."""
        started = len(self._live.of(PlaybackStarted))
        self._say(wav)
        self._live.wait(lambda: len(self._live.of(PlaybackStarted)) > started, 60)
        turn_id = self._live.of(PlaybackStarted)[-1].turn_id
        self._note("reply", turn=turn_id)
        return turn_id

    def _say(self, wav: Path) -> None:
        self._note("user", recording=wav.name)
        speaking = self._server.speak(self._at_user_level(wav))
        self._live.wait(lambda: speaking.poll() is not None, 60)

    def _at_user_level(self, wav: Path) -> Path:
        """The recording as loud as the others: who is 10 dB softer than the user is taken for a bystander."""
        levelled = self._folder / "said.wav"
        pcm, rate = soundfile.read(wav, dtype="float32")
        soundfile.write(levelled, pcm * (PEAK / np.abs(pcm).max()), rate)
        return levelled

    def _until_played(self, turn_id: int) -> None:
        self._wait(lambda: any(event.turn_id == turn_id for event in self._live.of(PlaybackFinished)))

    def _wait(self, condition: Callable[[], bool]) -> None:
        self._live.wait(condition, 60)

    def _expect(self, turn_id: int, text: str, *, is_cut: bool) -> None:
        said = self._live.reply(turn_id)
        was_cut = any(event.turn_id == turn_id for event in self._live.of(ReplyCut))
        self._note("said", turn=turn_id, text=said, is_cut=was_cut)
        if was_cut != is_cut or not (text.startswith(said) if is_cut else said == text):
            self.wrong.append(f"turn {turn_id}: {said!r}, cut: {was_cut}; wanted {text!r}, cut: {is_cut}")

    def _note(self, what: str, **fields: object) -> None:
        self.lines.append({"s": round(time.monotonic() - self._began_s, 2), "what": what} | fields)

    def _picture(self, name: str, widget: QWidget | None = None) -> None:
        self._live.pause(0.2)
        self._note("picture", name=name)
        (widget or self._presenter).grab().save(str(self._folder / f"{len(self.lines):02}-{name}.png"))

    @property
    def turns(self) -> int:
        """How many turns were opened."""
        return len(self._live.of(TurnOpened))


def recorded(server: PulseServer, folder: Path) -> Demonstration:
    """Hold the demonstration, and keep its sound."""
    raw, room = folder / "both.raw", folder / "room.wav"
    noise = np.random.default_rng(0).normal(0.0, 10 ** (ROOM_DBFS / 20), 240 * 16_000)
    soundfile.write(room, noise.astype(np.float32), 16_000, subtype="FLOAT")
    in_room = server.speak(room)
    recording = server.record_both(raw)
    held = Demonstration(server, folder)
    try:
        held.hold()
    finally:
        held.close()
        for process in (recording, in_room):
            process.terminate()
            process.wait(60)
    soundfile.write(folder / "demonstration.flac", np.fromfile(raw, np.int16).reshape(-1, 2), 48_000)
    raw.unlink()
    room.unlink()
    (folder / "said.wav").unlink()
    (folder / "demonstration.json").write_text(json.dumps(held.lines, indent=1))
    return held


def main() -> int:
    """Start the sound server, then talk."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    with sound_server() as server:
        held = recorded(server, folder)
    sys.stdout.write(f"{held.turns} turns, {held.lines[-1]['s']} s; wrong: {held.wrong or 'nothing'}\n")
    return 1 if held.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
