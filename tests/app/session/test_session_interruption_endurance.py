"""Many random interruptions, resumptions and reopened turns: what was heard is what is remembered, no sample
is lost, nothing runs dry, and every KV block comes back."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.audio.echo_cancellation import AudioProcessing
from app.audio.wav_streams import WavSpeaker
from app.dialog.turn_taking_settings import TurnTakingSettings
from app.session.clocks import Clock, CpuTimeClock
from app.session.commands import Start, Stop
from app.session.events import (
    Counters,
    ErrorRaised,
    ReplyCut,
    ReplyFinished,
    SessionState,
    StateChanged,
    TurnCommitted,
)
from app.session.session_settings import SessionSettings
from engine_runtime.types import Pcm
from tests.app.session.test_session_interruption import SPEAKER_RATE, decisions
from tests.doubles.scripted_engine import OUT_RATE, Script, ScriptedEngine
from tests.doubles.scripted_microphone import RATE, ScriptedMicrophone
from tests.tools.session_driver import Driver, running, silence, speech

_log = logging.getLogger(__name__)
SETTINGS = SessionSettings(
    hear_samples=False,
    turn_taking=TurnTakingSettings(eagerness="off"),
    audio_processing=AudioProcessing("off"),
    seed=1,
    speculate="off",
)
COUNT = int(os.environ.get("MOSS_VOICE_INTERRUPTIONS", "10"))
"""With the real engine; three times as many with the scripted one."""


def said(rng: np.random.Generator, count: int) -> list[Pcm]:
    """A question, then this many stretches of speech: backchannels, turns, and some soon after a turn."""
    parts = [silence(0.5), speech(0.8)]
    for _ in range(count):
        is_backchannel = rng.random() < 0.6
        pause_s = rng.uniform(0.7, 0.9) if rng.random() < 0.4 else rng.uniform(1.0, 3.0)
        length_s = rng.uniform(0.08, 0.58) if is_backchannel else rng.uniform(1.1, 1.6)
        parts += [silence(pause_s), speech(length_s)]
    return [*parts, silence(2.0)]


def converse(
    engine: Any,
    parts: list[Pcm],
    speaker: WavSpeaker,
    inspect: Callable[[Driver], None],
    limit_s: float,
    clock: Clock | None = None,
    settings: SessionSettings = SETTINGS,
) -> None:
    """Hold the conversation to the end of what is said, then stop it and `inspect` what came of it."""
    microphone = ScriptedMicrophone(*parts)
    seconds = sum(map(len, parts)) / RATE
    with running(engine, settings, clock=clock, microphone=microphone, speaker=speaker) as driver:
        is_over: list[bool] = []
        microphone.acts.append((seconds, lambda: is_over.append(True)))
        driver.session.send(Start())
        driver.until(lambda: bool(is_over), limit_s)
        driver.session.send(Stop())
        driver.until(lambda: driver.of(StateChanged)[-1].state is SessionState.STOPPED)
        driver.until_idle()
        inspect(driver)


def check(driver: Driver, kinds: set[str]) -> None:
    """All kinds of decisions were made, each pause has one end, and nothing went wrong."""
    assert driver.of(ErrorRaised) == []
    found = decisions(driver)
    assert kinds <= {decision["kind"] for decision in found}
    is_paused = False
    for decision in found:
        if decision["kind"] == "interrupt":
            assert not is_paused
        is_paused = decision["kind"] == "interrupt" or (
            is_paused and decision["kind"] not in ("resume", "cut", "confirm")
        )


def underruns(driver: Driver) -> int:
    """Gaps in the playback."""
    return max((event.underruns for event in driver.of(Counters)), default=0)


@pytest.mark.slow
def test_the_scripted_engine_hears_what_was_heard() -> None:
    given: list[Pcm] = []
    engine = ScriptedEngine(Script(chunks=20, pauses_s=(0.3,)))

    def inspect(driver: Driver) -> None:
        check(driver, {"interrupt", "resume", "cut", "roll_back"})
        assert underruns(driver) == 0
        truncated = {call[1]: call[2] for call in engine.calls if call[0] == "truncate"}
        for cut in driver.of(ReplyCut):
            assert truncated[cut.turn_id] == round(cut.heard_s * OUT_RATE)
            assert len(driver.session.reply_audio(cut.turn_id)[0]) == truncated[cut.turn_id]
        # Each reply sounds up to where it was cut, and at a pause what was faded sounds twice. One that is
        # taken back in the round of its first sample fades at once.
        heard_s = {event.turn_id: 8.0 for event in driver.of(TurnCommitted)}
        heard_s |= {cut.turn_id: cut.heard_s for cut in driver.of(ReplyCut)}
        faded_s = 0.02 * len(decisions(driver, "interrupt")) + 0.03 * len(decisions(driver, "roll_back"))
        sound_s = np.count_nonzero(np.concatenate(given)) / SPEAKER_RATE
        assert 0.0 <= sound_s - sum(heard_s.values()) <= faded_s + 0.03

    parts = said(np.random.default_rng(1), 3 * COUNT)
    # Ducked, a reply would be heard longer than it counts.
    settings = replace(SETTINGS, overlap="pause")
    converse(engine, parts, WavSpeaker(SPEAKER_RATE, given.append), inspect, 300, settings=settings)


@pytest.mark.slow
def test_the_real_engine_remembers_what_was_heard_and_gives_every_block_back(nano_bundle: Path) -> None:
    from engine_runtime.bundle.bundle import Bundle
    from engine_runtime.engine import Engine

    engine = Engine.load(Bundle.open(nano_bundle))
    conversations: list[Any] = []
    make = engine.new_conversation

    def new_conversation() -> Any:
        conversations.append(make())
        return conversations[-1]

    def inspect(driver: Driver) -> None:
        check(driver, {"interrupt", "resume", "cut"})
        # Under-runs depend on the machine; for --log-cli-level=info.
        counts = Counter(decision["kind"] for decision in decisions(driver))
        _log.info("%d under-runs, decisions: %s", underruns(driver), dict(counts))
        special, conversation = engine.bundle.lm.special_ids, conversations[-1]
        heard = {event.turn_id: event.codes for event in driver.of(ReplyFinished)}
        heard |= {cut.turn_id: cut.heard_codes for cut in driver.of(ReplyCut)}
        remembered = [
            sum(row.text == special.modality_pad and row.audio != special.eosp for row in exchange.reply)
            for exchange in conversation.exchanges
        ]
        assert remembered
        known = [heard[turn_id] for turn_id in sorted(heard) if heard[turn_id]]
        assert remembered == known[-len(remembered) :]
        engine.stages.lm.blocks.check_integrity([conversation.sequence])

    engine.new_conversation = new_conversation  # type: ignore[method-assign]
    parts = said(np.random.default_rng(5), COUNT)
    converse(engine, parts, WavSpeaker(SPEAKER_RATE), inspect, 1_000 + 10 * COUNT, CpuTimeClock())
    engine.stages.lm.blocks.check_integrity([])
