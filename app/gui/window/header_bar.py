"""The bar at the top: name, state, bundle, and buttons for export, language, theme and settings."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QFrame, QHBoxLayout, QMenu, QToolButton, QWidget

from app.gui.common.destination import server_in_words
from app.gui.common.icons import Icons
from app.gui.common.plain_text import ElidedLabel, PlainLabel, clean, set_tip
from app.gui.common.themes import Theme
from app.gui.common.translation import FollowsLanguage
from app.gui.window.state_badge import StateBadge
from app.session.events import EngineReady

_PRODUCT = "MOSS Voice"
_LONGEST_NAME = 60
"""Longest model name that is shown: a server may use any name."""


class HeaderBar(FollowsLanguage, QFrame):
    """Buttons for the complete window.

    Signals:
        new_conversation, history_wanted, panel_wanted, compact_wanted, theme_toggled, language_toggled,
            settings_wanted: a button was pressed.
        text_wanted, sound_wanted, copy_wanted, csv_wanted, trace_wanted, picture_wanted: an entry of the
            export menu was chosen.
    """

    new_conversation = Signal()
    history_wanted = Signal()
    theme_toggled = Signal()
    language_toggled = Signal()
    settings_wanted = Signal()
    panel_wanted = Signal()
    compact_wanted = Signal()
    text_wanted = Signal()
    sound_wanted = Signal()
    copy_wanted = Signal()
    csv_wanted = Signal()
    trace_wanted = Signal()
    picture_wanted = Signal()

    def __init__(self, theme: Theme, icons: Icons, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("role", "header")
        self._theme, self._icons = theme, icons
        self._engine: EngineReady | None = None
        self._server = ""
        self._logo, self._name = PlainLabel(), PlainLabel(_PRODUCT)
        self.bundle = ElidedLabel()
        self._name.setProperty("role", "product")
        self.bundle.setProperty("role", "small")
        self.badge = StateBadge(theme, icons)
        self.new_button, self.export_button, self.language_button = (
            QToolButton(),
            QToolButton(),
            QToolButton(),
        )
        self.panel_button, self.compact_button = QToolButton(), QToolButton()
        self.history_button = QToolButton()
        self.theme_button, self.settings_button, self.help_button = (
            QToolButton(),
            QToolButton(),
            QToolButton(),
        )
        self._shows_panel = True
        self._icon_names = {
            self.new_button: "plus",
            self.history_button: "clock",
            self.export_button: "export",
            self.panel_button: "panel",
            self.compact_button: "compact",
            self.language_button: "globe",
            self.theme_button: "moon",
            self.settings_button: "settings",
            self.help_button: "help",
        }
        self.detach_action = QAction(self)
        self.detach_action.setCheckable(True)
        self.panel_button.addAction(self.detach_action)
        self.panel_button.setContextMenuPolicy(Qt.ContextMenuPolicy.ActionsContextMenu)
        self.menu = QMenu(self)
        self.text_action, self.sound_action, self.copy_action = (QAction(self) for _ in range(3))
        self.csv_action, self.trace_action, self.picture_action = (QAction(self) for _ in range(3))
        for action, signal in (
            (self.text_action, self.text_wanted),
            (self.sound_action, self.sound_wanted),
            (self.copy_action, self.copy_wanted),
            (self.csv_action, self.csv_wanted),
            (self.trace_action, self.trace_wanted),
            (self.picture_action, self.picture_wanted),
        ):
            action.triggered.connect(signal)
            self.menu.addAction(action)
        self.menu.insertSeparator(self.csv_action)
        self.export_button.setMenu(self.menu)
        self.export_button.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self.new_button.clicked.connect(self.new_conversation)
        self.language_button.clicked.connect(self.language_toggled)
        self.theme_button.clicked.connect(self.theme_toggled)
        self.settings_button.clicked.connect(self.settings_wanted)
        self.history_button.clicked.connect(self.history_wanted)
        self.panel_button.clicked.connect(self.panel_wanted)
        self.compact_button.clicked.connect(self.compact_wanted)
        self.help_button.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self._lay_out()
        self.set_theme(theme)
        self.retranslate()

    def show_engine(self, event: EngineReady, server: str = "") -> None:
        """Show which bundle answers, and on which `server`, "" for this computer."""
        self._engine, self._server = event, server
        self.badge.show_server(server)
        self.retranslate()

    def show_panel(self, on: bool) -> None:
        """The latency view was shown or hidden."""
        self._shows_panel = on
        self.retranslate()

    def set_theme(self, theme: Theme) -> None:
        """Take the colours of a theme."""
        self._theme = theme
        self._icon_names[self.theme_button] = "sun" if theme.is_dark else "moon"
        for button, name in self._icon_names.items():
            button.setIcon(self._icons.icon(name, theme.text, theme.muted))
            button.setIconSize(theme.square(18))
        self._logo.setPixmap(
            self._icons.pixmap("moss-voice", theme.accent, theme.px(28), self.devicePixelRatioF())
        )
        self.badge.set_theme(theme)

    def retranslate(self) -> None:
        """Use the words of the current language."""
        self.new_button.setText(self.tr("New conversation"))
        self.language_button.setText(self.tr("中文", "the language that the button switches to"))
        for button, name, shortcut in (
            (self.new_button, self.tr("Forget this conversation and start a new one"), "Ctrl+N"),
            (self.export_button, self.tr("Export"), ""),
            (self.language_button, self.tr("Switch the language"), ""),
            (self.theme_button, self.tr("Switch between light and dark"), "Ctrl+T"),
            (self.settings_button, self.tr("Settings"), "Ctrl+,"),
            (self.history_button, self.tr("Conversations"), "Ctrl+H"),
            (self.panel_button, self._panel_words(), "F9"),
            (self.compact_button, self.tr("Small window"), "F10"),
            (self.help_button, self.tr("Help"), ""),
        ):
            button.setAccessibleName(name)
            set_tip(button, f"{name} ({shortcut})" if shortcut else name)
        self.detach_action.setText(self.tr("Latency view in its own window"))
        set_tip(
            self.panel_button,
            self.tr("%1 (F9); in its own window: Shift+F9 or right-click").replace("%1", self._panel_words()),
        )
        self.text_action.setText(self.tr("Conversation as text …"))
        self.sound_action.setText(self.tr("Conversation as audio …"))
        self.copy_action.setText(self.tr("Copy the conversation"))
        self.csv_action.setText(self.tr("Timings as CSV …"))
        self.trace_action.setText(self.tr("Timings as Chrome trace …"))
        self.picture_action.setText(self.tr("Latency view as picture …"))
        if self._engine is not None:
            text = (
                self.tr("%1 · on the server %2").replace("%2", server_in_words(self._server))
                if self._server
                else self.tr("%1 · loaded in %2 s").replace("%2", f"{self._engine.load_s:.1f}")
            )
            self.bundle.setText(text.replace("%1", clean(self._engine.bundle, _LONGEST_NAME)))

    def _panel_words(self) -> str:
        return self.tr("Hide the latency view") if self._shows_panel else self.tr("Show the latency view")

    def _lay_out(self) -> None:
        layout = QHBoxLayout(self)
        layout.setContentsMargins(16, 9, 12, 9)
        layout.setSpacing(10)
        layout.addWidget(self._logo)
        layout.addWidget(self._name)
        layout.addSpacing(4)
        layout.addWidget(self.badge)
        layout.addWidget(self.bundle)
        layout.addStretch(1)
        for button in self._icon_names:
            layout.addWidget(button)
        for button in (self.new_button, self.language_button):
            button.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
