"""The Realtime protocol before its general availability (GA): other names of events, fields and formats.

In: events of the present protocol. Out: the same ones as the beta had them. Pure; any thread.
"""

from __future__ import annotations

from typing import Any

_Json = dict[str, Any]

GA_NAMES = {
    "response.audio.delta": "response.output_audio.delta",
    "response.audio.done": "response.output_audio.done",
    "response.audio_transcript.delta": "response.output_audio_transcript.delta",
    "response.audio_transcript.done": "response.output_audio_transcript.done",
    "response.text.delta": "response.output_text.delta",
    "response.text.done": "response.output_text.done",
    "conversation.item.created": "conversation.item.added",
}
"""Event types that the beta named differently."""
GA_FORMATS = {"pcm16": "audio/pcm", "g711_ulaw": "audio/pcmu", "g711_alaw": "audio/pcma"}
_EVENTS = {present: before for before, present in GA_NAMES.items()}
_FORMATS = {present: before for before, present in GA_FORMATS.items()}
_PARTS = {"output_audio": "audio", "output_text": "text"}
_MOVED = {"type", "audio", "output_modalities", "max_output_tokens"}


def event_before_ga(event: _Json) -> _Json | None:
    """A server event as the beta had it; None for one that it did not have."""
    if event["type"] == "conversation.item.done":
        return None
    before = event | {"type": _EVENTS.get(event["type"], event["type"])}
    for name, convert in (("session", _session), ("response", _response), ("item", _item)):
        if name in before:
            before[name] = convert(before[name])
    return before


def _session(session: _Json) -> _Json:
    heard, said = session["audio"]["input"], session["audio"]["output"]
    return {name: value for name, value in session.items() if name not in _MOVED} | {
        "modalities": _modalities(session),
        "input_audio_format": _FORMATS[heard["format"]["type"]],
        "output_audio_format": _FORMATS[said["format"]["type"]],
        "input_audio_transcription": heard["transcription"],
        "input_audio_noise_reduction": heard["noise_reduction"],
        "turn_detection": heard["turn_detection"],
        "voice": said["voice"],
        "speed": said["speed"],
        "max_response_output_tokens": session["max_output_tokens"],
    }


def _response(response: _Json) -> _Json:
    said = response["audio"]["output"]
    moved = _MOVED - {"max_output_tokens"}
    return {name: value for name, value in response.items() if name not in moved} | {
        "modalities": _modalities(response),
        "output_audio_format": _FORMATS[said["format"]["type"]],
        "voice": said["voice"],
        "output": [_item(item) for item in response["output"]],
    }


def _item(item: _Json) -> _Json:
    if "content" not in item:
        return item
    parts = [part | {"type": _PARTS.get(part["type"], part["type"])} for part in item["content"]]
    return item | {"content": parts}


def _modalities(document: _Json) -> list[str]:
    return ["audio", "text"] if "audio" in document["output_modalities"] else ["text"]
