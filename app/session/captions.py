"""Captions of the user's speech in the window: what was said in a committed turn, in words.

In: the jobs of the turn driver, which pass through; transcripts, from the transcription thread, or from the
server that makes the replies, which may send them before the turn is committed. Out: a `TurnTranscribed` for
each committed turn, whenever it comes; nothing waits for it, and its transcription begins once the reply is
heard. `CaptionsNoticed` says why there is none, once for each reason. Dialog thread.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue

import numpy as np

from app.session.engine_jobs import (
    Cancel,
    Forget,
    Hear,
    Job,
    JobQueue,
    OpenTurn,
    Remove,
    Reopen,
    Restore,
    Transcribed,
)
from app.session.events import CaptionsNoticed, Event, TurnTranscribed
from app.session.transcriber import Speech, TranscribedSpeech, Transcriber
from engine_runtime.errors import Problem
from engine_runtime.types import Pcm


class Captions:
    """The `JobQueue` of a turn driver."""

    def __init__(self, jobs: JobQueue, transcriber: Transcriber, emit: Callable[[Event], None]) -> None:
        self._jobs, self._transcriber, self._emit = jobs, transcriber, emit
        self._answers: SimpleQueue[tuple[int, Speech, TranscribedSpeech]] = SimpleQueue()
        self._is_on = False
        self._rate = 0
        self._said: list[Pcm] = []
        """Speech of the open turn."""
        self._wanted: dict[int, Speech] = {}
        """Turn -> what was said in it when it was committed, until its words are there."""
        self._held: list[int] = []
        """Turns that are not being transcribed yet."""
        self._noticed: Problem | None = None
        self._open_id: int | None = None
        """The turn that is not committed."""
        self._early = ""
        """Words of it that the server has sent."""

    def use(self, model: Path | None) -> None:
        """Transcribe with the Whisper model in this folder from the next turn on; None for no captions."""
        self._is_on, self._noticed = model is not None, None
        self._transcriber.use(model)

    def use_engine(self, sample_rate: int) -> None:
        """Speech has this rate from now on."""
        self._rate = sample_rate

    def submit(self, job: Job) -> None:
        """Pass a job on, and remember the speech in it."""
        self._jobs.submit(job)
        match job:
            case OpenTurn(turn_id):
                self._said = []
                self._open_id, self._early = turn_id, ""
            case Hear(pcm=pcm):
                self._said.append(pcm)
            case Reopen(turn_id):
                self._wanted.pop(turn_id, None)
                self._open_id = turn_id
            case Cancel(turn_id) | Remove(turn_id):
                self._wanted.pop(turn_id, None)
            case Forget() | Restore():
                self._wanted.clear()

    def commit(self, turn_id: int) -> None:
        """The turn has all of its speech."""
        self._open_id = None
        if self._early:
            self._emit(TurnTranscribed(turn_id, self._early))
            self._early = ""
        if self._is_on and self._said:
            self._wanted[turn_id] = Speech(np.concatenate(self._said), self._rate)
            self._held.append(turn_id)

    def take(self, words: Transcribed) -> None:
        """What a server has heard, unless this program writes it down itself."""
        if self._is_on:
            return
        if words.turn_id == self._open_id:
            self._early = words.text
        else:
            self._emit(TurnTranscribed(words.turn_id, words.text))

    def service(self, *, is_awaited: bool = False) -> None:
        """Report the transcripts that have come; those of turns that were taken back are dropped. No other
        transcription begins while a reply `is_awaited`."""
        while self._held and not is_awaited:
            self._transcribe(self._held.pop(0))
        while True:
            try:
                turn_id, speech, transcript = self._answers.get_nowait()
            except Empty:
                return
            if self._wanted.get(turn_id) is not speech:
                continue
            del self._wanted[turn_id]
            if transcript.text:
                self._emit(TurnTranscribed(turn_id, transcript.text))
            if transcript.problem not in (None, self._noticed):
                self._noticed = transcript.problem
                self._emit(CaptionsNoticed(transcript.problem))

    def _transcribe(self, turn_id: int) -> None:
        if (speech := self._wanted.get(turn_id)) is not None:
            self._transcriber.submit(
                speech, lambda transcript: self._answers.put((turn_id, speech, transcript))
            )
