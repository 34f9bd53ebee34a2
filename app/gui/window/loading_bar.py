"""A progress bar above the question field while an engine is loaded.

In: EngineLoading and StateChanged of the session, the models that are requested. GUI thread.
"""

from __future__ import annotations

from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QProgressBar, QVBoxLayout, QWidget

from app.gui.common.bridge import SessionBridge
from app.gui.common.plain_text import ElidedLabel
from app.gui.common.translation import FollowsLanguage
from app.gui.settings.engine_switch import EngineSwitch
from app.session.events import EngineLoading, SessionState, StateChanged

DELAY_MS = 700
"""Delay before the bar is shown: for a model that loads sooner, the window would jump twice."""
_STEPS = 1000


class LoadingBar(FollowsLanguage, QWidget):
    """Hidden unless an engine is being loaded. After the files come steps without progress: the bar is busy.

    Attributes:
        delay: runs from the beginning of the loading to the moment at which the bar is shown.
    """

    def __init__(self, bridge: SessionBridge, engine: EngineSwitch, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._name = ""
        self.words, self.bar = ElidedLabel(), QProgressBar()
        self.words.setProperty("role", "muted")
        self.bar.setTextVisible(False)
        self.bar.setFixedHeight(6)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(4)
        layout.addWidget(self.words)
        layout.addWidget(self.bar)
        self.delay = QTimer(self)
        self.delay.setSingleShot(True)
        self.delay.setInterval(DELAY_MS)
        self.delay.timeout.connect(self.show)
        bridge.state_changed.connect(self._follow)
        bridge.engine_loading.connect(self._show_share)
        engine.loading.connect(self._expect)
        self._expect(engine.bundle.name)
        self.hide()

    def _expect(self, name: str) -> None:
        """The next engine to load is of this model."""
        self._name = name
        self.bar.setRange(0, 0)
        self.retranslate()

    def retranslate(self) -> None:
        """Use the words of the current language."""
        is_read = self.bar.maximum() == 0
        text = self.tr("Preparing %1 …") if is_read else self.tr("Loading %1 …")
        self.words.setText(text.replace("%1", self._name))
        self.bar.setAccessibleName(self.words.text())

    def _show_share(self, event: EngineLoading) -> None:
        is_read = event.share >= 1
        self.bar.setRange(0, 0 if is_read else _STEPS)
        self.bar.setValue(-1 if is_read else round(event.share * _STEPS))
        self.retranslate()

    def _follow(self, event: StateChanged) -> None:
        if event.state is SessionState.LOADING:
            self.delay.start()
        else:
            self.delay.stop()
            self.hide()
