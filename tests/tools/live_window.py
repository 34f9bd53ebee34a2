"""The window with session, engine, nano bundle and sound on null sinks, in a conversation by a script."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from PySide6.QtCore import QSize
from PySide6.QtWidgets import QApplication

from app.gui.common.preferences import Preferences, PreferenceStore
from app.gui.common.themes import ThemeChoice
from app.gui.window.main_window import MainWindow
from app.main import engine_factory, load_turn_end_detector
from app.session.commands import Start
from app.session.events import EngineReady, Event, PlaybackFinished, ReplyTextDelta
from app.session.session import Session
from app.settings import StartSettings
from tests.doubles.pulse_server import PulseServer

ROOT = Path(__file__).resolve().parents[2]
T = TypeVar("T")


class LiveWindow:
    """Needs a `PulseServer` in the environment. `seen` is every event so far."""

    def __init__(self, size: QSize) -> None:
        os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
        self._application = QApplication.instance() or QApplication([])
        load = engine_factory(StartSettings(bundle=ROOT / "assets" / "bundles" / "nano"))
        session = Session(load, end_of_turn=load_turn_end_detector)
        self.seen: list[Event] = []
        poll = session.poll

        def listening_poll() -> list[Event]:
            events = poll()
            self.seen.extend(events)
            return events

        session.poll = listening_poll  # type: ignore[method-assign]
        store = PreferenceStore(Path(tempfile.mkdtemp()) / "window.ini")
        store.save(Preferences(theme=ThemeChoice.LIGHT, language="en"))
        self.window = MainWindow(session, store)
        self.window.resize(size)
        self.window.show()
        self.window.start_session()
        self.wait(lambda: bool(self.of(EngineReady)), 120)
        self.window.bridge.send(Start())
        self.pause(1.5)

    def of(self, kind: type[T]) -> list[T]:
        """The events of a kind."""
        return [event for event in self.seen if isinstance(event, kind)]

    def wait(self, condition: Callable[[], bool], seconds: float) -> None:
        """Run the window until something holds. SystemExit if that takes longer."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise SystemExit("the conversation did not continue in time")
            self._application.processEvents()
            time.sleep(0.005)

    def pause(self, seconds: float) -> None:
        """Run the window for so long."""
        end = time.monotonic() + seconds
        self.wait(lambda: time.monotonic() > end, seconds + 1)

    def ask(self, question: Callable[[], object]) -> None:
        """Ask, and wait until the reply was played."""
        answered = len(self.of(PlaybackFinished))
        question()
        self.wait(lambda: len(self.of(PlaybackFinished)) > answered, 60)

    def reply(self, turn_id: int) -> str:
        """The text of a reply, as far as it was made."""
        parts = [event.text for event in self.of(ReplyTextDelta) if event.turn_id == turn_id]
        return "".join(parts).strip()

    def close(self) -> None:
        """Close the window."""
        self.window.close()
        self._application.processEvents()


@contextmanager
def sound_server() -> Iterator[PulseServer]:
    """A sound server for this process. HOME stays, so that models are found."""
    server = PulseServer(one_clock=True)
    os.environ.update({name: value for name, value in server.environment.items() if name != "HOME"})
    server.start()
    try:
        yield server
    finally:
        server.remove()
