"""The flow steps as a slider, beside the real-time factor that was measured with each number of them.

In: the flow steps of the engine, the figures of the latency view. Out: `chosen`. GUI thread.
"""

from __future__ import annotations

from PySide6.QtCore import QSize, Qt, QTimer, Signal
from PySide6.QtGui import QWheelEvent
from PySide6.QtWidgets import QFrame, QGridLayout, QSlider, QWidget

from app.gui.common.plain_text import ElidedLabel, PlainLabel, set_tip
from app.gui.common.preferences import FLOW_STEPS_RANGE
from app.gui.common.translation import FollowsLanguage
from app.gui.latency.metrics import LatencyMetrics
from app.session.engine_jobs import FlowSteps

SETTLE_MS = 400
"""Delay after the last key press, so that the engine prepares only the number that the user stops at."""
_OTHERS = 3
"""Other numbers of steps whose RTF is shown."""


class FlowStepsRow(FollowsLanguage, QFrame):
    """Hidden while no engine has flow steps to choose.

    Signals:
        chosen: the flow steps from the next turn on; None for those of the bundle.
    """

    chosen = Signal(object)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._steps: FlowSteps | None = None
        """What the engine has confirmed."""
        self._metrics = LatencyMetrics()
        self.setProperty("role", "card")
        self._name, self.value, self.rtf = PlainLabel(), PlainLabel(), ElidedLabel()
        self._name.setProperty("role", "title")
        self.rtf.setProperty("role", "small")
        self.slider = _StepsSlider(Qt.Orientation.Horizontal)
        self.slider.setRange(*FLOW_STEPS_RANGE)
        self.slider.setPageStep(5)
        self.slider.setMaximumWidth(self.slider.sizeHint().width())
        self.slider.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self._name.setBuddy(self.slider)
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(14, 7, 14, 7)
        self._grid.setHorizontalSpacing(10)
        for column, widget in enumerate((self._name, self.slider, self.value)):
            self._grid.addWidget(widget, 0, column)
        self.set_wide(is_wide=True)
        self._settling = QTimer(self)
        self._settling.setSingleShot(True)
        self._settling.setInterval(SETTLE_MS)
        self._settling.timeout.connect(self._choose)
        self.slider.valueChanged.connect(self._begin_to_choose)
        self.slider.sliderReleased.connect(self._choose)
        self.setVisible(False)
        self.retranslate()

    def show_steps(self, steps: FlowSteps | None) -> None:
        """Show what the engine has confirmed, None if there is nothing to choose. What the user is choosing
        just now stays."""
        self._steps = steps
        if steps is not None and not self._is_choosing:
            self.slider.blockSignals(True)
            self.slider.setMaximum(max(FLOW_STEPS_RANGE[1], steps.chosen))
            self.slider.setValue(steps.chosen)
            self.slider.blockSignals(False)
        self.setVisible(steps is not None)
        self.retranslate()

    def set_wide(self, *, is_wide: bool) -> None:
        """Put the figures at the end of the line, or below it."""
        side = Qt.AlignmentFlag.AlignRight if is_wide else Qt.AlignmentFlag.AlignLeft
        self.rtf.setAlignment(side | Qt.AlignmentFlag.AlignVCenter)
        self._grid.addWidget(self.rtf, *((0, 3) if is_wide else (1, 0, 1, 4)))
        self._grid.setColumnStretch(3, 1 if is_wide else 0)
        self._grid.setColumnStretch(2, 0 if is_wide else 1)

    def refresh(self, metrics: LatencyMetrics) -> None:
        """Show new figures."""
        self._metrics = metrics
        self._write()

    def retranslate(self) -> None:
        """Use the words of the current language."""
        self._name.setText(self.tr("Flow steps"))
        self.slider.setAccessibleName(self.tr("Flow steps"))
        set_tip(
            self,
            self.tr(
                "Steps of flow matching for each chunk of speech, from the next turn on. More steps sound "
                "cleaner and take longer."
            ),
        )
        self._write()

    @property
    def _is_choosing(self) -> bool:
        return self._settling.isActive() or self.slider.isSliderDown()

    def _begin_to_choose(self) -> None:
        if not self.slider.isSliderDown():
            self._settling.start()
        self._write()

    def _choose(self) -> None:
        self._settling.stop()
        value = self.slider.value()
        if self._steps is not None and value != self._steps.chosen:
            self.chosen.emit(None if value == self._steps.bundle else value)
        self._write()

    def _write(self) -> None:
        chosen, steps = self.slider.value(), self._steps
        if steps is not None and chosen != steps.chosen:
            text = self.tr("%1 from the next turn on")
        elif steps is not None and chosen == steps.bundle:
            text = self.tr("%1 (bundle default)")
        else:
            text = "%1"
        self.value.setText(text.replace("%1", str(chosen)))
        self.rtf.setText(self._measured(chosen))
        self.slider.setAccessibleDescription(f"{self.value.text()}. {self.rtf.text()}")

    def _measured(self, chosen: int) -> str:
        """The RTF with these steps, then with some others, the latest first."""
        known = self._metrics.rtf_by_flow_steps
        others = [steps for steps in reversed(known) if steps != chosen][:_OTHERS]
        words = self.tr("RTF %1 with %2")
        parts = []
        for steps in [chosen, *others] if chosen in known else others:
            parts.append(words.replace("%1", f"{known[steps]:.2f}").replace("%2", str(steps)))
            words = self.tr("%1 with %2")
        if known and chosen not in known:
            parts.insert(0, self.tr("No spoken reply with %1 yet").replace("%1", str(chosen)))
        return " · ".join(parts)


class _StepsSlider(QSlider):
    """Leaves the wheel to the view around it, which scrolls."""

    def sizeHint(self) -> QSize:
        """About eight pixels per step."""
        return QSize(160, super().sizeHint().height())

    def minimumSizeHint(self) -> QSize:
        """In a narrow view."""
        return QSize(60, super().minimumSizeHint().height())

    def wheelEvent(self, event: QWheelEvent) -> None:
        """Not for this widget."""
        event.ignore()
