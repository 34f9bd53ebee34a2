"""What turn-taking knows of the reply to the committed turn: does speech continue the turn, or interrupt it?

In: the commit, and when the reply is heard. Pure, with times in milliseconds of captured audio; used by
turn_taking.
"""

from __future__ import annotations

from app.dialog.turn_taking_settings import TurnTakingSettings


class AwaitedReply:
    """The reply to one committed turn."""

    def __init__(
        self, commit_ms: float = 0.0, *, may_reopen: bool = False, sounded_unfinished: bool = False
    ) -> None:
        """`sounded_unfinished`: to the detector the pause before `commit_ms` did not clearly end the turn."""
        self._commit_ms = commit_ms
        self._may_reopen = may_reopen
        self._sounded_unfinished = sounded_unfinished
        self._heard_ms: float | None = None

    @property
    def is_heard(self) -> bool:
        """Whether its first sample was handed to the loudspeaker."""
        return self._heard_ms is not None

    def begin_sound(self, at_ms: float) -> None:
        """Its first sample was handed to the loudspeaker."""
        self._heard_ms = at_ms

    def may_be_continued(self, settings: TurnTakingSettings, start_ms: float) -> bool:
        """Whether speech from `start_ms` on still belongs to the turn that was committed."""
        is_soon = start_ms <= self._commit_ms + settings.reopen_ms
        # Once it was heard, the reply is part of the conversation: speech then interrupts it and cannot undo
        # it.
        return is_soon and self._may_reopen and not self.is_heard

    def has_cut_off(self, settings: TurnTakingSettings, start_ms: float) -> bool:
        """Whether the reply has probably cut off a user who speaks from `start_ms` on."""
        if self._heard_ms is None or not self._sounded_unfinished:
            return False
        return start_ms - self._heard_ms <= settings.interruption.continuation_window_ms
