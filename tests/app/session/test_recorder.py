"""Recorded conversations: sample-exact sides, events on one line, private files, disk trouble."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import soundfile

from app.audio.wav import write_wav
from app.audio.wav_streams import WavSpeaker
from app.session.capture import Capture, CapturedBlock
from app.session.clocks import PendingWork
from app.session.commands import (
    ApplySettings,
    AskText,
    ContinueConversation,
    NewConversation,
    PlaySample,
    Start,
)
from app.session.conversation_folder import (
    RecordError,
    is_being_written,
    latest_open,
    list_conversations,
    lock,
    read_events,
    rename_conversation,
    sound_of,
)
from app.session.events import (
    ConversationContinued,
    ErrorRaised,
    PlaybackFinished,
    RecordingStopped,
    ReplyFinished,
    SampleFinished,
    TurnCommitted,
    TurnsRemoved,
)
from app.session.headless import run_file
from app.session.recorder import Begin, ConversationRecorder, Erase, Finish, Line, RecordWriter, Sound
from app.session.session_settings import Recording, SessionSettings
from app.session.transcript import how_to_continue
from engine_runtime.types import Modality, Pcm
from tests.doubles.scripted_engine import LoudnessVad, Script, ScriptedEngine
from tests.tools.session_driver import RATE, Driver, running, silence, speech


def settings(root: Path, **given: Any) -> SessionSettings:
    return SessionSettings(hear_samples=False, recording=Recording(root, name="one"), **given)


@pytest.fixture
def question(tmp_path: Path) -> tuple[Path, Pcm]:
    """Two questions of noise, as a 16-bit file holds them."""
    noise = np.random.default_rng(5).integers(-9_000, 9_000, RATE)
    levels = (noise / 32_768).astype(np.float32)
    pcm = np.concatenate([silence(0.5), levels, silence(1.5), levels, silence(1.5)])
    soundfile.write(tmp_path / "q.wav", pcm, RATE, subtype="PCM_16")
    return tmp_path / "q.wav", soundfile.read(tmp_path / "q.wav", dtype="float32")[0]


def ask(driver: Driver, path: Path) -> None:
    driver.session.send(PlaySample(path))
    driver.await_event(SampleFinished)


@pytest.mark.slow
def test_both_sides_are_sample_exact_on_one_line(tmp_path: Path, question: tuple[Path, Pcm]) -> None:
    path, asked = question
    played: list[Pcm] = []
    speaker = WavSpeaker(RATE, played.append)
    with running(ScriptedEngine(Script(chunks=3)), settings(tmp_path), speaker=speaker) as driver:
        ask(driver, path)
    both, rate = soundfile.read(tmp_path / "one" / "conversation.wav", dtype="float32")
    assert rate == RATE
    entries = list(read_events(tmp_path / "one"))
    committed = [entry for entry in entries if entry.get("event") == "TurnCommitted"]
    assert len(committed) == 2
    # The file waits while a reply is played; apart from that, and the silence after it, left is the file.
    loud = np.flatnonzero(both[:, 0])
    second = loud[np.flatnonzero(np.diff(loud) > RATE // 2)[0] + 1]
    for start, place in ((loud[0], np.flatnonzero(asked)[0]), (second, round(3.0 * RATE))):
        start -= int(np.flatnonzero(asked[place:])[0])
        assert np.array_equal(both[start : start + RATE, 0], asked[place : place + RATE])
    heard = np.concatenate(played)
    first = np.flatnonzero(heard)[0] - np.flatnonzero(both[:, 1])[0]
    length = min(len(heard) - max(first, 0), len(both) + min(first, 0))
    assert np.abs(heard[max(first, 0) :][:length] - both[max(-first, 0) :, 1][:length]).max() <= 0.5 / 32_768
    # Events are on the line: a reply starts when PlaybackStarted says so.
    starts = [entry["t"] for entry in entries if entry.get("event") == "PlaybackStarted"]
    sounding = np.flatnonzero(both[:, 1])
    begins = [sounding[0], *sounding[np.flatnonzero(np.diff(sounding) > RATE // 2) + 1]]
    assert [begin / RATE for begin in begins] == pytest.approx(starts, abs=0.03)


def test_nothing_is_kept_by_default(tmp_path: Path) -> None:
    with running(ScriptedEngine(), SessionSettings()) as driver:
        driver.session.send(AskText("a secret"))
        driver.await_event(ReplyFinished)
    assert SessionSettings().recording is None
    assert list(tmp_path.iterdir()) == []


def test_the_folder_says_what_was_said_and_is_private(tmp_path: Path) -> None:
    with running(ScriptedEngine(), settings(tmp_path / "kept", seed=7)) as driver:
        driver.session.send(AskText("what is two plus three"))
        driver.await_event(PlaybackFinished)
    (found,) = list_conversations(tmp_path / "kept")
    assert (found.turns, found.first_words) == (1, "what is two plus three")
    assert (found.bundle, found.is_ended, found.has_sound) == ("scripted", False, True)
    assert found.seconds > 1.0
    for place in (tmp_path / "kept", found.folder):
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
    files = {file.name for file in found.folder.iterdir()}
    assert {"conversation.json", "conversation.wav", "events.jsonl"} <= files
    assert {stat.S_IMODE(file.stat().st_mode) for file in found.folder.iterdir()} == {0o600}
    about = json.loads((found.folder / "conversation.json").read_text())
    assert about["settings"]["seed"] == 7
    entries = list(read_events(found.folder))
    assert entries[0] == {"t": 0.0, "command": "AskText", "text": "what is two plus three"}
    assert {"StateChanged", "TurnOpened", "ReplyTextDelta", "ReplyFinished"} <= {
        entry.get("event") for entry in entries
    }
    assert "voice_to_voice" not in {entry.get("timing") for entry in entries}
    assert "vocoder" in {entry.get("timing") for entry in entries}
    assert [entry["t"] for entry in entries] == sorted(entry["t"] for entry in entries)


@pytest.mark.slow
def test_texts_can_be_kept_without_sound(tmp_path: Path) -> None:
    recording = Recording(tmp_path, with_sound=False)
    with running(ScriptedEngine(), SessionSettings(recording=recording)) as driver:
        driver.session.send(AskText("hello"))
        driver.await_event(PlaybackFinished)
    (found,) = list_conversations(tmp_path)
    assert not found.has_sound
    assert not (found.folder / "conversation.wav").exists()


@pytest.mark.slow
def test_sound_is_packed_after_its_conversation_and_unpacked_to_be_continued(tmp_path: Path) -> None:
    kept = SessionSettings(recording=Recording(tmp_path, packs_sound=True))
    with running(ScriptedEngine(Script(chunks=1)), kept) as driver:
        driver.session.send(AskText("one"))
        driver.await_event(PlaybackFinished)
        driver.until(lambda: bool(list_conversations(tmp_path)))
        (found,) = list_conversations(tmp_path)
        driver.session.send(NewConversation())
        wav, packed = found.folder / "conversation.wav", found.folder / "conversation.flac"
        driver.until(lambda: packed.is_file() and not wav.is_file())
    assert sound_of(found.folder) == packed
    first, _ = soundfile.read(packed, dtype="int16")
    assert first[:, 1].any()
    with running(ScriptedEngine(Script(chunks=1)), kept) as driver:
        driver.session.send(how_to_continue(found.folder))
        driver.await_event(ConversationContinued)
        driver.session.send(AskText("two"))
        driver.await_event(PlaybackFinished)
    both, _ = soundfile.read(wav, dtype="int16")
    assert not packed.exists()
    assert np.array_equal(both[: len(first)], first)
    assert both[len(first) :, 1].any()


@pytest.mark.slow
def test_a_title_that_is_given_meanwhile_stays(tmp_path: Path) -> None:
    with running(ScriptedEngine(), settings(tmp_path, reply=Modality.TEXT)) as driver:
        driver.session.send(AskText("one"))
        driver.await_event(ReplyFinished)
        driver.until(lambda: bool(list_conversations(tmp_path)))
        rename_conversation(tmp_path / "one", "About numbers")
        driver.session.send(AskText("two"))
        driver.await_event(ReplyFinished, 2)
    (found,) = list_conversations(tmp_path)
    assert (found.title, found.turns) == ("About numbers", 2)


@pytest.mark.slow
def test_sound_of_earlier_conversations_is_packed_when_the_program_starts(tmp_path: Path) -> None:
    for name in ("earlier", "latest"):
        recording = Recording(tmp_path, name=name)
        with running(ScriptedEngine(Script(chunks=1)), SessionSettings(recording=recording)) as driver:
            driver.session.send(AskText("hello"))
            driver.await_event(PlaybackFinished)
    packs = SessionSettings(recording=Recording(tmp_path, packs_sound=True))
    with running(ScriptedEngine(), packs) as driver:
        driver.until(lambda: (tmp_path / "earlier" / "conversation.flac").is_file())
        driver.until(lambda: not (tmp_path / "earlier" / "conversation.wav").is_file())
    assert (tmp_path / "latest" / "conversation.wav").is_file(), "it may be continued"


@pytest.mark.slow
def test_each_conversation_has_a_folder_and_one_without_a_turn_leaves_none(tmp_path: Path) -> None:
    with running(ScriptedEngine(), settings(tmp_path, reply=Modality.TEXT)) as driver:
        for count in (1, 2):
            driver.session.send(AskText(f"question {count}"))
            driver.await_event(ReplyFinished, count)
            driver.session.send(NewConversation())
        driver.session.send(Start())
        driver.await_event(ErrorRaised)  # there is no microphone
    found = list_conversations(tmp_path)
    assert sorted(summary.first_words for summary in found) == ["question 1", "question 2"]
    assert all(summary.is_ended for summary in found)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_muted_microphone_is_recorded_as_silence(tmp_path: Path) -> None:
    class Microphone(WavSpeaker):
        def sample_time_ns(self, index: float) -> int:
            return round(index * 1e9 / RATE)

    capture = Capture(LoudnessVad(), 100)
    blocks: list[CapturedBlock] = []
    source = Microphone(RATE)
    capture.listener = blocks.append
    capture.attach(source)  # type: ignore[arg-type]
    for is_muted in (False, True):
        source.ring.write(speech(0.1))
        list(capture.frames(is_muted=is_muted))
    assert [bool(block.pcm.any()) for block in blocks] == [True, False]
    assert [block.is_new for block in blocks] == [True, False]
    assert blocks[1].first_ns == 100_000_000


@pytest.mark.slow
@pytest.mark.parametrize("trouble", ["full", "deleted", "no folder"])
def test_trouble_is_said_once_and_the_conversation_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    root = tmp_path / "kept"
    if trouble == "no folder":
        root.write_text("a file is in the way")
    with running(ScriptedEngine(), settings(root)) as driver:
        driver.session.send(AskText("first"))
        driver.await_event(PlaybackFinished)
        if trouble == "full":
            _fill_disk(monkeypatch)
        elif trouble == "deleted":
            shutil.rmtree(root)
        for count in (2, 3):
            driver.session.send(AskText(f"question {count}"))
            driver.await_event(PlaybackFinished, count)
        assert len(driver.of(TurnCommitted)) == 3
        (problem,) = driver.of(RecordingStopped)
    monkeypatch.undo()
    assert problem.problem.what_is_wrong
    assert problem.problem.what_to_do
    if trouble == "full":
        assert "disk is full" in problem.problem.what_is_wrong
        (found,) = list_conversations(root)
        assert problem.folder == str(found.folder)
        assert found.first_words == "first"
        both, _ = soundfile.read(found.folder / "conversation.wav")
        assert both[:, 1].any()
        assert any(entry.get("event") == "ReplyFinished" for entry in read_events(found.folder))


def _fill_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, content: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)


@pytest.mark.slow
def test_recording_can_be_switched_on_and_off_during_a_conversation(tmp_path: Path) -> None:
    with running(ScriptedEngine(Script(chunks=1)), SessionSettings()) as driver:
        for count, wanted in enumerate((None, Recording(tmp_path), None), 1):
            driver.session.send(ApplySettings(SessionSettings(recording=wanted)))
            driver.session.send(AskText(f"question {count}"))
            driver.await_event(PlaybackFinished, count)
    (found,) = list_conversations(tmp_path)
    assert (found.turns, found.first_words) == (1, "question 2")
    assert "question 3" not in (found.folder / "events.jsonl").read_text()


@pytest.mark.slow
def test_a_microphone_that_was_recorded_at_another_rate_is_heard_right(tmp_path: Path) -> None:
    tone = (0.3 * np.sin(2 * np.pi * 300 * np.arange(24_000) / 24_000)).astype(np.float32)
    write_wav(tmp_path / "q.wav", np.concatenate([tone, np.zeros(30_000, np.float32)]), 24_000)
    with running(ScriptedEngine(Script(chunks=1)), settings(tmp_path)) as driver:
        ask(driver, tmp_path / "q.wav")
    both, rate = soundfile.read(tmp_path / "one" / "conversation.wav")
    assert rate == 24_000
    assert np.sqrt(np.mean(both[6_000:18_000, 0] ** 2)) == pytest.approx(0.3 / 2**0.5, rel=0.02)


class Jobs:
    """A writer that keeps its jobs."""

    def __init__(self) -> None:
        self.problems: SimpleQueue[Any] = SimpleQueue()
        self.backlog = 0
        self.jobs: list[Any] = []

    def submit(self, job: Any) -> None:
        self.jobs.append(job)


class Hours:
    """A clock that is set."""

    seconds = 0.0

    def now_ns(self) -> int:
        return round(self.seconds * 1e9)


def make_recorder(jobs: Jobs, clock: Hours) -> tuple[ConversationRecorder, Callable[[CapturedBlock], None]]:
    """A recorder that keeps all, and what it gets captured blocks by."""
    speaker = WavSpeaker(RATE)
    capture = Capture(LoudnessVad(), 100)
    recorder = ConversationRecorder(jobs, capture, speaker, clock, lambda _: None)  # type: ignore[arg-type]
    recorder.apply(SessionSettings(recording=Recording(Path("kept"))))
    assert capture.listener is not None
    return recorder, capture.listener


def test_a_pause_of_hours_without_sound_takes_no_room() -> None:
    """Nothing was heard or played: the first sound after it comes right after the last event."""
    jobs, clock = Jobs(), Hours()
    recorder, hear = make_recorder(jobs, clock)
    recorder.note(AskText("good night"))
    for _ in range(12):
        clock.seconds += 3_600.0
        recorder.service(clock.now_ns())
    recorder.note(AskText("good morning"))
    places = [job.t for job in jobs.jobs if isinstance(job, Line)]
    assert places == [0.0, pytest.approx(2.0)]
    block = CapturedBlock(speech(1.0), RATE, clock.now_ns(), is_new=True, is_file=False)
    hear(block)
    clock.seconds += 1.0
    recorder.end(is_ended=False)
    frames = sum(len(job.frames) for job in jobs.jobs if isinstance(job, Sound))
    assert frames == pytest.approx(3.0 * RATE, abs=RATE // 10)


@pytest.mark.parametrize(("silence_s", "is_same"), [(60.0, True), (3_600.0, False), (2e6, False)])
def test_no_hours_of_silence_are_written_to_continue_a_conversation(silence_s: float, is_same: bool) -> None:
    jobs, clock = Jobs(), Hours()
    recorder, _ = make_recorder(jobs, clock)
    folder = Path("kept") / "one"
    recorder.note(ContinueConversation(folder, {}, 1, 10.0 + silence_s, RATE, 10.0))
    recorder.settle(is_continued=True)
    recorder.note(AskText("three"))
    (begin,) = [job for job in jobs.jobs if isinstance(job, Begin)]
    assert begin.folder == (folder if is_same else None)


def test_nothing_is_erased_in_the_current_folder_by_a_conversation_without_one() -> None:
    jobs, clock = Jobs(), Hours()
    recorder, _ = make_recorder(jobs, clock)
    recorder.note(ContinueConversation(Path(), {}, 0, 0.0))
    recorder.settle(is_continued=True)
    recorder.note(TurnsRemoved((1,), is_deleted=True))
    assert jobs.jobs == []
    recorder.note(AskText("again"))
    recorder.note(TurnsRemoved((1,), is_deleted=True))
    assert [job.folder for job in jobs.jobs if isinstance(job, Erase)] == [None]


def test_the_conversation_after_one_that_could_not_be_written_is_recorded() -> None:
    jobs, clock = Jobs(), Hours()
    recorder, _ = make_recorder(jobs, clock)
    recorder.note(AskText("one"))
    jobs.problems.put((Path("kept") / "one", RecordError("The disk is full.", "Free some space.")))
    recorder.service(clock.now_ns())
    recorder.note(AskText("of the same conversation"))
    recorder.end(is_ended=True)
    recorder.note(AskText("of the next one"))
    asked = [job.what.text for job in jobs.jobs if isinstance(job, Line) and isinstance(job.what, AskText)]
    assert asked == ["one", "of the next one"]
    assert [job.is_same for job in jobs.jobs if isinstance(job, Begin)] == [False, False]


def test_a_new_conversation_is_not_recorded_as_the_one_that_could_be_continued() -> None:
    jobs, clock = Jobs(), Hours()
    recorder, _ = make_recorder(jobs, clock)
    recorder.note(ContinueConversation(Path("kept") / "one", {}, 1, 10.0, RATE, 10.0))
    recorder.settle(is_continued=True)
    recorder.end(is_ended=True)
    recorder.note(AskText("something else"))
    assert [job.folder for job in jobs.jobs if isinstance(job, Begin)] == [None]


@pytest.mark.slow
def test_a_new_conversation_ends_the_one_of_the_start_also_if_nothing_is_said(tmp_path: Path) -> None:
    with running(ScriptedEngine(Script(chunks=1)), settings(tmp_path)) as driver:
        driver.session.send(AskText("mine"))
        driver.await_event(PlaybackFinished)
    earlier = latest_open(tmp_path)
    assert earlier is not None
    with running(ScriptedEngine(Script(chunks=1)), settings(tmp_path)) as driver:
        driver.session.send(how_to_continue(earlier.folder))
        driver.await_event(ConversationContinued)
        driver.session.send(NewConversation())
        driver.until(lambda: latest_open(tmp_path) is None)
    (found,) = list_conversations(tmp_path)
    assert dataclasses.replace(found, is_ended=False, size_bytes=0) == dataclasses.replace(
        earlier, size_bytes=0
    )


def test_a_conversation_that_is_gone_cannot_end(tmp_path: Path) -> None:
    writer = RecordWriter(PendingWork())
    writer.submit(Finish(tmp_path / "gone"))
    writer.submit(None)
    writer.run()
    assert writer.problems.empty()


def test_a_folder_that_cannot_be_written_is_left_to_others(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    (folder / "events.jsonl").mkdir(parents=True)
    (folder / "conversation.json").write_text(
        '{"format": 1, "started": "2026-01-01", "seconds": 1, "turns": 1, "first_words": "",'
        ' "is_ended": false}'
    )
    writer = RecordWriter(PendingWork())
    writer.submit(Begin(Recording(tmp_path), folder, {}))
    writer.submit(None)
    writer.run()
    assert "Is a directory" in str(writer.problems.get_nowait()[1])
    assert not is_being_written(folder)


@pytest.mark.slow
def test_a_conversation_that_another_program_writes_is_left_alone(tmp_path: Path) -> None:
    with running(ScriptedEngine(Script(chunks=1)), settings(tmp_path)) as driver:
        driver.session.send(AskText("mine"))
        driver.await_event(PlaybackFinished)
    folder = tmp_path / "one"
    before = {file: file.read_bytes() for file in folder.iterdir()}
    elsewhere = lock(folder)
    with running(ScriptedEngine(Script(chunks=1)), settings(tmp_path)) as driver:
        driver.session.send(how_to_continue(folder))
        driver.await_event(ConversationContinued)
        driver.session.send(AskText("of the second one"))
        problem = driver.await_event(RecordingStopped)
        driver.await_event(PlaybackFinished)  # the conversation itself goes on
    os.close(elsewhere)
    assert "is being written by another window" in problem.problem.what_is_wrong
    assert {file: file.read_bytes() for file in folder.iterdir()} == before


@pytest.mark.slow
def test_the_sound_of_a_conversation_is_private(tmp_path: Path, question: tuple[Path, Pcm]) -> None:
    mask = os.umask(0o022)
    try:
        run_file(
            ScriptedEngine,
            wav_in=question[0],
            record=tmp_path / "both.wav",
            vad=LoudnessVad(),
            realtime=False,
        )
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "both.wav").stat().st_mode) == 0o600
