"""The responses of a session: begun, cancelled, ended; and how long a client takes to play them.

In: requests for a response, results of the engine. Out: the commit of the user's turn, the server events of
the response, and when turn-taking may take speech for a new turn again. At most one is in progress. Event
loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from app.server.identifiers import Identifiers
from app.server.items import ItemList
from app.server.pending_exchange import PendingExchange
from app.server.protocol import Json, ProtocolError
from app.server.response import CancelReason, Emit, Response, ResponseIds
from app.server.session_config import SessionConfig
from app.server.stages import described_figures, described_stages
from app.server.voice_input import VoiceInput
from app.session.engine_jobs import ReplyMade, ReplyResult, Result, TurnFailed
from engine_runtime.errors import MossVoiceError
from engine_runtime.types import CancelScope, ReplyDone

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class ResponseTimes:
    """Of one response, in seconds by the session's clock."""

    response_id: str
    asked_s: float
    first_audio_s: float | None = None


class ResponseControl:
    """See the module."""

    def __init__(
        self,
        ids: Identifiers,
        items: ItemList,
        turn: PendingExchange,
        voice: VoiceInput,
        engine_rate: int,
        emit: Emit,
        clock_s: Callable[[], float],
    ) -> None:
        """`engine_rate` is that of reply audio, in Hz."""
        self.active: Response | None = None
        self._ids, self._items, self._turn, self._voice = ids, items, turn, voice
        self._engine_rate = engine_rate
        self._emit = emit
        self._clock_s = clock_s
        self._played_until_s = 0.0
        """When a client that plays at once has played what was sent."""
        self._times: ResponseTimes | None = None
        """Of the latest one."""

    def create(self, config: SessionConfig, parameters: Json) -> None:
        """response.create. ProtocolError says why there can be none."""
        if self.active is not None:
            raise ProtocolError(
                "conversation_already_has_active_response", "A response is in progress. Cancel it first."
            )
        if parameters.get("conversation", "auto") != "auto" or parameters.get("input") is not None:
            raise ProtocolError(
                "unsupported", "Responses outside the conversation are not supported.", "response"
            )
        if self._turn.is_speaking:
            raise ProtocolError("input_audio_buffer_open", "Commit or clear the input audio buffer first.")
        if not self._turn.can_be_answered:
            raise ProtocolError("no_question", "There is nothing to reply to. Add a user item first.")
        metadata = parameters.get("metadata")
        if metadata is not None and not isinstance(metadata, dict):
            raise ProtocolError("invalid_value", "metadata has to be an object.", "response.metadata")
        config = config.with_response(parameters)
        self._voice.turn_taking.begin_reply()
        self.begin(config, metadata)

    def begin(self, config: SessionConfig, metadata: Json | None = None) -> None:
        """Reply to all user items since the last reply."""
        scope = CancelScope()
        turn_id = self._turn.commit(config.modality, scope, config.max_output_tokens)
        ids = ResponseIds(self._ids.new("resp"), self._ids.new("item"), self._ids.conversation_id)
        self._times = ResponseTimes(ids.response_id, self._clock_s())
        self._played_until_s = 0.0
        self.active = Response(
            ids, turn_id, scope, config, metadata, self._engine_rate, self._items, self._emit
        )

    def stop(self, reason: CancelReason) -> None:
        """Cancel the response in progress, if there is one. What was sent counts as heard; if nothing was,
        the user's items wait for another response."""
        response, self.active = self.active, None
        if response is None:
            return
        response.cancel(reason)
        if response.item is None:
            self._turn.reopen(response.scope)
        else:
            self._turn.cut(response.turn_id, response.samples, response.characters)
        if reason == "client_cancelled":
            self.end_playback()

    def end_playback(self) -> None:
        """The client plays no more of the reply."""
        self._played_until_s = 0.0
        self.end_played()

    def end_played(self) -> None:
        """Once the reply was played, what comes next is a turn and no interruption."""
        taking = self._voice.turn_taking
        if self.active is None and taking.is_replying and self._clock_s() >= self._played_until_s:
            taking.end_turn()
            self._voice.close()

    def on_result(self, result: Result) -> None:
        """A result of the engine; stale ones are dropped."""
        response = self.active
        if isinstance(result, TurnFailed):
            self._on_failure(result)
        elif isinstance(result, ReplyMade):
            self._report_times(result)
        elif isinstance(result, ReplyResult) and response is not None and result.scope is response.scope:
            had_sound = response.samples > 0
            self._played_until_s = max(self._played_until_s, self._clock_s()) + response.add(result.event)
            if response.samples and not had_sound:
                self._note_sound()
            if isinstance(result.event, ReplyDone):
                self.active = None
                self._turn.end()
                self.end_played()

    def _note_sound(self) -> None:
        self._voice.turn_taking.reply_heard()
        self._voice.close()
        if self._times is not None:
            self._times.first_audio_s = self._clock_s()

    def _report_times(self, made: ReplyMade) -> None:
        times, self._times = self._times, None
        if times is not None and times.first_audio_s is not None:
            ttfa_ms = (times.first_audio_s - times.asked_s) * 1e3
            event: Json = {"type": "moss_voice.response.timings", "response_id": times.response_id}
            event |= {"ttfa_ms": round(ttfa_ms, 1)}
            event |= described_figures(made.stages) | {"rtf_total": round(made.rtf_total, 3)}
            self._emit(event | {"stages": described_stages(made.stages, ttfa_ms)})

    def _on_failure(self, failure: TurnFailed) -> None:
        response = self.active
        message = f"{failure.message} {failure.what_to_do}".strip()
        _log.warning("turn %d failed: %s", failure.turn_id, message)
        kind = "server_error" if failure.code == MossVoiceError.code else "invalid_request_error"
        error: Json = {"type": kind, "code": failure.code, "message": message}
        if response is not None and response.turn_id == failure.turn_id:
            self.active = None
            response.fail(error)
        else:
            self._emit({"type": "error", "error": error | {"param": None, "event_id": None}})
        if self._turn.turn_id == failure.turn_id:
            self._turn.fail()
            self._voice.close()
            self._voice.turn_taking.end_turn()
