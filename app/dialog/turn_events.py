"""What turn-taking reports: an action of the user, and the speech that it is about. Pure; any thread."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from app.dialog.end_of_turn import Stage


class TurnAction(Enum):
    """What the user did."""

    OPEN = "open"
    """Started to speak, or pressed the button: a new turn."""
    ONSET = "onset"
    """The first speech while the button is down."""
    SILENCE = "silence"
    """Fell silent: a reply can be made in case this is the end."""
    PAUSE = "pause"
    """Paused; the turn may be over."""
    RESUME = "resume"
    """The user continued within the turn."""
    COMMIT = "commit"
    """Finished: the reply may begin."""
    DROP = "drop"
    """Too little speech, or a backchannel: there was no turn."""
    REOPEN = "reopen"
    """The user continued after the commit: the same turn is reopened and the reply is discarded."""
    INTERRUPT = "interrupt"
    """Speaks over the reply: it is paused until it is known whether that is a turn."""
    LISTEN = "listen"
    """Speaks over it: the detector is asked what that is."""
    RESUME_REPLY = "resume_reply"
    """It was not a turn: the reply resumes where it was paused."""
    BARGE_IN = "barge_in"
    """It is a turn: the reply is cut and a new turn is open, from the first speech on."""
    IGNORE = "ignore"
    """Somebody further away speaks: no turn is opened, and a reply continues."""


PressEnd = Literal["released", "length"]
"""The button came up, or was down for the longest turn."""


@dataclass(frozen=True, slots=True)
class TurnEvent:
    """An action, when it was decided, and the speech it is about (start of the first, end of the last; both
    the time of the press before any speech).

    `stage` is how detector and language model found the present pause, None without an answer; `press_end` is
    how a press of the button ended with this event.
    """

    action: TurnAction
    at_ms: float
    speech_start_ms: float
    speech_end_ms: float
    stage: Stage | None = None
    press_end: PressEnd | None = None

    @property
    def silence_ms(self) -> float:
        """Silence between the end of the speech and the decision."""
        return self.at_ms - self.speech_end_ms

    @property
    def reason(self) -> str:
        """Why a turn was committed: the stage, "silence" without one, "length" of an endless turn, or
        "released"."""
        if self.press_end is not None:
            return self.press_end
        if self.silence_ms <= 0:
            return "length"
        return "silence" if self.stage is None else self.stage.value
