"""A conversation in the terminal: what is printed, when it ends, and what it does without devices."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.cli import build_parser
from app.commands import console
from app.commands.console import ConsoleError, EnterKey, Terminal, converse
from app.commands.device_trial import DeviceTrial
from app.process import Stopped
from app.session.commands import AskText, Command, HoldToTalk, Start
from app.session.events import (
    DevicesChanged,
    ErrorRaised,
    Event,
    Levels,
    PlaybackFinished,
    ReplyCut,
    ReplyFinished,
    ReplyTextDelta,
    SessionState,
    StateChanged,
    Timing,
    TurnCancelled,
    TurnCommitted,
    TurnOpened,
)
from engine_runtime.errors import AudioDeviceError, Problem
from engine_runtime.timing import TimingEvent
from engine_runtime.types import Modality
from tests.doubles.pulse_server import PulseServer
from tests.doubles.scripted_session import ScriptedSession, opening

MS = 1_000_000
QUESTION = Path(__file__).resolve().parents[2] / "data" / "speech" / "question.wav"


class LiveScript(ScriptedSession):
    """A scripted session whose threads live until `has_ended`; `polls` are handed out one at a time."""

    def __init__(self, *polls: list[Event] | BaseException) -> None:
        super().__init__()
        self.polls = list(polls)
        self.has_ended = False

    @property
    def is_running(self) -> bool:
        return not self.has_ended

    def poll(self) -> list[Event]:
        if not self.polls:
            if self.is_stopped:
                return []
            raise Stopped(signal.SIGINT)
        polled = self.polls.pop(0)
        if isinstance(polled, BaseException):
            raise polled
        return polled


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "POLL_S", 0.0)


def turn() -> list[Event]:
    """A spoken question and its reply, which is then interrupted."""
    rated = TimingEvent("end_of_turn", 1, 0, 28 * MS, "t", {"probability": 0.934, "stage": "likely"})
    commit = TimingEvent("endpointing", 1, 0, 261 * MS, "dialog", {"reason": "likely"})
    heard = TimingEvent("voice_to_voice", 1, 0, 442 * MS, "dialog")
    return [
        TurnOpened(1, "voice"),
        Timing(rated),
        Timing(commit),
        TurnCommitted(1, 1.52),
        ReplyTextDelta(1, "the sky", True),
        ReplyTextDelta(1, " is blue", True),
        Timing(heard),
        ReplyFinished(1, Modality.SPEECH, 1.6, "", 19, 20, "stop"),
        ReplyCut(1, "barge_in", Modality.SPEECH, "the", "sky is blue", 0.61, 1.6, 19, 8),
        TurnCancelled(1, "barge_in"),
        TurnOpened(2, "voice"),
        TurnCancelled(2, "too_short"),
    ]


def printed(*polls: list[Event] | BaseException, seconds: float | None = None) -> list[str]:
    lines: list[str] = []
    converse(LiveScript(*polls), seconds, Terminal(lines.append, shows_level=False))
    return lines


def test_the_language_model_has_a_line_of_its_own() -> None:
    answer: dict[str, float | int | str] = {
        "probability": 0.031,
        "stage": "unfinished",
        "by": "language model",
    }
    predicted = Timing(TimingEvent("end_of_turn", 1, 0, 90 * MS, "dialog", answer))
    assert printed(opening(), [TurnOpened(1, "voice"), predicted])[2:] == [
        "1. model    0.03 finished (unfinished)"
    ]


def test_turns_and_decisions_are_lines() -> None:
    assert printed(opening(), turn()) == [
        "nano is ready after 2.4 s",
        "listening; Ctrl-C ends the conversation",
        "1. pause    0.93 finished (likely)",
        "1. commit   after 261 ms of silence (likely)",
        "1. you      1.5 s",
        "1. heard    442 ms after you stopped",
        "1. reply    the sky is blue (1.6 s)",
        "1. cut      interrupted by you, heard 0.6 of 1.6 s the",
        "2. too short for a question",
    ]


def test_the_session_is_started_and_stopped() -> None:
    session = LiveScript(opening(), turn())
    report = converse(session, None, Terminal(lambda line: None, shows_level=False))
    assert session.commands == [Start()]
    assert session.is_started
    assert session.is_stopped
    (reported,) = report.document()["turns"]
    assert reported["reply"]["cut"]["reason"] == "barge_in"


def test_it_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(100))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(now)))
    session = LiveScript(*[opening()] * 20)
    converse(session, 5.0, Terminal(lambda line: None, shows_level=False))
    assert session.is_stopped
    assert len(session.polls) == 20 - 5 - 1  # the last poll comes after the end


def test_other_signals_end_the_command() -> None:
    session = LiveScript(opening(), Stopped(signal.SIGTERM))
    with pytest.raises(Stopped):
        converse(session, None, Terminal(lambda line: None, shows_level=False))
    assert session.is_stopped


def test_enter_is_the_button_of_push_to_talk() -> None:
    read, write = os.pipe()
    session = LiveScript(opening(), [], [TurnCancelled(1, "nothing_heard")], [], [])
    lines: list[str] = []
    os.write(write, b"\n\n")
    try:
        converse(session, None, Terminal(lines.append, shows_level=False), EnterKey(read))
    finally:
        os.close(read)
        os.close(write)
    assert session.commands == [Start(), HoldToTalk(True), HoldToTalk(False)]
    assert lines[-2:] == ["Enter begins your next turn", "1. nothing was heard"]


def test_without_a_microphone_it_says_so_once_and_waits_for_one() -> None:
    missing = ErrorRaised(Problem("No microphone was found.", "Connect one."), is_about_sound=True)
    loading, (_, ready, _, listening) = StateChanged(SessionState.LOADING), opening()
    nothing = DevicesChanged((), ("speaker",), "", "speaker")
    other_loudspeaker = DevicesChanged((), ("speaker", "USB"), "", "USB")
    microphone = DevicesChanged(("built-in",), ("speaker", "USB"), "built-in", "USB")
    lines = printed(
        [loading, missing, nothing], [ready, listening], [other_loudspeaker], [microphone, nothing], turn()
    )
    assert lines[:5] == [
        "No microphone was found. Connect one.",
        "nano is ready after 2.4 s",
        "waiting for a microphone; Ctrl-C ends the conversation",
        "listening; Ctrl-C ends the conversation",
        "1. pause    0.93 finished (likely)",
    ]


def test_the_end_comes_without_a_microphone_too(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(100))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(now)))
    session = LiveScript([StateChanged(SessionState.LISTENING)], *[[]] * 20)
    converse(session, 5.0, Terminal(lambda line: None, shows_level=False))
    assert session.is_stopped
    assert session.polls


def test_without_portaudio_there_is_nothing_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise AudioDeviceError("Sound cannot be used: the PortAudio library is missing.", "Install it.")

    monkeypatch.setattr(console, "portaudio", missing)
    with pytest.raises(AudioDeviceError, match="PortAudio"):
        console.run(build_parser().parse_args(["console"]))


def test_a_later_error_is_shown_and_the_conversation_continues() -> None:
    lost = ErrorRaised(Problem("The microphone went away.", "The default one is used."))
    lines = printed(opening(), [lost], turn())
    assert lines[2] == "The microphone went away. The default one is used."
    assert lines[-1] == "2. too short for a question"


def test_a_session_that_broke_off_is_an_error() -> None:
    session = LiveScript(opening())
    session.has_ended = True
    with pytest.raises(ConsoleError, match="broke off"):
        converse(session, None, Terminal(lambda line: None, shows_level=False))
    assert session.is_stopped


def test_a_fatal_error_ends_it() -> None:
    with pytest.raises(ConsoleError, match=r"The model is damaged\."):
        printed(opening(), [ErrorRaised(Problem("The model is damaged.", ""), is_fatal=True)])


def test_a_terminal_shows_the_level_below_the_lines(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(shows_level=True)
    for event in opening():
        terminal.show(event)
    terminal.show(Levels(-30.0, -120.0, 0.1))
    terminal.show(Levels(-120.0, -120.0, 0.1))
    terminal.show(TurnCommitted(1, 1.0))
    terminal.close()
    last = capsys.readouterr().out.split("listening; Ctrl-C ends the conversation\n")[1]
    assert "[############            ]  -30 dBFS  listening" in last
    assert "[                        ] -120 dBFS  listening" in last
    assert last.endswith("\r1. you      1.0 s\n")


@pytest.mark.slow
@pytest.mark.pulse
def test_a_question_through_the_sound_server_is_answered(
    pulse_server: PulseServer, random_bundle: Path, repository: Path
) -> None:
    command = [sys.executable, "-m", "app", "console", "--bundle", str(random_bundle), "--json"]
    environment = os.environ | pulse_server.environment | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, cwd=repository, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        lines = [_line_with(process.stdout.readline, "listening")]
        with pulse_server.speak(QUESTION) as speaker:
            speaker.wait(20)
        lines.append(_line_with(process.stdout.readline, "1. reply"))
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    document = json.loads(output.splitlines()[-1])
    assert [turn["reply"]["modality"] for turn in document["turns"]] == ["speech"]


@pytest.mark.slow
@pytest.mark.pulse
def test_a_microphone_that_comes_later_is_used(
    pulse_server: PulseServer, random_bundle: Path, repository: Path
) -> None:
    pulse_server.remove_microphone()
    command = [sys.executable, "-m", "app", "console", "--bundle", str(random_bundle)]
    environment = os.environ | pulse_server.environment | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, cwd=repository, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert "waiting for a microphone" in _line_with(process.stdout.readline, "waiting")
        pulse_server.add_microphone()
        assert "listening" in _line_with(process.stdout.readline, "listening")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors


@pytest.mark.slow
@pytest.mark.pulse
def test_the_trial_measures_the_loop_of_real_streams(nano_bundle: Path, repository: Path) -> None:
    """The loudspeaker is 12 dB softer in the microphone."""
    for program in ("pulseaudio", "pactl"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    server = PulseServer(loop_loss_db=12.0)
    server.start()
    command = [sys.executable, "-m", "app", "console", "--bundle", str(nano_bundle), "--ask", "--seconds=14"]
    try:
        done = subprocess.run(
            [*command, "--json"],
            cwd=repository,
            env=os.environ | server.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    finally:
        server.remove()
    assert done.returncode == 0, done.stderr
    trial = json.loads(done.stdout.splitlines()[-1])["trial"]
    assert trial["played"] >= 2
    assert trial["had_microphone"]
    assert trial["loudest_dbfs"] > -60
    assert 10 < trial["echo"]["delay_ms"] < 384
    assert 11 < trial["echo"]["erl_db"] < 13


def _line_with(read: Callable[[], str], words: str) -> str:
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up:
        line = read()
        if words in line or not line:
            return line
    raise AssertionError(f"no line with {words}")


def test_the_trial_of_the_devices_asks_by_itself_and_reports(capsys: pytest.CaptureFixture[str]) -> None:
    trial = DeviceTrial(["what is two plus three"], now_s=iter(range(100)).__next__)
    session = LiveScript(opening(), [], [], [PlaybackFinished(1)])
    converse(session, None, Terminal(lambda line: None, shows_level=False), None, trial)
    assert session.commands == [Start(), AskText("what is two plus three")]
    assert trial.document()["played"] == 1


def test_a_trial_without_a_microphone_ends_early() -> None:
    trial = DeviceTrial(["what is two plus three"], now_s=iter(range(0, 1000, 10)).__next__)
    session = LiveScript([StateChanged(SessionState.LISTENING)], *[[]] * 20)
    converse(session, None, Terminal(lambda line: None, shows_level=False), None, trial)
    assert session.is_stopped
    assert len(session.polls) > 10


def test_the_typed_questions_are_those_of_the_samples() -> None:
    questions = console._typed_questions()
    assert "What is three plus four?" in questions
    assert len(questions) >= 8


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    os.close(read)


def test_every_line_changes_it(pipe: tuple[int, int]) -> None:
    read, write = pipe
    key, sent = EnterKey(read), list[Command]()
    assert not key.service(sent.append)
    os.write(write, b"what was typed before it does not matter\n")
    assert key.service(sent.append)
    assert key.is_down
    os.write(write, b"\n\n\n")
    key.service(sent.append)
    os.close(write)
    for _ in range(3):
        assert not key.service(sent.append)  # the end of the input
    assert sent == [HoldToTalk(True), HoldToTalk(False), HoldToTalk(True), HoldToTalk(False)]


def test_a_turn_that_could_not_begin_needs_no_release(pipe: tuple[int, int]) -> None:
    read, write = pipe
    key, sent = EnterKey(read), list[Command]()
    events = (ErrorRaised(Problem("The microphone is muted.", "")), StateChanged(SessionState.LISTENING))
    for event in events:
        os.write(write, b"\n")
        key.service(sent.append)
        key.follow(event)
    os.close(write)
    assert sent == [HoldToTalk(True), HoldToTalk(True)]
    assert key.is_down
