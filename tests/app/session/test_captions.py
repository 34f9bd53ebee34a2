"""Contract of the captions: the speech of committed turns, and what comes of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from app.session.captions import Captions
from app.session.commands import ApplySettings, PlaySample
from app.session.engine_jobs import Ask, Cancel, Commit, Forget, Hear, Job, OpenTurn, Reopen, Transcribed
from app.session.events import (
    CaptionsNoticed,
    Event,
    PlaybackFinished,
    ReplyFinished,
    TurnCommitted,
    TurnTranscribed,
)
from app.session.headless import run_file
from app.session.session_settings import SessionSettings
from app.session.transcriber import Speech, TranscribedSpeech, Transcriber, TranscriptListener
from app.session.transcript import read_transcript, turn_texts
from engine_runtime.errors import Problem
from engine_runtime.types import CancelScope, Modality, Pcm
from tests.doubles import transcriber_child
from tests.doubles.scripted_engine import LoudnessVad, ScriptedEngine
from tests.tools.session_driver import running, silence, speech, write_question

MODEL = Path("whisper-base")


class Rig(Transcriber):
    """Captions with a transcriber whose answers the test gives."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[Speech, TranscriptListener]] = []
        self.jobs: list[Job] = []
        self.events: list[Event] = []
        self.captions = Captions(self, self, self.events.append)
        self.captions.use(MODEL)
        self.captions.use_engine(16_000)

    def submit(self, job: Job | Speech, give: TranscriptListener | None = None) -> None:
        """A job passes through, a speech waits."""
        if isinstance(job, Speech):
            assert give is not None
            self.asked.append((job, give))
        else:
            self.jobs.append(job)

    def hear(self, turn_id: int, *samples: int) -> None:
        """A turn of blocks of so many samples is committed."""
        self.captions.submit(OpenTurn(turn_id, Modality.SPEECH, CancelScope()))
        self.go_on(turn_id, *samples)

    def go_on(self, turn_id: int, *samples: int) -> None:
        """The turn has more blocks, and is committed again."""
        for size in samples:
            self.captions.submit(Hear(turn_id, np.zeros(size, np.float32)))
        self.captions.commit(turn_id)
        self.captions.service()

    def answer(self, place: int, text: str = "", problem: Problem | None = None) -> list[Event]:
        """What an answer brings."""
        before = len(self.events)
        self.asked[place][1](TranscribedSpeech(text, problem=problem))
        self.captions.service()
        return self.events[before:]


def test_a_committed_turn_is_transcribed_as_a_whole() -> None:
    rig = Rig()
    rig.hear(1, 800, 400)
    assert [type(job) for job in rig.jobs] == [OpenTurn, Hear, Hear]
    ((speech, _),) = rig.asked
    assert (len(speech.pcm), speech.sample_rate) == (1_200, 16_000)
    rig.hear(2, 80)
    assert rig.answer(1, "two") == [TurnTranscribed(2, "two")]
    assert rig.answer(0, "one") == [TurnTranscribed(1, "one")]


def test_the_words_of_a_server_come_after_the_commit() -> None:
    rig = Rig()
    rig.captions.use(None)
    rig.captions.submit(OpenTurn(1, Modality.SPEECH, CancelScope()))
    rig.captions.take(Transcribed(1, "what"))  # of a pause that the server was told of
    assert rig.events == []
    rig.captions.commit(1)
    assert rig.events == [TurnTranscribed(1, "what")]
    rig.captions.submit(Reopen(1, CancelScope()))
    rig.captions.take(Transcribed(1, "what is"))
    assert len(rig.events) == 1
    rig.captions.commit(1)
    rig.captions.take(Transcribed(1, "what is it"))
    assert rig.events[1:] == [TurnTranscribed(1, "what is"), TurnTranscribed(1, "what is it")]
    rig.captions.submit(OpenTurn(2, Modality.SPEECH, CancelScope()))
    rig.captions.commit(2)
    assert len(rig.events) == 3, "nobody has words of it"
    rig.captions.use(MODEL)
    rig.captions.take(Transcribed(2, "two"))
    assert len(rig.events) == 3, "this program writes it down itself"


def test_words_of_a_turn_that_continues_are_those_of_all_of_it() -> None:
    rig = Rig()
    rig.hear(1, 800)
    rig.captions.submit(Reopen(1, CancelScope()))
    rig.go_on(1, 400)
    assert rig.answer(0, "what is") == [], "the user went on"
    assert len(rig.asked[1][0].pcm) == 1_200
    assert rig.answer(1, "what is two") == [TurnTranscribed(1, "what is two")]


def test_transcription_begins_once_the_reply_is_heard() -> None:
    rig = Rig()
    rig.captions.submit(OpenTurn(1, Modality.SPEECH, CancelScope()))
    rig.captions.submit(Hear(1, np.zeros(80, np.float32)))
    rig.captions.commit(1)
    rig.captions.service(is_awaited=True)
    assert not rig.asked
    rig.captions.service()
    rig.captions.service()
    assert len(rig.asked) == 1
    rig.captions.commit(1)
    rig.captions.submit(Reopen(1, CancelScope()))
    rig.captions.service()
    assert len(rig.asked) == 1, "the user went on"


@pytest.mark.parametrize("job", [Cancel(1), Forget()])
def test_words_of_a_turn_that_is_gone_are_dropped(job: Job) -> None:
    rig = Rig()
    rig.hear(1, 800)
    rig.captions.submit(job)
    assert rig.answer(0, "gone") == []


def test_a_reason_is_told_once() -> None:
    rig = Rig()
    for turn_id in (1, 2, 3):
        rig.hear(turn_id, 80)
    problem = Problem("The process has ended.")
    assert rig.answer(0, problem=problem) == [CaptionsNoticed(problem)]
    assert rig.answer(1, problem=problem) == []
    assert rig.answer(2) == [], "nothing was said in it"


def test_typed_questions_and_captions_that_are_off_cost_nothing() -> None:
    rig = Rig()
    rig.captions.submit(OpenTurn(1, Modality.SPEECH, CancelScope()))
    rig.captions.submit(Ask(1, "what is two"))
    rig.captions.submit(Commit(1, Modality.SPEECH, None, CancelScope()))
    rig.captions.commit(1)
    rig.captions.use(None)
    rig.hear(2, 80)
    assert not rig.asked


def spoken(tmp_path: Path) -> Path:
    parts: list[Pcm] = [silence(0.5), speech(1.0), silence(1.5)]
    return write_question(tmp_path / "question.wav", *parts)


@pytest.mark.slow
def test_captions_of_a_session_that_switches_them_on(tmp_path: Path) -> None:
    (tmp_path / "words").mkdir()
    with running(ScriptedEngine(), transcriber=Transcriber(transcriber_child.command)) as driver:
        driver.session.send(PlaySample(spoken(tmp_path)))
        driver.await_event(PlaybackFinished)
        settings = SessionSettings(hear_samples=False, captions=tmp_path / "words")
        driver.session.send(ApplySettings(settings))
        driver.session.send(PlaySample(spoken(tmp_path)))
        found = driver.await_event(TurnTranscribed)
        driver.await_event(PlaybackFinished, 2)
        assert (found.turn_id, len(driver.of(TurnTranscribed))) == (2, 1)
        assert int(found.text) == pytest.approx(16_000 * driver.of(TurnCommitted)[1].seconds, abs=16_000)


@pytest.mark.slow
def test_a_crash_of_the_child_does_not_end_the_session(tmp_path: Path) -> None:
    (tmp_path / "crash").mkdir()
    settings = SessionSettings(hear_samples=False, captions=tmp_path / "crash")
    with running(ScriptedEngine(), settings, transcriber=Transcriber(transcriber_child.command)) as driver:
        for count in (1, 2):
            driver.session.send(PlaySample(spoken(tmp_path)))
            driver.await_event(PlaybackFinished, count)
        notice = driver.await_event(CaptionsNoticed)
        assert "has ended with status 3" in str(notice.problem)
        assert len(driver.of(ReplyFinished)) == 2


@pytest.mark.slow
def test_captions_are_in_the_report_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "words").mkdir()
    transcriber = Transcriber(transcriber_child.command)
    monkeypatch.setattr("app.session.session.Transcriber", lambda: transcriber)
    report = run_file(
        ScriptedEngine,
        wav_in=spoken(tmp_path),
        settings=SessionSettings(captions=tmp_path / "words"),
        record=tmp_path / "kept",
        vad=LoudnessVad(),
    )
    (turn,) = report["turns"]
    assert int(turn["user"]["text"]) > 16_000
    (kept,) = turn_texts(known.event for known in read_transcript(tmp_path / "kept"))
    assert kept.question == turn["user"]["text"]
