"""Start and end of the window, as in the program."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PySide6.QtCore import QEventLoop, QTimer
from PySide6.QtWidgets import QApplication, QMessageBox, QSystemTrayIcon

from app.gui.common import preferences
from app.gui.common.preferences import Preferences, PreferenceStore
from app.gui.window import run
from app.gui.window.main_window import MainWindow
from app.gui.window.run import run_gui
from app.instance import InstanceError
from app.settings import StartSettings
from engine_runtime.options import EngineOptions
from tests.doubles.scripted_session import ScriptedSession, opening


def runs_event_loops() -> bool:
    """Whether the next event loop of the process runs; a Quit that was left over would end it at once."""
    loop = QEventLoop()
    QTimer.singleShot(0, lambda: loop.exit(7))
    return loop.exec() == 7


@pytest.mark.slow
def test_the_window_runs_until_it_is_closed(
    qapp: QApplication, session: ScriptedSession, monkeypatch: pytest.MonkeyPatch, store: PreferenceStore
) -> None:
    monkeypatch.setattr(preferences, "default_file", lambda: store.file)
    session.feed(*opening())
    seen: list[str] = []

    def close() -> None:
        for widget in qapp.topLevelWidgets():
            if widget.isVisible():
                seen.append(type(widget).__name__)
                widget.close()
        qapp.quit()

    QTimer.singleShot(300, close)
    assert run_gui(session) == 0
    assert "MainWindow" in seen
    assert session.is_started
    assert session.is_stopped
    assert runs_event_loops()


@pytest.mark.slow
def test_the_window_opens_no_larger_than_the_screen(window: MainWindow) -> None:
    window.hide()
    window.resize(100_000, 100_000)
    window.background.show_window(is_minimised=False)
    room = window.screen().availableSize()
    assert window.width() <= max(room.width(), window.minimumSizeHint().width())
    assert window.height() <= room.height() - 40, "there is a title bar, too"


@pytest.mark.slow
@pytest.mark.parametrize("is_minimised", [True, False])
def test_an_interrupt_ends_a_window_that_lives_in_the_tray(
    session: ScriptedSession,
    qapp: QApplication,
    monkeypatch: pytest.MonkeyPatch,
    store: PreferenceStore,
    is_minimised: bool,
) -> None:
    monkeypatch.setattr(preferences, "default_file", lambda: store.file)
    monkeypatch.setattr(QSystemTrayIcon, "isSystemTrayAvailable", lambda: True)
    store.save(Preferences(closes_to_tray=True))
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    shown: list[bool] = []

    def close_and_end() -> None:
        made = [widget for widget in qapp.topLevelWidgets() if isinstance(widget, MainWindow)]
        windows = [window for window in made if window.bridge.session is session]
        shown.extend(widget.isVisible() for widget in windows)
        for widget in windows:
            widget.close()  # into the tray
        assert not session.is_stopped
        QTimer.singleShot(200, lambda: signal.raise_signal(signal.SIGTERM))

    try:
        QTimer.singleShot(300, close_and_end)
        assert run_gui(session, is_minimised=is_minimised) == 0
        assert shown[-1] is not is_minimised
        assert session.is_stopped
        assert runs_event_loops()
        assert qapp.quitOnLastWindowClosed()
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_closes_the_window_in_order(
    number: signal.Signals,
    session: ScriptedSession,
    qapp: QApplication,
    monkeypatch: pytest.MonkeyPatch,
    store: PreferenceStore,
) -> None:
    monkeypatch.setattr(preferences, "default_file", lambda: store.file)
    # A process that a shell starts in the background ignores SIGINT, and so would the window.
    before = signal.signal(number, signal.default_int_handler)
    try:
        QTimer.singleShot(300, lambda: signal.raise_signal(number))
        assert run_gui(session) == 0
        assert session.is_stopped
        assert runs_event_loops()
        assert signal.getsignal(number) == signal.default_int_handler
    finally:
        signal.signal(number, before)


def test_the_next_start_takes_the_bundle_of_the_dialog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preferences, "default_file", lambda: tmp_path / "window.ini")
    codec = EngineOptions(flow_schedule="cosine")  # what the boxes say
    assert PreferenceStore().load().start_settings(StartSettings()) == dataclasses.replace(
        StartSettings(), engine=codec
    )
    PreferenceStore().save(Preferences(bundle="/a/bundle", flow_steps=5))
    wanted = dataclasses.replace(
        StartSettings(), bundle=Path("/a/bundle"), engine=dataclasses.replace(codec, flow_steps=5)
    )
    assert PreferenceStore().load().start_settings(StartSettings()) == wanted
    PreferenceStore().save(Preferences(backend="trtllm", engine="/an/engine", engine_python="/a/python"))
    start = PreferenceStore().load().start_settings(StartSettings())
    assert (start.engine.backend, start.engine.engine) == ("trtllm", Path("/an/engine"))
    assert (start.engine_python, start.engine.device) == (Path("/a/python"), "cuda")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("display", "reason"),
    [
        ({"DISPLAY": "nowhere:99"}, "could not connect to display nowhere:99"),
        ({"QT_QPA_PLATFORM": "cinema"}, 'Could not find the Qt platform plugin "cinema"'),
        (
            {"QT_QPA_PLATFORM": "cinema", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"},
            'Could not find the Qt platform plugin "cinema"',
        ),
    ],
)
def test_a_display_that_cannot_be_used_is_reported_in_a_message(
    display: dict[str, str], reason: str, repository: Path, tmp_path: Path
) -> None:
    away = ("QT_QPA_PLATFORM", "DISPLAY", "WAYLAND_DISPLAY")
    environment = {name: value for name, value in os.environ.items() if name not in away} | display
    code = "import sys; from app.gui.window import run; sys.exit(run.run_gui(None))"
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=repository,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert result.stderr.startswith(f"moss-voice: No window can be opened here ({reason}")
    assert "moss-voice demo" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_start_that_fails_is_shown_in_the_language_of_the_window(
    qapp: QApplication, monkeypatch: pytest.MonkeyPatch, store: PreferenceStore
) -> None:
    monkeypatch.setattr(preferences, "default_file", lambda: store.file)
    store.save(Preferences(language="zh_CN"))
    monkeypatch.setattr(run, "FAILURE_MS", 50)
    shown: list[str] = []
    warning = QMessageBox.warning

    def warn(parent: None, title: str, text: str) -> QMessageBox.StandardButton:
        shown.append(text)
        return warning(parent, title, text)

    monkeypatch.setattr(QMessageBox, "warning", warn)
    run.show_failure(
        InstanceError(
            "MOSS Voice is already running ({holder}), but its window does not answer.",
            "End that process (kill -9 {process}) and start again, or open a second window that saves "
            "nothing: moss-voice --new-instance",
            holder="process 7",
            process=7,
        )
    )
    (text,) = shown
    assert "没有响应" in text
    assert "kill -9 7" in text
    assert "already" not in text


def start_program(repository: Path, place: Path, *words: str) -> subprocess.Popen[str]:
    """The program without a screen, with settings in `place`."""
    place.mkdir(mode=0o700, exist_ok=True)
    away = ("DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "WAYLAND_DISPLAY")
    environment = {name: value for name, value in os.environ.items() if name not in away}
    environment |= {"XDG_RUNTIME_DIR": str(place), "QT_QPA_PLATFORM": "offscreen"}
    return subprocess.Popen(
        [sys.executable, "-m", "app", *words],
        cwd=repository,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_the_program_is_started_twice_at_once(repository: Path, tmp_path: Path, nano_bundle: Path) -> None:
    """One of both is the window, the other one ends with success and says what had no effect."""
    started = [start_program(repository, tmp_path / "run", "--seed", "5") for _ in range(2)]
    try:
        limit_s = time.monotonic() + 200
        while all(process.poll() is None for process in started) and time.monotonic() < limit_s:
            time.sleep(0.1)
        (later,) = [process for process in started if process.poll() is not None]
        (window,) = [process for process in started if process.poll() is None]
        said = later.communicate()[1]
        assert later.returncode == 0
        assert f"already running (process {window.pid}); its window was brought to the front" in said
        assert "no effect: --seed 5." in said
        window.kill()
        window.wait()
        started.append(start_program(repository, tmp_path / "run"))  # what was killed is no obstacle
        with pytest.raises(subprocess.TimeoutExpired):
            started[-1].wait(5)
    finally:
        for process in started:
            process.kill()
            process.wait()
