"""Fixtures of the window's tests. A warning of Qt fails the test that caused it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import QCoreApplication, QEvent, QLocale
from PySide6.QtWidgets import QApplication, QWidget
from pytestqt.qtbot import QtBot
from pytestqt.wait_signal import SignalBlocker

from app import paths
from app.gui.common import themes
from app.gui.common.icons import Icons
from app.gui.common.preferences import Preferences, PreferenceStore
from app.gui.common.themes import LIGHT, Theme, ThemeChoice
from app.gui.window.main_window import MainWindow
from tests.doubles.scripted_session import ScriptedSession, opening

_HERE = Path(__file__).parent
_OFFSCREEN = (
    r"This plugin does not support (propagateSizeHints|raise|grabbing the keyboard)",
    "No such signal QPlatformNativeInterface::systemTrayWindowChanged",
)
"""What the offscreen platform lacks."""
_LIMIT_MS = 120_000
"""Of a wait. On a busy machine a process needs many seconds to begin; only a failing test waits as long."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Qt warnings fail a test, except those of the offscreen platform."""
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.qt_log_level_fail("WARNING"))
            item.add_marker(pytest.mark.qt_log_ignore(*_OFFSCREEN))


class _PatientQtBot(QtBot):
    """Waits longer than the five seconds of pytest-qt."""

    def waitSignal(self, *args: Any, **options: Any) -> SignalBlocker:
        return super().waitSignal(*args, **({"timeout": _LIMIT_MS} | options))

    def waitUntil(self, *args: Any, **options: Any) -> None:
        super().waitUntil(*args, **({"timeout": _LIMIT_MS} | options))

    def waitActive(self, *args: Any, **options: Any) -> Any:
        return super().waitActive(*args, **({"timeout": _LIMIT_MS} | options))


@pytest.fixture
def qtbot(qapp: QApplication, request: pytest.FixtureRequest) -> QtBot:
    """Takes the place of the fixture of pytest-qt."""
    return _PatientQtBot(request)


@pytest.fixture
def theme() -> Theme:
    """The light theme."""
    return LIGHT


@pytest.fixture
def icons(qapp: QApplication) -> Icons:
    """The shipped icons."""
    return Icons(paths.assets_dir() / "icons")


@pytest.fixture(autouse=True)
def _styled(qapp: QApplication) -> None:
    """Every test starts with the light theme and in English."""
    QLocale.setDefault(QLocale("en"))
    themes.apply(qapp, LIGHT, paths.assets_dir() / "icons")


@pytest.fixture
def store(tmp_path: Path) -> PreferenceStore:
    """Preferences in a file of the test: light, English."""
    store = PreferenceStore(tmp_path / "window.ini")
    store.save(Preferences(theme=ThemeChoice.LIGHT, language="en"))
    return store


@pytest.fixture
def session() -> ScriptedSession:
    """A session that does what the test feeds."""
    return ScriptedSession()


@pytest.fixture
def window(qtbot: QtBot, session: ScriptedSession, store: PreferenceStore) -> Iterator[MainWindow]:
    """A shown main window whose session was started. Closed at the end."""
    window = MainWindow(session, store=store)
    window.show()
    window.start_session()
    yield window
    window.close()
    window.deleteLater()


@pytest.fixture
def ready(window: MainWindow, session: ScriptedSession) -> MainWindow:
    """The window once its engine is ready; the commands until then are forgotten."""
    session.feed(*opening())
    window.bridge.poll()
    session.commands.clear()
    return window


@pytest.fixture
def host(qtbot: QtBot) -> QWidget:
    """A plain widget, the parent of what a test makes."""
    host = QWidget()
    qtbot.addWidget(host)
    return host


@pytest.fixture(autouse=True)
def _swept(qapp: QApplication) -> Iterator[None]:
    """Delete the widgets of a test before the next one: applying a style sheet visits all widgets."""
    yield
    qapp.processEvents()
    QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)
