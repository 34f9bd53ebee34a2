"""A complete conversation on real sound streams, with real voice activity detection, in real time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typing_extensions import override

from app.audio import sound_server
from app.audio.resample import Resampler
from app.audio.wav import read_wav
from app.session.commands import (
    AskText,
    SetDevices,
    Start,
    Stop,
)
from app.session.events import (
    DeviceNoticed,
    DevicesChanged,
    ErrorRaised,
    Levels,
    PlaybackFinished,
    PlaybackStarted,
    ReplyCut,
    SessionState,
    StateChanged,
    Timing,
    TurnCancelled,
    TurnCommitted,
    TurnOpened,
)
from app.session.session import Session
from engine_runtime.conversation.turn import Conversation
from engine_runtime.timing import TimingBus
from engine_runtime.types import Modality, ReplyAudio, ReplyDone, ReplyEvent
from engine_runtime.work import Task
from tests.doubles.pulse_server import PulseServer
from tests.doubles.scripted_engine import OUT_RATE, Script, ScriptedEngine, ScriptedTurn
from tests.tools.session_driver import Driver

QUESTION = Path(__file__).parents[2] / "data" / "speech" / "question.wav"
pytestmark = [pytest.mark.pulse, pytest.mark.slow]


@contextmanager
def talking(engine: ScriptedEngine) -> Iterator[Driver]:
    """A session that listens on the real devices."""
    session = Session(lambda: engine)
    session.start()
    driver = Driver(session, engine)
    try:
        session.send(Start())
        driver.until(lambda: driver.of(StateChanged)[-1:] == [StateChanged(SessionState.LISTENING)])
        yield driver
    finally:
        assert session.stop()


def test_a_spoken_question_is_answered_aloud(pulse_server: PulseServer, tmp_path: Path) -> None:
    engine = ScriptedEngine(Script(step_s=0.05))
    with talking(engine) as driver:
        recording = pulse_server.record(tmp_path / "heard.wav")
        time.sleep(0.5)
        speaking = pulse_server.speak(QUESTION)
        driver.await_event(PlaybackFinished)
        speaking.wait(60)
        time.sleep(0.3)
        recording.terminate()
        recording.wait(60)
        driver.session.send(Stop())
        driver.until(lambda: driver.of(StateChanged)[-1].state is SessionState.STOPPED)

    assert driver.of(ErrorRaised) == []
    devices = next(event for event in driver.of(DevicesChanged) if event.input and event.output)
    assert devices.inputs == ("microphone",)  # the monitors are not offered
    assert (devices.input, devices.output) == ("microphone", "speaker")
    assert devices.descriptions["microphone"] == "Remapped Monitor of Null Output"
    assert len(driver.of(TurnOpened)) == 1
    question, rate = read_wav(QUESTION)
    assert driver.of(TurnCommitted)[0].seconds == pytest.approx(len(question) / rate - 0.3, abs=0.25)
    # The engine heard the question, at its own rate and level.
    heard = np.concatenate(engine.turns[0].heard)
    assert np.abs(heard).max() == pytest.approx(np.abs(question).max(), abs=0.1)
    # The reply of 1.2 s came out of the loudspeaker; a busy machine may have torn it.
    played, rate = read_wav(tmp_path / "heard.wav")
    loud = np.flatnonzero(np.abs(played) > 0.1)
    assert (loud[-1] - loud[0]) / rate == pytest.approx(1.2, abs=0.2)
    assert max(event.output_dbfs for event in driver.of(Levels)) > -12
    assert max(event.vad_probability for event in driver.of(Levels)) > 0.9
    # Endpointing counts from the last speech in the air, voice-to-voice ends at the loudspeaker.
    times = {event.event.name: event.event.duration_ms for event in driver.of(Timing)}
    assert times["endpointing"] >= 640
    assert times["voice_to_voice"] >= times["endpointing"] + 20


def test_a_lost_sound_server_is_reported_and_the_conversation_continues(pulse_server: PulseServer) -> None:
    engine = ScriptedEngine(Script(chunks=8))
    with talking(engine) as driver:
        pulse_server.speak(QUESTION)
        driver.await_event(PlaybackStarted)
        pulse_server.stop()
        error = driver.await_event(ErrorRaised)
        assert "lost" in error.problem.what_is_wrong
        assert error.problem.what_to_do
        pulse_server.start()
        driver.until(lambda: driver.of(DevicesChanged)[-1].input == "microphone")
        inputs = [event.input for event in driver.of(DevicesChanged)]
        assert "" in inputs[inputs.index("microphone") :]
        driver.until(lambda: driver.of(StateChanged)[-1].state is SessionState.LISTENING)
        pulse_server.speak(QUESTION)
        driver.await_event(PlaybackStarted, 2)
    assert engine.conversations == 1


def loud_ms(wav: Path) -> float:
    """How much of a record is loud, in windows of 10 ms."""
    played, rate = read_wav(wav)
    windows = played[: len(played) // (rate // 100) * (rate // 100)].reshape(-1, rate // 100)
    return 10.0 * float(np.count_nonzero(np.abs(windows).max(axis=1) > 0.05))


def refuse_48_khz(sink: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let a loudspeaker take no other rate than its own, as one without a converter; returns the rates at
    which loudspeakers were opened."""
    import sounddevice

    make_stream, opened = sounddevice.OutputStream, []

    def refusing(**arguments: Any) -> Any:
        if os.environ.get("PULSE_SINK") == sink and arguments["samplerate"] == 48_000:
            raise sounddevice.PortAudioError("Invalid sample rate")
        opened.append(arguments["samplerate"])
        return make_stream(**arguments)

    monkeypatch.setattr(sounddevice, "OutputStream", refusing)
    return opened


@pytest.mark.parametrize("rate", [48_000, 44_100])
def test_a_reply_goes_on_where_another_loudspeaker_is_chosen_or_lost(
    rate: int, pulse_server: PulseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = refuse_48_khz("second" if rate != 48_000 else "", monkeypatch)
    monkeypatch.setattr(sound_server, "RATE_HZ", rate)

    def notices() -> list[str]:
        messages = [str(event.problem) for event in driver.of(DeviceNoticed)]
        return [message for message in messages if "microphone" not in message]  # which is silent

    second = pulse_server.add_sink("second", "Second loudspeaker")
    with talking(ScriptedEngine(Script(chunks=10))) as driver:
        driver.until(lambda: "second" in driver.of(DevicesChanged)[-1].outputs)
        records = [pulse_server.record(tmp_path / f"{name}.wav", name) for name in ("speaker", "second")]
        time.sleep(0.5)
        driver.session.send(AskText("one"))
        driver.await_event(PlaybackStarted)
        time.sleep(1.0)
        driver.session.send(SetDevices(None, "second"))
        driver.until(lambda: driver.of(DevicesChanged)[-1].output == "second")
        time.sleep(1.0)
        pulse_server.remove_sink(second)
        driver.until(lambda: len(notices()) == 1)
        driver.await_event(PlaybackFinished)
        time.sleep(0.3)
        for record in records:
            record.terminate()
            record.wait(60)
        pulse_server.add_sink("second", "Second loudspeaker")
        driver.until(lambda: len(notices()) == 2)
        driver.until(lambda: driver.of(DevicesChanged)[-1].output == "second")
    assert driver.of(ReplyCut) == []
    assert driver.of(ErrorRaised) == []
    assert set(rates) == {48_000, rate}
    gone, back = notices()
    assert gone.startswith("The loudspeaker Second loudspeaker is not connected; Null Output (speaker) ")
    assert back == "The loudspeaker Second loudspeaker is back."
    heard = loud_ms(tmp_path / "speaker.wav") + loud_ms(tmp_path / "second.wav")
    assert 3_900 <= heard <= 4_200  # of 4 s; a sink without rewinding plays its block of 50 ms to the end


class SpeakingEngine(ScriptedEngine):
    """Answers with speech, which an open loudspeaker would take for the user's."""

    @override
    def open_turn(
        self,
        conversation: Conversation,
        turn_id: int,
        reply: Modality = Modality.SPEECH,
        timing: TimingBus | None = None,
    ) -> Task[ScriptedTurn]:
        turn = yield from super().open_turn(conversation, turn_id, reply, timing)
        pcm, rate = read_wav(QUESTION)
        resampler = Resampler(rate, OUT_RATE)
        spoken = np.float32(0.25) * np.concatenate([resampler.push(pcm), resampler.finish()])

        def speak(reply: Modality) -> Iterator[ReplyEvent]:
            for chunk in range(3):
                yield ReplyAudio(turn_id, spoken, OUT_RATE, chunk)
            yield ReplyDone(turn_id, Modality.SPEECH, "stop", "", (), 3 * len(spoken))

        turn.events_of = speak  # type: ignore[method-assign]
        return turn


def test_the_assistant_does_not_interrupt_itself_but_the_user_can(pulse_server: PulseServer) -> None:
    with talking(SpeakingEngine()) as driver:
        pulse_server.hear_itself()
        pulse_server.speak(QUESTION)
        driver.await_event(PlaybackFinished)
        assert max(event.input_dbfs for event in driver.of(Levels)[-40:]) > -40  # the echo was there
        time.sleep(0.5)
        driver.events += driver.session.poll()
        assert len(driver.of(TurnOpened)) == 1
        assert driver.of(TurnCancelled) == []
        pulse_server.speak(QUESTION)
        driver.await_event(PlaybackStarted, 2)
        time.sleep(1.0)
        pulse_server.speak(QUESTION)
        assert driver.await_event(TurnCancelled).reason == "barge_in"
