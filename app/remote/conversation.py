"""The conversation of a session with a Realtime server: jobs in, client events out, and the way back.

In: jobs of the session (`carry_out`), events of the server (`on_event`), connections that come and go
(`connect`, `lose`). Out: client events, results for the session. It knows no socket and no thread, and keeps
what was said, so that another connection continues where the last one ended: the exchanges are created
again, speech in progress is sent again, and a reply of which nothing came yet is requested again. Event loop.

The client ends the turns of the user. A server that ends them itself in spite of session.update is tolerated:
it gets the silence after the speech, and answers without being asked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from app.dialog.conversation import SpokenText
from app.remote.dialect import (
    Json,
    ServerSession,
    event_name,
    id_of,
    read_problem,
    read_session,
    said_in,
)
from app.remote.exchange import RemoteExchange, forget_old_speech, held_elsewhere
from app.remote.response import MOST_CHARACTERS, TIMINGS, TURN_END, RemoteResponse, figure_of
from app.remote.uplink import Uplink
from app.session.engine_jobs import (
    Ask,
    AskAgain,
    Cancel,
    Commit,
    Confirm,
    EngineNotice,
    FlowStepsSet,
    Forget,
    Hear,
    Interrupt,
    Job,
    OpenTurn,
    Remember,
    Remove,
    Reopen,
    ReplyMade,
    ReplyResult,
    Restore,
    RestoreFailed,
    RolledBack,
    Transcribed,
    TurnFailed,
    UseFlowSteps,
)
from app.session.engine_slot import SlotPort
from engine_runtime.errors import LanguageError, Problem
from engine_runtime.timing import TimingBus
from engine_runtime.types import CancelScope, FinishReason, Modality, ReplyEvent

MOST_EARLY = 4096
"""Events of a response that are kept until the session has ended its turn, too."""
_BUSY = "conversation_already_has_active_response"
_log = logging.getLogger(__name__)


class RemoteConversation:
    def __init__(
        self,
        session: ServerSession,
        port: SlotPort,
        timing: TimingBus,
        renew: Callable[[], None],
        round_trip_s: Callable[[], float | None],
        voice: str = "",
    ) -> None:
        """`session` has the rates that hold for the whole conversation; `connect` follows. `renew` asks for
        another connection, for a new conversation. `round_trip_s` is that of the latest ping. `voice` is that
        of the replies, "" for the server's choice."""
        self._in_rate, self._out_rate = session.input_format.sample_rate, session.output_format.sample_rate
        self._uplink = Uplink(session, self._in_rate, voice)
        self._give, self._pending = port.give, port.pending
        self._timing, self._renew = timing, renew
        self._round_trip_s = round_trip_s
        self._exchanges: dict[int, RemoteExchange] = {}
        self._turn: RemoteExchange | None = None
        """Exchange of the turn in progress."""
        self._scope = CancelScope()
        self._response: RemoteResponse | None = None
        """The latest response that was requested."""
        self._known: dict[str, RemoteResponse] = {}
        """Responses that the server has begun, by its id."""
        self._early: list[Json] = []
        """Events of a response to a turn that the server ended, before the session did."""
        self._is_refused = False
        """Whether a request was refused because another response was in progress: then it is sent again."""
        self._lost_ns: int | None = None
        """When the connection was lost; None while connected."""
        self._flow_steps: int | None = None
        """Flow steps that the user has chosen, sent on each connection: the server forgets them."""
        self._reports_timings: bool | None = None
        """Whether the server sends its own timings; None until a spoken reply is over."""

    # ---- connections ----

    def connect(self, session: ServerSession, emit: Callable[[Json], None]) -> None:
        """Begin on a new connection, with a new session of the server."""
        self._uplink.open(session, emit)
        if self._flow_steps is not None:
            self._uplink.choose_flow_steps(self._flow_steps)
        self._known.clear()
        self._early.clear()
        self._is_refused = False
        for exchange in self._exchanges.values():
            exchange.user_items, exchange.reply_item = [], ""
            if exchange.is_answered:
                self._uplink.say_again(exchange)
        turn, response = self._turn, self._response
        lost_ns, self._lost_ns = self._lost_ns, None
        if turn is not None and not turn.is_answered:
            if lost_ns is not None:
                away_ns = self._timing.clock_ns() - lost_ns
                self._timing.emit("outage", turn.turn_id, lost_ns, away_ns, reason="connection")
            turn.transcripts.clear()
            self._uplink.append_all(turn)
            if response is not None and response.exchange is turn and not response.is_over:
                self._uplink.request(response)

    def lose(self) -> None:
        """Note that the connection is lost."""
        self._uplink.close()
        self._lost_ns = self._timing.clock_ns()
        response = self._response
        if response is not None and not response.is_over and response.has_output:
            self._end(response, "cancelled")

    def close(self) -> None:
        """End the conversation."""
        self._uplink.close()
        if self._response is not None and not self._response.is_over:
            self._stop(self._response)

    # ---- jobs ----

    def carry_out(self, job: Job) -> None:
        """Execute a job of the session."""
        match job:
            case OpenTurn(turn_id, reply, scope) if not scope.is_cancelled:
                self._turn = RemoteExchange(turn_id, reply, self._in_rate)
                self._exchanges[turn_id] = self._turn
                self._scope = scope
            case Hear(turn_id, pcm) if (turn := self._open(turn_id)) is not None:
                turn.hear(pcm)
                self._uplink.append(pcm)
            case Ask(turn_id, text) if (turn := self._open(turn_id)) is not None:
                turn.text = text
            case AskAgain(turn_id) if (turn := self._open(turn_id)) is not None:
                self._ask_again(turn, job)
            case Commit(turn_id) if (turn := self._open(turn_id)) is not None:
                self._commit(turn, job)
            case Confirm(turn_id) if (response := self._response) is not None:
                if response.exchange.turn_id == turn_id and response.finished is not None:
                    response.finished = None
                    self._uplink.confirm()
            case Reopen(_, scope):
                self._reopen(scope)
            case Cancel(turn_id) if (turn := self._exchanges.get(turn_id)) is not None:
                if turn.is_spoken:
                    self._uplink.clear()
                self._drop(turn)
            case Interrupt(turn_id, samples, characters) if turn_id in self._exchanges:
                self._interrupt(self._exchanges[turn_id], samples, characters)
            case Remove(turn_id) if turn_id in self._exchanges:
                self._drop(self._exchanges[turn_id])
            case Remember():
                self._remember(job)
            case UseFlowSteps(steps) if (known := self._uplink.session.flow_steps) is not None:
                self._flow_steps = known.bundle if steps is None else steps
                self._uplink.choose_flow_steps(self._flow_steps)
            case Forget():
                self._forget()
            case Restore():
                self._forget()
                problem = Problem(
                    "A server cannot continue a conversation that was held with a model on this computer.",
                    "Choose that model in the settings, or begin a new conversation.",
                )
                self._give(RestoreFailed(problem))

    def _open(self, turn_id: int) -> RemoteExchange | None:
        """The turn in progress if it is this one and still wanted."""
        turn = self._turn
        return turn if turn and turn.turn_id == turn_id and not self._scope.is_cancelled else None

    def _ask_again(self, turn: RemoteExchange, job: AskAgain) -> None:
        earlier = self._exchanges.get(job.earlier_id)
        if earlier is None or not (earlier.text or earlier.transcript or earlier.speech):
            problem = Problem("That question is no longer remembered.", "Ask it again.")
            self._give(TurnFailed(turn.turn_id, problem))
            return
        turn.take_question(earlier)
        for known in list(self._exchanges.values()):
            if not job.keeps and job.earlier_id <= known.turn_id < turn.turn_id:
                self._drop(known)
        self._uplink.append_all(turn)

    def _commit(self, turn: RemoteExchange, job: Commit) -> None:
        def give(event: ReplyEvent) -> None:
            self._give(ReplyResult(job.scope, event))

        if self._reports_timings is None and self._response is not None and self._response.has_output:
            # One that was taken back brought none, although the server offers them.
            self._reports_timings = self._uplink.session.offers_timings
        turn.modality = job.reply
        is_speculative = job.timings is not None and self._uplink.session.offers_speculation
        response = RemoteResponse(
            turn,
            job.reply,
            job.scope,
            self._out_rate,
            job.timings or self._timing,
            give,
            job.finished if is_speculative else None,
        )
        self._response = response
        self._pending.begin()
        forget_old_speech(self._exchanges.values())
        if self._uplink.is_open:
            self._uplink.request(response)
        early, self._early = self._early, []
        for event in early:
            self.on_event(event)

    def _reopen(self, scope: CancelScope) -> None:
        response = self._response
        if response is not None and response.scope is scope:
            turn = response.exchange
            response.is_reopened = True
            is_taken_back = response.finished is not None
            self._stop(response)
            if response.has_output and not is_taken_back:
                self._begin_again(turn)
            turn.said, turn.samples, turn.is_answered = SpokenText(), 0, False
        self._give(RolledBack(scope, 0, self._timing.clock_ns()))

    def _begin_again(self, turn: RemoteExchange) -> None:
        """Take a turn that the server counts as answered out of its history, and send the speech again."""
        turn.transcripts.clear()
        self._uplink.delete(turn)
        self._uplink.clear()
        self._uplink.append_all(turn)

    def _interrupt(self, exchange: RemoteExchange, samples: int, characters: int) -> None:
        response = self._response
        if response is not None and response.exchange is exchange:
            self._stop(response)
        is_spoken = exchange.modality is Modality.SPEECH
        if not (samples if is_spoken else characters):
            self._drop(exchange)
            return
        is_shorter = is_spoken and samples < exchange.samples
        exchange.cut(samples, characters)
        if is_shorter:
            self._uplink.truncate(exchange, samples * 1000 // self._out_rate)

    def _remember(self, job: Remember) -> None:
        exchange = self._exchanges[job.turn_id] = held_elsewhere(job, self._in_rate)
        self._uplink.say_again(exchange)

    def _forget(self) -> None:
        if self._response is not None:
            self._stop(self._response)
        if self._exchanges:
            self._exchanges.clear()
            self._turn = self._response = None
            self._renew()

    def _drop(self, exchange: RemoteExchange) -> None:
        """Remove the exchange, as if it had never existed."""
        if self._response is not None and self._response.exchange is exchange:
            self._stop(self._response)
        if self._turn is exchange:
            self._turn = None
        self._exchanges.pop(exchange.turn_id, None)
        self._uplink.delete(exchange)

    def _stop(self, response: RemoteResponse) -> None:
        """Cancel the response and ignore what still arrives of it."""
        if not response.is_over:
            response.is_over = True
            self._pending.end()
            self._uplink.cancel(response)
            if response.finished is not None:  # its item leaves the server's list by itself
                response.exchange.reply_item = ""

    # ---- from the server ----

    def on_event(self, event: Json) -> None:
        """The next event of the server; what is unknown is passed over. One that cannot be carried out fails
        the reply in progress, and the conversation goes on."""
        try:
            self._take(event)
        except Exception:  # the border to a server, which may send anything
            _log.exception("an event of the server failed")
            self.on_garbage()

    def on_garbage(self) -> None:
        """Count a server message that is not an event."""
        _log.warning("a message of the server is no event of the Realtime protocol")
        response = self._response
        if response is not None and not response.is_over:
            self._uplink.cancel(response)
            said = "it sent a message that is not an event of the Realtime protocol"
            self._fail(response, {"message": said})

    def _take(self, event: Json) -> None:
        name, uplink = event_name(event), self._uplink
        if name == "session.updated":
            before, uplink.session = uplink.session, read_session(event, uplink.session)
            uplink.ends_turns = uplink.session.detects_turns is True
            if uplink.session.flow_steps not in (None, before.flow_steps):
                self._give(FlowStepsSet(uplink.session.flow_steps))
        elif name == "input_audio_buffer.speech_started":
            uplink.ends_turns = True
            self._early.clear()
        elif name == "input_audio_buffer.committed":
            uplink.names_items = True
            self._name_speech(str(event.get("item_id") or ""))
        elif name == "conversation.item.input_audio_transcription.completed":
            self._note_transcript(event)
        elif name == "error":
            self._on_error(event)
        elif name == "response.created" and uplink.requested:
            self._begin(id_of(event.get("response")))
        elif name.startswith("response.") or name in (TIMINGS, TURN_END):
            response = self._response_of(event)
            if response is not None:
                self._on_response(response, name, event)
            elif uplink.ends_turns and len(self._early) < MOST_EARLY:
                self._early.append(event)
            if name == "response.done" and self._is_refused and uplink.requested:
                self._is_refused = False
                uplink.ask(uplink.requested[0])

    def _begin(self, response_id: str) -> RemoteResponse | None:
        """The server has begun the next requested response."""
        if not response_id:
            return None
        begun = self._uplink.requested.popleft()
        begun.response_id = response_id
        self._known[response_id] = begun
        return begun

    def _name_speech(self, item_id: str) -> None:
        if not self._uplink.committed:
            return  # of a turn that the server ended too early
        exchange = self._uplink.committed.popleft()
        exchange.user_items.append(item_id)
        if self._exchanges.get(exchange.turn_id) is not exchange:
            self._uplink.delete(exchange)  # it was dropped meanwhile

    def _note_transcript(self, event: Json) -> None:
        text, item_id = str(event.get("transcript") or "").strip(), str(event.get("item_id") or "")
        exchanges = self._exchanges.values()
        exchange = next((known for known in exchanges if item_id in known.user_items), None)
        if exchange is None and not self._uplink.names_items:
            exchange = self._turn  # of speech whose item was never named
        if exchange is None or not text or not exchange.is_spoken:
            return
        others = len(exchange.transcript) - len(exchange.transcripts.get(item_id, ""))
        if others >= MOST_CHARACTERS:
            return
        exchange.transcripts[item_id] = text[: MOST_CHARACTERS - others]
        self._give(Transcribed(exchange.turn_id, exchange.transcript))

    def _response_of(self, event: Json) -> RemoteResponse | None:
        """The response that an event belongs to: the latest one where the event does not say, the next
        requested one where the server has not announced it."""
        own_id = id_of(event.get("response")) or str(event.get("response_id") or "")
        if not own_id:
            return self._response
        if own_id not in self._known and self._uplink.requested and not self._is_refused:
            return self._begin(own_id)
        return self._known.get(own_id)

    def _on_response(self, response: RemoteResponse, name: str, event: Json) -> None:
        if name == "response.output_item.added":
            self._note_item(response, id_of(event.get("item")))
        elif name == TURN_END and not response.is_over:
            response.predict(figure_of(event.get("probability")))
        elif name == TIMINGS:
            self._reports_timings = True
            response.report(event, None)
            if (rtf := figure_of(event.get("rtf_total"))) is not None:
                self._give(ReplyMade(rtf))
        elif response.is_over or response.scope.is_cancelled:
            return
        elif name == "response.output_audio.delta":
            response.add_audio(event.get("delta"), self._uplink.session.output_format)
        elif name in ("response.output_audio_transcript.delta", "response.output_text.delta"):
            response.add_text(str(event.get("delta") or ""))
        elif name in ("response.output_audio_transcript.done", "response.output_text.done"):
            response.complete_text(str(event.get("transcript") or event.get("text") or ""))
        elif name == "response.done":
            self._on_done(response, event.get("response"))
        if response.is_too_long and not response.is_over:
            self._uplink.cancel(response)
            self._end(response, "length")

    def _note_item(self, response: RemoteResponse, item_id: str) -> None:
        exchange = response.exchange
        if not response.is_over:
            exchange.reply_item = item_id
        elif item_id and not response.has_output and response.finished is None:
            # It had begun when it was cancelled; nobody hears it.
            self._uplink.delete_items([item_id])
            if response.is_reopened and self._turn is exchange and self._response is response:
                self._begin_again(exchange)

    def _on_done(self, response: RemoteResponse, described: object) -> None:
        known: Json = described if isinstance(described, dict) else {}
        status, details = known.get("status"), known.get("status_details")
        if status == "failed":
            error = details.get("error") if isinstance(details, dict) else None
            self._fail(response, error if isinstance(error, dict) else {})
        elif status == "cancelled":
            self._end(response, "cancelled")
        else:
            self._end(response, "length" if status == "incomplete" else "stop")

    def _end(self, response: RemoteResponse, reason: FinishReason) -> None:
        response.end(reason)
        if self._reports_timings is False and (round_trip_s := self._round_trip_s()) is not None:
            response.report({}, round_trip_s)
        self._pending.end()

    def _on_error(self, event: Json) -> None:
        """A request that failed fails its turn; anything else is noted."""
        described = event.get("error")
        error: Json = described if isinstance(described, dict) else {}
        if error.get("code") == "flow_steps_refused" and self._uplink.session.flow_steps is not None:
            self._flow_steps = None
            self._give(FlowStepsSet(self._uplink.session.flow_steps, read_problem(error)))
            return
        if self._uplink.voice and error.get("event_id") == self._uplink.voice_event_id:
            self._refuse_voice(error)
            return
        code = str(error.get("code") or error.get("type"))
        event_id = error.get("event_id")
        named = event_id or event.get("event_id")
        for response in list(self._uplink.requested):
            is_busy = code == _BUSY and event_id in (None, response.event_id)
            if is_busy and not response.is_over:
                self._is_refused = True
                return
            if response.event_id and named == response.event_id:
                self._uplink.requested.remove(response)
                if not response.is_over:
                    self._fail(response, error)
                return
        _log.info("the server refused an event: %s", code[:80])

    def _refuse_voice(self, error: Json) -> None:
        """The server does not have the voice: it is not asked for again."""
        refused = Problem(
            "The server does not have the voice {voice}: {said}.",
            "It replies with another one. Choose one that it has in the settings.",
            voice=self._uplink.voice,
            said=said_in(error),
        )
        self._uplink.voice = ""
        self._give(EngineNotice(refused))

    def _fail(self, response: RemoteResponse, error: Json) -> None:
        response.is_over = True
        self._pending.end()
        if error.get("code") == LanguageError.code and error.get("message"):
            failed = TurnFailed(response.exchange.turn_id, read_problem(error), LanguageError.code)
            self._give(failed)
            return  # the question alone is dropped; the conversation goes on
        said = said_in(error)
        problem = Problem(
            "The server could not answer: {said}.",
            "Ask again; if it happens again, check the log of the server.",
            said=said,
        )
        self._give(TurnFailed(response.exchange.turn_id, problem))
