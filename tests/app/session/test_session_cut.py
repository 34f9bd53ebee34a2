"""An interrupted reply: engine and user receive the position up to which it was heard."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.audio.wav_streams import WavMicrophone, WavSpeaker
from app.session.commands import (
    AskText,
    CancelTurn,
    Command,
    NewConversation,
    PlayAgain,
    PlaySample,
    SetReply,
    Start,
    Stop,
)
from app.session.events import (
    DeviceNoticed,
    ErrorRaised,
    PlaybackFinished,
    ReplyCut,
    ReplyFinished,
    ReplyTextDelta,
    Timing,
    TurnCancelled,
    TurnOpened,
)
from app.session.session_settings import SessionSettings
from engine_runtime.errors import AudioDeviceError
from engine_runtime.types import Modality, Pcm
from tests.doubles.scripted_engine import OUT_RATE, Script, ScriptedEngine
from tests.tools.session_driver import Driver, running, silence, speech, write_question

RATE = 48_000
LATENCY_S = 0.25


class Loudspeaker(WavSpeaker):
    """A loudspeaker with latency that can be disconnected; records its samples."""

    def __init__(self, latency_s: float = LATENCY_S) -> None:
        self.given: list[Pcm] = []
        super().__init__(RATE, self._receive)
        self.latency_s = latency_s
        self.is_pulled = False
        self.is_absent = False
        self.acted_s = 0.0
        """How much of the reply it had received at the latest action; of the next reply more may follow."""
        self._actions: list[tuple[float, Callable[[], None]]] = []

    def open(self, device: str | None, latency_s: float) -> None:
        """Nothing takes its place while it `is_absent`."""
        if self.is_absent:
            raise AudioDeviceError("No loudspeaker was found.", "Connect one.")
        super().open(device, latency_s)

    def close(self) -> None:
        """Another one can take the place of one that was pulled out."""
        super().close()
        self.is_pulled = False

    def is_lost(self) -> bool:
        """Whether it was pulled out."""
        return bool(self.name) and self.is_pulled

    @property
    def loud_samples(self) -> int:
        """From the first to the last sample that is not silent."""
        loud = np.flatnonzero(np.abs(np.concatenate([*self.given, np.zeros(1)])) > 1e-3)
        return int(loud[-1] - loud[0]) + 1 if len(loud) else 0

    def at(self, seconds: float, action: Callable[[], None]) -> None:
        """Act once this much of the reply was received, in the session's own thread: virtual time does not
        wait for that of the test."""
        self._actions.append((seconds, action))

    def _receive(self, block: Pcm) -> None:
        self.given.append(block)
        if self._actions and self.loud_samples >= self._actions[0][0] * RATE:
            self.acted_s = self.loud_samples / RATE
            self._actions.pop(0)[1]()


@pytest.fixture
def loudspeaker() -> Loudspeaker:
    return Loudspeaker()


def truncations(driver: Driver) -> set[tuple[object, ...]]:
    """(turn, samples, characters) of every truncate, called immediately and again as a job."""
    return {call[1:] for call in driver.engine.calls if call[0] == "truncate"}


def check_cut(driver: Driver, loudspeaker: Loudspeaker, reason: str) -> ReplyCut:
    """Engine and user received the playback position at which turn 1 was cut."""
    (cut,) = driver.of(ReplyCut)
    assert (cut.turn_id, cut.reason) == (1, reason)
    driver.until(lambda: bool(truncations(driver)))
    ((turn_id, samples, _),) = truncations(driver)
    assert turn_id == 1
    assert isinstance(samples, int)
    assert cut.heard_s == samples / OUT_RATE
    # Samples sent to the device before the stop, minus those still in flight.
    left_s = max(loudspeaker.acted_s - loudspeaker.latency_s, 0.0)
    assert cut.heard_s == pytest.approx(left_s, abs=0.025)
    # The k-th word is that of the k-th chunk of 0.4 s.
    words = [f"word{chunk} " for chunk in range(10)]
    count = -(-samples // (OUT_RATE * 4 // 10))
    assert cut.heard_text == "".join(words[:count])
    shown = "".join(event.text for event in driver.of(ReplyTextDelta) if event.turn_id == 1)
    assert cut.heard_text + cut.unheard_text == shown
    assert cut.heard_codes == -(-samples // 1_920)
    pcm, rate = driver.session.reply_audio(1)
    assert (len(pcm), rate) == (samples, OUT_RATE)
    return cut


def interrupted(
    loudspeaker: Loudspeaker, script: Script, act: Callable[[Driver], None], heard_s: float
) -> Iterator[Driver]:
    with running(ScriptedEngine(script), speaker=loudspeaker) as driver:
        loudspeaker.at(heard_s + loudspeaker.latency_s, lambda: act(driver))
        driver.session.send(AskText("one"))
        driver.await_event(TurnCancelled)
        yield driver


COMMANDS: dict[str, Command] = {
    "user": CancelTurn(),
    "stopped": Stop(),
    "replaced": AskText("two"),
}


@pytest.mark.slow
@pytest.mark.parametrize("step_s", [0.0, 0.15], ids=["complete", "being generated"])
@pytest.mark.parametrize("reason", COMMANDS)
def test_what_was_heard_reaches_the_engine(loudspeaker: Loudspeaker, reason: str, step_s: float) -> None:
    script = Script(chunks=10, step_s=step_s)
    act: Callable[[Driver], None] = lambda driver: driver.session.send(COMMANDS[reason])  # noqa: E731
    for driver in interrupted(loudspeaker, script, act, 0.9):
        cut = check_cut(driver, loudspeaker, reason)
        assert 0.85 < cut.heard_s < 2.0
        is_finished = 1 in [event.turn_id for event in driver.of(ReplyFinished)]
        assert is_finished is not bool(step_s)
        assert cut.made_s == pytest.approx(4.0) or step_s
        assert driver.events.index(cut) + 1 == driver.events.index(driver.of(TurnCancelled)[0])
        (decision,) = [e.event.attributes for e in driver.of(Timing) if e.event.name == "decision"]
        assert (decision["kind"], decision["reason"]) == ("cut", reason)
        assert decision["heard_ms"] == pytest.approx(cut.heard_s * 1e3)
        if reason == "replaced":
            driver.await_event(PlaybackFinished)
            calls = [call[:2] for call in driver.engine.calls]
            assert calls.index(("truncate", 1)) < calls.index(("open", 2))


@pytest.mark.slow
@pytest.mark.parametrize("latency_s", [0.0, LATENCY_S])
def test_barge_in_cuts_a_reply_that_is_complete(tmp_path: Path, latency_s: float) -> None:
    loudspeaker = Loudspeaker(latency_s)
    path = write_question(
        tmp_path / "barge.wav", silence(0.4), speech(0.6), silence(2.0), speech(0.8), silence(0.3)
    )
    engine = ScriptedEngine(Script(chunks=10))
    with running(engine, microphone=WavMicrophone(path), speaker=loudspeaker) as driver:
        driver.session.send(Start())
        driver.await_event(TurnOpened, 2)
        driver.session.send(Stop())
        driver.await_event(TurnCancelled, 2)
        assert driver.of(ReplyFinished)[0].seconds == pytest.approx(4.0)
        cut = driver.of(ReplyCut)[0]
        # The second question starts 2.6 s after the first; the reply 0.64 s later at the earliest. It is
        # paused after 32 ms, and what the device has by then is heard.
        assert cut.heard_s == pytest.approx(2.0 + 0.032 - 0.64, abs=0.1)
        assert (cut.turn_id, cut.reason) == (1, "barge_in")
        assert cut.heard_codes == -(-round(cut.heard_s * OUT_RATE) // 1_920)


@pytest.mark.slow
def test_a_sample_and_a_new_conversation_interrupt_too(loudspeaker: Loudspeaker, tmp_path: Path) -> None:
    path = write_question(tmp_path / "q.wav", silence(0.2), speech(0.5), silence(0.2))
    for command in (PlaySample(path), NewConversation()):
        speaker = Loudspeaker()
        with running(ScriptedEngine(Script(chunks=10)), speaker=speaker) as driver:
            speaker.at(0.6, partial(driver.session.send, command))
            driver.session.send(AskText("one"))
            driver.await_event(TurnCancelled)
            assert driver.of(ReplyCut)[0].reason == "replaced"
            driver.until(lambda driver=driver: bool(truncations(driver)))  # type: ignore[misc]


@pytest.mark.slow
def test_a_reply_of_which_nothing_was_heard(loudspeaker: Loudspeaker) -> None:
    gate = threading.Event()
    with running(ScriptedEngine(Script(gate=gate)), speaker=loudspeaker) as driver:
        driver.session.send(AskText("one"))
        driver.until(lambda: "commit" in driver.engine.names_of(1))
        driver.session.send(CancelTurn())
        driver.await_event(TurnCancelled)
        gate.set()
        driver.session.send(PlayAgain(1))
        error = driver.await_event(ErrorRaised)
    (cut,) = driver.of(ReplyCut)
    assert (cut.heard_text, cut.unheard_text, cut.heard_s, cut.heard_codes) == ("", "", 0.0, 0)
    assert truncations(driver) == {(1, 0, 0)}
    assert "no sound" in error.problem.what_is_wrong


@pytest.mark.slow
def test_a_reply_that_was_heard_to_its_end_is_not_cut(loudspeaker: Loudspeaker) -> None:
    with running(ScriptedEngine(), speaker=loudspeaker) as driver:
        driver.session.send(AskText("one"))
        driver.await_event(PlaybackFinished)
        driver.session.send(CancelTurn())
        driver.session.send(AskText("two"))
        driver.await_event(PlaybackFinished, 2)
        driver.session.send(Stop())
    assert truncations(driver) == set()
    assert driver.of(ReplyCut) == driver.of(TurnCancelled) == []
    assert len(driver.session.reply_audio(1)[0]) == round(1.2 * OUT_RATE)


@pytest.mark.slow
def test_playing_again_changes_nothing_in_what_was_said(loudspeaker: Loudspeaker) -> None:
    with running(ScriptedEngine(Script(chunks=5)), speaker=loudspeaker) as driver:
        driver.session.send(AskText("one"))
        driver.await_event(PlaybackFinished)
        loudspeaker.given.clear()
        loudspeaker.at(0.5, partial(driver.session.send, CancelTurn()))
        driver.session.send(PlayAgain(1))
        driver.await_event(PlaybackFinished, 2)
        assert loudspeaker.loud_samples / RATE < 1.0
    assert truncations(driver) == set()
    assert driver.of(ReplyCut) == driver.of(TurnCancelled) == []
    assert len(driver.session.reply_audio(1)[0]) == round(2.0 * OUT_RATE)


@pytest.mark.slow
def test_a_reply_that_is_started_over_while_it_is_heard_is_not_cut(loudspeaker: Loudspeaker) -> None:
    with running(ScriptedEngine(Script(chunks=5)), speaker=loudspeaker) as driver:
        loudspeaker.at(1.25, partial(driver.session.send, PlayAgain(1)))
        driver.session.send(AskText("one"))
        driver.await_event(PlaybackFinished)
        assert truncations(driver) == set()
        assert driver.of(ReplyCut) == []
        assert loudspeaker.loud_samples / RATE > 3.0
        loudspeaker.given.clear()
        loudspeaker.at(1.25, partial(driver.session.send, PlayAgain(2)))
        loudspeaker.at(1.35, partial(driver.session.send, CancelTurn()))
        driver.session.send(AskText("two"))
        driver.await_event(TurnCancelled)
    # What was heard before it was started over stays heard.
    assert driver.of(ReplyCut)[0].heard_s >= 0.95


@pytest.mark.slow
def test_only_what_was_heard_can_be_played_again(loudspeaker: Loudspeaker) -> None:
    act: Callable[[Driver], None] = lambda driver: driver.session.send(CancelTurn())  # noqa: E731
    for driver in interrupted(loudspeaker, Script(chunks=10), act, 0.7):
        loudspeaker.given.clear()
        driver.session.send(PlayAgain(1))
        driver.await_event(PlaybackFinished)
        heard_s = driver.of(ReplyCut)[0].heard_s
        # What is left of the fade of the cut reply may come first.
        assert loudspeaker.loud_samples / RATE == pytest.approx(heard_s, abs=0.025)


@pytest.mark.slow
@pytest.mark.parametrize("step_s", [0.0, 0.15], ids=["complete", "being generated"])
def test_a_loudspeaker_that_is_lost_cuts_the_reply(loudspeaker: Loudspeaker, step_s: float) -> None:
    def pull_out(_: Driver) -> None:
        loudspeaker.is_pulled = loudspeaker.is_absent = True

    script = Script(chunks=10, step_s=step_s)
    for driver in interrupted(loudspeaker, script, pull_out, 0.9):
        assert "lost" in driver.await_event(ErrorRaised).problem.what_is_wrong
        check_cut(driver, loudspeaker, "output_lost")
        assert driver.of(PlaybackFinished) == []


@pytest.mark.slow
def test_a_reply_goes_on_with_the_loudspeaker_that_takes_the_place_of_a_lost_one() -> None:
    loudspeaker = Loudspeaker(0.0)

    def pull_out() -> None:
        loudspeaker.is_pulled = True

    with running(ScriptedEngine(Script(chunks=4)), speaker=loudspeaker) as driver:
        loudspeaker.at(0.5, pull_out)
        driver.session.send(AskText("one"))
        driver.await_event(ErrorRaised)
        driver.await_event(PlaybackFinished)
        assert driver.of(ReplyCut) == []
        assert "Sound is back" in str(driver.of(DeviceNoticed)[0].problem)
        heard = np.concatenate(loudspeaker.given)
        assert np.count_nonzero(np.abs(heard) > 1e-3) / RATE == pytest.approx(1.6, abs=0.01)


@pytest.mark.slow
def test_what_was_heard_before_the_engine_failed_reaches_it(loudspeaker: Loudspeaker) -> None:
    engine = ScriptedEngine(Script(fail_on="reply", chunk_s=2.0, step_s=0.9))
    with running(engine, speaker=loudspeaker) as driver:
        driver.session.send(AskText("one"))
        driver.await_event(TurnCancelled)
        driver.until(lambda: bool(truncations(driver)))
        (cut,) = driver.of(ReplyCut)
        assert cut.reason == "error"
        assert 0.4 < cut.heard_s < 0.9
        assert truncations(driver) == {(1, round(cut.heard_s * OUT_RATE), len("word0 "))}


def test_a_text_reply_is_cut_to_what_was_shown() -> None:
    engine = ScriptedEngine(Script(chunks=1_000, step_s=0.01))
    with running(engine) as driver:
        driver.session.send(SetReply(Modality.TEXT))
        driver.session.send(AskText("one"))
        driver.await_event(ReplyTextDelta, 4)
        driver.session.send(CancelTurn())
        driver.await_event(TurnCancelled)
        driver.until(lambda: bool(truncations(driver)))
    (cut,) = driver.of(ReplyCut)
    shown = "".join(event.text for event in driver.of(ReplyTextDelta))
    assert (cut.heard_text, cut.unheard_text, cut.heard_s) == (shown, "", 0.0)
    assert truncations(driver) == {(1, 0, len(shown))}


@pytest.mark.slow
def test_the_real_engine_remembers_what_was_heard(random_bundle: Path, loudspeaker: Loudspeaker) -> None:
    from engine_runtime.bundle.bundle import Bundle
    from engine_runtime.engine import Engine

    engine = Engine.load(Bundle.open(random_bundle))
    conversations: list[Any] = []
    make = engine.new_conversation

    def new_conversation() -> Any:
        conversations.append(make())
        return conversations[-1]

    engine.new_conversation = new_conversation  # type: ignore[method-assign]
    settings = SessionSettings(hear_samples=False, seed=3)
    with running(engine, settings, speaker=loudspeaker) as driver:  # type: ignore[arg-type]
        for number in (1, 2):
            loudspeaker.given.clear()
            loudspeaker.at(0.4 + LATENCY_S, partial(driver.session.send, CancelTurn()))
            driver.session.send(AskText("what is two plus three?"))
            driver.await_event(TurnCancelled, number)
        driver.until_idle()
        exchanges = conversations[-1].exchanges
        special = engine.bundle.lm.special_ids
        cuts = driver.of(ReplyCut)
        assert len(cuts) == len(exchanges) == 2
        for cut, one in zip(cuts, exchanges, strict=True):
            codes = [row.audio for row in one.reply if row.text == special.modality_pad]
            assert codes[-1] == special.eosp
            assert len(codes) - 1 == cut.heard_codes > 0
            assert cut.heard_s / 0.08 <= cut.heard_codes < cut.heard_s / 0.08 + 1
        engine.stages.lm.blocks.check_integrity([conversations[-1].sequence])
