"""The main window: conversation at the left, live latency view at the right, controls above and below.

In: events of the session through the bridge. Out: commands to the session. GUI thread; nothing here blocks.
The window shows only conversation state that the session has reported.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QCloseEvent
from PySide6.QtWidgets import QMainWindow, QSplitter, QVBoxLayout, QWidget

from app import paths
from app.gui.common.bridge import SessionBridge
from app.gui.common.error_texts import in_words
from app.gui.common.fitting_area import FittingArea
from app.gui.common.notices import ErrorBanner, NoticeLine
from app.gui.common.plain_text import PlainLabel
from app.gui.common.preferences import SCALES, Language, PreferenceStore
from app.gui.common.themes import ThemeChoice
from app.gui.common.translation import FollowsLanguage
from app.gui.conversation.composer import Composer
from app.gui.conversation.conversation_actions import ConversationActions
from app.gui.conversation.latest_exchange import LatestExchange
from app.gui.conversation.sample_row import SampleRow
from app.gui.conversation.transcript import Transcript
from app.gui.latency.export import Export
from app.gui.latency.latency_view import LatencyView
from app.gui.settings.applied_preferences import AppliedPreferences
from app.gui.settings.engine_switch import EngineLoader, EngineSwitch
from app.gui.settings.settings_actions import SettingsActions
from app.gui.window.background import Background
from app.gui.window.compact_window import CompactWindow
from app.gui.window.control_bar import ControlBar
from app.gui.window.header_bar import HeaderBar
from app.gui.window.help_menu import HelpMenu
from app.gui.window.loading_bar import LoadingBar
from app.gui.window.look import Look
from app.gui.window.presenter import Presenter
from app.gui.window.session_errors import SessionErrors
from app.gui.window.shortcuts import Shortcuts
from app.gui.window.ways_to_talk import WaysToTalk
from app.gui.window.window_modes import NARROWEST, DetachedView, WindowModes
from app.sample_questions import SampleQuestion, load_samples
from app.session.commands import (
    ApplySettings,
    AskText,
    CancelTurn,
    PlaySample,
    RescanDevices,
    Start,
    Stop,
)
from app.session.engine_jobs import FlowStepsSet
from app.session.events import DevicesChanged, EngineReady, SampleFinished, SampleStarted, SessionState
from app.settings import StartSettings
from engine_runtime.timing import TimingEvent

if TYPE_CHECKING:
    from app.session.session import Session

_log = logging.getLogger(__name__)
_SHARES = (34, 66)
"""Shares of the width: conversation and latency view."""
_WIDTH = 1440
_NARROWEST_CONVERSATION = 360
_ANSWERABLE = set(SessionState) - {SessionState.LOADING, SessionState.ERROR}


class MainWindow(FollowsLanguage, QMainWindow):
    """The window of one session. `start_session` starts it; closing the window stops it.

    Signals:
        closed: the window was closed for good.
    """

    closed = Signal()

    def __init__(
        self,
        session: Session,
        store: PreferenceStore | None = None,
        *,
        start: StartSettings | None = None,
        loader: EngineLoader | None = None,
    ) -> None:
        """`start` is the command line, `loader` makes the factory of another engine."""
        super().__init__()
        self.bridge = SessionBridge(session, self)
        store = PreferenceStore() if store is None else store
        given = StartSettings() if start is None else start
        self.applied = AppliedPreferences(self, self.bridge, store, given)
        self.engine = EngineSwitch(self, self.bridge, self.applied, loader)
        preferences = self.applied.current
        self.look = Look(self, preferences)
        theme, icons = self.look.theme, self.look.icons
        self._devices: DevicesChanged | None = None
        self._starts_listening = False
        """Whether the microphone is to be opened as soon as an engine is there."""
        self._presented_percent = SCALES[0]
        """The size of the presentation, which begins as large as it fits."""
        self.header = HeaderBar(theme, icons)
        self.banner = ErrorBanner(theme, icons)
        self.notice = NoticeLine()
        self.unkept = PlainLabel()
        self.unkept.setProperty("role", "muted")
        self.unkept.setWordWrap(True)
        self.unkept.setVisible(not store.is_kept)
        self.loading = LoadingBar(self.bridge, self.engine)
        self.settings = SettingsActions(
            self, self.closed, self.bridge, self.applied, self.engine, self.banner, self.notice
        )
        self.transcript = Transcript(theme, icons)
        self.sample_row = SampleRow(load_samples(paths.assets_dir() / "samples"), theme, icons)
        self.composer = Composer(theme, icons)
        self.latency = LatencyView(theme)
        self.controls = ControlBar(theme, icons)
        self.export = Export(self, self.latency, theme, self.banner, self.notice)
        self.help = HelpMenu(self.banner, self.notice, self)
        self.latency.cleared.connect(self.export.clear)
        self.latency.cleared.connect(self.controls.counters.count_from_zero)
        self.controls.show_reply(preferences.reply)
        self.controls.volume.show_volume(preferences.volume)
        self.ways = WaysToTalk(self, self.bridge, self.controls, self.header.badge, self.banner)
        self.conversations = ConversationActions(
            self,
            self.bridge,
            self.transcript,
            self.banner,
            self.notice,
            lambda: self.applied.current.conversations_dir(),
        )
        self._lay_out()
        self._exchange = LatestExchange(self.bridge, self)
        compact = CompactWindow(self.bridge, self._exchange, self.controls, self.header.badge, theme, icons)
        detached = DetachedView(self, theme, icons)
        self.ways.push.add_window(compact, compact.talk_button)
        self.ways.push.add_window(detached)
        for other in (compact, detached):
            other.banner.mirror(self.banner)
            other.notice.mirror(self.notice)
        self.modes = WindowModes(self, self.splitter, self.latency, compact, detached, self._make_presenter)
        self.background = Background(self, compact, self.controls, self.header.badge, icons)
        self.header.help_button.setMenu(self.help)
        self._use_scale()
        self.errors = SessionErrors(self, self.bridge, self.banner, self.engine)
        for part in (
            self.header,
            self.banner,
            self.transcript,
            self.sample_row,
            self.composer,
            self.latency,
            self.export,
            self.controls,
            compact,
            detached,
        ):
            self.look.theme_changed.connect(part.set_theme)
        self.shortcuts = self._add_shortcuts()
        self._connect_session()
        self._connect_controls()
        self._show_state(SessionState.LOADING)
        self.retranslate()
        self.restoreGeometry(store.kept_bytes("geometry"))
        self.modes.restore(
            store.kept_bytes("splitter"),
            store.kept_bytes("latency"),
            shows_panel=preferences.latency_panel,
            is_detached=preferences.latency_window,
        )
        self._use_ways()

    def start_session(self) -> None:
        """Start the session and poll it."""
        self.bridge.session.start()
        self._starts_listening = self.applied.current.starts_listening
        self.bridge.send(ApplySettings(self.applied.session_settings()))
        self.conversations.finish_deletions()
        if self.applied.current.keep != "nothing":
            self.conversations.continue_latest()
        self.bridge.start_polling()
        self.errors.show_gpu_runtime()
        if (damaged := self.applied.store.damaged) is not None:
            self.errors.show_damaged_settings(damaged)

    def toggle_theme(self) -> None:
        """Switch between light and dark."""
        choice = ThemeChoice.LIGHT if self.look.theme.is_dark else ThemeChoice.DARK
        self.applied.apply(dataclasses.replace(self.applied.current, theme=choice))

    def toggle_language(self) -> None:
        """Switch between English and Chinese."""
        language: Language = "en" if self.look.translation.language.startswith("zh") else "zh_CN"
        self.applied.apply(dataclasses.replace(self.applied.current, language=language))

    def ask_question(self, text: str) -> None:
        """Ask a typed question. One that is too long stays in the field, with an explanation."""
        most = self.applied.session_settings().max_text_chars
        if len(text) > most:
            self.composer.edit.setPlainText(text)
            self.banner.show_words(
                lambda: (
                    self.tr("The question has %1 characters; the limit is %2.")
                    .replace("%1", str(len(text)))
                    .replace("%2", str(most)),
                    self.tr("Shorten it, or ask it in parts."),
                    "",
                )
            )
            return
        self.bridge.send(AskText(text))

    def closeEvent(self, event: QCloseEvent) -> None:
        """Hide in the tray, or save the geometry and stop the session."""
        if self.background.keeps_running(closes_to_tray=self.applied.current.closes_to_tray):
            event.ignore()
            return
        self.ways.shut_down()
        self.background.shut_down()
        self.applied.store.keep_bytes("geometry", self.saveGeometry())
        self.applied.store.keep_bytes("splitter", self.modes.splitter_state)
        self.applied.store.keep_bytes("latency", self.modes.detached.saveGeometry())
        self.applied.save_at_exit(latency_panel=self.modes.shows_panel, latency_window=self.modes.is_detached)
        self.modes.shut_down()
        self.settings.shut_down()
        self.bridge.stop_polling()
        if not self.bridge.session.stop():
            _log.warning("the session did not end in time")
        self.look.translation.remove_translators()
        super().closeEvent(event)
        self.closed.emit()

    # ---- from the session ----

    def _connect_session(self) -> None:
        bridge, transcript, controls = self.bridge, self.transcript, self.controls
        bridge.state_changed.connect(
            lambda event: self._show_state(event.state, is_reconnecting=event.is_reconnecting)
        )
        bridge.state_changed.connect(lambda event: self.composer.set_replying(event.can_stop))
        bridge.engine_ready.connect(self._show_engine)
        bridge.flow_steps_set.connect(self._take_flow_steps)
        bridge.levels.connect(controls.show_levels)
        bridge.counters.connect(controls.counters.show_counters)
        bridge.echo_measured.connect(controls.counters.show_echo)
        bridge.speculation_measured.connect(self.latency.speculation.show_speculation)
        transcript.follow_session(bridge)
        bridge.sample_started.connect(self._announce_sample)
        bridge.sample_finished.connect(self._finish_sample)
        bridge.devices_changed.connect(self._take_devices)
        bridge.noticed.connect(lambda event: self.notice.announce(in_words(event.problem)))
        bridge.error_raised.connect(self._show_present_state)
        self.errors.settings_wanted.connect(self._open_settings)
        bridge.lost.connect(lambda _: self._show_state(SessionState.ERROR))
        bridge.timings.connect(self._take_timings)

    def _show_state(self, state: SessionState, *, is_reconnecting: bool = False) -> None:
        self.controls.show_state(state)
        self.header.badge.show_state(state, is_reconnecting=is_reconnecting)
        self.transcript.show_state(state)
        self.composer.set_ready(state in _ANSWERABLE)
        self.sample_row.set_ready(state in _ANSWERABLE)
        self.transcript.welcome.set_ready(state in _ANSWERABLE)

    def _show_engine(self, event: EngineReady) -> None:
        server = self.engine.wanted.server
        self.header.show_engine(event, server)
        self.export.model, self.export.machine = event.bundle, event.machine or server
        self.transcript.show_card(event.card, server)
        self.latency.flow_steps.show_steps(event.flow_steps)
        if self._starts_listening:
            self._starts_listening = False
            self.bridge.send(Start())
        if self.modes.presenter is not None:
            self.modes.presenter.show_model(self.export.origin)

    def _take_flow_steps(self, event: FlowStepsSet) -> None:
        steps = event.flow_steps
        self.latency.flow_steps.show_steps(steps)
        if event.problem is not None:  # they stay as they are, also at the next start
            self.applied.choose_flow_steps(None if steps.chosen == steps.bundle else steps.chosen)

    def _take_timings(self, events: list[TimingEvent]) -> None:
        self.export.add_events(events)
        self.latency.add_events(events)
        for turn_id in {event.turn_id for event in events if event.name in ("first_audio", "reply")}:
            if (times := self.latency.metrics.turn(turn_id)) is not None:
                self.transcript.show_times(times)

    def _take_devices(self, event: DevicesChanged) -> None:
        self._devices = event
        self._show_devices()
        self._show_input()

    def _show_devices(self) -> None:
        if self._devices is not None:
            wanted = self.applied.current
            self.controls.show_devices(self._devices, wanted.input_device, wanted.output_device)

    def _show_input(self) -> None:
        self.ways.show_source(self._devices, has_sample=self.sample_row.running is not None)

    def _announce_sample(self, event: SampleStarted) -> None:
        self.transcript.announce_sample(self.sample_row.label(event.path), event.seconds)
        self.sample_row.show_running(event.path)
        self._show_input()

    def _finish_sample(self, _event: SampleFinished) -> None:
        self.transcript.announce_sample("", 0.0)
        self.sample_row.show_running(None)
        self._show_input()

    def _show_present_state(self) -> None:
        # A start that failed brings no new state: show the current one.
        self.controls.show_state(self.header.badge.state)

    # ---- from the user ----

    def _connect_controls(self) -> None:
        send, controls, header, applied = self.bridge.send, self.controls, self.header, self.applied
        controls.started.connect(lambda: send(Start()))
        controls.stopped.connect(lambda: send(Stop()))
        controls.rescanned.connect(lambda: send(RescanDevices()))
        controls.devices_chosen.connect(applied.choose_devices)
        controls.reply_chosen.connect(applied.choose_reply)
        self.latency.flow_steps.chosen.connect(applied.choose_flow_steps)
        controls.volume.valueChanged.connect(applied.choose_volume)
        self.background.tray_lost.connect(self._announce_tray)
        applied.changed.connect(self._follow_preferences)
        applied.failed.connect(self.banner.show_error)
        applied.recovered.connect(lambda problem: self.banner.end(lambda subject: subject == problem))
        self.composer.asked.connect(self.ask_question)
        self.composer.edit.textChanged.connect(self.ways.push.keys_changed)
        self.transcript.welcome.asked.connect(self.ask_question)
        self.composer.stopped.connect(lambda: send(CancelTurn()))
        self.ways.interruption_chosen.connect(applied.choose_interruption)
        self.ways.window_toggled.connect(self.background.toggle_front)
        self.sample_row.chosen.connect(self._play_sample)
        header.new_conversation.connect(self.conversations.start_new)
        header.history_wanted.connect(self._open_history)
        header.theme_toggled.connect(self.toggle_theme)
        header.language_toggled.connect(self.toggle_language)
        header.settings_wanted.connect(self.settings.open_settings)
        header.panel_wanted.connect(self.modes.toggle_panel)
        header.detach_action.triggered.connect(self.modes.detach_panel)
        self.modes.panel_detached.connect(header.detach_action.setChecked)
        header.compact_wanted.connect(self.modes.enter_compact)
        self.modes.panel_toggled.connect(header.show_panel)
        self.latency.present_wanted.connect(self.modes.toggle_presenter)
        self.help.shortcuts_wanted.connect(self.shortcuts.show_list)
        self.help.guide_wanted.connect(self.settings.open_guide)
        header.text_wanted.connect(self.conversations.save_text)
        header.sound_wanted.connect(self.conversations.save_sound)
        header.copy_wanted.connect(self.conversations.copy_text)
        header.csv_wanted.connect(self.export.save_csv)
        header.trace_wanted.connect(self.export.save_trace)
        header.picture_wanted.connect(self.export.save_picture)

    def _announce_tray(self) -> None:
        self.notice.announce(self.tr("The desktop no longer has a tray, so the window is shown again."))

    def _use_ways(self) -> None:
        self.ways.use_preferences(self.applied.current, self.applied.current.input_mode)

    def _play_sample(self, sample: SampleQuestion) -> None:
        self.bridge.send(PlaySample(sample.path))

    def _add_shortcuts(self) -> Shortcuts:
        def large(action: Callable[[], object]) -> Callable[[], None]:
            """Switch to the large window first, which has the dialogs and the question field."""

            def act() -> None:
                self.modes.show_large()
                action()

            return act

        actions = {
            "Ctrl+Space": self.controls.toggle_listening,
            "Ctrl+Up": lambda: self.controls.volume.step_volume(1),
            "Ctrl+Down": lambda: self.controls.volume.step_volume(-1),
            "Ctrl+M": self.controls.mute_button.toggle,
            "Ctrl+I": self.controls.interruption_button.toggle,
            "Esc": self._escape,
            "Ctrl+L": large(self.composer.edit.setFocus),
            "Ctrl+N": large(self.conversations.start_new),
            "Ctrl+H": large(self._open_history),
            "Ctrl+R": lambda: self.bridge.send(RescanDevices()),
            "Ctrl+E": large(self.export.save_csv),
            "Ctrl+T": self.toggle_theme,
            "Ctrl++": lambda: self._step_scale(1),
            "Ctrl+-": lambda: self._step_scale(-1),
            "Ctrl+0": lambda: self._step_scale(0),
            "F9": self.modes.toggle_panel,
            "Shift+F9": large(self.modes.toggle_detached),
            "F10": self.modes.toggle_compact,
            "F11": self.modes.toggle_presenter,
            "Ctrl+,": self._open_settings,
            "Ctrl+Q": self.background.quit,
        }
        windows = (self, self.modes.compact, self.modes.detached)
        return Shortcuts(windows, actions, lambda: self.ways.chosen_keys)

    def _escape(self) -> None:
        if self._active_presenter() is not None:
            self.modes.present(False)
        else:
            self.bridge.send(CancelTurn())

    def _active_presenter(self) -> Presenter | None:
        """The presenter if the keys are meant for it."""
        presenter = self.modes.presenter
        return presenter if presenter is not None and presenter.isActiveWindow() else None

    def _make_presenter(self) -> Presenter:
        """The window of the presentation, with what the other windows have."""
        presenter = Presenter(
            self._exchange,
            lambda: self.latency.metrics,
            self.header.badge,
            self.look.theme,
            self.look.icons,
        )
        presenter.banner.mirror(self.banner)
        presenter.show_model(self.export.origin)
        presenter.notice.mirror(self.notice)
        self.look.theme_changed.connect(presenter.set_theme)
        self.ways.push.add_window(presenter)
        self.shortcuts.add_window(presenter)
        return presenter

    def _open_settings(self) -> None:
        self.modes.show_large()
        self.settings.open_settings()

    def _open_history(self) -> None:
        if not self.applied.store.is_kept:
            self.notice.show_notice(self.unkept.text())
            return
        self.conversations.open_history(self.look.theme, self.look.icons)

    # ---- looks ----

    def _follow_preferences(self) -> None:
        preferences = self.applied.current
        self.controls.show_reply(preferences.reply)
        self._use_ways()
        self.look.use_preferences(preferences)
        self._use_scale()
        self.retranslate()
        self._show_devices()

    def _use_scale(self) -> None:
        """The least sizes, which no widget has by itself, at the scale of the theme."""
        theme = self.look.theme
        self._column.setMinimumWidth(theme.px(_NARROWEST_CONVERSATION))
        self.latency.setMinimumWidth(theme.px(NARROWEST))

    def _step_scale(self, direction: int) -> None:
        """Make texts and plots larger (1), smaller (-1), or as usual (0)."""
        presenter = self._active_presenter()
        now = self.applied.current.scale_percent if presenter is None else self._presented_percent
        larger, smaller = [each for each in SCALES if each > now], [each for each in SCALES if each < now]
        steps = {1: [now, *larger][:2], -1: [now, *reversed(smaller)][:2], 0: SCALES[:1]}
        scale = steps[direction][-1]
        if presenter is not None:
            self._presented_percent = scale
            presenter.use_scale(scale / 100)
            return
        if scale != now:
            self.applied.apply(dataclasses.replace(self.applied.current, scale_percent=scale))
        self.notice.show_notice(self.tr("Texts and plots: %1 %").replace("%1", str(scale)))

    def retranslate(self) -> None:
        is_kept = self.applied.store.is_kept
        self.setWindowTitle("MOSS Voice" if is_kept else self.tr("Second window"))  # Qt adds the name
        self.unkept.setText(self.tr("This is a second window: it saves neither settings nor conversations."))
        self.sample_row.set_language(self.look.translation.language)
        self.transcript.welcome.set_language(self.look.translation.language)
        self.header.setAccessibleName(self.tr("Window"))
        self.controls.setAccessibleName(self.tr("Controls"))

    def _lay_out(self) -> None:
        self.setWindowIcon(self.look.icons.icon("moss-voice", self.look.theme.accent))
        below = (self.unkept, self.banner, self.notice, self.loading, self.sample_row, self.composer)
        self._column = _conversation_column(self.transcript, below)
        self.splitter = _beside(self._column, self.latency)
        self.setCentralWidget(FittingArea(_stacked(self.header, self.splitter, self.controls)))
        self.setMinimumHeight(600)
        self.resize(1440, 920)
        self.composer.setFocus()


def _conversation_column(transcript: QWidget, below: Sequence[QWidget]) -> QWidget:
    """The transcript with the widgets below it."""
    column = QWidget()
    layout = QVBoxLayout(column)
    layout.setContentsMargins(0, 0, 0, 12)
    layout.setSpacing(8)
    layout.addWidget(transcript, 1)
    for widget in below:
        inset = QVBoxLayout()
        inset.setContentsMargins(16, 0, 14, 0)
        inset.addWidget(widget)
        layout.addLayout(inset)
    return column


def _beside(conversation: QWidget, panel: QWidget) -> QSplitter:
    """Conversation and panel with a handle between them."""
    splitter = QSplitter(Qt.Orientation.Horizontal)
    splitter.setHandleWidth(1)
    splitter.setChildrenCollapsible(False)
    for widget, share in zip((conversation, panel), _SHARES, strict=True):
        splitter.addWidget(widget)
        splitter.setStretchFactor(splitter.indexOf(widget), share)
    splitter.setSizes([share * _WIDTH // sum(_SHARES) for share in _SHARES])
    return splitter


def _stacked(*rows: QWidget) -> QWidget:
    """Rows from top to bottom without gaps; the second one takes the remaining height."""
    body = QWidget()
    layout = QVBoxLayout(body)
    layout.setContentsMargins(0, 0, 0, 0)
    layout.setSpacing(0)
    for index, row in enumerate(rows):
        layout.addWidget(row, 1 if index == 1 else 0)
    return body
