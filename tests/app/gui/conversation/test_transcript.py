"""The conversation on screen, event by event."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QSignalSpy
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.gui.common.icons import Icons
from app.gui.common.themes import DARK, Theme
from app.gui.common.turn_times import TurnTimes
from app.gui.conversation.bubbles import Bubble
from app.gui.conversation.transcript import MOST_TURNS, ON_SCREEN, Transcript
from app.session.events import (
    CancelReason,
    Levels,
    PlaybackFinished,
    PlaybackStarted,
    ReplyCut,
    ReplyFinished,
    ReplyTextDelta,
    SampleProgress,
    TurnCancelled,
    TurnCommitted,
    TurnExtended,
    TurnOpened,
    TurnsRemoved,
    TurnTranscribed,
)
from engine_runtime.types import Modality
from tests.tools.widgets import question_of, reply_of


@pytest.fixture
def transcript(qtbot: QtBot, theme: Theme, icons: Icons) -> Transcript:
    view = Transcript(theme, icons)
    qtbot.addWidget(view)
    view.resize(460, 600)
    view.show()
    return view


def ask(transcript: Transcript, turn_id: int, text: str) -> None:
    transcript.open_turn(TurnOpened(turn_id, "text", text))
    transcript.commit_turn(TurnCommitted(turn_id, 0.0))


def answer(transcript: Transcript, turn_id: int, text: str, seconds: float = 1.6) -> None:
    transcript.finish_reply(ReplyFinished(turn_id, Modality.SPEECH, seconds, text, 10, 20, "stop"))


def test_a_spoken_turn_shows_its_length_and_loudness(transcript: Transcript) -> None:
    transcript.open_turn(TurnOpened(1, "voice"))
    for level in (-20.0, -30.0, -25.0, -70.0, -120.0):
        transcript.show_levels(Levels(level, -120.0, 0.9))
    transcript.commit_turn(TurnCommitted(1, 2.34))
    transcript.show_levels(Levels(-10.0, -120.0, 0.0))
    user = question_of(transcript, 1)
    assert user.strip.levels == (-20.0, -30.0, -25.0)
    assert "2.3 s" in user.caption.text()
    assert "thinking" in reply_of(transcript, 1).caption.text()


def test_a_typed_question_is_shown_as_it_was_typed(transcript: Transcript) -> None:
    ask(transcript, 1, "<b>what</b> is\ntwo & two?")
    user = question_of(transcript, 1)
    assert user.body.text() == "<b>what</b> is\ntwo & two?"
    assert user.body.textFormat() is Qt.TextFormat.PlainText


def test_reply_text_grows(transcript: Transcript) -> None:
    ask(transcript, 1, "?")
    for part in ("two", " plus", " three"):
        transcript.add_reply_text(ReplyTextDelta(1, part, True))
    reply = reply_of(transcript, 1)
    assert reply.body.text() == "two plus three"
    assert "thinking" not in reply.caption.text()


def test_a_spoken_reply_can_be_played_again(qtbot: QtBot, transcript: Transcript) -> None:
    ask(transcript, 4, "?")
    reply = reply_of(transcript, 4)
    assert not reply.again.isVisible()
    answer(transcript, 4, "five")
    spy = QSignalSpy(transcript.play_again)
    qtbot.mouseClick(reply.again, Qt.MouseButton.LeftButton)
    assert spy.at(0) == [4]
    assert "1.6 s" in reply.caption.text()


def test_a_text_reply_cannot(transcript: Transcript) -> None:
    ask(transcript, 1, "?")
    transcript.finish_reply(ReplyFinished(1, Modality.TEXT, 0.0, "Paris.", 0, 0, "stop"))
    reply = reply_of(transcript, 1)
    assert not reply.again.isVisible()
    assert reply.body.text() == "Paris."


def test_playing_is_shown_and_drawn_once(transcript: Transcript) -> None:
    ask(transcript, 1, "?")
    transcript.start_playback(PlaybackStarted(1))
    transcript.show_levels(Levels(-120.0, -18.0, 0.0))
    answer(transcript, 1, "five")
    reply = reply_of(transcript, 1)
    assert reply.is_playing
    transcript.finish_playback(PlaybackFinished(1))
    transcript.start_playback(PlaybackStarted(1))
    transcript.show_levels(Levels(-120.0, -18.0, 0.0))
    assert reply.strip.levels == (-18.0,)


def test_only_one_reply_plays(transcript: Transcript) -> None:
    for turn_id in (1, 2):
        ask(transcript, turn_id, "?")
        answer(transcript, turn_id, "five")
        transcript.start_playback(PlaybackStarted(turn_id))
    playing = [
        turn_id for turn_id in (1, 2) if (reply := transcript.bubbles(turn_id)[1]) and reply.is_playing
    ]
    assert playing == [2]


def test_a_turn_that_continues_takes_its_reply_back(transcript: Transcript) -> None:
    transcript.open_turn(TurnOpened(1, "voice"))
    transcript.commit_turn(TurnCommitted(1, 1.0))
    transcript.add_reply_text(ReplyTextDelta(1, "too soon", True))
    transcript.extend_turn(TurnExtended(1))
    assert transcript.bubbles(1)[1] is None
    assert "listening" in question_of(transcript, 1).caption.text()
    transcript.commit_turn(TurnCommitted(1, 3.0))
    assert reply_of(transcript, 1).body.text() == ""


@pytest.mark.parametrize(
    ("reason", "word"), [("barge_in", "interrupted"), ("user", "stopped"), ("error", "failed")]
)
def test_a_cancelled_reply_stays_and_says_why(
    transcript: Transcript, reason: CancelReason, word: str
) -> None:
    ask(transcript, 1, "?")
    transcript.add_reply_text(ReplyTextDelta(1, "half of", True))
    transcript.cancel_turn(TurnCancelled(1, reason))
    reply = reply_of(transcript, 1)
    assert word in reply.caption.text()
    assert reply.body.text() == "half of"


def cut(
    transcript: Transcript,
    turn_id: int,
    heard: str,
    unheard: str,
    heard_s: float,
    modality: Modality = Modality.SPEECH,
) -> None:
    codes = round(heard_s * 12.5)
    transcript.cut_reply(ReplyCut(turn_id, "barge_in", modality, heard, unheard, heard_s, 1.6, 10, codes))
    transcript.cancel_turn(TurnCancelled(turn_id, "barge_in"))


def test_an_interrupted_reply_shows_what_was_heard_and_dims_the_rest(transcript: Transcript) -> None:
    ask(transcript, 1, "?")
    transcript.start_playback(PlaybackStarted(1))
    answer(transcript, 1, "two plus three is five")
    cut(transcript, 1, "two plus", " three is five", 0.6)
    reply = reply_of(transcript, 1)
    assert (reply.body.text(), reply.rest.text()) == ("two plus", "three is five")
    assert reply.rest.isVisibleTo(reply)
    assert reply.rest.property("role") == "muted"
    assert reply.mark.isVisibleTo(reply)
    assert reply.mark_text.text() == "heard up to here"
    assert "0.6 of 1.6 s" in reply.caption.text()
    assert "interrupted by you" in reply.caption.text()
    assert reply.again.isVisibleTo(reply)
    assert reply.accessibleName().endswith("two plus, heard up to here, three is five")
    assert "does not know the rest" in reply.mark.toolTip() == reply.mark_text.accessibleDescription()
    transcript.start_playback(PlaybackStarted(1))
    transcript.show_levels(Levels(-120.0, -18.0, 0.0))
    assert reply.strip.levels == ()  # its loudness was drawn when it was heard first


def test_an_interrupted_reply_without_subtitles_or_end(transcript: Transcript) -> None:
    ask(transcript, 1, "?")
    cut(transcript, 1, "", "", 0.6)
    reply = reply_of(transcript, 1)
    assert reply.mark.isVisibleTo(reply)
    assert not reply.body.isVisibleTo(reply)
    assert not reply.rest.isVisibleTo(reply)
    assert "0.6 s" in reply.caption.text()
    assert reply.again.isVisibleTo(reply)


def test_a_reply_of_which_nothing_was_heard(transcript: Transcript) -> None:
    ask(transcript, 1, "?")
    answer(transcript, 1, "five")
    cut(transcript, 1, "", "five", 0.0)
    reply = reply_of(transcript, 1)
    assert (reply.body.text(), reply.rest.text()) == ("", "five")
    assert "not remembered" in reply.mark_text.text()
    assert not reply.again.isVisible()


@pytest.mark.parametrize(("shown", "words"), [("Paris is", "cut here"), ("", "not remembered")])
def test_a_text_reply_that_was_cut(transcript: Transcript, shown: str, words: str) -> None:
    ask(transcript, 1, "?")
    cut(transcript, 1, shown, "", 0.0, Modality.TEXT)
    reply = reply_of(transcript, 1)
    assert reply.body.text() == shown
    assert words in reply.mark_text.text()
    assert not reply.again.isVisible()


def test_a_bubble_is_wide_enough_for_what_was_not_heard(transcript: Transcript) -> None:
    ask(transcript, 1, "?")
    cut(transcript, 1, "one", "two three four five six seven", 0.6)
    QApplication.processEvents()
    reply = reply_of(transcript, 1)
    metrics = reply.rest.fontMetrics()
    assert reply.rest.width() >= metrics.horizontalAdvance("two three four five six seven")
    cut(transcript, 9, "unknown", "", 0.6)
    assert transcript.turn_count == 1


def test_a_cough_leaves_no_trace(transcript: Transcript) -> None:
    transcript.open_turn(TurnOpened(1, "voice"))
    transcript.cancel_turn(TurnCancelled(1, "too_short"))
    assert transcript.turn_count == 0


def test_a_turn_dropped_before_its_reply_is_marked(transcript: Transcript) -> None:
    transcript.open_turn(TurnOpened(1, "voice"))
    transcript.cancel_turn(TurnCancelled(1, "stopped"))
    user = question_of(transcript, 1)
    assert "dropped" in user.caption.text()


def test_a_sample_is_named_and_its_progress_shown(transcript: Transcript) -> None:
    transcript.announce_sample("Who are you?", 1.5)
    transcript.open_turn(TurnOpened(1, "sample"))
    transcript.show_sample_progress(SampleProgress(0.7))
    user = question_of(transcript, 1)
    assert user.body.text() == "Who are you?"
    assert "0.7 of 1.5 s" in user.caption.text()


def test_words_of_a_spoken_turn_take_their_place_in_bubble_text_and_copy(transcript: Transcript) -> None:
    transcript.open_turn(TurnOpened(1, "voice"))
    transcript.commit_turn(TurnCommitted(1, 1.2))
    user = question_of(transcript, 1)
    assert not user.body.isVisible()
    transcript.caption_turn(TurnTranscribed(1, "what is <b>two</b>"))
    assert (user.body.text(), user.said) == ("what is <b>two</b>", "what is <b>two</b>")
    assert user.body.isVisible()
    assert "1.2 s" in user.caption.text()
    answer(transcript, 1, "two")
    assert [text.question for text in transcript.turn_texts()] == ["what is <b>two</b>"]
    transcript.extend_turn(TurnExtended(1))
    assert (user.body.text(), user.said) == ("", ""), "they were those of its first part"


def test_a_sample_keeps_its_own_words(transcript: Transcript) -> None:
    transcript.announce_sample("Who are you?", 1.5)
    transcript.open_turn(TurnOpened(1, "sample"))
    transcript.commit_turn(TurnCommitted(1, 1.2))
    transcript.caption_turn(TurnTranscribed(1, "Love you."))
    answer(transcript, 1, "moss")
    assert question_of(transcript, 1).body.text() == "Who are you?"
    assert [text.question for text in transcript.turn_texts()] == ["Who are you?"]


def test_words_that_come_late_find_their_turn(transcript: Transcript) -> None:
    transcript.open_turn(TurnOpened(1, "voice"))
    transcript.commit_turn(TurnCommitted(1, 1.2))
    answer(transcript, 1, "first")
    for turn_id in range(2, ON_SCREEN + 3):
        ask(transcript, turn_id, "?")
    assert transcript.bubbles(1) == (None, None)
    transcript.caption_turn(TurnTranscribed(1, "long ago"))
    assert transcript.turn_texts()[0].question == "long ago"


def test_events_of_unknown_turns_are_passed_over(transcript: Transcript) -> None:
    transcript.add_reply_text(ReplyTextDelta(9, "stale", True))
    transcript.commit_turn(TurnCommitted(9, 1.0))
    transcript.extend_turn(TurnExtended(9))
    transcript.caption_turn(TurnTranscribed(9, "stale"))
    transcript.cancel_turn(TurnCancelled(9, "user"))
    transcript.start_playback(PlaybackStarted(9))
    transcript.finish_playback(PlaybackFinished(9))
    answer(transcript, 9, "stale")
    assert transcript.turn_count == 0


def test_figures_stand_below_the_reply(transcript: Transcript) -> None:
    ask(transcript, 1, "?")
    answer(transcript, 1, "five")
    transcript.show_times(TurnTimes(1, ttfa_ms=312.4, rtf_total=0.318))
    reply = reply_of(transcript, 1)
    assert reply.figures.text().split() == ["TTFA", "312", "ms", "RTF", "0.32"]


def test_a_bubble_grows_with_its_figures(transcript: Transcript) -> None:
    ask(transcript, 1, "?")
    transcript.show_times(TurnTimes(1, ttfa_ms=312.4))
    answer(transcript, 1, "five")
    QApplication.processEvents()
    transcript.show_times(TurnTimes(1, ttfa_ms=312.4, rtf_total=0.318))
    QApplication.processEvents()
    reply = reply_of(transcript, 1)
    assert reply.figures.width() >= reply.figures.sizeHint().width()


@pytest.mark.slow
def test_old_turns_leave(transcript: Transcript) -> None:
    for turn_id in range(1, MOST_TURNS + 6):
        transcript.open_turn(TurnOpened(turn_id, "text", "?"))
    assert transcript.turn_count == MOST_TURNS
    transcript.remove_turns(TurnsRemoved((5,)))
    assert transcript.turn_count == MOST_TURNS, "it has left"
    transcript.remove_turns(TurnsRemoved((6,)))
    assert transcript.turn_count == MOST_TURNS - 1


def _on_screen(transcript: Transcript) -> list[int]:
    return [turn_id for turn_id in range(1, MOST_TURNS) if transcript.bubbles(turn_id)[0] is not None]


def _texts(transcript: Transcript) -> list[str]:
    """What the bubbles say, from top to bottom."""
    bubbles = sorted(transcript.findChildren(Bubble), key=lambda bubble: bubble.y())
    return [text for bubble in bubbles if bubble.isVisible() for text in (bubble.accessibleName(),)]


@pytest.mark.slow
def test_earlier_turns_come_back_when_the_top_is_reached(transcript: Transcript) -> None:
    last = ON_SCREEN + 30
    before = []
    for turn_id in range(1, last + 1):
        if turn_id % 3 == 0:
            transcript.announce_sample(f"sample {turn_id}", 1.0)
            transcript.open_turn(TurnOpened(turn_id, "sample"))
            transcript.commit_turn(TurnCommitted(turn_id, 1.5))
        else:
            ask(transcript, turn_id, f"question {turn_id}")
        if turn_id % 5 == 0:
            transcript.add_reply_text(ReplyTextDelta(turn_id, "half of it", False))
            transcript.cancel_turn(TurnCancelled(turn_id, "user"))
        else:
            answer(transcript, turn_id, f"answer {turn_id}")
            transcript.show_times(TurnTimes(turn_id, ttfa_ms=100.0 + turn_id, rtf_total=0.25))
        if turn_id % 7 == 0:
            transcript.cut_reply(
                ReplyCut(turn_id, "barge_in", Modality.SPEECH, "answer", "7", 1.0, 1.6, 1, 9)
            )
        QApplication.processEvents()
        before += _texts(transcript)[-2:]
    assert _on_screen(transcript) == list(range(31, last + 1))
    bar = transcript.verticalScrollBar()
    for first in (11, 1):
        oldest = question_of(transcript, first + 20)
        bar.setValue(40)
        place = oldest.mapTo(transcript.viewport(), oldest.rect().topLeft()).y()
        bar.setValue(0)
        assert _on_screen(transcript)[0] == first
        QApplication.processEvents()
        moved = oldest.mapTo(transcript.viewport(), oldest.rect().topLeft()).y() - place - 40
        assert abs(moved) <= 24, "what is in view stays there"
    assert _texts(transcript) == before
    bar.setValue(bar.maximum())
    ask(transcript, last + 1, "one more")
    assert len(_on_screen(transcript)) == ON_SCREEN
    transcript.clear()
    assert transcript.turn_count == 0


@pytest.mark.slow
def test_a_turn_that_leaves_with_the_focus_does_not_scroll(transcript: Transcript) -> None:
    for turn_id in range(1, ON_SCREEN + 3):
        ask(transcript, turn_id, f"question {turn_id}")
        answer(transcript, turn_id, "yes")
        if turn_id == 1:
            reply_of(transcript, 1).again.setFocus()
        QApplication.processEvents()
    bar = transcript.verticalScrollBar()
    assert bar.value() == bar.maximum()


@pytest.mark.slow
def test_removing_all_turns_on_screen_shows_earlier_ones(transcript: Transcript) -> None:
    for turn_id in range(1, ON_SCREEN + 4):
        ask(transcript, turn_id, f"question {turn_id}")
        QApplication.processEvents()
    transcript.remove_turns(TurnsRemoved((2, *range(4, ON_SCREEN + 4))))
    assert _on_screen(transcript) == [1, 3]
    assert not transcript.welcome.isVisible()


def test_a_long_text_stays_within_the_view(transcript: Transcript) -> None:
    ask(transcript, 1, "word " * 2000)
    ask(transcript, 2, "w" * 10_000)
    QApplication.processEvents()
    for turn_id in (1, 2):
        user = question_of(transcript, turn_id)
        assert user.width() <= transcript.viewport().width()


def test_the_newest_stays_in_sight_unless_scrolled_up(transcript: Transcript) -> None:
    bar = transcript.verticalScrollBar()
    for turn_id in range(1, 12):
        ask(transcript, turn_id, "a question")
        answer(transcript, turn_id, "an answer")
        QApplication.processEvents()
    assert bar.maximum() > 0
    assert bar.value() == bar.maximum()
    bar.setValue(0)
    ask(transcript, 12, "a question")
    QApplication.processEvents()
    assert bar.value() == 0


def test_a_change_of_theme_reaches_every_bubble(transcript: Transcript) -> None:
    ask(transcript, 1, "?")
    answer(transcript, 1, "five")
    transcript.set_theme(DARK)
    assert all(bubble is not None and bubble.look_theme is DARK for bubble in transcript.bubbles(1))


def test_clear_forgets_everything(transcript: Transcript) -> None:
    ask(transcript, 1, str(Path("a")))
    transcript.clear()
    assert transcript.turn_count == 0


def test_the_rest_of_a_reply_begins_with_a_word(transcript: Transcript) -> None:
    for turn_id, (heard, unheard) in enumerate(
        (("The sky is blue", ", and grass is green."), ("天空是蓝色的", "，草是绿色的。"), ("", ", then.")),
        start=1,
    ):
        ask(transcript, turn_id, "?")
        cut(transcript, turn_id, heard, unheard, 0.6)
    replies = [reply_of(transcript, turn_id) for turn_id in (1, 2, 3)]
    shown = [(reply.body.text(), reply.rest.text()) for reply in replies]
    assert shown == [
        ("The sky is blue,", "and grass is green."),
        ("天空是蓝色的，", "草是绿色的。"),
        ("", ", then."),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "I can tell you about colours, numbers, animals and the days of the week. Ask me something!",
        "你好，我可以告诉你颜色、数字、动物和一周的日子，请随便问我一个问题吧。" * 2,
        "a b " * 60,
        "one",
        "unbreakable" * 30,
    ],
)
def test_no_text_exceeds_its_bubble_at_any_width(qtbot: QtBot, transcript: Transcript, text: str) -> None:
    ask(transcript, 1, text)
    answer(transcript, 1, text)
    ask(transcript, 2, text)
    answer(transcript, 2, text)
    cut(transcript, 2, text[: len(text) // 2], text[len(text) // 2 :], 0.6)
    for width in range(330, 1200, 4):
        transcript.resize(width, 600)
        for _ in range(3):  # a scroll bar that appears takes width
            QApplication.processEvents()
        for bubble in [bubble for turn_id in (1, 2) for bubble in transcript.bubbles(turn_id)]:
            assert bubble is not None
            for label in filter(lambda label: label.isVisible(), bubble.texts):
                assert label.height() >= label.heightForWidth(label.width()), (width, label.text())
                assert bubble.rect().contains(label.geometry()), (width, label.text())
