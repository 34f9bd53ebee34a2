"""The configuration of a Realtime session: defaults, changes by session.update, and what is in force.

In: the `session` object of a client. Out: a new frozen configuration, or `ProtocolError`. What the model
cannot do (instructions, tools, transcription, noise reduction, another voice or speed) is accepted, because
clients send it without being asked to, and stays absent from what session.updated reports as in force. Pure.
No pydantic models here, for the reason given in protocol.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from app.audio.wire_format import FORMATS, PCM16, AudioFormat
from app.dialog.turn_taking_settings import TurnTakingSettings
from app.server.protocol import Json, ProtocolError, object_of
from app.session.engine_jobs import FlowSteps
from app.settings import Eagerness
from engine_runtime.options import MOST_FLOW_STEPS
from engine_runtime.types import Modality

EXTENSION = "moss_voice"
"""The object of a session with what the protocol does not have."""
FLOW_STEPS = f"session.{EXTENSION}.flow_steps"
_EAGERNESS: dict[str, Eagerness] = {
    "low": "patient",
    "medium": "balanced",
    "high": "eager",
    "auto": "balanced",
}
_HYSTERESIS = 0.15
"""Between the probability at which speech begins and the one down to which it continues."""
_LEAST_THRESHOLD = 0.05
_LEAST_SILENCE_MS = TurnTakingSettings().pause_ms
_MOST_SILENCE_MS = 10_000
_MOST_PADDING_MS = 1_000


@dataclass(frozen=True, slots=True)
class TurnDetection:
    """How the server finds the turns of the user. Semantic detection asks the end-of-turn detector about each
    pause, and does not take a backchannel for an interruption; otherwise silence ends a turn and any speech
    interrupts a reply."""

    kind: Literal["server_vad", "semantic_vad"] = "server_vad"
    threshold: float = 0.5
    prefix_padding_ms: int = 300
    silence_duration_ms: int = 500
    eagerness: str = "auto"
    create_response: bool = True
    interrupt_response: bool = True

    def document(self) -> Json:
        """The turn detection as an object of the protocol."""
        shared: Json = {
            "type": self.kind,
            "create_response": self.create_response,
            "interrupt_response": self.interrupt_response,
        }
        if self.kind == "semantic_vad":
            return shared | {"eagerness": self.eagerness}
        return shared | {
            "threshold": self.threshold,
            "prefix_padding_ms": self.prefix_padding_ms,
            "silence_duration_ms": self.silence_duration_ms,
            "idle_timeout_ms": None,
        }

    def settings(self, longest_turn_ms: int) -> TurnTakingSettings:
        """The settings of turn-taking. Nobody is ignored for being quieter: a line may have its own gain."""
        base = TurnTakingSettings(
            max_turn_ms=longest_turn_ms, barge_in=self.interrupt_response, bystander_db=None, reopen_ms=0
        )
        if self.kind == "semantic_vad":
            return replace(base, eagerness=_EAGERNESS[self.eagerness])
        at_once = replace(base.interruption, boundary_ms=1, turn_ms=1, continuation_ms=1)
        return replace(
            base,
            eagerness="off",
            start_threshold=self.threshold,
            end_threshold=max(self.threshold - _HYSTERESIS, _LEAST_THRESHOLD),
            barge_in_threshold=self.threshold,
            barge_in_clear=max(self.threshold, base.barge_in_clear),
            pre_roll_ms=self.prefix_padding_ms,
            end_ms=self.silence_duration_ms,
            interruption=at_once,
        )


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """What is in force in a session."""

    model: str
    modality: Modality = Modality.SPEECH
    input_format: AudioFormat = PCM16
    output_format: AudioFormat = PCM16
    turn_detection: TurnDetection | None = TurnDetection()
    """None: the client commits."""
    max_output_tokens: int | None = None
    """Limit of a reply in codes or text tokens; None for the model's."""
    flow_steps: FlowSteps | None = None
    """Euler steps of the flow; None where they cannot be chosen, as conversations share them."""

    def document(self) -> Json:
        """The `session` object of session.created and session.updated."""
        detection, steps = self.turn_detection, self.flow_steps
        own = {} if steps is None else {"flow_steps": steps.chosen, "bundle_flow_steps": steps.bundle}
        return {
            "object": "realtime.session",
            "type": "realtime",
            "model": self.model,
            "output_modalities": modalities(self.modality),
            "instructions": "",
            "tools": [],
            "tool_choice": "none",
            "max_output_tokens": self.max_output_tokens or "inf",
            "audio": {
                "input": {
                    "format": self.input_format.document(),
                    "transcription": None,
                    "noise_reduction": None,
                    "turn_detection": None if detection is None else detection.document(),
                },
                "output": {"format": self.output_format.document(), "voice": self.model, "speed": 1.0},
            },
        } | ({EXTENSION: own} if own else {})

    def updated(self, session: Json) -> SessionConfig:
        """With the given fields changed. ProtocolError names the field that cannot be used."""
        if session.get("type", "realtime") != "realtime":
            raise ProtocolError("invalid_value", "session.type has to be realtime.", param="session.type")
        audio = object_of(session, "audio", {})
        audio_in, audio_out = object_of(audio, "input", {}), object_of(audio, "output", {})
        config = self.with_response(session)
        if "format" in audio_in:
            config = replace(config, input_format=_format(audio_in["format"], "session.audio.input.format"))
        if "format" in audio_out:
            config = replace(
                config, output_format=_format(audio_out["format"], "session.audio.output.format")
            )
        if "turn_detection" in audio_in:
            config = replace(
                config, turn_detection=_detection(audio_in["turn_detection"], self.turn_detection)
            )
        return config

    def wanted_flow_steps(self, session: Json) -> int | None:
        """The flow steps that a session.update asks for, None if for none. They are in force once the engine
        says so. ProtocolError if they cannot be chosen."""
        steps = object_of(session, EXTENSION, {}).get("flow_steps")
        if steps is None:
            return None
        if self.flow_steps is None:
            raise ProtocolError(
                "unsupported",
                "The conversations of this server share their flow steps; its operator sets --flow-steps.",
                param=FLOW_STEPS,
            )
        if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps <= MOST_FLOW_STEPS:
            raise ProtocolError(
                "invalid_value",
                "{flow_steps} has to be from 1 to {most}.",
                param=FLOW_STEPS,
                flow_steps=FLOW_STEPS,
                most=MOST_FLOW_STEPS,
            )
        return steps

    def with_response(self, response: Json) -> SessionConfig:
        """With the fields that a response may override: modalities and the longest reply."""
        config = self
        if response.get("output_modalities") is not None:
            config = replace(config, modality=_modality(response["output_modalities"]))
        if "max_output_tokens" in response:
            config = replace(config, max_output_tokens=_limit(response["max_output_tokens"]))
        return config


def modalities(modality: Modality) -> list[str]:
    """The output modalities of the protocol."""
    return ["audio"] if modality is Modality.SPEECH else ["text"]


def _modality(value: Any) -> Modality:
    if value == ["audio"] or value == ["text"]:
        return Modality.SPEECH if value == ["audio"] else Modality.TEXT
    raise ProtocolError(
        "invalid_value", 'output_modalities has to be ["audio"] or ["text"].', param="output_modalities"
    )


def _limit(value: Any) -> int | None:
    if value is None or value == "inf":
        return None
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 4_096:
        return value
    raise ProtocolError(
        "invalid_value", 'max_output_tokens has to be "inf" or from 1 to 4096.', param="max_output_tokens"
    )


def _format(value: Any, param: str) -> AudioFormat:
    kind = value.get("type") if isinstance(value, dict) else None
    found = FORMATS.get(kind) if isinstance(kind, str) else None
    if found is None or value.get("rate", found.sample_rate) != found.sample_rate:
        raise ProtocolError(
            "invalid_value",
            "{field} has to be audio/pcm at 24000 Hz, audio/pcmu or audio/pcma.",
            param=param,
            field=param,
        )
    return found


def _detection(value: Any, before: TurnDetection | None) -> TurnDetection | None:
    """Fields that are absent keep their value if the kind is the same."""
    if value is None:
        return None
    param = "session.audio.input.turn_detection"
    kind = value.get("type", "server_vad") if isinstance(value, dict) else None
    if kind not in ("server_vad", "semantic_vad"):
        raise ProtocolError(
            "invalid_value",
            "{field}.type has to be server_vad, semantic_vad, or {field} null.",
            param=param,
            field=param,
        )
    if value.get("idle_timeout_ms") is not None:
        raise ProtocolError(
            "unsupported", "A turn of the assistant without one of the user is not supported.", param=param
        )
    kept = before if before is not None and before.kind == kind else TurnDetection(kind=kind)
    eagerness = value.get("eagerness", kept.eagerness)
    if not isinstance(eagerness, str) or eagerness not in _EAGERNESS:
        raise ProtocolError(
            "invalid_value",
            "{field}.eagerness has to be low, medium, high or auto.",
            param=f"{param}.eagerness",
            field=param,
        )
    return replace(
        kept,
        threshold=_number(value, "threshold", kept.threshold, _LEAST_THRESHOLD, 1.0),
        prefix_padding_ms=int(
            _number(value, "prefix_padding_ms", kept.prefix_padding_ms, 0, _MOST_PADDING_MS)
        ),
        silence_duration_ms=int(
            _number(
                value, "silence_duration_ms", kept.silence_duration_ms, _LEAST_SILENCE_MS, _MOST_SILENCE_MS
            )
        ),
        eagerness=eagerness,
        create_response=_flag(value, "create_response", kept.create_response),
        interrupt_response=_flag(value, "interrupt_response", kept.interrupt_response),
    )


def _number(value: Json, name: str, default: float, least: float, most: float) -> float:
    found = value.get(name)
    if found is None:
        return default
    if isinstance(found, bool) or not isinstance(found, int | float) or not least <= found <= most:
        raise ProtocolError(
            "invalid_value",
            "turn_detection.{name} has to be from {least} to {most}.",
            param=f"session.audio.input.turn_detection.{name}",
            name=name,
            least=least,
            most=most,
        )
    return found


def _flag(value: Json, name: str, default: bool) -> bool:
    found = value.get(name)
    if found is None:
        return default
    if not isinstance(found, bool):
        param = f"session.audio.input.turn_detection.{name}"
        raise ProtocolError(
            "invalid_value", "turn_detection.{name} has to be true or false.", param=param, name=name
        )
    return found
