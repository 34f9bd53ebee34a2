"""Value types with behaviour."""

from __future__ import annotations

from engine_runtime.types import CancelScope


def test_a_scope_is_cancelled_once_and_for_good() -> None:
    scope = CancelScope()
    assert not scope.is_cancelled
    scope.cancel()
    scope.cancel()
    assert scope.is_cancelled


def test_a_scope_is_cancelled_with_its_parent_and_not_the_other_way() -> None:
    turn = CancelScope()
    first, second = CancelScope(turn), CancelScope(turn)
    first.cancel()
    assert (turn.is_cancelled, first.is_cancelled, second.is_cancelled) == (False, True, False)
    turn.cancel()
    assert second.is_cancelled
