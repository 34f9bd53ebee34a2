"""Compares two records of a conversation, turn by turn: positions of turns, decisions, texts.

In: two folders. Out: the differences as plain values. Times are compared in samples of the microphone, not by
the clock: how long a reply takes to make differs from run to run. Speech to the microphone is compared by
its place in the recording: a conversation may have begun long after the microphone was opened. Any thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.session.conversation_folder import HISTORY, RecordError, read_events, read_history

_PLACES = 3
_SAME_S = 0.0011
"""Times that differ by a rounding are the same."""
_OF_TURN = {
    "TurnOpened": ("source", "text"),
    "TurnCommitted": ("seconds", "start_s"),
    "TurnCancelled": ("reason",),
    "ReplyFinished": ("modality", "text", "seconds", "user_codes", "codes", "finish_reason"),
}
_DECIDED = ("kind", "reason", "stage")
"""Attributes of a decision that are compared; its time and cost are not."""
_OF_SPEED = frozenset({"speculate", "predict", "confirm", "roll_back"})
"""Decisions that depend on how fast the engine is."""


@dataclass(slots=True)
class _RecordedTurn:
    values: dict[str, Any] = field(default_factory=dict)
    decisions: list[str] = field(default_factory=list)


def compare(before: Path, now: Path, late_s: float = 0.0) -> dict[str, Any]:
    """`now` is the record of a microphone that delivered that of `before` after `late_s` of silence. Returns
    {"folder": the first one, "turns": their number in it, "is_same", "differences"}, each difference with
    "turn", "what", "recorded" and "replayed"; turns by their number in order. RecordError."""
    turns = _turns(before, late_s), _turns(now)
    differences: list[dict[str, Any]] = []
    for number in range(max(map(len, turns))):
        first, second = (side[number] if number < len(side) else {} for side in turns)
        differences += [
            {"turn": number + 1, "what": name, "recorded": first.get(name), "replayed": second.get(name)}
            for name in {**first, **second}
            if not _are_same(first.get(name), second.get(name))
        ]
    return {
        "folder": str(before),
        "turns": len(turns[0]),
        "is_same": not differences,
        "differences": differences,
    }


def _are_same(first: Any, second: Any) -> bool:
    if isinstance(first, float) and isinstance(second, float):
        return abs(first - second) < _SAME_S
    return bool(first == second)


def _turns(folder: Path, late_s: float | None = None) -> list[dict[str, Any]]:
    """The values of each committed turn, in order. With `late_s`, speech begins so long after its place."""
    found: dict[int, _RecordedTurn] = {}
    for entry in read_events(folder):
        turn_id = entry.get("turn_id") or 0
        if turn_id < 1:
            continue
        turn = found.setdefault(turn_id, _RecordedTurn())
        kind = str(entry.get("event"))
        for name in _OF_TURN.get(kind, ()):
            value = entry.get(name)
            if (
                name == "start_s"
                and late_s is not None
                and isinstance(place_s := entry.get("place_s"), float)
            ):
                value = place_s + late_s
            turn.values[f"{kind}.{name}"] = round(value, _PLACES) if isinstance(value, float) else value
        if entry.get("timing") == "decision":
            known = entry.get("attributes", {})
            if str(known.get("kind")) not in _OF_SPEED:
                turn.decisions.append(" ".join(str(known[name]) for name in _DECIDED if name in known))
    codes = _codes(folder)
    return [
        {**turn.values, "decisions": turn.decisions, "reply": codes.get(turn_id)}
        for turn_id, turn in sorted(found.items())
        if "TurnCommitted.seconds" in turn.values
    ]


def _codes(folder: Path) -> dict[int, list[list[int]]]:
    """The rows of each reply in the engine's history."""
    if not (folder / HISTORY).exists():
        return {}
    try:
        return {entry["turn_id"]: entry["reply"] for entry in read_history(folder)["exchanges"]}
    except (KeyError, TypeError) as error:
        raise RecordError(f"{folder / HISTORY} is damaged. Choose another conversation.") from error
