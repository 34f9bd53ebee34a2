"""Layout of the main window: header, conversation beside latency view, controls. GUI thread."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QSplitter, QVBoxLayout, QWidget

_SHARES = (34, 66)
_WIDTH = 1440
_NARROWEST_CONVERSATION = 360


def conversation_column(transcript: QWidget, below: Sequence[QWidget]) -> QWidget:
    """The transcript with what belongs below it."""
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
    column.setMinimumWidth(_NARROWEST_CONVERSATION)
    return column


def beside(conversation: QWidget, panel: QWidget) -> QSplitter:
    """Conversation and panel with a handle between them."""
    splitter = QSplitter(Qt.Orientation.Horizontal)
    splitter.setHandleWidth(1)
    splitter.setChildrenCollapsible(False)
    for widget, share in zip((conversation, panel), _SHARES, strict=True):
        splitter.addWidget(widget)
        splitter.setStretchFactor(splitter.indexOf(widget), share)
    splitter.setSizes([share * _WIDTH // sum(_SHARES) for share in _SHARES])
    return splitter


def stacked(*rows: QWidget) -> QWidget:
    """Rows from top to bottom without gaps; the second one takes the remaining height."""
    body = QWidget()
    layout = QVBoxLayout(body)
    layout.setContentsMargins(0, 0, 0, 0)
    layout.setSpacing(0)
    for index, row in enumerate(rows):
        layout.addWidget(row, 1 if index == 1 else 0)
    return body
