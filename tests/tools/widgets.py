"""Parts of a window that Qt gives as perhaps missing, for tests of the window."""

from __future__ import annotations

from PySide6.QtWidgets import QScrollArea, QTabWidget, QWidget

from app.gui.conversation.bubbles import ReplyBubble, UserBubble
from app.gui.conversation.transcript import Transcript


def content_of(area: QScrollArea) -> QWidget:
    """What the area scrolls."""
    content = area.widget()
    assert content is not None
    return content


def pages_of(tabs: QTabWidget) -> list[QWidget]:
    """All pages, from left to right."""
    pages = [tabs.widget(index) for index in range(tabs.count())]
    found = [page for page in pages if page is not None]
    assert len(found) == len(pages)
    return found


def question_of(transcript: Transcript, turn_id: int) -> UserBubble:
    """What the user said in a turn that is on screen."""
    question, _ = transcript.bubbles(turn_id)
    assert question is not None
    return question


def reply_of(transcript: Transcript, turn_id: int) -> ReplyBubble:
    """The reply in a turn that is on screen."""
    _, reply = transcript.bubbles(turn_id)
    assert reply is not None
    return reply
