"""The transcript keeps all text, and reply audio within its memory limit."""

from __future__ import annotations

import numpy as np

from app.dialog.conversation import ConversationRecord
from engine_runtime.types import Modality


def second() -> np.ndarray:
    return np.ones(100, dtype=np.float32)


def test_a_reply_is_kept_to_be_played_again() -> None:
    transcript = ConversationRecord()
    transcript.open(1, Modality.SPEECH, "question")
    transcript.add_audio(1, second(), 100)
    transcript.add_audio(1, second() * 2, 100)
    transcript.finish(1, "answer", "stop")
    turn = transcript.get(1)
    assert turn is not None
    assert turn.reply_s == 2.0
    assert turn.pcm.tolist() == [1.0] * 100 + [2.0] * 100
    assert (turn.question, turn.text, turn.finish_reason) == ("question", "answer", "stop")


def test_a_reply_that_is_taken_back_is_gone() -> None:
    transcript = ConversationRecord()
    turn = transcript.open(1, Modality.SPEECH)
    transcript.add_audio(1, second(), 100)
    turn.text = "half of"
    transcript.take_back_reply(1)
    assert (turn.text, turn.reply_s, len(turn.pcm)) == ("", 0.0, 0)


def test_a_reply_that_is_cut_can_be_played_again_as_far_as_it_was_heard() -> None:
    transcript = ConversationRecord()
    for turn_id in (1, 2):
        transcript.open(turn_id, Modality.SPEECH)
        for value in (1, 2):
            transcript.add_audio(turn_id, second() * value, 100)
        transcript.finish(turn_id, "all of it", "stop")
    transcript.cut(1, "all", 150)
    transcript.cut(2, "", 0)
    transcript.cut(3, "unknown", 9)
    cut, unheard = transcript.turns
    assert cut.pcm.tolist() == [1.0] * 100 + [2.0] * 50
    assert (cut.text, cut.finish_reason) == ("all", "cancelled")
    assert (len(unheard.pcm), unheard.chunks) == (0, [])


def test_the_oldest_audio_goes_first() -> None:
    transcript = ConversationRecord(kept_audio_s=2.0)
    for turn_id in (1, 2, 3):
        transcript.open(turn_id, Modality.SPEECH)
        transcript.add_audio(turn_id, second(), 100)
        transcript.finish(turn_id, f"text {turn_id}", "stop")
    assert [turn.reply_s for turn in transcript.turns] == [0.0, 1.0, 1.0]
    assert [turn.text for turn in transcript.turns] == ["text 1", "text 2", "text 3"]


def test_turns_can_be_dropped_and_unknown_ones_do_no_harm() -> None:
    transcript = ConversationRecord()
    transcript.open(1, Modality.TEXT)
    transcript.drop(1)
    transcript.drop(1)
    transcript.add_audio(1, second(), 100)
    transcript.finish(1, "text", "stop")
    transcript.take_back_reply(1)
    assert transcript.turns == ()
    transcript.open(2, Modality.TEXT)
    transcript.clear()
    assert transcript.get(2) is None


def test_a_reply_does_not_keep_the_buffers_that_its_chunks_are_views_of() -> None:
    transcript = ConversationRecord()
    transcript.open(1, Modality.SPEECH)
    buffer = np.arange(1_000, dtype=np.float32)
    transcript.add_audio(1, buffer[10:20], 100)
    transcript.finish(1, "", "stop")
    turn = transcript.get(1)
    assert turn is not None
    assert turn.pcm.tolist() == buffer[10:20].tolist()
    assert not any(np.shares_memory(chunk, buffer) for chunk in turn.chunks)
    transcript.cut(1, "", 4)
    assert [chunk.base for chunk in turn.chunks] == [None]
    assert turn.pcm.tolist() == [10.0, 11.0, 12.0, 13.0]
