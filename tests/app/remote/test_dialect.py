"""What different servers say, under one name."""

from __future__ import annotations

from typing import Any

import pytest

from app.audio.wire_format import PCM16, PCMU
from app.remote.dialect import event_name, message, read_session, response_create, session_update
from app.session.engine_jobs import FlowSteps
from engine_runtime.types import Modality


def created(**session: Any) -> dict[str, Any]:
    return {"type": "session.created", "session": session}


def test_a_session_of_the_protocol() -> None:
    audio = {"input": {"format": {"type": "audio/pcm", "rate": 24_000}, "turn_detection": None}}
    audio["output"] = {"format": {"type": "audio/pcmu"}}
    session = read_session(created(model="nano", audio=audio))
    assert (session.model, session.is_older, session.detects_turns) == ("nano", False, False)
    assert (session.input_format, session.output_format) == (PCM16, PCMU)


def test_an_older_session() -> None:
    told = created(modalities=["audio", "text"], input_audio_format="pcm16", output_audio_format="g711_ulaw")
    session = read_session(told)
    assert session.is_older
    assert (session.input_format, session.output_format) == (PCM16, PCMU)
    assert session_update(session)["session"]["turn_detection"] is None
    assert response_create(session, Modality.TEXT)["response"] == {"modalities": ["text"]}
    limited = response_create(session, Modality.SPEECH, 60)["response"]
    assert limited == {"modalities": ["audio", "text"], "max_output_tokens": 60}


@pytest.mark.parametrize(
    "session",
    [
        {"audio": {"input": {"format": {"type": "audio/pcm", "rate": 16_000}},
                   "output": {"format": {"type": "audio/pcm", "rate": 16_000}}}},
        {"input_audio_format": "pcm16", "output_audio_format": "pcm16", "sample_rate": 16_000},
        {"input_sample_rate": 16_000, "output_sample_rate": 16_000},
    ],
)  # fmt: skip
def test_other_sample_rates(session: dict[str, Any]) -> None:
    found = read_session(created(**session))
    assert (found.input_format.sample_rate, found.output_format.sample_rate) == (16_000, 16_000)
    assert found.output_format.document() == {"type": "audio/pcm", "rate": 16_000}


@pytest.mark.parametrize(
    "session",
    [{}, {"audio": "none"}, {"audio": {"input": {"format": {"type": 7, "rate": "x"}}}}, {"audio": []}],
)
def test_what_is_not_said_is_the_default(session: dict[str, Any]) -> None:
    found = read_session(created(**session))
    assert (found.input_format, found.output_format, found.detects_turns) == (PCM16, PCM16, None)
    assert read_session({"type": "session.created", "session": 7}).model == ""


def test_an_update_may_say_a_part() -> None:
    before = read_session(created(model="m", sample_rate=16_000, modalities=["audio"], turn_detection={}))
    after = read_session({"type": "session.updated", "session": {"turn_detection": None}}, before)
    assert (after.model, after.is_older, after.input_format.sample_rate) == ("m", True, 16_000)
    assert (before.detects_turns, after.detects_turns) == (True, False)


def test_events_have_the_names_of_ga() -> None:
    assert event_name({"type": "response.audio.delta"}) == "response.output_audio.delta"
    assert event_name({"type": "response.audio_transcript.delta"}) == "response.output_audio_transcript.delta"
    assert event_name({"type": "response.output_text.delta"}) == "response.output_text.delta"
    assert event_name({}) == ""


def test_texts_of_both_dialects() -> None:
    part = message("assistant", "Five.", "item_1", is_older=False)["item"]["content"][0]
    assert part == {"type": "output_text", "text": "Five."}
    part = message("assistant", "Five.", "item_1", is_older=True)["item"]["content"][0]
    assert part == {"type": "text", "text": "Five."}


@pytest.mark.parametrize(
    ("own", "known"),
    [
        ({"flow_steps": 6, "bundle_flow_steps": 10}, FlowSteps(6, 10)),
        ({"flow_steps": 6}, None),
        ({"flow_steps": 0, "bundle_flow_steps": 10}, None),
        ({"flow_steps": "6", "bundle_flow_steps": 10}, None),
        ("6", None),
    ],
)
def test_flow_steps_of_a_server_of_this_program(own: Any, known: FlowSteps | None) -> None:
    session = read_session({"session": {"type": "realtime", "moss_voice": own}})
    assert session.flow_steps == known
    assert read_session({"session": {}}, session).flow_steps == known, "an update need not say them"


def test_timings_are_asked_for_where_they_are_offered() -> None:
    plain = read_session({"session": {"type": "realtime"}})
    assert "moss_voice" not in session_update(plain)["session"], "another server would refuse the field"
    own = read_session({"session": {"type": "realtime", "moss_voice": {"timings": False}}})
    assert session_update(own)["session"]["moss_voice"] == {"timings": True}


def test_extensions_are_asked_for_where_they_are_offered() -> None:
    assert "moss_voice" not in session_update(read_session(created()))["session"]
    offered = read_session(created(moss_voice={"timings": False, "speculation": False}))
    asked = session_update(offered)["session"]["moss_voice"]
    assert asked == {"timings": True, "speculation": True}
    older = read_session(created(moss_voice={"timings": False}))
    assert (older.offers_speculation, session_update(older)["session"]["moss_voice"]) == (
        False,
        {"timings": True},
    )
    response = response_create(offered, Modality.SPEECH, finished=0.4)["response"]
    assert response["moss_voice"] == {"speculative": True, "finished": 0.4}
