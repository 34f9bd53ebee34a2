"""The menu of the help button: keyboard shortcuts, guide, report for troubleshooting, log folder, about.

In: clicks. Out: the file of the report, written by `moss-voice doctor` in a process of its own, and the
folder of the log in the file manager of the desktop. GUI thread.
"""

from __future__ import annotations

import platform
import sys
from html import escape
from pathlib import Path

from PySide6.QtCore import QUrl, Signal, qVersion
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import QMenu, QWidget

from app import paths
from app.gui.common.child_command import ChildCommand
from app.gui.common.error_texts import in_words
from app.gui.common.notices import ErrorBanner, NoticeLine
from app.gui.common.question import asked_file, tell_about
from app.gui.common.translation import FollowsLanguage
from app.version import VERSION
from engine_runtime.errors import Problem
from engine_runtime.installation import is_frozen

_REPORT_NAME = "moss-voice-report.txt"


def _licence_file() -> str:
    """The file that lists the licences: beside the packaged program, or else in the source tree."""
    return str(Path(sys.executable).parent / "THIRD-PARTY-LICENSES.txt") if is_frozen() else "NOTICE"


class HelpMenu(FollowsLanguage, QMenu):
    """One entry for each kind of help.

    Signals:
        shortcuts_wanted, guide_wanted: the entry of the keyboard shortcuts, or of the guide, was chosen.
    """

    shortcuts_wanted = Signal()
    guide_wanted = Signal()

    def __init__(self, banner: ErrorBanner, notice: NoticeLine, parent: QWidget) -> None:
        super().__init__(parent)
        self._banner, self._notice = banner, notice
        self._doctor: ChildCommand | None = None
        self.shortcuts_action, self.guide_action = self.addAction(""), self.addAction("")
        self.shortcuts_action.triggered.connect(self.shortcuts_wanted)
        self.guide_action.triggered.connect(self.guide_wanted)
        self.report_action = self.addAction("", self.save_report)
        self.log_action = self.addAction("", self.open_log_folder)
        self.addSeparator()
        self.about_action = self.addAction("", self.show_about)
        self.retranslate()

    def save_report(self) -> None:
        """Ask for a file and let the doctor write its report there; takes some seconds."""
        title, kinds = self.tr("Save report"), self.tr("Text (*.txt)")
        if (file := asked_file(self, title, _REPORT_NAME, kinds)) is None:
            return
        self.report_action.setEnabled(False)
        self._notice.show_notice(self.tr("The report is being written …"))
        before = _time_of(file)
        self._doctor = ChildCommand(self, "doctor", "--report", str(file))
        self._doctor.ended.connect(lambda problem: self._note_report(file, before, problem))

    def open_log_folder(self) -> None:
        """Show the folder of the log in the file manager; without one, name its path."""
        folder = paths.log_file().parent
        if not QDesktopServices.openUrl(QUrl.fromLocalFile(str(folder))):
            self._notice.show_notice(self.tr("The log is in %1.").replace("%1", str(folder)))

    def show_about(self) -> None:
        """Show name, version and licence."""
        tell_about(self, self.tr("About MOSS Voice"), self.about_text())

    def about_text(self) -> str:
        """What the program is, as rich text."""
        parts = (
            f"<b>MOSS Voice {VERSION}</b>",
            self.tr(
                "A speech-to-speech assistant that runs on this computer. What you say leaves it only if you "
                "choose a server."
            ),
            self.tr("Licence: Apache 2.0"),
            self.tr("It uses Qt under the GNU Lesser General Public License, version 3 (source: qt.io)."),
            self.tr("All parts and their licences are listed in %1.").replace("%1", escape(_licence_file())),
            f"Python {platform.python_version()}, Qt {qVersion()}, {platform.platform()}",
        )
        return "<p>" + "</p><p>".join(parts) + "</p>"

    def retranslate(self) -> None:
        """Use the words of the current language."""
        self.shortcuts_action.setText(self.tr("Keyboard shortcuts"))
        self.guide_action.setText(self.tr("Guide …"))
        self.report_action.setText(self.tr("Save report for troubleshooting …"))
        self.log_action.setText(self.tr("Open log folder"))
        self.about_action.setText(self.tr("About MOSS Voice"))

    def _note_report(self, file: Path, before: int | None, problem: Problem | None) -> None:
        """The doctor has ended, with an error also if something is missing; `before` is the time of an
        earlier file of this name."""
        self._doctor = None
        self.report_action.setEnabled(True)
        if _time_of(file) not in (None, before):
            text = self.tr("The report is in %1. Read it before you send it to someone.")
            self._notice.show_notice(text.replace("%1", str(file)))
        else:
            self._banner.show_words(
                lambda: (
                    self.tr("The report could not be written."),
                    "" if problem is None else in_words(problem),
                    "",
                )
            )


def _time_of(file: Path) -> int | None:
    """When the file was written, in ns; None if there is none."""
    return file.stat().st_mtime_ns if file.is_file() else None
