"""moss-voice console: talk through microphone and loudspeaker in a terminal, without a window.

Decisions and replies are lines on stdout; on a terminal a line below them shows the level of the microphone.
With push-to-talk Enter is the button. Without a microphone it waits for one. Ctrl-C ends the conversation,
`--seconds` ends it after a time. Main thread, beside the threads of the session.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from app.audio.devices import portaudio
from app.commands.device_trial import DeviceTrial
from app.commands.questions import sample_paths
from app.commands.shared_options import (
    add_engine_options,
    add_microphone_options,
    add_reply_option,
    add_server_options,
    add_transcribe_option,
    add_turn_options,
    number,
    start_settings,
)
from app.commands.talk import speculation_line
from app.process import Stopped
from app.session.commands import Command, HoldToTalk, Start
from app.session.engine_jobs import EngineNotice
from app.session.events import (
    CaptionsNoticed,
    DeviceNoticed,
    DevicesChanged,
    EngineReady,
    ErrorRaised,
    Event,
    Levels,
    RecordingStopped,
    ReplyCut,
    ReplyFinished,
    ReplyTextDelta,
    SessionState,
    StateChanged,
    Timing,
    TurnCancelled,
    TurnCommitted,
    TurnExtended,
    TurnTranscribed,
)
from app.session.report import ConversationReport
from engine_runtime.errors import MossVoiceError
from engine_runtime.types import Modality

if TYPE_CHECKING:
    from app.session.session import Session


_STDIN = 0


class EnterKey:
    """The Enter key of a terminal as the button of push-to-talk: one press holds it, the next releases it.

    A terminal does not report when a key is released. Lines on standard input are not waited for. At the end
    of the input the state stays as it is.
    """

    def __init__(self, stream: int = _STDIN) -> None:
        self._stream = stream
        self._is_open = True
        self.is_down = False

    def service(self, send: Callable[[Command], None]) -> bool:
        """Send the presses since the last call; returns whether there were any."""
        presses = self._presses()
        for _ in range(presses):
            self.is_down = not self.is_down
            send(HoldToTalk(self.is_down))
        return presses > 0

    def follow(self, event: Event) -> None:
        """A turn that reached its longest length, or could not begin, needs no release."""
        if isinstance(event, TurnCommitted | TurnCancelled | ErrorRaised):
            self.is_down = False

    def _presses(self) -> int:
        if not self._is_open or not select.select([self._stream], [], [], 0)[0]:
            return 0
        read = os.read(self._stream, 4_096)
        self._is_open = bool(read)
        return read.count(b"\n")


POLL_S = 0.05
_STOP_S, _STOP_AT_ONCE_S = 5.0, 1.0
"""Time limits for the threads to end: usually, and after Ctrl-C."""
_INTERRUPTED = 130
"""Exit status of a command that Ctrl-C ended; here it is the usual end."""
_LISTENING = "listening; Ctrl-C ends the conversation"
_WAITING = "waiting for a microphone; Ctrl-C ends the conversation"
_LONGEST_S = 7 * 24 * 3600
_METER_CELLS, _METER_FLOOR_DBFS = 24, -60.0
_STATES = {
    SessionState.STOPPED: "stopped",
    SessionState.LOADING: "loading",
    SessionState.LISTENING: "listening",
    SessionState.HEARING: "hearing you",
    SessionState.THINKING: "thinking",
    SessionState.SPEAKING: "speaking",
    SessionState.ERROR: "stopped",
}
_REASONS = {
    "barge_in": "interrupted by you",
    "too_short": "too short for a question",
    "nothing_heard": "nothing was heard",
    "output_lost": "the loudspeaker went away",
}


class ConsoleError(MossVoiceError):
    """The engine could not be loaded, or the conversation ended early."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the subcommand."""
    parser = commands.add_parser(
        "console",
        help="talk in a terminal, without a window",
        description=(__doc__ or "").partition("\n\n")[0],
    )
    add_engine_options(parser)
    add_turn_options(parser)
    add_microphone_options(parser)
    add_server_options(parser)
    parser.add_argument(
        "--seconds",
        type=number(0.1, _LONGEST_S),
        metavar="N",
        help="end this many seconds after the model is ready (default: at Ctrl-C)",
    )
    parser.add_argument(
        "--ask",
        action="store_true",
        help="ask the sample questions by text, one after the other, to try the sound devices while nobody "
        "speaks; --json then holds what the microphone heard of the loudspeaker",
    )
    parser.add_argument("--input", metavar="NAME", help="microphone (default: that of the system)")
    parser.add_argument("--output", metavar="NAME", help="loudspeaker (default: that of the system)")
    add_transcribe_option(parser)
    add_reply_option(parser)
    parser.add_argument(
        "--json", action="store_true", help="end the output with one JSON document, like that of `talk`"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Hold the conversation until it is ended. AudioDeviceError if no device could ever be opened."""
    portaudio()
    settings = start_settings(arguments)
    from app.main import engine_source, load_turn_end_detector
    from app.session.session import Session
    from app.session.session_settings import SessionSettings

    session = Session(
        engine_source(settings),
        SessionSettings.of(
            settings,
            reply=Modality(arguments.reply),
            input_device=arguments.input,
            output_device=arguments.output,
        ),
        end_of_turn=load_turn_end_detector,
    )
    has_button = settings.input_mode in ("push", "both") and not arguments.ask
    trial = DeviceTrial(_typed_questions()) if arguments.ask else None
    report = converse(session, arguments.seconds, Terminal(), EnterKey() if has_button else None, trial)
    document = report.document()
    if trial is not None:
        document["trial"] = trial.document()
        print("\n".join(f"{name}: {value}" for name, value in document["trial"].items()))
    print(speculation_line(document["speculation"]))
    print(f"turns: {len(document['turns'])}, under-runs: {document['underruns']}")
    if arguments.json:
        print(json.dumps(document))
    return 0


def _typed_questions() -> list[str]:
    """The words of the sample questions; AudioInputError if there are none."""
    from app.sample_questions import load_samples

    samples = load_samples(sample_paths()[0].parent)
    return [sample.english for sample in samples if not sample.is_declined]


@dataclass
class Terminal:
    """Prints events as lines, and the level of the microphone below them on a terminal."""

    print_line: Callable[[str], None] = print
    shows_level: bool = field(default_factory=lambda: sys.stdout.isatty())
    _state: str = ""
    _reply: str = ""
    _is_ready: bool = False
    _has_microphone: bool = False
    _said: str = ""
    """Whether the user can talk: `_LISTENING`, before that `_WAITING`."""
    _width: int = 0

    def show(self, event: Event) -> None:
        """Print what the event means to a user, if anything."""
        match event:
            case StateChanged(state):
                self._state = _STATES[state]
            case ReplyTextDelta(_, text, _):
                self._reply += text
            case ReplyFinished(text=text):
                self._reply = text or self._reply
        if self.shows_level and isinstance(event, Levels):
            self._draw_level(event.input_dbfs)
        elif (line := self._line(event)) is not None:
            self._clear_level()
            self.print_line(line)

    def show_button(self, is_down: bool) -> None:
        """Print what the button of push-to-talk does now."""
        self._clear_level()
        self.print_line("speak; Enter ends your turn" if is_down else "Enter begins your next turn")

    def close(self) -> None:
        """Leave an empty line for what follows."""
        self._clear_level()

    def _line(self, event: Event) -> str | None:
        match event:
            case EngineReady(bundle, load_s):
                return f"{bundle} is ready after {load_s:.1f} s"
            case StateChanged(SessionState.LISTENING):
                self._is_ready = True
                return self._readiness()
            case DevicesChanged(input=microphone):
                self._has_microphone = bool(microphone)
                return self._readiness()
            case TurnCommitted(turn_id, seconds, _):
                self._reply = ""
                return f"{turn_id}. you      {seconds:.1f} s"
            case TurnExtended(turn_id):
                return f"{turn_id}. you      continued"
            case ReplyFinished(turn_id=turn_id, seconds=seconds):
                length = f" ({seconds:.1f} s)" if seconds else ""
                return f"{turn_id}. reply    {self._reply.strip() or '(speech)'}{length}"
            case ReplyCut(turn_id, reason, _, heard_text, _, heard_s, made_s):
                heard = f"heard {heard_s:.1f} of {made_s:.1f} s {heard_text.strip()}".rstrip()
                return f"{turn_id}. cut      {_REASONS.get(reason, 'stopped')}, {heard}"
            case TurnCancelled(turn_id, ("too_short" | "nothing_heard") as reason):
                return f"{turn_id}. {_REASONS[reason]}"
            case Timing(timing):
                return _decision(timing.name, timing.turn_id, timing.duration_ms, timing.attributes)
            case TurnTranscribed(turn_id, text):
                return f"{turn_id}. you      {text}"
            case DeviceNoticed(problem) | EngineNotice(problem) | CaptionsNoticed(problem):
                return str(problem)
            case RecordingStopped(_, problem):
                return str(problem)
            case ErrorRaised(problem):
                return str(problem)
        return None

    def _readiness(self) -> str | None:
        """Whether the user can talk, once."""
        line = _LISTENING if self._has_microphone else _WAITING
        if not self._is_ready or self._said in (line, _LISTENING):
            return None
        self._said = line
        return line

    def _draw_level(self, dbfs: float) -> None:
        share = min(max(1 - dbfs / _METER_FLOOR_DBFS, 0.0), 1.0)
        filled = round(share * _METER_CELLS)
        line = f"[{'#' * filled}{' ' * (_METER_CELLS - filled)}] {dbfs:4.0f} dBFS  {self._state}"
        self._width = max(self._width, len(line))
        sys.stdout.write("\r" + line.ljust(self._width))
        sys.stdout.flush()

    def _clear_level(self) -> None:
        if self._width:
            sys.stdout.write("\r" + " " * self._width + "\r")
            self._width = 0


def _decision(
    name: str, turn_id: int, duration_ms: float, attributes: dict[str, float | int | str]
) -> str | None:
    """Print a decision on the end of the turn, or the latency of a reply."""
    if name == "end_of_turn":
        who = "model" if attributes.get("by") == "language model" else "pause"
        return f"{turn_id}. {who}    {attributes['probability']:.2f} finished ({attributes['stage']})"
    if name == "endpointing":
        return f"{turn_id}. commit   after {duration_ms:.0f} ms of silence ({attributes['reason']})"
    if name == "voice_to_voice":
        return f"{turn_id}. heard    {duration_ms:.0f} ms after you stopped"
    return None


def converse(
    session: Session,
    seconds: float | None,
    terminal: Terminal,
    button: EnterKey | None = None,
    trial: DeviceTrial | None = None,
) -> ConversationReport:
    """Listen until Ctrl-C or for `seconds`, and show what happens; returns the report. `button` is that of
    push-to-talk; `trial` asks by itself.

    Raises ConsoleError if there is no engine; other errors are shown, and the conversation continues.
    """
    report = ConversationReport()
    listening_since: float | None = None
    stop_s = _STOP_S
    session.start()
    session.send(Start())
    try:
        while listening_since is None or seconds is None or time.monotonic() - listening_since < seconds:
            if not session.is_running:
                raise ConsoleError("The conversation broke off.", "See the log file for details.")
            time.sleep(POLL_S)
            if button is not None and listening_since is not None and button.service(session.send):
                terminal.show_button(button.is_down)
            if trial is not None:
                if trial.has_given_up:
                    break
                trial.service(session.send)
            for event in session.poll():
                report.add(event)
                if button is not None:
                    button.follow(event)
                if trial is not None:
                    trial.follow(event)
                if isinstance(event, ErrorRaised) and event.is_fatal:
                    raise ConsoleError.from_problem(event.problem)
                if listening_since is None and event == StateChanged(SessionState.LISTENING):
                    listening_since = time.monotonic()
                terminal.show(event)
    except KeyboardInterrupt as error:
        stop_s = _STOP_AT_ONCE_S
        if isinstance(error, Stopped) and error.status != _INTERRUPTED:
            raise
    finally:
        terminal.close()
        session.stop(stop_s)
        for event in session.poll():  # the position of a cut, if any
            report.add(event)
            if trial is not None:
                trial.follow(event)
    return report
