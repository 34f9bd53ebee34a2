"""The configuration of a session: what can be changed, and what is refused."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from app.audio.wire_format import PCMU
from app.server.protocol import ProtocolError
from app.server.session_config import SessionConfig, TurnDetection
from app.session.engine_jobs import FlowSteps
from engine_runtime.types import Modality


def detection(**fields: Any) -> dict[str, Any]:
    return {"audio": {"input": {"turn_detection": fields}}}


def test_fields_that_are_absent_keep_their_value() -> None:
    config = SessionConfig("nano").updated(detection(type="server_vad", threshold=0.7))
    config = config.updated(detection(type="server_vad", silence_duration_ms=800))
    assert config.turn_detection == TurnDetection(threshold=0.7, silence_duration_ms=800)
    config = config.updated({"audio": {"output": {"format": {"type": "audio/pcmu"}}}})
    assert (config.output_format, config.input_format.type) == (PCMU, "audio/pcm")
    config = config.updated(detection(type="semantic_vad"))
    assert config.turn_detection == TurnDetection("semantic_vad"), "of another kind, with its defaults"
    assert config.updated({"output_modalities": ["text"]}).modality is Modality.TEXT


@pytest.mark.parametrize(
    "session",
    [
        {"type": "transcription"},
        {"audio": 5},
        {"output_modalities": ["audio", "text"]},
        {"max_output_tokens": 0},
        {"max_output_tokens": True},
        {"audio": {"input": {"format": {"type": "audio/pcm", "rate": 16_000}}}},
        {"audio": {"output": {"format": {"type": ["audio/pcm"]}}}},
        detection(type="other"),
        detection(type="server_vad", threshold=2),
        detection(type="server_vad", threshold=float("nan")),
        detection(type="server_vad", silence_duration_ms="long"),
        detection(type="server_vad", silence_duration_ms=10_001),
        detection(type="server_vad", create_response=1),
        detection(type="server_vad", idle_timeout_ms=5_000),
        detection(type="semantic_vad", eagerness="very"),
        detection(type="semantic_vad", eagerness=["low"]),
    ],
)
def test_what_cannot_be_used_is_refused(session: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError) as caught:
        SessionConfig("nano").updated(session)
    assert caught.value.param


def test_turn_taking_accepts_every_setting_that_is_accepted() -> None:
    for threshold, silence_ms, padding_ms in itertools.product(
        (0.05, 0.2, 0.5, 0.9, 1.0), (160, 500, 10_000), (0, 1_000)
    ):
        config = SessionConfig("nano").updated(
            detection(
                type="server_vad",
                threshold=threshold,
                silence_duration_ms=silence_ms,
                prefix_padding_ms=padding_ms,
            )
        )
        assert config.turn_detection is not None
        settings = config.turn_detection.settings(30_000)
        assert (settings.start_threshold, settings.end_ms) == (threshold, silence_ms)
        assert settings.policy is None, "silence alone"


@pytest.mark.parametrize(("eagerness", "likely_ms"), [("low", 450), ("auto", 350), ("high", 250)])
def test_semantic_detection_has_the_eagerness_of_the_program(eagerness: str, likely_ms: int) -> None:
    config = SessionConfig("nano").updated(detection(type="semantic_vad", eagerness=eagerness))
    assert config.turn_detection is not None
    policy = config.turn_detection.settings(30_000).policy
    assert policy is not None
    assert policy.likely_ms == likely_ms


def wanted(steps: Any, known: FlowSteps | None = FlowSteps(6, 10)) -> int | None:  # noqa: B008
    return SessionConfig("nano", flow_steps=known).wanted_flow_steps({"moss_voice": {"flow_steps": steps}})


def test_flow_steps_can_be_asked_for_where_a_conversation_has_its_own() -> None:
    assert [wanted(steps) for steps in (1, 100, None)] == [1, 100, None]
    assert SessionConfig("nano").wanted_flow_steps({}) is None
    document = SessionConfig("nano", flow_steps=FlowSteps(6, 10)).document()
    assert document["moss_voice"] == {"flow_steps": 6, "bundle_flow_steps": 10}
    assert "moss_voice" not in SessionConfig("nano").document()


@pytest.mark.parametrize("steps", [0, 101, 2.5, "6", True])
def test_flow_steps_out_of_range_are_refused(steps: Any) -> None:
    with pytest.raises(ProtocolError, match=r"session\.moss_voice\.flow_steps has to be from 1 to 100\."):
        wanted(steps)


def test_shared_flow_steps_are_refused() -> None:
    with pytest.raises(ProtocolError, match="share their flow steps") as refused:
        wanted(6, None)
    assert (refused.value.code, refused.value.param) == ("unsupported", "session.moss_voice.flow_steps")
