"""A reply before the turn is sure: held while the user may go on, heard when the turn is confirmed."""

from __future__ import annotations

import random
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.audio.wav_streams import WavMicrophone, WavSpeaker
from app.dialog.turn_events import TurnAction, TurnEvent
from app.session.commands import (
    CancelTurn,
    PlaySample,
    Start,
    Stop,
)
from app.session.engine_jobs import HELD_S, Commit, Job, ReplyMade, RolledBack
from app.session.events import (
    EngineReady,
    Event,
    PlaybackFinished,
    PlaybackStarted,
    ReplyCut,
    ReplyFinished,
    ReplyTextDelta,
    SampleFinished,
    SpeculationMeasured,
    SpeculationStats,
    Timing,
    TurnCancelled,
    TurnCommitted,
    TurnExtended,
    TurnOpened,
)
from app.session.headless import run_file
from app.session.session_settings import SessionSettings
from app.session.speculation import TRY_AGAIN_TURNS, HeldReply, HeldTimings, Speculation, SpeculationPolicy
from app.session.turn_driver import UserTurn
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.engine import Engine
from engine_runtime.timing import TimingBus, TimingEvent
from engine_runtime.types import CancelScope, Modality, ReplyAudio
from tests.doubles.scripted_engine import Script, ScriptedEngine
from tests.tools.session_driver import Driver, running, silence, speech, write_question

ON = SessionSettings(hear_samples=False, speculate="on", seed=1)
OFF = SessionSettings(hear_samples=False, speculate="off", seed=1)
REPLY = (ReplyTextDelta, ReplyFinished, PlaybackStarted, PlaybackFinished, ReplyCut)


def check_order(events: list[Event]) -> None:
    """No event of a reply, and no duration of it, before its turn is confirmed or after it was reopened."""
    committed: set[int] = set()
    for event in events:
        if isinstance(event, TurnCommitted):
            committed.add(event.turn_id)
        elif isinstance(event, TurnExtended):
            committed.discard(event.turn_id)
        elif isinstance(event, REPLY):
            assert event.turn_id in committed, event
        elif isinstance(event, Timing) and event.event.name in ("commit", "step", "vocoder", "first_audio"):
            assert event.event.turn_id in committed, event


def kinds(driver: Driver) -> list[str]:
    """The decisions in order."""
    decided = [event.event for event in driver.of(Timing) if event.event.name == "decision"]
    return [str(event.attributes["kind"]) for event in decided]


def timing(driver: Driver, name: str) -> Any:
    """The only timing of this name."""
    (event,) = [event.event for event in driver.of(Timing) if event.event.name == name]
    return event


def heard_s(engine: ScriptedEngine) -> float:
    """What the engine heard of turn 1."""
    return sum(map(len, engine.turns[0].heard)) / 16_000


@pytest.fixture
def question(tmp_path: Path) -> Path:
    return write_question(tmp_path / "question.wav", silence(0.6), speech(1.0), silence(0.3))


@pytest.fixture
def hesitant(tmp_path: Path) -> Path:
    """With a pause of 0.4 s, shorter than the silence that ends a turn."""
    return write_question(
        tmp_path / "hesitant.wav", silence(0.6), speech(0.8), silence(0.4), speech(0.6), silence(0.3)
    )


@pytest.mark.slow
def test_a_held_reply_sounds_the_moment_the_turn_is_confirmed(question: Path) -> None:
    engine = ScriptedEngine(Script(step_s=0.1))
    with running(engine, ON) as driver:
        driver.session.send(PlaySample(question))
        driver.await_event(SampleFinished)
    check_order(driver.events)
    assert kinds(driver) == ["speculate", "pause", "confirm"]
    # The first chunk was there 100 ms after the silence of 96 ms, the turn confirmed after 640 ms.
    assert timing(driver, "confirm_to_sound").duration_ms <= 20
    assert timing(driver, "playback_hold").duration_ms <= 20
    assert timing(driver, "voice_to_voice").duration_ms == pytest.approx(656, abs=30)
    stats = driver.of(SpeculationMeasured)[-1].stats
    assert (stats.off_reason, stats.speculated, stats.confirmed, stats.rolled_back) == (None, 1, 1, 0)
    assert driver.of(ReplyFinished)[0].text == "word0 word1 word2 "


@pytest.mark.slow
def test_a_reply_that_is_not_ready_in_time_follows_as_soon_as_it_is(question: Path) -> None:
    with running(ScriptedEngine(Script(step_s=0.7, chunk_s=2.0)), ON) as driver:
        driver.session.send(PlaySample(question))
        driver.await_event(SampleFinished)
    check_order(driver.events)
    assert timing(driver, "voice_to_voice").duration_ms == pytest.approx(96 + 700, abs=60)


def test_a_user_who_goes_on_has_not_been_answered(hesitant: Path) -> None:
    engine = ScriptedEngine()
    with running(engine, ON) as driver:
        driver.session.send(PlaySample(hesitant))
        driver.await_event(SampleFinished)
    check_order(driver.events)
    assert kinds(driver) == ["speculate", "pause", "roll_back", "speculate", "pause", "confirm"]
    assert driver.of(TurnExtended) == []
    assert [event.turn_id for event in driver.of(ReplyFinished)] == [1]
    assert engine.names_of(1) == ["open", "push", "commit", "reopen", "push", "commit"]
    assert heard_s(engine) == pytest.approx(0.32 + 1.8 + 0.096, abs=0.1)
    stats = driver.of(SpeculationMeasured)[-1].stats
    assert (stats.speculated, stats.confirmed, stats.rolled_back) == (2, 1, 1)
    # Three chunks of 0.4 s were held and discarded.
    assert stats.audio_s == pytest.approx(1.2)
    assert timing(driver, "roll_back").attributes["audio_s"] == pytest.approx(1.2)
    decided = [event.event.attributes for event in driver.of(Timing) if event.event.name == "decision"]
    (held_ms,) = [known["held_ms"] for known in decided if known["kind"] == "roll_back"]
    assert held_ms == pytest.approx(1_200)


def test_the_engine_does_not_run_ahead_of_the_confirmation(question: Path) -> None:
    engine, counts = ScriptedEngine(Script(chunks=40)), []
    with running(engine, ON) as driver:
        turns = driver.turns
        begin = turns.begin_reply

        def begin_reply(turn: UserTurn, held: HeldReply | None) -> None:
            counts.append(0.0 if held is None else held.audio_s)
            begin(turn, held)

        turns.begin_reply = begin_reply  # type: ignore[method-assign]
        driver.session.send(PlaySample(question))
        driver.await_event(SampleFinished)
    assert counts == [pytest.approx(HELD_S, abs=0.4)]
    assert driver.of(ReplyFinished)[0].seconds == pytest.approx(16.0)


@pytest.mark.slow
def test_a_turn_that_is_cancelled_in_a_pause_leaves_nothing(question: Path) -> None:
    gate = threading.Event()
    engine = ScriptedEngine(Script(gate=gate))
    with running(engine, ON, microphone=WavMicrophone(question)) as driver:
        driver.session.send(Start())
        driver.until(lambda: "speculate" in kinds(driver))
        driver.session.send(CancelTurn())
        driver.await_event(TurnCancelled)
        gate.set()
        driver.until_idle()
        driver.session.send(Stop())
        driver.until(lambda: "truncate" in engine.names_of(1))
    check_order(driver.events)
    assert driver.of(ReplyCut) == driver.of(TurnCommitted) == []
    assert ("truncate", 1, 0, 0) in engine.calls
    assert driver.of(SpeculationMeasured)[-1].stats.rolled_back == 1


def test_a_cough_is_not_answered(tmp_path: Path) -> None:
    path = write_question(tmp_path / "cough.wav", silence(0.4), speech(0.11), silence(1.0))
    with running(ScriptedEngine(), ON) as driver:
        driver.session.send(PlaySample(path))
        driver.await_event(SampleFinished)
    assert kinds(driver) == ["pause"]


def test_off_waits_for_the_end_of_the_turn(question: Path) -> None:
    with running(ScriptedEngine(), OFF) as driver:
        driver.session.send(PlaySample(question))
        driver.await_event(SampleFinished)
    assert kinds(driver) == ["pause", "confirm"]
    assert driver.of(SpeculationMeasured)[-1].stats.off_reason == "setting"


def test_automatic_stops_on_an_engine_that_is_slower_than_real_time(tmp_path: Path) -> None:
    parts = [part for _ in range(2) for part in (speech(0.5), silence(1.0))]
    path = write_question(tmp_path / "two.wav", silence(0.4), *parts)
    with running(ScriptedEngine(), SessionSettings(hear_samples=False)) as driver:
        driver.await_event(EngineReady)  # which forgets the speed of the engine before
        driver.turns.on_result(ReplyMade(1.5))
        driver.session.send(PlaySample(path))
        driver.await_event(SampleFinished)
    # The scripted replies are fast: after one of them nothing is in the way.
    assert kinds(driver) == ["pause", "confirm", "speculate", "pause", "confirm"]
    reasons = [event.stats.off_reason for event in driver.of(SpeculationMeasured)]
    assert reasons[0] == "slow_engine"
    assert reasons[-1] is None


def loaded(engine: Engine) -> Engine:
    return engine


@pytest.mark.slow
def test_a_reply_is_the_same_with_and_without_speculation(tmp_path: Path, nano_bundle: Path) -> None:
    from app.audio.wav import read_wav, write_wav

    pcm, rate = read_wav(Path(__file__).parents[2] / "data" / "speech" / "question.wav")
    middle, pause = len(pcm) // 2, np.zeros(round(0.45 * rate), np.float32)
    parts = [np.zeros(rate // 2, np.float32), pcm[:middle], pause, pcm[middle:], pause]
    write_wav(tmp_path / "question.wav", np.concatenate(parts), rate)
    exchanges, sound = {}, {}
    for settings in (OFF, ON):
        engine = Engine.load(Bundle.open(nano_bundle))
        conversations = kept_conversations(engine)
        out = tmp_path / f"{settings.speculate}.wav"
        report = run_file(
            partial(loaded, engine), wav_in=tmp_path / "question.wav", settings=settings, out=out
        )
        assert report["speculation"]["rolled_back"] == (settings is ON)
        exchanges[settings.speculate] = conversations[-1].exchanges
        sound[settings.speculate] = out.read_bytes()
    assert len(exchanges["off"]) == 1
    assert exchanges["on"] == exchanges["off"]
    assert sound["on"] == sound["off"]


def kept_conversations(engine: Engine) -> list[Any]:
    """The conversations that the engine makes from now on."""
    conversations: list[Any] = []
    make = engine.new_conversation

    def new_conversation() -> Any:
        conversations.append(make())
        return conversations[-1]

    engine.new_conversation = new_conversation  # type: ignore[method-assign]
    return conversations


@pytest.mark.slow
def test_no_block_and_no_word_is_lost_whatever_the_user_does(random_bundle: Path, tmp_path: Path) -> None:
    chance = random.Random(1)
    # 25 times speech: coughs, turns, pauses within turns, interruptions.
    lengths = [(chance.uniform(0.06, 0.7), chance.choice((0.2, 0.3, 0.5, 0.8, 1.4))) for _ in range(25)]
    parts = [part for spoken_s, pause_s in lengths for part in (speech(spoken_s), silence(pause_s))]
    path = write_question(tmp_path / "talk.wav", silence(0.4), *parts, silence(1.0))
    engine = Engine.load(Bundle.open(random_bundle))
    conversations = kept_conversations(engine)
    microphone = WavMicrophone(path)
    with running(engine, ON, microphone=microphone, speaker=WavSpeaker(48_000)) as driver:  # type: ignore[arg-type]
        driver.session.send(Start())
        for opened in (3, 9):
            driver.await_event(TurnOpened, opened)
            driver.session.send(CancelTurn())
        driver.until(lambda: microphone.is_finished)
        driver.session.send(Stop())
        driver.until(lambda: not microphone.name)
        driver.until_idle()
        check_order(driver.events)
        stats = driver.of(SpeculationMeasured)[-1].stats
        assert stats.speculated == stats.confirmed + stats.rolled_back
        assert stats.rolled_back > 3
        # The history holds what was heard, and nothing else.
        codes = {event.turn_id: event.codes for event in driver.of(ReplyFinished)}
        codes |= {event.turn_id: event.heard_codes for event in driver.of(ReplyCut)}
        special = engine.bundle.lm.special_ids
        kept = [
            sum(row.text == special.modality_pad for row in one.reply) - 1
            for one in conversations[-1].exchanges
        ]
        assert kept == [count for _, count in sorted(codes.items()) if count]
        engine.stages.lm.blocks.check_integrity([conversations[-1].sequence])


def test_an_engine_is_trusted_until_it_is_slow() -> None:
    policy = SpeculationPolicy()
    assert policy.off_reason is None
    policy.note_reply(1.2)
    assert policy.off_reason == "slow_engine"


def test_one_slow_reply_among_fast_ones_changes_nothing() -> None:
    policy = SpeculationPolicy()
    for rtf in (0.5, 0.5, 3.0, 0.5):
        policy.note_reply(rtf)
        assert policy.off_reason is None


def test_it_is_on_again_only_once_the_engine_is_clearly_faster_than_real_time() -> None:
    policy = SpeculationPolicy()
    reasons = []
    for rtf in (1.1, 1.1, 0.9, 0.9, 0.9, 0.7, 0.7):
        policy.note_reply(rtf)
        reasons.append(policy.off_reason)
    assert reasons == ["slow_engine"] * 6 + [None]


def test_slow_roll_backs_switch_it_off_for_some_turns() -> None:
    policy = SpeculationPolicy()
    policy.note_roll_back(300.0)
    policy.note_roll_back(20.0)
    assert policy.off_reason is None  # too few to judge
    for _ in range(TRY_AGAIN_TURNS - 1):
        policy.note_turn()  # before the latest roll back, which is what counts
    policy.note_roll_back(150.0)
    assert policy.off_reason == "slow_roll_back"
    for _ in range(TRY_AGAIN_TURNS - 1):
        policy.note_turn()
        assert policy.off_reason == "slow_roll_back"
    policy.note_turn()
    assert policy.off_reason is None


def test_what_was_speculated_adds_up() -> None:
    jobs, stats, bus = ScriptedJobs(), list[SpeculationStats](), TimingBus()
    speculation = Speculation(jobs, lambda: 0, stats.append)

    def begin(turn_id: int) -> CancelScope:
        commit = Commit(turn_id, Modality.SPEECH, None, CancelScope())
        speculation.begin(commit, TurnEvent(TurnAction.SILENCE, 1_000.0, 200.0, 900.0), bus)
        return commit.scope

    for turn_id, steps, seconds, work_ms, ready_ms in ((1, 3, 0.5, 20, 40), (2, 2, 0.25, 10, 15)):
        scope = begin(turn_id)
        for _ in range(steps):
            jobs.timings.emit("step", turn_id, 0, 1)
        audio = np.zeros(round(seconds * 24_000), np.float32)
        assert speculation.hold(scope, ReplyAudio(turn_id, audio, 24_000, 0))
        held = speculation.roll_back()
        ready_ns = held.rolled_back_ns + ready_ms * 1_000_000
        speculation.note_roll_back(RolledBack(scope, work_ms * 1_000_000, ready_ns), bus)
    begin(3)
    speculation.confirm()
    assert stats[-1] == SpeculationStats(
        speculated=3, confirmed=1, rolled_back=2, engine_ms=30.0, audio_s=0.75, steps=5, roll_back_ms=40.0
    )


class ScriptedJobs:
    """A queue that keeps where the latest commit's durations go."""

    timings: TimingBus

    def submit(self, job: Job) -> None:
        if isinstance(job, Commit) and job.timings is not None:
            self.timings = job.timings


def test_events_wait_for_the_release_and_keep_their_order_and_their_times() -> None:
    times = iter(range(0, 1_000, 10))
    bus = TimingBus(lambda: next(times))
    heard: list[TimingEvent] = []
    bus.subscribe(heard.append)
    held = HeldTimings(bus)
    with held.span("prefill", 1, tokens=3):
        pass
    first = held.emit("step", 1, 20, 5)
    bus.emit("pause", 1, 30, 0)
    assert [event.name for event in heard] == ["pause"]
    assert held.count("step") == 1
    held.release()
    last = held.emit("step", 1, 40, 5)
    assert [event.name for event in heard] == ["pause", "prefill", "step", "step"]
    assert (heard[1].start_ns, heard[1].duration_ns, heard[1].attributes) == (0, 10, {"tokens": 3})
    assert heard[2:] == [first, last]
    assert held.count("step") == 0
