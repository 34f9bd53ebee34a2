"""Answers later starts of the program, which find this window through the lock on the settings.

In: knocks at the socket of an `Instance`. Out: answers; `knocked`. GUI thread; nothing here blocks.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket

from PySide6.QtCore import QObject, QSocketNotifier, Signal

from app.instance import MOST_BYTES, Answer, Instance, as_message, is_of_this_user, read_knock

_MOST_OPEN = 8
"""Connections; the oldest is dropped for another one."""
_log = logging.getLogger(__name__)


class LaterStarts(QObject):
    """Listens from its creation until `close`.

    Signals:
        knocked: the user started the program again; a Knock.
    """

    knocked = Signal(object)

    def __init__(self, instance: Instance, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._instance = instance
        self._open: dict[socket.socket, QSocketNotifier] = {}
        self._listener = instance.listen()
        if self._listener is not None:
            notifier = QSocketNotifier(self._listener.fileno(), QSocketNotifier.Type.Read, self)
            notifier.activated.connect(self._accept)
            self._notifier = notifier

    def close(self) -> None:
        """Later starts wait until this process has ended."""
        if self._listener is not None:
            self._notifier.setEnabled(False)
            self._listener = None
        for connection in list(self._open):
            self._drop(connection)
        self._instance.stop_listening()

    def _accept(self) -> None:
        if self._listener is None:
            return
        with contextlib.suppress(OSError):  # the other process has gone
            connection, _ = self._listener.accept()
            if not is_of_this_user(connection):
                _log.warning("a process of another user knocked")
                connection.close()
                return
            connection.setblocking(False)
            if len(self._open) >= _MOST_OPEN:
                self._drop(next(iter(self._open)))
            notifier = QSocketNotifier(connection.fileno(), QSocketNotifier.Type.Read, self)
            notifier.activated.connect(lambda: self._answer(connection))
            self._open[connection] = notifier

    def _answer(self, connection: socket.socket) -> None:
        if connection not in self._open:
            return
        with contextlib.suppress(OSError):
            knock = read_knock(connection.recv(MOST_BYTES))
            if knock is not None:
                self.knocked.emit(knock)
                display = os.environ.get("WAYLAND_DISPLAY") or os.environ.get("DISPLAY") or ""
                connection.send(as_message(Answer(os.getpid(), display)))
        self._drop(connection)

    def _drop(self, connection: socket.socket) -> None:
        notifier = self._open.pop(connection)
        notifier.setEnabled(False)
        notifier.deleteLater()
        connection.close()
