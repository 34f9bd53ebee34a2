"""The owner of an object: any thread before it is claimed, then one."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from engine_runtime.engine import Engine
from engine_runtime.thread_owner import ThreadOwner


def elsewhere(call: Callable[[], object]) -> object:
    """What the call returns, or raises, in another thread."""
    seen: list[object] = []

    def work() -> None:
        try:
            seen.append(call())
        except AssertionError as error:
            seen.append(error)

    other = threading.Thread(target=work)
    other.start()
    other.join()
    return seen[0]


def test_a_claimed_object_is_of_one_thread() -> None:
    owner = ThreadOwner()
    assert owner.is_here
    assert elsewhere(lambda: owner.is_here) is True
    owner.claim()
    assert owner.is_here
    assert elsewhere(lambda: owner.is_here) is False
    assert isinstance(elsewhere(owner.claim), AssertionError)
    assert isinstance(elsewhere(owner.release), AssertionError)
    owner.release()
    elsewhere(owner.claim)
    with pytest.raises(AssertionError, match="another thread"):
        owner.claim()


def test_another_thread_does_not_get_at_a_claimed_engine(engine: Engine) -> None:
    conversation = engine.new_conversation()
    engine.owner.claim()
    try:
        calls = (
            engine.new_conversation,
            engine.close,
            lambda: engine.end_conversation(conversation),
            lambda: engine.snapshot(conversation),
            lambda: next(engine.open_turn(conversation, 1)),
        )
        for call in calls:
            assert isinstance(elsewhere(call), AssertionError)
    finally:
        engine.owner.release()
