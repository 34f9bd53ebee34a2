"""A complete session on a virtual clock: jobs of the engine, played audio, events."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app import heap
from app.audio.wav_streams import WavMicrophone, WavSpeaker
from app.session.commands import (
    ApplySettings,
    AskText,
    CancelTurn,
    NewConversation,
    PlayAgain,
    PlaySample,
    SetReply,
    SetVolume,
    Start,
    Stop,
)
from app.session.events import (
    Counters,
    DevicesChanged,
    EngineReady,
    ErrorRaised,
    Levels,
    PlaybackFinished,
    PlaybackLevel,
    PlaybackStarted,
    ReplyFinished,
    ReplyTextDelta,
    SampleFinished,
    SampleProgress,
    SampleStarted,
    SessionState,
    SpeculationMeasured,
    StateChanged,
    Timing,
    TurnCancelled,
    TurnCommitted,
    TurnExtended,
    TurnOpened,
)
from app.session.session import Session
from app.session.session_settings import SessionSettings
from app.session.start_policy import MARGIN_MS
from engine_runtime.errors import MossVoiceError, Problem
from engine_runtime.types import Modality, Pcm, SamplingParams
from tests.doubles.scripted_engine import OUT_RATE, LoudnessVad, Script, ScriptedEngine
from tests.tools.session_driver import NoMicrophone, running, silence, speech, write_question


def timings(driver: object, name: str) -> list[float]:
    return [event.event.duration_ms for event in driver.of(Timing) if event.event.name == name]  # type: ignore[attr-defined]


@pytest.fixture
def question(tmp_path: Path) -> Path:
    return write_question(tmp_path / "question.wav", silence(0.8), speech(1.0), silence(0.3))


@pytest.mark.slow
def test_a_spoken_question_is_answered_in_order(question: Path) -> None:
    heard: list[Pcm] = []
    with running(ScriptedEngine(), speaker=WavSpeaker(48_000, heard.append)) as driver:
        driver.session.send(PlaySample(question))
        driver.await_event(StateChanged, 8)
        order = [
            type(event)
            for event in driver.events
            if not isinstance(
                event,
                Levels
                | PlaybackLevel
                | SampleProgress
                | Timing
                | Counters
                | DevicesChanged
                | StateChanged
                | SpeculationMeasured,
            )
        ]
    assert order[:4] == [EngineReady, SampleStarted, TurnOpened, TurnCommitted]
    assert order[-2:] == [PlaybackFinished, SampleFinished]
    assert order.count(ReplyTextDelta) == 3
    assert order.index(PlaybackStarted) > order.index(ReplyTextDelta)
    states = [event.state for event in driver.of(StateChanged)]
    assert states == [
        SessionState.LOADING,
        SessionState.STOPPED,
        SessionState.LISTENING,
        SessionState.HEARING,
        SessionState.THINKING,
        SessionState.SPEAKING,
        SessionState.LISTENING,
        SessionState.STOPPED,
    ]
    committed, finished = driver.of(TurnCommitted)[0], driver.of(ReplyFinished)[0]
    assert committed.seconds == pytest.approx(1.0, abs=0.07)
    assert committed.start_s == pytest.approx(0.8, abs=0.04)
    assert finished.seconds == pytest.approx(1.2)
    assert finished.text == "word0 word1 word2 "
    assert finished.codes == 15
    assert finished.user_codes == len(np.concatenate(driver.engine.turns[0].heard)) // 1_280
    # What the engine heard: pre-roll, speech and tail, but not the silence before and after.
    assert sum(map(len, driver.engine.turns[0].heard)) / 16_000 == pytest.approx(0.32 + 1.0 + 0.16, abs=0.08)
    # The loudspeaker played the complete reply without a gap.
    played = np.concatenate(heard)
    loud = np.flatnonzero(np.abs(played) > 0.01)
    assert (loud[-1] - loud[0]) / 48_000 == pytest.approx(1.2, abs=0.01)
    assert np.abs(played).max() == pytest.approx(0.5, abs=0.01)
    assert driver.engine.is_closed


@pytest.mark.slow
def test_latencies_are_those_of_the_conversation(question: Path) -> None:
    with running(
        ScriptedEngine(Script(step_s=0.1, chunk_s=0.3)),
        SessionSettings(playback_start_ms=200, speculate="off"),
    ) as driver:
        driver.session.send(PlaySample(question))
        driver.await_event(SampleFinished)
    endpointing = timings(driver, "endpointing")
    assert endpointing == [pytest.approx(640, abs=60)]
    # The first chunk takes 100 ms after the commit and is long enough to start the playback at once.
    assert timings(driver, "voice_to_voice") == [pytest.approx(endpointing[0] + 100, abs=60)]
    assert driver.of(Counters) == []


@pytest.mark.slow
def test_a_slow_engine_is_late_on_the_virtual_clock_too(question: Path) -> None:
    with running(
        ScriptedEngine(Script(chunks=8, step_s=0.25, chunk_s=0.12)),
        SessionSettings(playback_start_ms=200, speculate="off"),
    ) as driver:
        driver.session.send(PlaySample(question))
        driver.await_event(SampleFinished)
    # 120 ms chunks every 250 ms: three of them, and 200 ms, cover twice 250 ms; later it runs dry.
    assert timings(driver, "voice_to_voice")[0] == pytest.approx(640 + 750 + 200, abs=90)
    assert driver.of(Counters)[-1].underruns >= 1
    assert timings(driver, "underrun")


@pytest.mark.slow
def test_a_reply_is_held_after_one_that_ran_dry(question: Path) -> None:
    engine = ScriptedEngine(Script(chunks=6, step_s=0.05, chunk_s=0.3, pauses_s=(0.0, 0.0, 0.0, 0.95)))
    with running(engine, SessionSettings(playback_start_ms=200, speculate="off")) as driver:
        driver.session.send(PlaySample(question))
        driver.await_event(SampleFinished)
        assert driver.of(Counters)[-1].underruns == 1
        engine.script = replace(engine.script, pauses_s=(0.0, 0.0, 0.0, 0.8))
        driver.session.send(PlaySample(question))
        driver.await_event(SampleFinished, 2)
    assert driver.of(Counters)[-1].underruns == 1
    holds = [event.event for event in driver.of(Timing) if event.event.name == "playback_hold"]
    assert [hold.attributes["reason"] for hold in holds] == ["at_once", "lateness"]
    # The fourth chunk came 1,100 ms after the first, when 900 ms had been made.
    target_ms = holds[1].attributes["target_ms"]
    assert target_ms == pytest.approx(200 + MARGIN_MS, abs=60)
    assert holds[1].duration_ms == pytest.approx(target_ms, abs=20)


@pytest.mark.slow
def test_each_reply_ends_before_the_file_continues(tmp_path: Path) -> None:
    path = write_question(
        tmp_path / "three.wav",
        silence(0.5),
        *[part for _ in range(3) for part in (speech(0.6), silence(1.0))],
    )
    with running(ScriptedEngine(Script(chunks=10))) as driver:
        driver.session.send(PlaySample(path))
        driver.await_event(SampleFinished)
    marks = [type(e) for e in driver.events if isinstance(e, TurnOpened | PlaybackFinished)]
    assert marks == [TurnOpened, PlaybackFinished] * 3
    assert [event.start_s for event in driver.of(TurnCommitted)] == [
        pytest.approx(start, abs=0.05) for start in (0.5, 2.1, 3.7)
    ]
    assert driver.of(TurnCancelled) == []


@pytest.mark.slow
def test_the_users_going_on_takes_the_commit_back(tmp_path: Path) -> None:
    gate = threading.Event()
    engine = ScriptedEngine(Script(gate=gate))
    path = write_question(
        tmp_path / "pause.wav", silence(0.4), speech(0.6), silence(0.9), speech(0.5), silence(0.8)
    )
    with running(engine, microphone=WavMicrophone(path)) as driver:
        driver.session.send(Start())
        driver.await_event(TurnCommitted, 2)
        gate.set()
        driver.await_event(PlaybackFinished)
    assert [event.turn_id for event in driver.of(TurnExtended)] == [1]
    assert {event.turn_id for event in driver.of(TurnOpened)} == {1}
    assert engine.names_of(1) == ["open", "push", "commit", "reopen", "push", "commit"]
    # The pause in the middle belongs to the turn.
    heard_s = sum(map(len, engine.turns[0].heard)) / 16_000
    assert heard_s == pytest.approx(0.32 + 0.6 + 0.9 + 0.5 + 0.16, abs=0.1)
    assert len(driver.of(ReplyFinished)) == 1


@pytest.mark.slow
def test_barge_in_stops_the_reply_and_opens_a_turn(tmp_path: Path) -> None:
    heard: list[Pcm] = []
    # The second burst comes while the reply (4 s) is being played.
    path = write_question(
        tmp_path / "barge.wav", silence(0.4), speech(0.6), silence(2.0), speech(0.8), silence(6.0)
    )
    with running(
        ScriptedEngine(Script(chunks=10)),
        SessionSettings(hear_samples=False, overlap="pause"),
        microphone=WavMicrophone(path),
        speaker=WavSpeaker(48_000, heard.append),
    ) as driver:
        driver.session.send(Start())
        driver.await_event(PlaybackFinished)
    cancelled = driver.of(TurnCancelled)
    assert [(event.turn_id, event.reason) for event in cancelled] == [(1, "barge_in")]
    opened = driver.of(TurnOpened)[1]
    assert opened.turn_id == 2
    assert driver.events.index(cancelled[0]) < driver.events.index(opened)
    assert [event.turn_id for event in driver.of(PlaybackFinished)] == [2]
    loud = np.flatnonzero(np.abs(np.concatenate(heard)) > 0.01)
    silences = np.diff(loud)
    assert silences.max() / 48_000 > 1.0  # quiet while the user spoke and the second reply was awaited


@pytest.mark.slow
def test_barge_in_can_be_switched_off(tmp_path: Path) -> None:
    from dataclasses import replace

    settings = SessionSettings()
    settings = replace(settings, turn_taking=replace(settings.turn_taking, barge_in=False))
    path = write_question(
        tmp_path / "barge.wav", silence(0.4), speech(0.6), silence(2.0), speech(0.8), silence(6.0)
    )
    with running(ScriptedEngine(Script(chunks=10)), settings, microphone=WavMicrophone(path)) as driver:
        driver.session.send(Start())
        driver.await_event(PlaybackFinished)
        assert driver.of(TurnCancelled) == []
        assert len(driver.of(TurnOpened)) == 1


@pytest.mark.slow
def test_a_sample_can_be_heard_by_the_user(tmp_path: Path) -> None:
    heard: list[Pcm] = []
    parts = (silence(0.4), speech(0.8), silence(1.0), speech(0.5), silence(0.2))
    path = write_question(tmp_path / "two.wav", *parts)
    settings = SessionSettings(hear_samples=True)
    with running(ScriptedEngine(), settings, speaker=WavSpeaker(48_000, heard.append)) as driver:
        driver.session.send(PlaySample(path))
        driver.await_event(SampleFinished)
    played = np.concatenate(heard)
    loud = np.flatnonzero(np.abs(played) > 0.05)
    edges = np.flatnonzero(np.diff(loud) > 4_800)
    lengths = [(part[-1] - part[0]) / 48_000 for part in np.split(loud, edges + 1)]
    assert lengths == [
        pytest.approx(s, abs=0.02) for s in (0.8, 1.2, 0.5, 1.2)
    ]  # question, reply, question, reply
    assert driver.of(Counters) == []


@pytest.mark.slow
def test_a_cough_is_no_turn(tmp_path: Path) -> None:
    path = write_question(tmp_path / "cough.wav", silence(0.4), speech(0.11), silence(1.0))
    with running(ScriptedEngine()) as driver:
        driver.session.send(PlaySample(path))
        driver.await_event(SampleFinished)
        driver.until(lambda: "cancel" in driver.engine.names_of(1))
    assert [event.reason for event in driver.of(TurnCancelled)] == ["too_short"]
    assert driver.of(TurnCommitted) == []
    assert "commit" not in driver.engine.names_of(1)


@pytest.mark.slow
@pytest.mark.parametrize("modality", list(Modality))
def test_a_typed_question_needs_no_microphone(modality: Modality) -> None:
    with running(ScriptedEngine()) as driver:
        driver.session.send(SetReply(modality))
        driver.session.send(AskText("  what is it?  "))
        finished = driver.await_event(ReplyFinished)
        driver.until(
            lambda: (
                driver.of(StateChanged)[-1].state is SessionState.STOPPED and len(driver.of(StateChanged)) > 3
            )
        )
    assert driver.of(TurnOpened)[0].text == "what is it?"
    assert ("push_text", 1, "what is it?") in driver.engine.calls
    assert finished.modality is modality
    assert finished.seconds == (pytest.approx(1.2) if modality is Modality.SPEECH else 0.0)
    assert len(driver.of(PlaybackFinished)) == (modality is Modality.SPEECH)
    assert all(event.is_subtitle is (modality is Modality.SPEECH) for event in driver.of(ReplyTextDelta))
    assert driver.of(ErrorRaised) == []
    assert timings(driver, "voice_to_voice") == []


@pytest.mark.slow
@pytest.mark.parametrize(("text", "words"), [("x" * 10_000, "10,000 characters"), (" \n ", "empty")])
def test_questions_that_cannot_be_asked(text: str, words: str) -> None:
    with running(ScriptedEngine()) as driver:
        driver.session.send(AskText(text))
        error = driver.await_event(ErrorRaised)
    assert words in error.problem.what_is_wrong
    assert error.problem.what_to_do
    assert driver.of(TurnOpened) == []


@pytest.mark.slow
def test_replies_can_be_played_again() -> None:
    heard: list[Pcm] = []
    with running(ScriptedEngine(), speaker=WavSpeaker(OUT_RATE, heard.append)) as driver:
        driver.session.send(AskText("first"))
        driver.await_event(PlaybackFinished)
        once = np.concatenate(heard)
        heard.clear()
        driver.session.send(PlayAgain(1))
        driver.await_event(PlaybackFinished, 2)
        driver.session.send(PlayAgain(77))
        driver.await_event(ErrorRaised)
    again = np.concatenate(heard)
    assert again.any()
    assert np.array_equal(np.trim_zeros(once), np.trim_zeros(again))
    assert [event.turn_id for event in driver.of(PlaybackStarted)] == [1, 1]
    assert [name for name, *_ in driver.engine.calls].count("commit") == 1


@pytest.mark.slow
def test_cancel_while_thinking_and_while_speaking() -> None:
    gate = threading.Event()
    engine = ScriptedEngine(Script(gate=gate, chunks=50))
    with running(engine) as driver:
        driver.session.send(AskText("one"))
        driver.until(
            lambda: (
                bool(driver.of(StateChanged)) and driver.of(StateChanged)[-1].state is SessionState.THINKING
            )
        )
        driver.session.send(CancelTurn())
        driver.await_event(TurnCancelled)
        gate.set()
        driver.session.send(AskText("two"))
        driver.await_event(PlaybackStarted)
        driver.session.send(CancelTurn())
        driver.await_event(TurnCancelled, 2)
        driver.session.send(CancelTurn())  # nothing to cancel any more
        driver.session.send(AskText("three"))
        driver.await_event(PlaybackFinished)
    assert [(event.turn_id, event.reason) for event in driver.of(TurnCancelled)] == [(1, "user"), (2, "user")]
    assert [event.turn_id for event in driver.of(PlaybackFinished)] == [3]
    assert all(event.turn_id != 1 for event in driver.of(ReplyTextDelta))
    assert engine.names_of(1)[-1] == "truncate"


@pytest.mark.slow
def test_an_error_ends_the_turn_and_not_the_conversation() -> None:
    engine = ScriptedEngine(Script(fail_on="reply"))
    with running(engine) as driver:
        driver.session.send(AskText("one"))
        error = driver.await_event(ErrorRaised)
        engine.script.fail_on = ""
        driver.session.send(AskText("two"))
        driver.await_event(PlaybackFinished)
    assert error == ErrorRaised(Problem("The engine is out of order.", "Repair it."), turn_id=1)
    assert [(event.turn_id, event.reason) for event in driver.of(TurnCancelled)] == [(1, "error")]
    assert driver.of(ReplyFinished)[0].turn_id == 2
    assert engine.conversations == 1


@pytest.mark.slow
@pytest.mark.parametrize("call", ["open", "push_text", "commit"])
def test_unexpected_errors_are_reported_without_a_traceback(call: str) -> None:
    with running(ScriptedEngine(Script(fail_on=call, error=ZeroDivisionError("boom")))) as driver:
        driver.session.send(AskText("one"))
        error = driver.await_event(ErrorRaised)
        driver.until(lambda: driver.of(StateChanged)[-1].state is SessionState.STOPPED)
    assert "ZeroDivisionError: boom" in error.problem.what_is_wrong
    assert "Traceback" not in error.problem.what_is_wrong + error.problem.what_to_do
    assert not error.is_fatal


@pytest.mark.slow
def test_an_engine_that_cannot_be_loaded() -> None:
    def fail() -> ScriptedEngine:
        raise MossVoiceError("The bundle is broken.", "Get it again.")

    session = Session(fail, audio_in=NoMicrophone(), audio_out=WavSpeaker(OUT_RATE), vad=LoudnessVad())
    session.start()
    from tests.tools.session_driver import Driver

    driver = Driver(session, ScriptedEngine())
    error = driver.await_event(ErrorRaised)
    session.send(AskText("anyone?"))
    driver.await_event(ErrorRaised, 2)
    assert session.stop()
    assert error == ErrorRaised(Problem("The bundle is broken.", "Get it again."), is_fatal=True)
    assert SessionState.ERROR in [event.state for event in driver.of(StateChanged)]


@pytest.mark.slow
def test_start_without_a_microphone_says_so_and_continues() -> None:
    with running(ScriptedEngine()) as driver:
        driver.session.send(Start())
        error = driver.await_event(ErrorRaised)
        driver.session.send(AskText("hello"))
        driver.await_event(PlaybackFinished)
        driver.session.send(Stop())
        driver.until(
            lambda: (
                driver.of(StateChanged)[-1].state is SessionState.STOPPED and len(driver.of(StateChanged)) > 5
            )
        )
    assert error.problem.what_is_wrong == "No microphone was found."
    assert "Connect one" in error.problem.what_to_do
    assert driver.of(DevicesChanged)[-1].output == ""


def test_the_volume_is_that_of_what_is_played_and_of_the_meter() -> None:
    heard: list[Pcm] = []
    speaker = WavSpeaker(48_000, heard.append)
    with running(ScriptedEngine(), SessionSettings(volume=0.5), speaker=speaker) as driver:
        driver.session.send(AskText("hello"))
        driver.await_event(PlaybackFinished)
        quiet, before = np.abs(np.concatenate(heard)).max(), len(driver.of(Levels))
        driver.session.send(SetVolume(1.0))
        driver.session.send(AskText("hello"))
        driver.await_event(PlaybackFinished, 2)
        loud = np.abs(np.concatenate(heard)).max()
    levels = [event.output_dbfs for event in driver.of(Levels)]
    assert loud == pytest.approx(0.5, rel=0.02)
    assert quiet == pytest.approx(loud / 8, rel=0.02)
    assert max(levels[before:]) - max(levels[:before]) == pytest.approx(18.06, abs=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["missing", "text"])
def test_a_bad_sample_is_an_error_message(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "bad.wav"
    if kind == "text":
        path.write_text("no sound")
    with running(ScriptedEngine()) as driver:
        driver.session.send(PlaySample(path))
        error = driver.await_event(ErrorRaised)
    assert str(path) in error.problem.what_is_wrong
    assert error.problem.what_to_do


@pytest.mark.slow
def test_a_sample_sent_while_loading_waits_for_the_engine(question: Path) -> None:
    release = threading.Event()
    engine = ScriptedEngine()

    def load() -> ScriptedEngine:
        release.wait(5)
        return engine

    from app.audio.devices import DeviceList
    from app.session.clocks import VirtualClock
    from tests.tools.session_driver import Driver

    session = Session(
        load, audio_in=NoMicrophone(), audio_out=WavSpeaker(OUT_RATE), clock=VirtualClock(),
        vad=LoudnessVad(), find_devices=lambda: DeviceList((), ()),
    )  # fmt: skip
    session.start()
    driver = Driver(session, engine)
    session.send(PlaySample(question))
    driver.await_event(StateChanged)
    release.set()
    driver.await_event(PlaybackFinished)
    assert session.stop()
    assert driver.events.index(driver.of(EngineReady)[0]) < driver.events.index(driver.of(SampleStarted)[0])


@pytest.mark.slow
def test_the_seed_reaches_the_sampler() -> None:
    with running(ScriptedEngine()) as driver:
        driver.session.send(AskText("one"))
        driver.await_event(PlaybackFinished)
        driver.session.send(ApplySettings(SessionSettings(seed=7, reply=Modality.TEXT)))
        driver.session.send(AskText("two"))
        driver.await_event(ReplyFinished, 2)
    commits = [call[2:] for call in driver.engine.calls if call[0] == "commit"]
    bundle, chosen = SamplingParams(max_new=11), SamplingParams(max_new=22, seed=7)
    assert commits == [(Modality.SPEECH, bundle), (Modality.TEXT, chosen)]


@pytest.mark.slow
def test_a_new_conversation_forgets() -> None:
    with running(ScriptedEngine()) as driver:
        driver.session.send(AskText("one"))
        driver.await_event(PlaybackFinished)
        driver.session.send(NewConversation())
        driver.session.send(PlayAgain(1))
        driver.await_event(ErrorRaised)
        driver.session.send(AskText("two"))
        driver.await_event(PlaybackFinished, 2)
    assert [call[3] for call in driver.engine.calls if call[0] == "open"] == [1, 2]
    assert driver.engine.ended[0] == 1
    assert driver.of(TurnOpened)[-1].turn_id == 2


@pytest.mark.slow
def test_stop_ends_everything_at_once() -> None:
    engine = ScriptedEngine(Script(chunks=1_000, step_s=0.01))
    with running(engine) as driver:
        driver.session.send(AskText("one"))
        driver.await_event(PlaybackStarted)
        driver.session.send(Stop())
        driver.await_event(TurnCancelled)
    assert driver.of(TurnCancelled)[0].reason == "stopped"
    assert engine.is_closed
    driver.session.poll()
    engine.timing.emit("step", 1, 0, 1)
    assert driver.session.poll() == [], "a stopped session still listens to the engine"


@pytest.mark.slow
def test_stop_twice_and_before_start() -> None:
    before = set(threading.enumerate())
    session = Session(
        ScriptedEngine, audio_in=NoMicrophone(), audio_out=WavSpeaker(OUT_RATE), vad=LoudnessVad()
    )
    assert session.stop()
    session.start()
    assert session.stop()
    assert session.stop()
    assert set(threading.enumerate()) <= before


@pytest.mark.slow
def test_levels_come_twenty_times_a_second(question: Path) -> None:
    with running(ScriptedEngine()) as driver:
        driver.session.send(PlaySample(question))
        driver.await_event(SampleFinished)
    levels = driver.of(Levels)
    assert max(event.input_dbfs for event in levels) == pytest.approx(-13.5, abs=0.5)
    assert min(event.input_dbfs for event in levels) == -120.0
    assert max(event.output_dbfs for event in levels) == pytest.approx(-9.0, abs=0.5)
    assert max(event.vad_probability for event in levels) == 0.95
    # 2.1 s of file, 1.2 s of reply, 1 s of silence and the pauses between, at 20 Hz
    assert 70 <= len(levels) <= 120
    assert max(event.ms for event in driver.of(PlaybackLevel)) > 200
    assert driver.of(PlaybackLevel)[-1].ms == 0.0


@pytest.mark.slow
def test_freed_memory_goes_back_between_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[bool] = []
    monkeypatch.setattr(heap, "INTERVAL_S", 0.0)
    monkeypatch.setattr(heap, "give_back_free_memory", lambda *, with_cycles: given.append(with_cycles))
    with running(ScriptedEngine()) as driver:
        driver.await_event(EngineReady)
        assert given == [], "no turn has ended"
        for count in (1, 2):
            driver.session.send(AskText("hello"))
            driver.await_event(PlaybackFinished, count)
            driver.until(lambda count=count: len(given) == count)  # type: ignore[misc]
    assert given == [False, False], "a collection would hold up the audio callbacks"
