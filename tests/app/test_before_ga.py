"""The Realtime protocol before GA, from its present events."""

from __future__ import annotations

from typing import Any

from app.before_ga import event_before_ga
from app.remote.dialect import read_session
from app.server.session_config import SessionConfig


def test_a_session_is_what_a_client_of_that_time_reads() -> None:
    config = SessionConfig("nano").updated(
        {
            "audio": {
                "input": {"format": {"type": "audio/pcmu"}, "turn_detection": None},
                "output": {"format": {"type": "audio/pcma"}},
            },
            "output_modalities": ["text"],
            "max_output_tokens": 40,
        }
    )[0]
    event = event_before_ga({"type": "session.updated", "session": config.document()})
    assert event is not None
    session = event["session"]
    assert "audio" not in session
    assert "output_modalities" not in session
    assert session["modalities"] == ["text"]
    assert (session["input_audio_format"], session["output_audio_format"]) == ("g711_ulaw", "g711_alaw")
    assert (session["voice"], session["max_response_output_tokens"]) == ("nano", 40)
    assert (session["turn_detection"], session["input_audio_transcription"]) == (None, None)
    known = read_session(event)
    assert (known.model, known.is_older, known.detects_turns) == ("nano", True, False)


def test_events_and_parts_have_their_earlier_names() -> None:
    part: dict[str, Any] = {"type": "output_text", "text": "seven"}
    item = {"id": "item_1", "role": "assistant", "content": [part]}
    assert event_before_ga({"type": "conversation.item.added", "item": item}) == {
        "type": "conversation.item.created",
        "item": item | {"content": [{"type": "text", "text": "seven"}]},
    }
    assert part["type"] == "output_text", "the event itself is as it was"
    assert event_before_ga({"type": "conversation.item.done", "item": item}) is None
    call = {"id": "item_2", "type": "function_call", "name": "look"}
    done = {"type": "response.output_item.done", "item": call}
    assert event_before_ga(done) == done
    response = {
        "output_modalities": ["audio"],
        "max_output_tokens": "inf",
        "output": [item, call],
        "audio": {"output": {"format": {"type": "audio/pcm", "rate": 24_000}, "voice": "nano"}},
    }
    converted = event_before_ga({"type": "response.done", "response": response})
    assert converted is not None
    assert converted["response"] == {
        "modalities": ["audio", "text"],
        "output_audio_format": "pcm16",
        "voice": "nano",
        "max_output_tokens": "inf",
        "output": [item | {"content": [{"type": "text", "text": "seven"}]}, call],
    }
