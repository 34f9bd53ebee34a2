"""The responses of a session: begun, stopped, ended; how long a client takes to play them, and their times.

In: events of replies. Out: server events. At most one response is in progress. Event loop.
"""

from __future__ import annotations

from collections.abc import Callable

from app.server.identifiers import Identifiers
from app.server.items import ItemList
from app.server.protocol import Json
from app.server.response import CancelReason, Emit, Response, ResponseIds
from app.server.session_config import SessionConfig
from app.server.stages import described_figures, described_stages
from app.session.engine_jobs import ReplyMade
from app.session.turn_driver import StoppedReply
from engine_runtime.types import ReplyDone, ReplyEvent


class ResponseControl:
    """One response after the other."""

    def __init__(
        self, ids: Identifiers, items: ItemList, engine_rate: int, emit: Emit, clock_s: Callable[[], float]
    ) -> None:
        """`engine_rate` is that of reply audio, in Hz."""
        self.active: Response | None = None
        self._ids, self._items = ids, items
        self._engine_rate = engine_rate
        self._emit = emit
        self._clock_s = clock_s
        self._played_until_s = 0.0
        """When a client that plays at once has played what was sent."""
        self._untimed: Response | None = None
        """The latest response, until its times are reported."""

    @property
    def has_sound(self) -> bool:
        """Whether sound of the response in progress was sent."""
        return self.active is not None and self.active.samples > 0

    @property
    def is_played(self) -> bool:
        """Whether no response is in progress, and a client has played the latest."""
        return self.active is None and self._clock_s() >= self._played_until_s

    def begin(self, turn_id: int, config: SessionConfig, metadata: Json | None, asked_s: float) -> None:
        """The reply to a turn was requested at `asked_s`."""
        ids = ResponseIds(self._ids.new("resp"), self._ids.new("item"), self._ids.conversation_id)
        self._played_until_s = 0.0
        self.active = self._untimed = Response(
            ids, turn_id, config, metadata, asked_s, self._engine_rate, self._items, self._emit
        )

    def add(self, event: ReplyEvent, at_s: float | None = None) -> bool:
        """The next event of the reply, which came at `at_s`, by default just now; whether it is the last."""
        response = self.active
        if response is None:
            return False
        self._played_until_s = max(self._played_until_s, self._clock_s()) + response.add(event)
        if self.has_sound and response.first_audio_s is None:
            response.first_audio_s = self._clock_s() if at_s is None else at_s
        if isinstance(event, ReplyDone):
            self.active = None
        return isinstance(event, ReplyDone)

    def stop(self, reason: CancelReason) -> StoppedReply | None:
        """Cancel the response in progress, if there is one. What was sent counts as heard; if nothing was,
        the user's items wait for another response."""
        response, self.active = self.active, None
        if response is None:
            return None
        response.cancel(reason)
        if response.item is None:
            return StoppedReply("unheard")
        return StoppedReply("cut", response.samples, response.characters)

    def fail(self, turn_id: int, error: Json) -> bool:
        """The engine has dropped a turn; whether the response in progress was its."""
        response = self.active
        if response is None or response.turn_id != turn_id:
            return False
        self.active = None
        response.fail(error)
        return True

    def end_playback(self) -> None:
        """The client plays no more of the latest response."""
        self._played_until_s = 0.0

    def report_times(self, made: ReplyMade) -> None:
        """All of the reply was made."""
        response, self._untimed = self._untimed, None
        if response is not None and response.first_audio_s is not None:
            ttfa_ms = (response.first_audio_s - response.asked_s) * 1e3
            event: Json = {"type": "moss_voice.response.timings", "response_id": response.ids.response_id}
            event |= {"ttfa_ms": round(ttfa_ms, 1)}
            event |= described_figures(made.stages) | {"rtf_total": round(made.rtf_total, 3)}
            self._emit(event | {"stages": described_stages(made.stages, ttfa_ms)})
