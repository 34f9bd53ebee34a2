"""The count of unfinished work."""

from __future__ import annotations

from app.session.pending_work import PendingWork


def test_idle_means_that_nothing_is_left() -> None:
    pending = PendingWork()
    assert pending.idle.is_set()
    pending.begin()
    pending.begin()
    pending.end()
    assert not pending.idle.is_set()
    pending.end()
    assert pending.idle.is_set()
