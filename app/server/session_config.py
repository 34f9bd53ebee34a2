"""The configuration of a Realtime session: defaults, changes by session.update, and what is in force.

In: the `session` object of a client, in the present shape or that before GA, or the `response` of a
response.create. Out: a new frozen configuration, or `ProtocolError`, which names the field. What clients send
without being asked to and the model does not have (noise reduction, tracing, another voice of OpenAI's, the
temperature) is accepted, and absent from what session.updated reports as in force. So are tools that the
model cannot call: clients send theirs once, with everything else, and some end at any error. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, field_validator, model_validator

from app.audio.wire_format import FORMATS, PCM16, AudioFormat
from app.before_ga import GA_FORMATS
from app.dialog.turn_taking_settings import TurnTakingSettings
from app.server.protocol import (
    Document,
    Json,
    ProtocolError,
    invalid,
    shown,
    unknown,
    unsupported,
    validated,
)
from app.server.session_tools import SessionTools, ToolChoice
from app.session.engine_jobs import FlowSteps
from app.settings import Eagerness
from engine_runtime.conversation.context_window import RETENTION
from engine_runtime.options import MOST_FLOW_STEPS
from engine_runtime.types import Modality
from engine_runtime.whisper import LANGUAGE

EXTENSION = "moss_voice"
"""Name of the object with this program's extensions of the protocol."""
FLOW_STEPS = f"session.{EXTENSION}.flow_steps"
_OTHER_VOICES = "alloy ash ballad cedar coral echo fable marin nova onyx sage shimmer verse".split()
"""Those of OpenAI, one of which many clients ask for by themselves; the bundle's takes their place."""
_EAGERNESS: dict[str, Eagerness] = {
    "low": "patient",
    "medium": "balanced",
    "high": "eager",
    "auto": "balanced",
}
_HYSTERESIS = 0.15
"""Between the probability at which speech begins and the one down to which it continues."""
_BLOCK_MS = 80
"""A turn ends with a whole frame of the detector and a code of the model."""
_LEAST_THRESHOLD = 0.05
_LEAST_SILENCE_MS = TurnTakingSettings().pause_ms
_LONGEST_INSTRUCTIONS = 100_000
_LONGEST_PROMPT = 10_000


# ---- what a client may send ----


class _Format(Document):
    type: Literal["audio/pcm", "audio/pcmu", "audio/pcma"]
    rate: int | None = None

    @model_validator(mode="after")
    def _check_rate(self) -> Self:
        expected = FORMATS[self.type].sample_rate
        if self.rate not in (None, expected):
            raise ValueError(f"the rate of {self.type} is {expected} Hz")
        return self


class _Detection(Document):
    type: Literal["server_vad", "semantic_vad"] = "server_vad"
    threshold: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    prefix_padding_ms: Annotated[int, Field(ge=0, le=1_000)] | None = None
    silence_duration_ms: Annotated[int, Field(ge=_LEAST_SILENCE_MS, le=10_000)] | None = None
    idle_timeout_ms: Annotated[int, Field(ge=5_000, le=30_000)] | None = None
    eagerness: Literal["low", "medium", "high", "auto"] | None = None
    create_response: bool | None = None
    interrupt_response: bool | None = None


_OF_SEMANTIC_VAD = frozenset({"type", "eagerness", "create_response", "interrupt_response"})
_OF_SERVER_VAD = frozenset(_Detection.model_fields) - {"eagerness"}


class _NoiseReduction(Document):
    type: Literal["near_field", "far_field"] | None = None
    strength: float | None = None


class _Transcription(Document):
    model: str | None = None
    language: Annotated[str, Field(max_length=35)] | None = None
    prompt: Annotated[str, Field(max_length=_LONGEST_PROMPT)] | None = None
    delay: str | None = None
    """Of a model that hears while the user speaks; this one begins at the end."""

    @field_validator("language")
    @classmethod
    def _check_language(cls, language: str | None) -> str | None:
        """ "en-US" is "en"."""
        code = (language or "").partition("-")[0].lower()
        if code and LANGUAGE.fullmatch(code) is None:
            raise ValueError("it has to be an ISO 639 code, such as en")
        return code or None


class _Input(Document):
    format: _Format | None = None
    turn_detection: _Detection | None = None
    transcription: _Transcription | None = None
    noise_reduction: _NoiseReduction | None = None


class _VoiceId(Document):
    id: str


_Voice = str | _VoiceId | None


class _Output(Document):
    format: _Format | None = None
    voice: _Voice = None
    speed: Annotated[float, Field(ge=0.25, le=1.5)] | None = None


class _Audio(Document):
    input: _Input | None = None
    output: _Output | None = None


class _ResponseAudio(Document):
    output: _Output | None = None


class _Extension(Document):
    flow_steps: Annotated[int, Field(ge=1, le=MOST_FLOW_STEPS)] | None = None
    timings: bool | None = None
    speculation: bool | None = None


class _ResponseExtension(Document):
    speculative: bool = False
    finished: Annotated[float, Field(ge=0.0, le=2.0)] = 0.0


class _Retention(Document):
    type: Literal["retention_ratio"]
    retention_ratio: Annotated[float, Field(ge=0.0, le=1.0)]
    token_limits: Json | None = None


_OlderFormat = Literal["pcm16", "g711_ulaw", "g711_alaw"] | None
_Tokens = Annotated[int, Field(ge=1, le=4_096)] | Literal["inf"] | None


class _Shared(Document):
    """What a session and a response have, with the names before GA."""

    NAME: ClassVar[str]
    """Of the field that holds it."""
    instructions: Annotated[str, Field(max_length=_LONGEST_INSTRUCTIONS)] | None = None
    output_modalities: list[Literal["audio", "text"]] | None = None
    modalities: list[Literal["audio", "text"]] | None = None
    max_output_tokens: _Tokens = None
    max_response_output_tokens: _Tokens = None
    output_audio_format: _OlderFormat = None
    voice: _Voice = None
    temperature: Annotated[float, Field(ge=0.0, le=2.0)] | None = None
    tools: list[Json] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    prompt: Json | None = None
    reasoning: Json | None = None

    def modality(self, before: Modality) -> Modality:
        """Kind of reply. Before GA spoken replies had both modalities."""
        chosen = self.output_modalities if self.output_modalities is not None else self.modalities
        if chosen is None:
            return before
        name = "output_modalities" if self.output_modalities is not None else "modalities"
        is_older_pair = name == "modalities" and set(chosen) == {"audio", "text"}
        if not (is_older_pair or chosen in (["audio"], ["text"])):
            raise invalid(f"{self.NAME}.{name}", chosen, '["audio"] and ["text"]')
        return Modality.SPEECH if "audio" in chosen else Modality.TEXT

    def limit(self, before: int | None) -> int | None:
        """Longest reply."""
        for name in ("max_output_tokens", "max_response_output_tokens"):
            if name in self.model_fields_set:
                value = getattr(self, name)
                return value if isinstance(value, int) else None
        return before


class SessionDocument(_Shared):
    """The `session` of a session.update."""

    NAME = "session"
    type: Literal["realtime", "transcription"] = "realtime"
    model: str | None = None
    audio: _Audio | None = None
    include: list[Literal["item.input_audio_transcription.logprobs"]] | None = None
    tracing: Any = None
    truncation: Literal["auto", "disabled"] | _Retention | None = None
    moss_voice: _Extension | None = None
    # Before GA:
    input_audio_format: _OlderFormat = None
    input_audio_transcription: _Transcription | None = None
    input_audio_noise_reduction: _NoiseReduction | None = None
    turn_detection: _Detection | None = None
    speed: Annotated[float, Field(ge=0.25, le=1.5)] | None = None


class ResponseDocument(_Shared):
    """The `response` of a response.create."""

    NAME = "response"
    audio: _ResponseAudio | None = None
    conversation: Literal["auto", "none"] | None = None
    input: list[Any] | None = None
    moss_voice: _ResponseExtension | None = None
    metadata: (
        Annotated[
            dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
            Field(max_length=16),
        ]
        | None
    ) = None


# ---- what is in force ----


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
    idle_timeout_ms: int | None = None
    """Silence after a reply was played that is answered, too."""

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
            "idle_timeout_ms": self.idle_timeout_ms,
        }

    def settings(self, longest_turn_ms: int) -> TurnTakingSettings:
        """The settings of turn-taking, for turns with at most so much audio: `longest_turn_ms`, or hardly
        more than the silence that ends one. Nobody is ignored for being quieter: a line may have its own
        gain."""
        base = TurnTakingSettings(barge_in=self.interrupt_response, bystander_db=None, reopen_ms=0)
        # What comes before and after the speech belongs to the turn, too.
        around_ms = max(self.prefix_padding_ms, base.pre_roll_ms) + base.tail_ms + _BLOCK_MS
        end_ms = base.end_ms if self.kind == "semantic_vad" else self.silence_duration_ms
        base = replace(base, max_turn_ms=max(longest_turn_ms - around_ms, end_ms + 1, base.end_ms + 1))
        if self.kind == "semantic_vad":
            return replace(base, eagerness=_EAGERNESS[self.eagerness])
        at_once = replace(base.interruption, boundary_ms=1, turn_ms=1, continuation_ms=1)
        threshold = max(self.threshold, _LEAST_THRESHOLD)
        return replace(
            base,
            eagerness="off",
            start_threshold=threshold,
            end_threshold=max(threshold - _HYSTERESIS, _LEAST_THRESHOLD),
            barge_in_threshold=threshold,
            barge_in_clear=max(threshold, base.barge_in_clear),
            pre_roll_ms=self.prefix_padding_ms,
            end_ms=end_ms,
            interruption=at_once,
        )


@dataclass(frozen=True, slots=True)
class Transcription:
    """How the client wants its user's speech to be transcribed."""

    language: str | None = None
    """Its language by its code; None to recognize it."""
    prompt: str = ""
    """Words that may come up."""


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """The configuration in force in a session."""

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
    sends_timings: bool = False
    """Whether the client has asked for events that the protocol does not have."""
    may_speculate: bool = False
    """Whether it may ask for speculative responses."""
    finished: float | None = None
    """Of a speculative response: it is made only as far as the model predicts at least this that the user has
    finished. None for an ordinary one."""
    follows_instructions: bool = False
    """Whether the model heeds them; else they are not kept."""
    instructions: str = ""
    retention: float | None = RETENTION
    """Part of the context that the history fills once its oldest part is left out; None: nothing is."""
    transcriber: str | None = None
    """Name of the model that transcribes the user's speech; None where the server has none."""
    transcription: Transcription | None = None
    """What the client asks for, also where there is no `transcriber`."""
    tools: SessionTools = field(default_factory=SessionTools)

    def document(self) -> Json:
        """The `session` object of session.created and session.updated."""
        detection, steps = self.turn_detection, self.flow_steps
        own: Json = {"timings": self.sends_timings, "speculation": self.may_speculate}
        if steps is not None:
            own |= {"flow_steps": steps.chosen, "bundle_flow_steps": steps.bundle}
        if (refused := self.tools.refused) is not None:
            own |= {"refused_tools": refused.document()}
        return {
            "object": "realtime.session",
            "type": "realtime",
            "model": self.model,
            "output_modalities": modalities(self.modality),
            "instructions": self.instructions,
            **self.tools.document(),
            "max_output_tokens": self.max_output_tokens or "inf",
            "truncation": self._truncation(),
            "tracing": None,
            "prompt": None,
            "include": None,
            "audio": {
                "input": {
                    "format": self.input_format.document(),
                    "transcription": self._transcription(),
                    "noise_reduction": None,
                    "turn_detection": None if detection is None else detection.document(),
                },
                "output": {"format": self.output_format.document(), "voice": self.model, "speed": 1.0},
            },
            EXTENSION: own,
        }

    def updated(self, document: Json) -> SessionChange:
        """With the given fields changed. ProtocolError names the field that cannot be used."""
        change = validated(SessionDocument, document, "session")
        audio = change.audio or _Audio()
        heard, said = audio.input or _Input(), audio.output or _Output()
        if change.type == "transcription":
            raise unsupported("session.type")
        _refuse_what_is_not_there(change)
        self._check_output(said, "session.audio.output")
        self._check_voice(change.voice, "session.voice")
        _check_speed(change.speed, "session.speed")
        detection = self.turn_detection
        if "turn_detection" in heard.model_fields_set:
            detection = _detected(heard.turn_detection, detection, "session.audio.input.turn_detection")
        elif "turn_detection" in change.model_fields_set:
            detection = _detected(change.turn_detection, detection, "session.turn_detection")
        own = change.moss_voice or _Extension()
        if "flow_steps" in own.model_fields_set and self.flow_steps is None:
            raise ProtocolError(
                "unsupported",
                "The conversations of this server share their flow steps; its operator sets --flow-steps.",
                param=FLOW_STEPS,
            )
        config = replace(
            self._with_shared(change, said.format),
            input_format=_format_of(heard.format, change.input_audio_format) or self.input_format,
            turn_detection=detection,
            sends_timings=self.sends_timings if own.timings is None else own.timings,
            may_speculate=self.may_speculate if own.speculation is None else own.speculation,
            retention=_retention(change.truncation, self.retention),
            transcription=_transcription_of(change, heard, self.transcription),
        )
        return SessionChange(config, own.flow_steps)

    def _transcription(self) -> Json | None:
        asked = self.transcription
        if asked is None or self.transcriber is None:
            return None
        return {"model": self.transcriber, "language": asked.language, "prompt": asked.prompt}

    def _truncation(self) -> str | Json:
        if self.retention is None:
            return "disabled"
        if self.retention == RETENTION:
            return "auto"
        return {"type": "retention_ratio", "retention_ratio": self.retention}

    def with_response(self, document: Json) -> tuple[SessionConfig, Json | None]:
        """With the fields that a response overrides, and its metadata."""
        change = validated(ResponseDocument, document, "response")
        said = (change.audio or _ResponseAudio()).output or _Output()
        if change.conversation == "none":
            raise unsupported("response.conversation")
        if change.input is not None:
            raise unsupported("response.input")
        _refuse_what_is_not_there(change)
        self._check_output(said, "response.audio.output")
        self._check_voice(change.voice, "response.voice")
        config = self._with_shared(change, said.format)
        if change.tools is not None and config.tools.refused is not None:
            raise config.tools.refused
        finished = self._finished(change.moss_voice)
        return config if finished is None else replace(config, finished=finished), change.metadata

    def _with_shared(self, change: _Shared, output: _Format | None) -> SessionConfig:
        """With the fields that session and response have."""
        return replace(
            self,
            tools=self.tools.changed(change.tools, change.tool_choice, change.NAME),
            modality=change.modality(self.modality),
            max_output_tokens=change.limit(self.max_output_tokens),
            instructions=self._instructed(change.instructions),
            output_format=_format_of(output, change.output_audio_format) or self.output_format,
        )

    def _finished(self, own: _ResponseExtension | None) -> float | None:
        if own is None or not own.speculative:
            return None
        if not self.may_speculate or self.turn_detection is not None:
            raise ProtocolError(
                "invalid_value",
                "A speculative response needs a session with moss_voice.speculation, without turn_detection.",
                param=f"response.{EXTENSION}.speculative",
            )
        return own.finished

    def _instructed(self, given: str | None) -> str:
        return self.instructions if given is None or not self.follows_instructions else given.strip()

    def _check_output(self, said: _Output, param: str) -> None:
        self._check_voice(said.voice, f"{param}.voice")
        _check_speed(said.speed, f"{param}.speed")

    def _check_voice(self, voice: _Voice, param: str) -> None:
        name = voice.id if isinstance(voice, _VoiceId) else voice
        if name is not None and name != self.model and name not in _OTHER_VOICES:
            raise invalid(param, name, shown(self.model))


class SessionChange(NamedTuple):
    """What a session.update changes."""

    config: SessionConfig
    flow_steps: int | None
    """Those asked for, None for none: they are in force once the engine says so."""


def modalities(modality: Modality) -> list[str]:
    """The output modalities of the protocol."""
    return ["audio"] if modality is Modality.SPEECH else ["text"]


def _refuse_what_is_not_there(change: _Shared) -> None:
    for name in ("prompt", "reasoning"):
        if getattr(change, name) is not None:
            raise unsupported(f"{change.NAME}.{name}")


def _check_speed(speed: float | None, param: str) -> None:
    if speed not in (None, 1.0):
        raise unsupported(param)


def _retention(given: str | _Retention | None, before: float | None) -> float | None:
    if given is None:
        return before
    if isinstance(given, _Retention):
        if given.token_limits is not None:
            raise unsupported("session.truncation.token_limits")
        return given.retention_ratio
    return RETENTION if given == "auto" else None


def _transcription_of(
    change: SessionDocument, heard: _Input, before: Transcription | None
) -> Transcription | None:
    given = heard.transcription
    if "transcription" not in heard.model_fields_set:
        if "input_audio_transcription" not in change.model_fields_set:
            return before
        given = change.input_audio_transcription
    return None if given is None else Transcription(given.language, given.prompt or "")


def _format_of(given: _Format | None, older: str | None) -> AudioFormat | None:
    if given is not None:
        return FORMATS[given.type]
    return None if older is None else FORMATS[GA_FORMATS[older]]


def _detected(change: _Detection | None, before: TurnDetection | None, param: str) -> TurnDetection | None:
    """Fields that are absent keep their value if the kind is the same."""
    if change is None:
        return None
    known = _OF_SEMANTIC_VAD if change.type == "semantic_vad" else _OF_SERVER_VAD
    if others := sorted(change.model_fields_set - known):
        raise unknown(f"{param}.{others[0]}")
    kept = before if before is not None and before.kind == change.type else TurnDetection(change.type)
    given = {name: getattr(change, name) for name in change.model_fields_set - {"type"}}
    known_values = {name: value for name, value in given.items() if value is not None}
    if "idle_timeout_ms" in given:
        known_values["idle_timeout_ms"] = change.idle_timeout_ms
    return replace(kept, **known_values)
