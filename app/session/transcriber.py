"""What the user said, in words: a Whisper model in a child process, for the window and the server alike.

In: the speech of committed turns. Out: a `TranscribedSpeech` each, in the order in which they were submitted.
The child has the lowest priority and is asked in a thread of its own, so no reply waits for it. It may crash
or hang: then the transcript says why, and a new child is started for the next turn. `run` is the body of the
transcription thread; the other methods may be called from any and do not block.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.audio.resample import Resampler
from engine_runtime import whisper
from engine_runtime.errors import MossVoiceError, Problem
from engine_runtime.types import Pcm

EXTRA = "transcribe"
_LIMIT_S = 120.0
"""Time for a child to load its model, or for one turn: it runs only while the processors are free."""
_MOST_WAITING_S = 300.0
"""Speech that waits. Beyond, the oldest is given up: words that come minutes late help nobody."""
_MOST_FAILURES = 3
"""Children in a row that may fail before no more are started."""
_END_S = 2.0
_PROGRAM = Path(__file__).resolve().parents[2]
_BUSY = Problem("More is said than can be transcribed.", "Use a smaller Whisper model.")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Speech:
    """What is to be transcribed."""

    pcm: Pcm
    sample_rate: int
    language: str | None = None
    """Its language by its code; None to recognize it."""
    prompt: str = ""
    """Words that may come up."""

    @property
    def seconds(self) -> float:
        """Its length."""
        return len(self.pcm) / self.sample_rate


@dataclass(frozen=True, slots=True)
class TranscribedSpeech:
    """The words of a speech, "" if there are none in it."""

    text: str = ""
    language: str = ""
    seconds: float = 0.0
    """Length of the speech."""
    problem: Problem | None = None
    """Why there is no text."""


TranscriptListener = Callable[[TranscribedSpeech], None]
"""Gets one transcript, in the transcription thread or that of `submit`; must not block."""
Transcribe = Callable[[Speech, TranscriptListener], None]
"""Has a speech transcribed; does not block."""
Command = Callable[[Path, int], list[str]]
"""The command of a child, for a folder with a model and the descriptor of its socket."""


def whisper_command(folder: Path, descriptor: int) -> list[str]:
    """The child that `engine_runtime.whisper` is. Raises WhisperError where it cannot run."""
    whisper.check_model(folder, EXTRA)
    return [sys.executable, "-m", whisper.__name__, str(folder.resolve()), str(descriptor)]


class Transcriber:
    """One child at a time, for all conversations of this process."""

    def __init__(self, command: Command = whisper_command, limit_s: float = _LIMIT_S) -> None:
        self._command, self._limit_s = command, limit_s
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Speech, TranscriptListener]] = deque()
        self._is_busy = False
        self._folder: Path | None = None
        self._child: _Child | None = None
        self._failures = 0
        self._problem: Problem | None = None
        """Why no child is started any more."""
        self._is_closing = False

    def use(self, folder: Path | None) -> None:
        """Transcribe with the model in this folder from now on, None for not at all."""
        with self._changed:
            if folder != self._folder:
                self._folder, self._failures, self._problem = folder, 0, None
                if folder is None:
                    self._waiting.clear()
                self._changed.notify_all()

    def submit(self, speech: Speech, give: TranscriptListener) -> None:
        """Transcribe this, too; `give` gets the transcript. Nothing happens while there is no model."""
        refused: list[tuple[Speech, TranscriptListener]] = []
        with self._changed:
            if self._folder is None:
                return
            problem = self._problem or _BUSY
            self._waiting.append((speech, give))
            while self._waiting and (self._problem or self._waiting_s > _MOST_WAITING_S):
                refused.append(self._waiting.popleft())
            self._changed.notify_all()
        for known, give_up in refused:
            give_up(TranscribedSpeech(seconds=known.seconds, problem=problem))

    def wait(self, limit_s: float) -> bool:
        """Wait until all that was submitted is answered; False if it was not in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._is_busy, limit_s)

    def close(self) -> None:
        """End child and thread; what waits gets no answer."""
        with self._changed:
            self._is_closing = True
            if self._child is not None:
                self._child.kill()
            self._changed.notify_all()

    @property
    def name(self) -> str:
        """What the model is called: the name of its folder; "" without one."""
        folder = self._folder
        return "" if folder is None else folder.resolve().name

    @property
    def _waiting_s(self) -> float:
        return sum(speech.seconds for speech, _ in self._waiting)

    # ---- transcription thread ----

    def run(self) -> None:
        """Body of the transcription thread."""
        while (found := self._next()) is not None:
            speech, give = found
            transcript = self._transcribed(speech)
            with self._changed:
                is_closing = self._is_closing
            if not is_closing:
                give(transcript)
            with self._changed:
                self._is_busy = False
                self._changed.notify_all()
        self._end_child()

    def _next(self) -> tuple[Speech, TranscriptListener] | None:
        """The next speech, None at the end. The child is started before there is any."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closing or self._waiting or self._has_wrong_child)
                if self._is_closing:
                    return None
                if self._waiting:
                    self._is_busy = True
                    return self._waiting.popleft()
            self._end_child()
            with contextlib.suppress(MossVoiceError):  # the next speech is told why
                self._start_child()

    @property
    def _has_wrong_child(self) -> bool:
        """Whether the child has another model than it should, or should not be there."""
        if self._child is None:
            return self._folder is not None and not self._failures
        return self._child.folder != self._folder

    def _transcribed(self, speech: Speech) -> TranscribedSpeech:
        if (problem := self._problem) is not None:
            return TranscribedSpeech(seconds=speech.seconds, problem=problem)
        try:
            if self._has_wrong_child:
                self._end_child()
            child = self._child or self._start_child()
            found = child.transcribe(speech)
        except _LateError as error:
            return self._failed(speech, error.problem, is_late=True)
        except MossVoiceError as error:
            return self._failed(speech, error.problem)
        except ValueError as error:  # the child, or its library, has printed into the socket
            return self._failed(speech, _not_transcribed(error))
        self._failures = 0
        if (said := found.get("error")) is not None:
            return TranscribedSpeech(seconds=speech.seconds, problem=_not_transcribed(said))
        text, language = str(found.get("text", "")), str(found.get("language", ""))
        return TranscribedSpeech(text.strip(), language, speech.seconds)

    def _failed(self, speech: Speech, problem: Problem, *, is_late: bool = False) -> TranscribedSpeech:
        """The child is of no use any more; the next speech gets another one, however often it `is_late`."""
        _log.warning("speech is not transcribed: %s", problem)
        self._end_child()
        with self._changed:
            self._failures = 1 if is_late else self._failures + 1
            if self._failures >= _MOST_FAILURES:
                self._problem = problem
        return TranscribedSpeech(seconds=speech.seconds, problem=problem)

    def _start_child(self) -> _Child:
        """Raises WhisperError."""
        with self._changed:
            folder = self._folder
        if folder is None:
            raise whisper.WhisperError("Transcription was switched off.")
        try:
            child = _Child(folder, self._command, self._limit_s)
        except MossVoiceError:
            self._failures = self._failures or 1
            raise
        with self._changed:
            self._child = child
            if self._is_closing:
                child.kill()
        return child

    def _end_child(self) -> None:
        with self._changed:
            child, self._child = self._child, None
        if child is not None:
            child.close()


def _not_transcribed(reason: object) -> Problem:
    return Problem("The speech cannot be transcribed ({reason}).", reason=reason)


class _LateError(whisper.WhisperError):
    """A child has not answered in time, perhaps because the processors were never free."""


class _Child:
    """A process with one model, and the socket to it. Transcription thread, apart from `kill`."""

    def __init__(self, folder: Path, command: Command, limit_s: float) -> None:
        """Raises WhisperError if it cannot be started."""
        self.folder, self._limit_s = folder, limit_s
        self._socket, other = socket.socketpair()
        self._socket.settimeout(limit_s)
        with other:
            try:
                self._process = subprocess.Popen(
                    command(folder, other.fileno()),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(other.fileno(),),
                    cwd=_PROGRAM,
                    env=os.environ | {"HF_HUB_OFFLINE": "1"},
                    # Ctrl-C is for this process, which then ends the child; its autogroup is its own, too.
                    start_new_session=True,
                )
            except OSError as error:
                self._socket.close()
                raise whisper.WhisperError(
                    "The transcription cannot be started: {reason}.", reason=error.strerror
                ) from error
            except MossVoiceError:
                self._socket.close()
                raise

    def transcribe(self, speech: Speech) -> dict[str, Any]:
        """The child's answer. Raises WhisperError if there is none."""
        resampler = Resampler(speech.sample_rate, whisper.SAMPLE_RATE)
        parts = [resampler.push(speech.pcm), resampler.finish()]
        samples = sum(map(len, parts))
        asked = {"samples": samples, "language": speech.language, "prompt": speech.prompt}
        # A child that could not load its model has said why before it closed the socket.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, TimeoutError):
            self._socket.sendall(json.dumps(asked).encode() + b"\n")
            for part in parts:
                self._socket.sendall(part.astype("<f4").tobytes())
        answer = self._answer()
        if (described := answer.get("problem")) is not None:
            raise whisper.WhisperError.from_problem(Problem.from_json(described))
        return answer

    def _answer(self) -> dict[str, Any]:
        line = b""
        try:
            while not line.endswith(b"\n"):
                if not (more := self._socket.recv(65_536)):
                    break
                line += more
        except TimeoutError:
            raise _LateError(
                "The transcription of a turn took more than {seconds:.0f} s and was ended.",
                "Use a smaller Whisper model.",
                seconds=self._limit_s,
            ) from None
        except OSError:
            pass
        if not line.endswith(b"\n"):
            raise whisper.WhisperError(
                "The process that transcribes has ended with status {status}.",
                "It is started again for the next turn.",
                status=self._end(),
            )
        answer: dict[str, Any] = json.loads(line)
        return answer

    def kill(self) -> None:
        """End the process at once. Any thread."""
        self._process.kill()

    def close(self) -> None:
        """End the process, which has nothing to finish."""
        self.kill()
        self._end()

    def _end(self) -> int:
        self._socket.close()
        try:
            return self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
