"""Enter as the button of push-to-talk, read without waiting."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from app.commands.enter_key import EnterKey
from app.session.commands import Command, HoldToTalk
from app.session.events import ErrorRaised, SessionState, StateChanged
from engine_runtime.errors import Problem


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    os.close(read)


def test_every_line_changes_it(pipe: tuple[int, int]) -> None:
    read, write = pipe
    key, sent = EnterKey(read), list[Command]()
    assert not key.service(sent.append)
    os.write(write, b"what was typed before it does not matter\n")
    assert key.service(sent.append)
    assert key.is_down
    os.write(write, b"\n\n\n")
    key.service(sent.append)
    os.close(write)
    for _ in range(3):
        assert not key.service(sent.append)  # the end of the input
    assert sent == [HoldToTalk(True), HoldToTalk(False), HoldToTalk(True), HoldToTalk(False)]


def test_a_turn_that_could_not_begin_needs_no_release(pipe: tuple[int, int]) -> None:
    read, write = pipe
    key, sent = EnterKey(read), list[Command]()
    events = (ErrorRaised(Problem("The microphone is muted.", "")), StateChanged(SessionState.LISTENING))
    for event in events:
        os.write(write, b"\n")
        key.service(sent.append)
        key.follow(event)
    os.close(write)
    assert sent == [HoldToTalk(True), HoldToTalk(True)]
    assert key.is_down
