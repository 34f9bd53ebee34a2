"""Timing events of one turn, for the tests of the latency view."""

from __future__ import annotations

from engine_runtime.timing import TimingEvent

MS = 1_000_000


def event(
    name: str, start_ms: float, duration_ms: float, turn_id: int = 1, **attributes: float | int | str
) -> TimingEvent:
    return TimingEvent(name, turn_id, int(start_ms * MS), int(duration_ms * MS), "engine", attributes)


def spoken_turn(turn_id: int = 1, at_ms: float = 1000.0) -> list[TimingEvent]:
    """Last speech sample at `at_ms`, commit 600 later, first sample 200 after that, hold 25, device 15."""
    commit = at_ms + 600
    return [
        event("prefill", at_ms - 500, 12, turn_id, tokens=16, cached_tokens=0),
        event("endpointing", at_ms, 600, turn_id),
        event("commit", commit, 0, turn_id),
        event("prefill", commit + 5, 20, turn_id, tokens=6, tokens_at_commit=6, phase="commit"),
        event("step", commit + 30, 10, turn_id, index=0),
        event("step", commit + 45, 10, turn_id, index=1),
        event("token2mel", commit + 60, 90, turn_id, chunk=0, frames=20, audio_ms=400),
        event("vocoder", commit + 150, 50, turn_id, chunk=0, audio_ms=400),
        event("first_audio", commit, 200, turn_id),
        event("step", commit + 210, 10, turn_id, index=2),
        event("playback_hold", commit + 202, 25, turn_id, reason="pace", target_ms=0.0),
        event("confirm_to_sound", commit, 225, turn_id),
        event("voice_to_voice", at_ms, 840, turn_id),
        event(
            "reply",
            commit,
            900,
            turn_id,
            rtf_total=0.3,
            rtf_steady=0.25,
            memory_gb=13.2,
            first_chunk_ratio=0.5,
        ),
    ]


def typed_turn(turn_id: int = 1, at_ms: float = 1000.0) -> list[TimingEvent]:
    """The same without speech."""
    of_speech = ("endpointing", "confirm_to_sound", "voice_to_voice")
    return [each for each in spoken_turn(turn_id, at_ms) if each.name not in of_speech]
