"""Speech after a commit: a continuation of the turn, or an interruption of its reply."""

from __future__ import annotations

from app.dialog.turn_taking import AwaitedReply
from app.dialog.turn_taking_settings import TurnTakingSettings

SETTINGS = TurnTakingSettings()


def test_speech_continues_the_turn_until_the_reply_is_heard_and_not_for_long() -> None:
    reply = AwaitedReply(1_000.0, may_reopen=True)
    latest_ms = 1_000.0 + SETTINGS.reopen_ms
    assert reply.may_be_continued(SETTINGS, latest_ms)
    assert not reply.may_be_continued(SETTINGS, latest_ms + 1.0)
    reply.begin_sound(1_500.0)
    assert not reply.may_be_continued(SETTINGS, latest_ms)


def test_a_reply_to_a_typed_question_is_never_a_continuation() -> None:
    assert not AwaitedReply().may_be_continued(SETTINGS, 0.0)


def test_only_a_turn_that_sounded_unfinished_was_cut_off_and_only_at_once() -> None:
    unfinished, finished = AwaitedReply(1_000.0, sounded_unfinished=True), AwaitedReply(1_000.0)
    assert not unfinished.has_cut_off(SETTINGS, 1_400.0)  # nothing is heard yet
    for reply in (unfinished, finished):
        reply.begin_sound(1_500.0)
    latest_ms = 1_500.0 + SETTINGS.interruption.continuation_window_ms
    assert unfinished.has_cut_off(SETTINGS, latest_ms)
    assert not unfinished.has_cut_off(SETTINGS, latest_ms + 1.0)
    assert not finished.has_cut_off(SETTINGS, latest_ms)
