"""The settings dialog: edits a `Preferences` value; the caller applies and saves the result.

In: preferences, the devices that exist. Out: the edited preferences. GUI thread.
"""

from __future__ import annotations

from functools import reduce

from PySide6.QtWidgets import QDialog, QDialogButtonBox, QTabWidget, QVBoxLayout, QWidget

from app.gui.common.bridge import SessionBridge
from app.gui.common.fitting_area import FittingArea
from app.gui.common.preferences import Preferences
from app.gui.settings.captions_page import CaptionsPage
from app.gui.settings.engine_page import EnginePage
from app.gui.settings.gpu_page import GpuInstaller, GpuPage
from app.gui.settings.keeping_page import KeepingPage
from app.gui.settings.model_page import ModelPage, ModelTools
from app.gui.settings.preference_pages import AppearancePage, CodecPage, ConversationPage, TalkPage
from app.gui.settings.server_page import ServerPage
from app.gui.settings.settings_page import SettingsPage, one_below_another
from app.gui.settings.sound_page import SoundCheckPage, SoundPage
from app.gui.settings.sound_tests import SoundNotices
from app.session.events import DevicesChanged
from app.settings import StartSettings

_LEAST_WIDTH = 780


class SettingsDialog(QDialog):
    """All settings, one tab for each subject; `bridge` is for the sound check, `tools` for the models,
    `gpu` for its page, `running` is the engine that runs."""

    def __init__(
        self,
        preferences: Preferences,
        devices: DevicesChanged | None,
        parent: QWidget | None = None,
        bridge: SessionBridge | None = None,
        tools: ModelTools | None = None,
        gpu: GpuInstaller | None = None,
        running: StartSettings | None = None,
    ) -> None:
        super().__init__(parent)
        self.setWindowTitle(self.tr("Settings"))
        self._given = preferences
        self.model, self.sound_check = ModelPage(tools, running), SoundCheckPage(bridge)
        self.engine = EnginePage(None if tools is None else tools.checks)
        self.server, self.keeping = ServerPage(), KeepingPage()
        self.notices = SoundNotices(bridge, self.sound_check.tests)
        self.buttons = QDialogButtonBox(
            QDialogButtonBox.StandardButton.Ok
            | QDialogButtonBox.StandardButton.Cancel
            | QDialogButtonBox.StandardButton.RestoreDefaults
        )
        self.tabs = QTabWidget()
        groups: tuple[tuple[str, tuple[SettingsPage, ...]], ...] = (
            (self.tr("Sound"), (SoundPage(devices),)),
            (self.tr("Conversation"), (ConversationPage(),)),
            (self.tr("Talking"), (TalkPage(parent), self.sound_check, CaptionsPage())),
            (self.tr("Model"), (self.model,)),
            (self.tr("Engine"), (self.engine, self.server)),
            (self.tr("Codec"), (CodecPage(),)),
            (self.tr("GPU"), (GpuPage(gpu),) if gpu is not None else ()),
            (self.tr("General"), (AppearancePage(), self.keeping)),
        )
        self._tabs: list[FittingArea] = []
        for name, pages in groups:
            if pages:
                content = pages[0] if len(pages) == 1 else one_below_another(*pages)
                content.setMinimumWidth(_LEAST_WIDTH)
                beside = (self.tabs.tabBar(), self.notices, self.buttons)
                self._tabs.append(FittingArea(content, beside, fits_text=True))
                self.tabs.addTab(self._tabs[-1], name)
        self._pages = [page for _, pages in groups for page in pages]
        self.buttons.accepted.connect(self.accept)
        self.buttons.rejected.connect(self.reject)
        restore = self.buttons.button(QDialogButtonBox.StandardButton.RestoreDefaults)
        restore.clicked.connect(lambda: self.show_preferences(Preferences()))
        layout = QVBoxLayout(self)
        layout.setContentsMargins(16, 14, 16, 14)
        layout.setSpacing(12)
        layout.addWidget(self.tabs, 1)
        layout.addWidget(self.notices)
        layout.addWidget(self.buttons)
        self.model.files_checked.connect(self._follow_check)
        self.server.checked.connect(self._follow_check)
        self.keeping.checked.connect(self._follow_check)
        self.engine.checked.connect(self._follow_engine)
        self.model.files_checked.connect(lambda: self.engine.follow_bundle(self.model.bundle_name))
        self.show_preferences(preferences)

    def show_preferences(self, preferences: Preferences) -> None:
        """Fill the dialog."""
        for page in self._pages:
            page.show_preferences(preferences)

    def preferences(self) -> Preferences:
        """The preferences in the dialog."""
        return reduce(lambda edited, page: page.edited(edited), self._pages, self._given)

    def open_engine(self) -> None:
        """Show the page of the engine."""
        self.tabs.setCurrentWidget(next(tab for tab in self._tabs if tab.isAncestorOf(self.engine)))

    def _follow_check(self) -> None:
        """Disable OK for a bundle, voice or engine that would not load, an invalid address or folder."""
        accept = self.buttons.button(QDialogButtonBox.StandardButton.Ok)
        checked = (self.model, self.server, self.engine, self.keeping)
        accept.setEnabled(all(page.is_usable for page in checked))

    def _follow_engine(self) -> None:
        self.model.device.follow_engine(uses_engine=self.engine.uses_engine)
        self._follow_check()
