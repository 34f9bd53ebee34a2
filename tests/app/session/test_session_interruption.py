"""A whole session whose replies are spoken over: they are paused, then resumed at the same sample, or cut."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.audio.echo_cancellation import AudioProcessing
from app.audio.ring import DUCK_DB, FADE_S
from app.audio.wav_streams import WavSpeaker
from app.dialog.turn_taking_settings import TurnTakingSettings
from app.session.commands import (
    AskText,
    CancelTurn,
    Command,
    Mute,
    NewConversation,
    Start,
    Stop,
)
from app.session.events import (
    Counters,
    ErrorRaised,
    PlaybackFinished,
    ReplyCut,
    SessionState,
    StateChanged,
    Timing,
    TurnCancelled,
    TurnCommitted,
    TurnOpened,
)
from app.session.session_settings import SessionSettings
from app.settings import OverlapMode
from engine_runtime.errors import AudioDeviceError
from engine_runtime.types import Pcm
from tests.doubles.scripted_detector import ScriptedDetector
from tests.doubles.scripted_engine import OUT_RATE, Script, ScriptedEngine
from tests.doubles.scripted_microphone import RATE, ScriptedMicrophone
from tests.doubles.sound_card import AudibleOutput
from tests.tools.output_record import gaps, resampled, without_gaps
from tests.tools.session_driver import Driver, running, silence, speech

pytestmark = pytest.mark.slow

SPEAKER_RATE = 48_000
QUESTION = (silence(0.5), speech(0.6), silence(1.9))
"""The reply begins about 1.75 s after the start; what follows the question is said 3 s after it."""
OVER_S = 3.0
TURNS = TurnTakingSettings(eagerness="off")
SETTINGS = SessionSettings(
    hear_samples=False,
    turn_taking=TURNS,
    audio_processing=AudioProcessing("off"),
    overlap="pause",
    speculate="off",
)
SCRIPT = Script(chunks=10)


class Loudspeaker(WavSpeaker):
    """Keeps what it plays; it can be pulled out."""

    def __init__(self) -> None:
        self.given: list[Pcm] = []
        super().__init__(SPEAKER_RATE, self.given.append)
        self.is_pulled = self.is_absent = False

    def open(self, device: str | None, latency_s: float) -> None:
        if self.is_absent:
            raise AudioDeviceError("No loudspeaker was found.", "Connect one and look for devices again.")
        self.is_pulled = False
        super().open(device, latency_s)

    def is_lost(self) -> bool:
        return bool(self.name) and self.is_pulled

    @property
    def record(self) -> Pcm:
        return np.concatenate(self.given)


class LosableMicrophone(ScriptedMicrophone):
    is_pulled = False

    def is_lost(self) -> bool:
        return bool(self.name) and self.is_pulled


def decisions(driver: Driver, *kinds: str) -> list[dict[str, Any]]:
    """Decisions of these kinds, or all, in order."""
    events = [event.event for event in driver.of(Timing) if event.event.name == "decision"]
    found = [{"turn": event.turn_id, **event.attributes} for event in events]
    return [decision for decision in found if not kinds or decision["kind"] in kinds]


def reply_of(script: Script) -> Pcm:
    """The complete reply, at the rate of the loudspeaker."""
    count = round(script.chunks * script.chunk_s * OUT_RATE)
    tone = 0.5 * np.sin(2 * np.pi * 440 * np.arange(count) / OUT_RATE)
    return resampled(tone.astype(np.float32), OUT_RATE, SPEAKER_RATE)


def check_whole(loudspeaker: Loudspeaker, script: Script, pauses: int) -> None:
    """The record is the reply of the script, with this many gaps."""
    sound = np.trim_zeros(loudspeaker.record)
    assert len(gaps(sound, SPEAKER_RATE)) == pauses
    expected = np.trim_zeros(reply_of(script))
    assert without_gaps(loudspeaker.record, SPEAKER_RATE) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("step_s", [0.0, 0.2], ids=["complete", "being generated"])
def test_a_backchannel_is_no_turn_and_the_reply_goes_on(step_s: float) -> None:
    script = replace(SCRIPT, step_s=step_s)
    loudspeaker, microphone = Loudspeaker(), ScriptedMicrophone(*QUESTION, speech(0.35))
    with running(ScriptedEngine(script), SETTINGS, microphone=microphone, speaker=loudspeaker) as driver:
        driver.session.send(Start())
        driver.await_event(PlaybackFinished)
    check_whole(loudspeaker, script, 1)
    assert [event.turn_id for event in driver.of(TurnOpened)] == [1]
    assert driver.of(TurnCancelled) == driver.of(ReplyCut) == driver.of(ErrorRaised) == []
    assert not any(event.underruns for event in driver.of(Counters))
    interrupted, resumed = decisions(driver, "interrupt", "resume", "cut")
    assert (interrupted["kind"], resumed["kind"]) == ("interrupt", "resume")
    assert interrupted["onset_s"] == pytest.approx(OVER_S, abs=0.05)
    # Sound is gone 200 ms after the onset, and back 300 ms after the decision.
    record = loudspeaker.record
    first_sound = np.flatnonzero(record)[0]
    ((first, end),) = gaps(record[first_sound:], SPEAKER_RATE)
    assert (first + first_sound) / SPEAKER_RATE - OVER_S < 0.2
    assert (end + first_sound) / SPEAKER_RATE - resumed["at_s"] < 0.3
    states = [event.state for event in driver.of(StateChanged)]
    spoken = states[states.index(SessionState.SPEAKING) :]
    assert spoken[:3] == [SessionState.SPEAKING, SessionState.HEARING, SessionState.SPEAKING]
    assert [event.state for event in driver.of(StateChanged) if event.is_paused] == [SessionState.HEARING]


def test_an_interruption_cuts_the_reply_and_loses_nothing_that_was_said() -> None:
    said = speech(1.6) * np.linspace(0.5, 1.0, round(1.6 * RATE), dtype=np.float32)
    loudspeaker, microphone = Loudspeaker(), ScriptedMicrophone(*QUESTION, said)
    engine = ScriptedEngine(SCRIPT)
    with running(engine, SETTINGS, microphone=microphone, speaker=loudspeaker) as driver:
        driver.session.send(Start())
        driver.await_event(TurnCommitted, 2)
    kinds = [(decision["turn"], decision["kind"]) for decision in decisions(driver, "interrupt", "cut")]
    assert kinds == [(1, "interrupt"), (1, "cut")]
    opened_s = decisions(driver, "cut")[0]["at_s"]
    assert opened_s - OVER_S == pytest.approx(TURNS.interruption.boundary_ms / 1e3, abs=0.05)
    (cut,) = driver.of(ReplyCut)
    assert cut.reason == "barge_in"
    # What was heard is what left the loudspeaker before the fade; the next reply may sound already.
    record = loudspeaker.record[: round(opened_s * SPEAKER_RATE)]
    sound = np.flatnonzero(record)
    assert cut.heard_s == pytest.approx((sound[-1] + 1 - sound[0]) / SPEAKER_RATE - FADE_S, abs=0.002)
    heard = np.concatenate(engine.turns[1].heard)
    onset = int(np.flatnonzero(np.abs(heard) > 0.01)[0] - np.flatnonzero(np.abs(said) > 0.01)[0])
    assert onset / RATE == pytest.approx(TURNS.pre_roll_ms / 1e3, abs=0.033)
    assert heard[onset : onset + len(said)] == pytest.approx(said[: len(heard) - onset], abs=0.02)


DUCKING = replace(SETTINGS, overlap="duck")


def levels_db(record: Pcm) -> dict[int, float]:
    """Level of each 10 ms of the record against the reply's own, by its number."""
    frame = SPEAKER_RATE // 100
    frames = record[: len(record) // frame * frame].reshape(-1, frame)
    levels = 20 * np.log10(np.sqrt(2 * np.mean(frames**2, axis=1)) / 0.5 + 1e-9)
    return dict(enumerate(levels.tolist()))


@pytest.mark.parametrize("overlap", ["duck", "auto"])
def test_a_backchannel_ducks_the_reply_which_goes_on(overlap: OverlapMode) -> None:
    loudspeaker, microphone = Loudspeaker(), ScriptedMicrophone(*QUESTION, speech(0.35))
    settings = replace(SETTINGS, overlap=overlap)
    with running(ScriptedEngine(SCRIPT), settings, microphone=microphone, speaker=loudspeaker) as driver:
        driver.session.send(Start())
        driver.await_event(PlaybackFinished)
    sound = np.trim_zeros(loudspeaker.record)
    assert gaps(sound, SPEAKER_RATE) == []
    assert len(sound) == pytest.approx(len(np.trim_zeros(reply_of(SCRIPT))), abs=2)
    interrupted, resumed = decisions(driver, "interrupt", "resume", "cut")
    assert (interrupted["kind"], interrupted["overlap"], resumed["kind"]) == ("interrupt", "duck", "resume")
    levels = levels_db(loudspeaker.record)
    low = [place / 100 for place, level in levels.items() if -18.0 <= level <= -12.0]
    assert low[0] - interrupted["at_s"] <= 0.06
    assert -0.02 < low[-1] - resumed["at_s"] <= 0.06
    assert np.diff(low) == pytest.approx(0.01)
    assert levels[round(low[0] * 100) + 10] == pytest.approx(-DUCK_DB, abs=0.1)
    assert levels[round(low[-1] * 100) + 6] == pytest.approx(0.0, abs=0.1)
    assert driver.of(TurnCancelled) == driver.of(ReplyCut) == driver.of(ErrorRaised) == []
    assert not any(event.underruns for event in driver.of(Counters))


def test_an_interruption_cuts_a_ducked_reply_where_it_was_ducked() -> None:
    loudspeaker, microphone = Loudspeaker(), ScriptedMicrophone(*QUESTION, speech(1.6))
    engine = ScriptedEngine(SCRIPT)
    with running(engine, DUCKING, microphone=microphone, speaker=loudspeaker) as driver:
        driver.session.send(Start())
        driver.await_event(TurnCommitted, 2)
    interrupted, cut = decisions(driver, "interrupt", "cut")
    began_s = np.flatnonzero(loudspeaker.record)[0] / SPEAKER_RATE
    (reported,) = driver.of(ReplyCut)
    assert reported.heard_s == pytest.approx(interrupted["at_s"] - began_s, abs=0.03)
    assert cut["at_s"] - interrupted["at_s"] > 0.5
    levels = levels_db(loudspeaker.record)
    assert levels[round(cut["at_s"] * 100) - 2] == pytest.approx(-DUCK_DB, abs=0.1)
    assert levels[round(cut["at_s"] * 100) + 5] < -90.0


@pytest.mark.parametrize(("said_s", "turns"), [(0.35, 1), (1.6, 2)], ids=["backchannel", "interruption"])
def test_a_ducked_reply_that_ends_waits_for_the_verdict(said_s: float, turns: int) -> None:
    script = Script(chunks=3, chunk_s=0.5)
    microphone = ScriptedMicrophone(silence(0.5), speech(0.6), silence(1.9 - 0.05), speech(said_s))
    engine = ScriptedEngine(script)
    with running(engine, DUCKING, microphone=microphone) as driver:
        driver.session.send(Start())
        if turns == 1:
            driver.await_event(PlaybackFinished)
        else:
            driver.await_event(TurnCommitted, 2)
    assert [decision["kind"] for decision in decisions(driver, "interrupt", "resume", "cut")] == (
        ["interrupt", "resume"] if turns == 1 else ["interrupt", "cut"]
    )
    assert len(driver.of(TurnOpened)) == turns
    # What was said over the end is the user's; the user did not hear it.
    assert [cut.heard_s < script.chunks * script.chunk_s for cut in driver.of(ReplyCut)] == [True] * (
        turns - 1
    )
    if turns == 2:
        heard = np.concatenate(engine.turns[1].heard)
        loud = np.flatnonzero(np.abs(heard) > 0.01)
        assert (loud[-1] - loud[0]) / RATE == pytest.approx(said_s, abs=0.03)


def test_a_reply_that_is_left_alone_was_heard_until_it_is_cut() -> None:
    loudspeaker, microphone = Loudspeaker(), ScriptedMicrophone(*QUESTION, speech(1.6))
    settings = replace(SETTINGS, overlap="off")
    with running(ScriptedEngine(SCRIPT), settings, microphone=microphone, speaker=loudspeaker) as driver:
        driver.session.send(Start())
        driver.await_event(TurnCommitted, 2)
    (cut,) = decisions(driver, "cut")
    began_s = np.flatnonzero(loudspeaker.record)[0] / SPEAKER_RATE
    assert driver.of(ReplyCut)[0].heard_s == pytest.approx(cut["at_s"] - began_s, abs=0.03)
    assert levels_db(loudspeaker.record)[round(cut["at_s"] * 100) - 3] == pytest.approx(0.0, abs=0.1)


def test_smart_turn_decides_about_speech_of_medium_length() -> None:
    for probability, turns in ((0.95, 2), (0.1, 1)):
        detector = ScriptedDetector(0.95, probability)
        microphone = ScriptedMicrophone(*QUESTION, speech(0.8))
        settings = replace(SETTINGS, turn_taking=TurnTakingSettings())
        with running(ScriptedEngine(SCRIPT), settings, microphone=microphone, detector=detector) as driver:
            driver.session.send(Start())
            driver.await_event(PlaybackFinished)
            assert len(driver.of(TurnOpened)) == turns
        (asked,) = detector.asked[1:2]
        # About this speech alone, with its pre-roll and the pause.
        assert len(asked) / RATE == pytest.approx(0.32 + 0.8 + 0.16, abs=0.07)
        outcome = decisions(driver, "resume", "cut")[0]["kind"]
        assert outcome == ("cut" if turns == 2 else "resume")


@pytest.mark.parametrize(
    ("backchannel", "said_s", "outcome"),
    [(0.02, 0.4, "cut"), (0.98, 1.2, "resume")],
    ids=["stop", "laughter"],
)
def test_the_words_decide_where_the_detector_knows_them(
    backchannel: float, said_s: float, outcome: str
) -> None:
    detector = ScriptedDetector(0.95, backchannels=[backchannel])
    microphone = ScriptedMicrophone(*QUESTION, speech(said_s))
    settings = replace(DUCKING, turn_taking=TurnTakingSettings())
    with running(ScriptedEngine(SCRIPT), settings, microphone=microphone, detector=detector) as driver:
        driver.session.send(Start())
        driver.await_event(PlaybackFinished)
    assert [decision["kind"] for decision in decisions(driver, "interrupt", "resume", "cut")] == [
        "interrupt",
        outcome,
    ]
    decided_s = decisions(driver, outcome)[0]["at_s"] - OVER_S
    assert decided_s < TURNS.interruption.settle_ms / 1e3
    assert decisions(driver, "listen")[0]["probability"] == backchannel


COMMANDS: dict[str, Command] = {
    "user": CancelTurn(),
    "stopped": Stop(),
    "replaced": AskText("two"),
    "new": NewConversation(),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_while_a_reply_is_paused(name: str) -> None:
    loudspeaker, microphone = Loudspeaker(), ScriptedMicrophone(*QUESTION, speech(0.35))
    engine = ScriptedEngine(SCRIPT)
    with running(engine, SETTINGS, microphone=microphone, speaker=loudspeaker) as driver:
        microphone.acts.append((OVER_S + 0.25, lambda: driver.session.send(COMMANDS[name])))
        driver.session.send(Start())
        cancelled = driver.await_event(TurnCancelled)
        if name == "replaced":
            driver.await_event(PlaybackFinished)
        driver.until(lambda: any(call[0] == "truncate" for call in engine.calls))
    assert cancelled.reason == ("replaced" if name == "new" else name)
    (cut,) = driver.of(ReplyCut)
    assert not any(decision["turn"] == 1 for decision in decisions(driver, "resume"))
    # The reply was silent when the command came, and stays so; the typed question has one of its own.
    until_s = OVER_S + (0.25 if name == "replaced" else 0.6)
    record = loudspeaker.record[: round(until_s * SPEAKER_RATE)]
    sound = np.flatnonzero(record)
    assert sound[-1] / SPEAKER_RATE < OVER_S + 0.2
    assert cut.heard_s == pytest.approx((sound[-1] + 1 - sound[0]) / SPEAKER_RATE - FADE_S, abs=0.002)


def test_muting_the_microphone_lets_the_reply_go_on() -> None:
    loudspeaker, microphone = Loudspeaker(), ScriptedMicrophone(*QUESTION, speech(3.0))
    with running(ScriptedEngine(SCRIPT), SETTINGS, microphone=microphone, speaker=loudspeaker) as driver:
        microphone.acts.append((OVER_S + 0.3, lambda: driver.session.send(Mute(True))))
        driver.session.send(Start())
        driver.await_event(PlaybackFinished)
    check_whole(loudspeaker, SCRIPT, 1)
    assert len(driver.of(TurnOpened)) == 1


def test_a_microphone_that_is_lost_lets_the_reply_go_on() -> None:
    microphone = LosableMicrophone(*QUESTION, speech(3.0))
    with running(ScriptedEngine(SCRIPT), SETTINGS, microphone=microphone) as driver:
        microphone.acts.append((OVER_S + 0.3, lambda: setattr(microphone, "is_pulled", True)))
        driver.session.send(Start())
        driver.await_event(ErrorRaised)
        driver.until(lambda: bool(decisions(driver, "resume", "cut")))
    assert next(decision["kind"] for decision in decisions(driver, "resume", "cut")) == "resume"


@pytest.mark.parametrize("returns", [True, False])
def test_a_loudspeaker_that_is_lost_while_the_reply_is_paused(returns: bool) -> None:
    loudspeaker, microphone = Loudspeaker(), ScriptedMicrophone(*QUESTION, speech(0.5))

    def pull_out() -> None:
        loudspeaker.is_pulled, loudspeaker.is_absent = True, not returns

    with running(ScriptedEngine(SCRIPT), SETTINGS, microphone=microphone, speaker=loudspeaker) as driver:
        microphone.acts.append((OVER_S + 0.25, pull_out))
        driver.session.send(Start())
        if returns:
            driver.await_event(PlaybackFinished)
        else:
            assert driver.await_event(TurnCancelled).reason == "output_lost"
    interrupted, resumed = decisions(driver, "interrupt", "resume")[:2]
    assert (interrupted["kind"], resumed["kind"]) == ("interrupt", "resume")
    if returns:
        assert driver.of(ReplyCut) == []
        assert np.trim_zeros(loudspeaker.record).size > 4.0 * SPEAKER_RATE
    else:
        assert driver.of(ReplyCut)[0].heard_s == pytest.approx(interrupted["at_s"] - 1.75, abs=0.1)


class PulledAfterPause(AudibleOutput):
    """Is pulled out this many seconds after the end of the first pause."""

    def __init__(self, latency_s: float, after_s: float, *, returns: bool) -> None:
        super().__init__(latency_s)
        self._after_s, self._returns = after_s, returns
        self._resumed_ns: int | None = None
        self._was_silent = False

    def open(self, device: str | None, latency_s: float) -> None:
        if self._after_s == math.inf and not self._returns:
            raise AudioDeviceError("No loudspeaker was found.", "Connect one and look for devices again.")
        super().open(device, latency_s)

    def service(self, now_ns: int) -> None:
        super().service(now_ns)
        if self._was_silent and not self.ring.is_silent and self._resumed_ns is None:
            self._resumed_ns = now_ns
        self._was_silent = self.ring.is_silent
        if self._resumed_ns is not None and now_ns - self._resumed_ns >= self._after_s * 1e9:
            self.is_pulled, self._after_s = True, math.inf


@pytest.mark.parametrize("after_s", [0.0, 0.1, 0.4])
@pytest.mark.parametrize("returns", [True, False])
def test_a_loudspeaker_that_is_lost_after_a_pause_repeats_nothing(
    monkeypatch: pytest.MonkeyPatch, after_s: float, returns: bool
) -> None:
    loudspeaker = PulledAfterPause(0.3, after_s, returns=returns)
    loudspeaker.card.replace_sounddevice(monkeypatch)
    microphone = ScriptedMicrophone(*QUESTION, speech(0.35))
    with running(ScriptedEngine(SCRIPT), SETTINGS, microphone=microphone, speaker=loudspeaker) as driver:
        driver.session.send(Start())
        driver.await_event(PlaybackFinished if returns else ReplyCut)
    heard = np.trim_zeros(np.concatenate(loudspeaker.air))
    silent = sum(end - first for first, end in gaps(heard, SPEAKER_RATE))
    # The samples that the pause faded out are played again when they fade in.
    heard_s = (len(heard) - silent) / SPEAKER_RATE - FADE_S
    if returns:
        assert heard_s == pytest.approx(SCRIPT.chunks * SCRIPT.chunk_s, abs=1e-3)
    else:
        # Up to a round of the dialog loop may pass between its last look and the loss.
        assert driver.of(ReplyCut)[0].heard_s == pytest.approx(heard_s, abs=0.011)


def test_an_engine_that_fails_while_its_reply_is_paused() -> None:
    script = Script(chunks=10, chunk_s=2.0, fail_on="reply", pauses_s=(0.0, 1.5))
    loudspeaker, microphone = Loudspeaker(), ScriptedMicrophone(*QUESTION, speech(0.5))
    with running(ScriptedEngine(script), SETTINGS, microphone=microphone, speaker=loudspeaker) as driver:
        driver.session.send(Start())
        driver.await_event(TurnCancelled)
        driver.session.send(AskText("still there?"))
        driver.await_event(TurnCommitted, 2)
    assert driver.of(ErrorRaised)[0].turn_id == 1
    assert driver.of(ReplyCut)[0].reason == "error"
    interrupted = decisions(driver, "interrupt")[0]["at_s"]
    assert interrupted < decisions(driver, "cut")[0]["at_s"] < interrupted + 0.8


def test_speech_that_begins_with_the_last_word_is_an_ordinary_turn() -> None:
    script = Script(chunks=3, chunk_s=0.4)
    begin_s = 1.75 + 1.2 - 0.06
    for offset_s in (-0.12, -0.06, 0.0):
        microphone = ScriptedMicrophone(
            silence(0.5), speech(0.6), silence(begin_s + offset_s - 1.1), speech(0.9)
        )
        engine = ScriptedEngine(script)
        with running(engine, SETTINGS, microphone=microphone) as driver:
            driver.session.send(Start())
            driver.await_event(TurnCommitted, 2)
            heard = np.concatenate(engine.turns[1].heard)
        onset = int(np.flatnonzero(np.abs(heard) > 0.1)[0])
        assert (np.abs(heard) > 0.01).sum() / RATE == pytest.approx(0.9, abs=0.03)
        assert onset / RATE == pytest.approx(TURNS.pre_roll_ms / 1e3, abs=0.033)


@pytest.mark.parametrize(
    ("changes", "pauses"), [({"barge_in": False}, 0), ({"barge_in_ms": 500}, 1), ({"barge_in_ms": 1_000}, 0)]
)
def test_the_output_never_dips_before_the_user_may_interrupt(changes: dict[str, Any], pauses: int) -> None:
    settings = replace(SETTINGS, turn_taking=replace(TURNS, **changes))
    loudspeaker, microphone = Loudspeaker(), ScriptedMicrophone(*QUESTION, speech(0.55))
    with running(ScriptedEngine(SCRIPT), settings, microphone=microphone, speaker=loudspeaker) as driver:
        driver.session.send(Start())
        driver.await_event(PlaybackFinished)
    check_whole(loudspeaker, SCRIPT, pauses)
    assert len(decisions(driver, "interrupt")) == pauses
    for decision in decisions(driver, "interrupt"):
        assert decision["at_s"] - OVER_S >= 0.5
