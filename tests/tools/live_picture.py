"""Picture of a real conversation for the README: window, session, engine, nano bundle, sound on null sinks.

    python -m tests.tools.live_picture FOLDER

Only the questions are scripted: samples go through the capture path, replies through the real output stream.
Needs pulseaudio. Writes window-light.png and window-dark.png.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.doubles.pulse_server import PulseServer

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ("01-hello", "03-three-plus-four", "04-and-plus-two", "05-after-monday")
TYPED = ("What colour is the sky?", "What is nine minus six?")


def hold_conversation(folder: Path) -> None:
    """Ask the questions and take the pictures."""
    from PySide6.QtWidgets import QApplication

    from app.gui.common.preferences import Preferences, PreferenceStore
    from app.gui.common.themes import ThemeChoice
    from app.gui.window.main_window import MainWindow
    from app.main import engine_factory, load_turn_end_detector
    from app.session.commands import PlaySample, Start
    from app.session.events import EngineReady, Event, PlaybackFinished
    from app.session.session import Session
    from app.settings import StartSettings

    application = QApplication([])
    seen: list[Event] = []
    load = engine_factory(StartSettings(bundle=ROOT / "assets" / "bundles" / "nano"))
    session = Session(load, end_of_turn=load_turn_end_detector)
    poll = session.poll

    def listening_poll() -> list[Event]:
        events = poll()
        seen.extend(events)
        return events

    session.poll = listening_poll  # type: ignore[method-assign]

    def wait(condition: Callable[[], bool], seconds: float) -> None:
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise SystemExit("the conversation did not continue in time")
            application.processEvents()
            time.sleep(0.005)

    def pause(seconds: float) -> None:
        end = time.monotonic() + seconds
        wait(lambda: time.monotonic() > end, seconds + 1)

    def count(kind: type) -> int:
        return sum(isinstance(event, kind) for event in seen)

    def wait_for_reply(ask: Callable[[], None]) -> None:
        answered = count(PlaybackFinished)
        ask()
        wait(lambda: count(PlaybackFinished) > answered, 30)

    for theme in (ThemeChoice.LIGHT, ThemeChoice.DARK):
        store = PreferenceStore(Path(tempfile.mkdtemp()) / "window.ini")
        store.save(Preferences(theme=theme, language="en"))
        if theme is ThemeChoice.LIGHT:
            window = MainWindow(session, store)
            window.resize(1440, 920)
            window.show()
            window.start_session()
            wait(lambda: count(EngineReady) > 0, 60)
            window.bridge.send(Start())
            pause(1.5)
            for text in TYPED:
                window.composer.edit.setPlainText(text)
                wait_for_reply(window.composer.submit)
                pause(0.6)
            for name in SAMPLES:
                sample = PlaySample(ROOT / "assets" / "samples" / f"{name}.wav")
                wait_for_reply(partial(window.bridge.send, sample))
                pause(1.0)
        else:
            window.toggle_theme()
            pause(0.6)
        window.grab().save(str(folder / f"window-{theme.value}.png"))
    window.close()
    application.processEvents()


def main() -> None:
    """Start the sound server, then talk."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    server = PulseServer()
    os.environ.update({name: value for name, value in server.environment.items() if name != "HOME"})
    server.start()
    try:
        hold_conversation(folder)
    finally:
        server.remove()


if __name__ == "__main__":
    main()
