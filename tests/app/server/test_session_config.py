"""The configuration of a session: what can be changed, and what is refused."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from app.audio.wire_format import PCMA, PCMU
from app.server.protocol import ProtocolError
from app.server.session_config import SessionConfig, Transcription, TurnDetection
from app.session.engine_jobs import FlowSteps
from engine_runtime.types import Modality


def updated(config: SessionConfig, session: dict[str, Any]) -> SessionConfig:
    return config.updated(session)[0]


def detection(**fields: Any) -> dict[str, Any]:
    return {"audio": {"input": {"turn_detection": fields}}}


def test_a_transcription_is_of_whatever_model_the_server_has() -> None:
    def changed(before: SessionConfig, **fields: Any) -> SessionConfig:
        return updated(before, {"audio": {"input": {"transcription": fields}}})

    config = changed(SessionConfig("nano", transcriber="base"), model="whisper-1", language="zh-CN")
    assert config.transcription == Transcription("zh")
    shown = config.document()["audio"]["input"]["transcription"]
    assert shown == {"model": "base", "language": "zh", "prompt": ""}
    assert updated(config, {}).transcription == Transcription("zh")
    assert changed(config, model="gpt-realtime-whisper", delay="low").transcription == Transcription()
    assert updated(config, {"audio": {"input": {"transcription": None}}}).transcription is None
    for field, value, code in (("language", "Englisch!", "invalid_value"), ("beam", 5, "unknown_parameter")):
        with pytest.raises(ProtocolError) as refused:
            changed(config, **{field: value})
        assert refused.value.param == f"session.audio.input.transcription.{field}"
        assert refused.value.code == code


def test_fields_that_are_absent_keep_their_value() -> None:
    config = updated(SessionConfig("nano"), detection(type="server_vad", threshold=0.7))
    config = updated(config, detection(type="server_vad", silence_duration_ms=800))
    assert config.turn_detection == TurnDetection(threshold=0.7, silence_duration_ms=800)
    config = updated(config, {"audio": {"output": {"format": {"type": "audio/pcmu"}}}})
    assert (config.output_format, config.input_format.type) == (PCMU, "audio/pcm")
    config = updated(config, detection(type="semantic_vad"))
    assert config.turn_detection == TurnDetection("semantic_vad"), "of another kind, with its defaults"
    assert updated(config, {"output_modalities": ["text"]}).modality is Modality.TEXT


INPUT = "session.audio.input"
DETECTION = f"{INPUT}.turn_detection"


@pytest.mark.parametrize(
    ("session", "code", "param"),
    [
        ({"type": "transcription"}, "unsupported", "session.type"),
        ({"audio": 5}, "invalid_type", "session.audio"),
        ({"output_modalities": ["audio", "text"]}, "invalid_value", "session.output_modalities"),
        ({"max_output_tokens": 0}, "invalid_value", "session.max_output_tokens"),
        ({"max_output_tokens": True}, "invalid_value", "session.max_output_tokens"),
        ({"tool_choice": "bogus"}, "invalid_value", "session.tool_choice"),
        ({"tools": "all"}, "invalid_type", "session.tools"),
        ({"tool_choice": {"type": "function", "name": "x"}}, "invalid_value", "session.tool_choice.name"),
        ({"tool_choice": {"type": "mcp", "server_label": "x"}}, "unsupported", "session.tool_choice.type"),
        ({"prompt": {"id": "p"}}, "unsupported", "session.prompt"),
        ({"truncation": "never"}, "invalid_value", "session.truncation"),
        (
            {"truncation": {"type": "retention_ratio", "retention_ratio": 0.8, "token_limits": {}}},
            "unsupported",
            "session.truncation.token_limits",
        ),
        ({"turn_detction": None}, "unknown_parameter", "session.turn_detction"),
        ({"audio": {"input": {"fromat": None}}}, "unknown_parameter", f"{INPUT}.fromat"),
        (
            {"audio": {"input": {"format": {"type": "audio/pcm", "rate": 16_000}}}},
            "invalid_value",
            f"{INPUT}.format",
        ),
        (
            {"audio": {"output": {"format": {"type": ["audio/pcm"]}}}},
            "invalid_value",
            "session.audio.output.format.type",
        ),
        ({"audio": {"output": {"voice": "bogus"}}}, "invalid_value", "session.audio.output.voice"),
        ({"audio": {"output": {"speed": 99}}}, "invalid_value", "session.audio.output.speed"),
        ({"audio": {"output": {"speed": 1.25}}}, "unsupported", "session.audio.output.speed"),
        ({"input_audio_format": "opus"}, "invalid_value", "session.input_audio_format"),
        ({"modalities": []}, "invalid_value", "session.modalities"),
        ({"voice": "bogus"}, "invalid_value", "session.voice"),
        (detection(type="other"), "invalid_value", f"{DETECTION}.type"),
        (detection(type="server_vad", threshold=2), "invalid_value", f"{DETECTION}.threshold"),
        (detection(type="server_vad", threshold=float("nan")), "invalid_value", f"{DETECTION}.threshold"),
        (
            detection(type="server_vad", silence_duration_ms="long"),
            "invalid_type",
            f"{DETECTION}.silence_duration_ms",
        ),
        (
            detection(type="server_vad", silence_duration_ms=10_001),
            "invalid_value",
            f"{DETECTION}.silence_duration_ms",
        ),
        (detection(type="server_vad", create_response=1), "invalid_type", f"{DETECTION}.create_response"),
        (
            detection(type="server_vad", idle_timeout_ms=4_999),
            "invalid_value",
            f"{DETECTION}.idle_timeout_ms",
        ),
        (detection(type="semantic_vad", threshold=0.5), "unknown_parameter", f"{DETECTION}.threshold"),
        (detection(type="semantic_vad", eagerness="very"), "invalid_value", f"{DETECTION}.eagerness"),
        (detection(type="semantic_vad", eagerness=["low"]), "invalid_value", f"{DETECTION}.eagerness"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(session: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        updated(SessionConfig("nano"), session)
    assert (caught.value.code, caught.value.param) == (code, param), str(caught.value)


def test_what_clients_send_by_themselves_is_accepted() -> None:
    config = updated(
        SessionConfig("nano"),
        {
            "type": "realtime",
            "model": "gpt-realtime",
            "instructions": "Be brief.",
            "tools": [],
            "tool_choice": "auto",
            "tracing": "auto",
            "audio": {
                "input": {
                    "transcription": {"model": "gpt-4o-mini-transcribe"},
                    "noise_reduction": {"type": "near_field"},
                },
                "output": {"voice": "marin", "speed": 1},
            },
        },
    )
    assert config == SessionConfig("nano", transcription=Transcription())
    assert config.document()["audio"]["input"]["transcription"] is None
    output = config.document()["audio"]["output"]
    assert (output["voice"], output["speed"]) == ("nano", 1.0)


def test_the_shape_before_ga_is_translated() -> None:
    config = updated(
        SessionConfig("nano"),
        {
            "modalities": ["text", "audio"],
            "voice": "alloy",
            "input_audio_format": "g711_ulaw",
            "output_audio_format": "g711_alaw",
            "input_audio_transcription": None,
            "turn_detection": None,
            "temperature": 0.8,
            "max_response_output_tokens": 200,
        },
    )
    assert (config.input_format, config.output_format) == (PCMU, PCMA)
    assert (config.turn_detection, config.max_output_tokens) == (None, 200)
    assert config.modality is Modality.SPEECH
    text, _ = config.with_response({"modalities": ["text"], "max_output_tokens": "inf"})
    assert (text.modality, text.max_output_tokens) == (Modality.TEXT, None)


@pytest.mark.parametrize(
    ("response", "code", "param"),
    [
        ({"conversation": "none"}, "unsupported", "response.conversation"),
        ({"input": []}, "unsupported", "response.input"),
        ({"metadata": {"a": 1}}, "invalid_type", "response.metadata.a"),
        ({"modality": "audio"}, "unknown_parameter", "response.modality"),
        ({"output_modalities": ["video"]}, "invalid_value", "response.output_modalities[0]"),
        ({"audio": {"output": {"voice": "bogus"}}}, "invalid_value", "response.audio.output.voice"),
    ],
)
def test_what_a_response_cannot_be_is_refused_by_name(
    response: dict[str, Any], code: str, param: str
) -> None:
    with pytest.raises(ProtocolError) as caught:
        SessionConfig("nano").with_response(response)
    assert (caught.value.code, caught.value.param) == (code, param), str(caught.value)


def test_instructions_are_kept_where_the_model_follows_them() -> None:
    deaf = updated(SessionConfig("nano"), {"instructions": "Be brief."})
    assert (deaf.instructions, deaf.document()["instructions"]) == ("", "")
    config = updated(SessionConfig("nano", follows_instructions=True), {"instructions": " Be brief.\n"})
    assert config.document()["instructions"] == "Be brief."
    assert updated(config, {"output_modalities": ["text"]}).instructions == "Be brief."
    assert config.with_response({"instructions": "Sing."})[0].instructions == "Sing."


def test_truncation_is_shown_as_it_was_set() -> None:
    config = SessionConfig("nano")
    assert (config.retention, config.document()["truncation"]) == (0.5, "auto")
    ratio = {"type": "retention_ratio", "retention_ratio": 0.8}
    for given, retention in (("disabled", None), (ratio, 0.8), ("auto", 0.5)):
        config = updated(config, {"truncation": given})
        assert (config.retention, config.document()["truncation"]) == (retention, given)
        assert updated(config, {}).retention == retention


def test_an_idle_timeout_can_be_set_and_taken_back() -> None:
    config = updated(SessionConfig("nano"), detection(type="server_vad", idle_timeout_ms=6_000))
    kept = updated(config, detection(type="server_vad", threshold=0.6))
    assert kept.document()["audio"]["input"]["turn_detection"]["idle_timeout_ms"] == 6_000
    assert updated(kept, detection(type="server_vad", idle_timeout_ms=None)).turn_detection == TurnDetection(
        threshold=0.6
    )


def test_timings_are_for_who_asks_for_them() -> None:
    config = SessionConfig("nano")
    assert config.document()["moss_voice"] == {"timings": False, "speculation": False}
    config = updated(config, {"moss_voice": {"timings": True}})
    assert config.sends_timings
    assert updated(config, {"moss_voice": {}}).sends_timings, "what is absent keeps its value"


def test_turn_taking_accepts_every_setting_that_is_accepted() -> None:
    for threshold, silence_ms, padding_ms in itertools.product(
        (0.05, 0.2, 0.5, 0.9, 1.0), (160, 500, 10_000), (0, 1_000)
    ):
        config = updated(
            SessionConfig("nano"),
            detection(
                type="server_vad",
                threshold=threshold,
                silence_duration_ms=silence_ms,
                prefix_padding_ms=padding_ms,
            ),
        )
        assert config.turn_detection is not None
        settings = config.turn_detection.settings(30_000)
        assert (settings.start_threshold, settings.end_ms) == (threshold, silence_ms)
        assert config.turn_detection.settings(0).max_turn_ms > silence_ms, "however little room there is"
        assert settings.policy is None, "silence alone"


@pytest.mark.parametrize(("eagerness", "likely_ms"), [("low", 450), ("auto", 350), ("high", 250)])
def test_semantic_detection_has_the_eagerness_of_the_program(eagerness: str, likely_ms: int) -> None:
    config = updated(SessionConfig("nano"), detection(type="semantic_vad", eagerness=eagerness))
    assert config.turn_detection is not None
    policy = config.turn_detection.settings(30_000).policy
    assert policy is not None
    assert policy.likely_ms == likely_ms


def wanted(steps: Any, known: FlowSteps | None = FlowSteps(6, 10)) -> int | None:  # noqa: B008
    return SessionConfig("nano", flow_steps=known).updated({"moss_voice": {"flow_steps": steps}})[1]


def test_flow_steps_can_be_asked_for_where_a_conversation_has_its_own() -> None:
    assert [wanted(steps) for steps in (1, 100, None)] == [1, 100, None]
    assert SessionConfig("nano").updated({})[1] is None
    document = SessionConfig("nano", flow_steps=FlowSteps(6, 10)).document()
    assert document["moss_voice"] == {
        "timings": False,
        "speculation": False,
        "flow_steps": 6,
        "bundle_flow_steps": 10,
    }


@pytest.mark.parametrize("steps", [0, 101, 2.5, "6", True])
def test_flow_steps_out_of_range_are_refused(steps: Any) -> None:
    with pytest.raises(ProtocolError) as refused:
        wanted(steps)
    assert refused.value.param == "session.moss_voice.flow_steps"


def test_shared_flow_steps_are_refused() -> None:
    with pytest.raises(ProtocolError, match="share") as refused:
        wanted(6, None)
    assert (refused.value.code, refused.value.param) == ("unsupported", "session.moss_voice.flow_steps")
