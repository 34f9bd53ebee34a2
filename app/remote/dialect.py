"""The common denominator of Realtime servers: events under one name, sessions as one value.

In: server events of any dialect, GA or older. Out: their GA names; model and audio formats of a session, and
the session.update that gives the turns to the client. Pure; any thread.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from app.audio.wire_format import FORMATS, PCM16, AudioFormat, pcm_at
from app.before_ga import GA_FORMATS, GA_NAMES
from app.session.engine_jobs import FlowSteps
from engine_runtime.errors import Problem
from engine_runtime.options import MOST_FLOW_STEPS
from engine_runtime.types import Modality

Json = dict[str, Any]

_RATES = range(8_000, 48_001)
_LONGEST_NAME = 200
_LONGEST_PROBLEM = 2_000
_LONGEST_TEXT = 500


@dataclass(frozen=True, slots=True)
class ServerSession:
    """What a server says about a session."""

    model: str = ""
    is_older: bool = False
    """Whether the session is described in the dialect before GA."""
    input_format: AudioFormat = PCM16
    output_format: AudioFormat = PCM16
    detects_turns: bool | None = None
    """Whether the server ends the turns of the user; None if it does not say."""
    flow_steps: FlowSteps | None = None
    """Euler steps of the server's flow; None if they cannot be chosen."""
    offers_timings: bool = False
    """Whether it sends the timings of a reply to who asks for them."""
    offers_speculation: bool = False
    """Whether it takes back a response that is not confirmed, and predicts the end of the user's turn."""


def event_name(event: Json) -> str:
    """The type of an event, under its GA name."""
    kind = str(event.get("type", ""))
    return GA_NAMES.get(kind, kind)


def id_of(described: object) -> str:
    """The id of an object of the protocol, "" if there is none."""
    return str(described.get("id") or "") if isinstance(described, dict) else ""


def read_session(event: Json, before: ServerSession | None = None) -> ServerSession:
    """The session of session.created, or of session.updated after `before`. What a server does not say is as
    before, else the protocol's default; a field of another kind than the protocol's counts as not said."""
    before = before or ServerSession()
    session = _object(event.get("session"))
    audio = _object(session.get("audio"))
    audio_in, audio_out = _object(audio.get("input")), _object(audio.get("output"))
    own = _object(session.get("moss_voice"))
    is_older = "input_audio_format" in session or "modalities" in session
    is_older = is_older or (before.is_older and not audio)
    detects = before.detects_turns
    for known in (session, audio_in):
        if "turn_detection" in known:
            detects = known["turn_detection"] is not None
    return ServerSession(
        str(session.get("model") or before.model)[:_LONGEST_NAME],
        is_older,
        _format(
            audio_in.get("format") or session.get("input_audio_format"),
            _rate(session, "input"),
            before.input_format,
        ),
        _format(
            audio_out.get("format") or session.get("output_audio_format"),
            _rate(session, "output"),
            before.output_format,
        ),
        detects,
        _flow_steps(own) or before.flow_steps,
        "timings" in own or before.offers_timings,
        "speculation" in own or before.offers_speculation,
    )


def session_update(session: ServerSession) -> Json:
    """The session.update that begins a conversation: the announced formats, no turn detection of the server,
    and the extensions that it offers: another server would refuse the field."""
    if session.is_older:
        changed: Json = {"modalities": ["audio", "text"], "turn_detection": None}
    else:
        audio_in = {"format": session.input_format.document(), "turn_detection": None}
        audio_out = {"format": session.output_format.document()}
        changed = {
            "type": "realtime",
            "output_modalities": ["audio"],
            "audio": {"input": audio_in, "output": audio_out},
        }
    offered = {"timings": session.offers_timings, "speculation": session.offers_speculation}
    if any(offered.values()):
        changed["moss_voice"] = {name: True for name, is_offered in offered.items() if is_offered}
    return {"type": "session.update", "session": changed}


def transcription_update(session: ServerSession) -> Json:
    """The session.update that asks for the words of the user. Apart from the one that begins a conversation:
    a server that refuses it goes on without. The name of the model is the one that most servers know."""
    asked = {"model": "whisper-1"}
    if session.is_older:
        changed: Json = {"input_audio_transcription": asked}
    else:
        changed = {"type": "realtime", "audio": {"input": {"transcription": asked}}}
    return {"type": "session.update", "session": changed}


def voice_update(session: ServerSession, voice: str) -> Json:
    """The session.update that chooses the voice of the replies."""
    if session.is_older:
        return {"type": "session.update", "session": {"voice": voice}}
    changed = {"type": "realtime", "audio": {"output": {"voice": voice}}}
    return {"type": "session.update", "session": changed}


def flow_steps_update(steps: int) -> Json:
    """The session.update that chooses the flow steps."""
    return {"type": "session.update", "session": {"type": "realtime", "moss_voice": {"flow_steps": steps}}}


def response_create(
    session: ServerSession,
    modality: Modality,
    most_tokens: int | None = None,
    *,
    finished: float | None = None,
) -> Json:
    """The response.create for a reply of this kind and at most this many tokens. With `finished` it is
    speculative, as in `Commit`."""
    if session.is_older:
        response: Json = {"modalities": ["text"] if modality is Modality.TEXT else ["audio", "text"]}
    else:
        response = {"output_modalities": ["text"] if modality is Modality.TEXT else ["audio"]}
    if most_tokens is not None:
        response["max_output_tokens"] = most_tokens
    if finished is not None:
        response["moss_voice"] = {"speculative": True, "finished": finished}
    return {"type": "response.create", "response": response}


def message(role: str, text: str, item_id: str, *, is_older: bool) -> Json:
    """The conversation.item.create of a text."""
    assistant = "text" if is_older else "output_text"
    part = {"type": "input_text" if role == "user" else assistant, "text": text}
    item = {"id": item_id, "type": "message", "role": role, "content": [part]}
    return {"type": "conversation.item.create", "item": item}


def _object(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _flow_steps(own: Json) -> FlowSteps | None:
    steps = [own.get(name) for name in ("flow_steps", "bundle_flow_steps")]
    known = [value for value in steps if isinstance(value, int) and 1 <= value <= MOST_FLOW_STEPS]
    return FlowSteps(*known) if len(known) == len(steps) else None


def _rate(session: Json, side: str) -> int | None:
    """The sample rate where a server names it outside the format."""
    for name in (f"{side}_audio_sample_rate", f"{side}_sample_rate", "sample_rate"):
        rate = session.get(name)
        if isinstance(rate, int) and rate in _RATES:
            return rate
    return None


def _format(value: Any, rate: int | None, before: AudioFormat) -> AudioFormat:
    if value is None and rate is None:
        return before
    named = _object(value)
    kind = named.get("type") if named else value
    known = FORMATS.get(GA_FORMATS.get(str(kind), str(kind)), PCM16)
    own = named.get("rate", rate)
    if known is not PCM16 or not isinstance(own, int) or own not in _RATES or own == PCM16.sample_rate:
        return known
    return pcm_at(own)


def read_problem(error: Json) -> Problem:
    """What the `error` of an event says: by values where the server is of this program, else as its text."""
    described = error.get("moss_voice")
    if isinstance(described, dict) and len(str(described)) <= _LONGEST_PROBLEM:
        with contextlib.suppress(ValueError):
            return Problem.from_json(described)
    return Problem("{said}", said=str(error.get("message"))[:_LONGEST_TEXT])


def said_in(error: Json) -> str:
    """What the `error` of an event says, as a part of a sentence."""
    said = str(error.get("message") or error.get("code") or "no reason given")
    return said[:_LONGEST_TEXT].rstrip(".")
