"""Runs long work of the GUI thread in steps between its events, so that the window stays alive.

In: a generator. Out: a call when it has ended, or with the error that it raised. GUI thread.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from PySide6.QtCore import QObject, QTimer

from engine_runtime.errors import MossVoiceError


class Steps(QObject):
    """One work at a time; a new one, or the end of the parent, closes the one before."""

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        self._steps: Generator[None] | None = None
        self._done: Callable[[], None] = lambda: None
        self._failed: Callable[[MossVoiceError], None] = lambda _: None
        self._timer = QTimer(self)
        self._timer.timeout.connect(self._step)

    @property
    def is_running(self) -> bool:
        """Whether there are steps left."""
        return self._steps is not None

    def run(
        self,
        steps: Generator[None],
        done: Callable[[], None],
        failed: Callable[[MossVoiceError], None],
    ) -> None:
        """Run these steps, from the next event on."""
        self.stop()
        self._steps, self._done, self._failed = steps, done, failed
        self._timer.start(0)

    def stop(self) -> None:
        """Give the work up."""
        self._timer.stop()
        if self._steps is not None:
            self._steps.close()
            self._steps = None

    def _step(self) -> None:
        if self._steps is None:
            return
        try:
            next(self._steps)
        except StopIteration:
            self.stop()
            self._done()
        except MossVoiceError as error:
            self.stop()
            self._failed(error)
