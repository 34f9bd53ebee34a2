"""Runs the window: creates the Qt application, shows the window, and returns when it is closed."""

from __future__ import annotations

import signal
from functools import partial
from typing import TYPE_CHECKING

from PySide6.QtCore import QCoreApplication, QEvent, Qt, QTimer
from PySide6.QtWidgets import QApplication

from app import paths
from app.gui.common.error_texts import cause_in_words, remedy_in_words
from app.gui.common.preferences import PreferenceStore
from app.gui.common.question import warn
from app.gui.common.translation import Translation
from app.gui.settings.engine_switch import EngineLoader
from app.gui.window.application import make_application
from app.gui.window.main_window import MainWindow
from app.instance import Instance
from app.process import caught_signals
from app.settings import StartSettings
from engine_runtime.errors import MossVoiceError

if TYPE_CHECKING:
    from app.session.session import Session

FAILURE_MS = 120_000


def show_failure(error: MossVoiceError) -> None:
    """Show why no window opens to a user without a terminal, until it is read, or for `FAILURE_MS`."""
    existing = QApplication.instance()
    application = existing if isinstance(existing, QApplication) else make_application()
    translation = Translation(application, paths.assets_dir() / "translations")
    translation.switch_to(PreferenceStore(is_kept=False).load().language)
    timer = QTimer(singleShot=True, interval=FAILURE_MS)
    timer.timeout.connect(application.closeAllWindows)
    timer.start()
    warn(None, "MOSS Voice", f"{cause_in_words(error.problem)}\n\n{remedy_in_words(error.problem)}")
    timer.stop()
    translation.remove_translators()


def run_gui(
    session: Session,
    *,
    store: PreferenceStore | None = None,
    start: StartSettings | None = None,
    loader: EngineLoader | None = None,
    is_minimised: bool = False,
    is_presenting: bool = False,
    instance: Instance | None = None,
) -> int:
    """Show the window of a session that is not started yet; returns the exit status when it was closed.

    `start` is the command line, `loader` makes the factory of an engine that is chosen in the window. Starts
    the session after the window, and has stopped it when this returns. `is_minimised` starts with the tray
    icon alone, or with a minimised window where there is no tray, `is_presenting` with the presentation. The
    first start shows the guide, but not over a presentation. The window answers later starts of the program
    with `instance`.
    """
    existing = QApplication.instance()
    application = existing if isinstance(existing, QApplication) else make_application()
    application.setApplicationName(paths.APP_NAME)
    application.setApplicationDisplayName("MOSS Voice")
    application.setDesktopFileName(paths.APPLICATION_ID)
    window = MainWindow(session, store, start=start, loader=loader)
    # Qt would count a window that is hidden in the tray as the last one closed.
    application.setQuitOnLastWindowClosed(False)
    window.closed.connect(application.quit, Qt.ConnectionType.QueuedConnection)
    is_minimised = not is_presenting and (is_minimised or window.applied.current.starts_minimised)
    window.background.show_window(is_minimised=is_minimised)
    window.start_session()
    window.modes.present(is_presenting)
    if window.applied.store.is_new and not is_minimised and not is_presenting:
        window.settings.open_guide()
    if instance is not None:  # from the event loop on, so that an answer does not wait for the rest
        answer = partial(window.background.answer_later_starts, instance)
        QTimer.singleShot(0, window, answer)
    # The timers of the window let Python handle signals promptly; Qt itself does not.
    quit_window = window.background.quit
    before = {number: signal.signal(number, lambda *_: quit_window()) for number in caught_signals()}
    status = application.exec()
    for number, handler in before.items():
        signal.signal(number, handler)
    # Closing the last window posts a second Quit, which would end the next event loop of this process.
    QCoreApplication.removePostedEvents(application, QEvent.Type.Quit.value)
    # A plot that is still open when the interpreter ends may crash it.
    window.background.quit()
    window.deleteLater()
    application.processEvents()
    application.setQuitOnLastWindowClosed(True)
    return status
