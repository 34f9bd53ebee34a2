"""The flow steps change while the session runs, from one turn to the next."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from app.session.commands import ApplySettings, AskText
from app.session.engine_jobs import FlowSteps, FlowStepsSet
from app.session.events import EngineReady, ErrorRaised, PlaybackFinished, SessionState, StateChanged
from app.session.session_settings import SessionSettings
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.engine import Engine
from engine_runtime.options import EngineOptions
from engine_runtime.types import Pcm
from tests.doubles.scripted_engine import Script, ScriptedEngine
from tests.tools.session_driver import Driver, running

SETTINGS = SessionSettings(hear_samples=False, seed=3)


def choose(driver: Driver, steps: int | None) -> None:
    driver.session.send(ApplySettings(replace(SETTINGS, flow_steps=steps)))


def test_a_change_reaches_the_engine_once() -> None:
    with running(ScriptedEngine(), SETTINGS) as driver:
        assert driver.await_event(EngineReady).flow_steps == FlowSteps(10, 10)
        for steps in (4, 4, None):
            choose(driver, steps)
        driver.await_event(FlowStepsSet, 2)
        driver.session.send(AskText("one"))
        driver.await_event(PlaybackFinished)
        changes = [call[1] for call in driver.engine.calls if call[0] == "use_flow_steps"]
        assert changes == [4, None]
        assert [event.flow_steps.chosen for event in driver.of(FlowStepsSet)] == [4, 10]


def test_a_change_during_a_reply_waits_for_its_end() -> None:
    gate = threading.Event()
    with running(ScriptedEngine(Script(gate=gate)), SETTINGS) as driver:
        driver.session.send(AskText("one"))
        driver.until(lambda: StateChanged(SessionState.THINKING) in driver.events)
        choose(driver, 4)
        gate.set()
        driver.await_event(PlaybackFinished)
        driver.await_event(FlowStepsSet)
        names = [call[0] for call in driver.engine.calls]
        assert names.index("use_flow_steps") > names.index("commit")
        driver.session.send(AskText("two"))
        driver.await_event(PlaybackFinished, 2)
        assert driver.engine.flow_steps == 4


def test_why_they_cannot_change_is_said() -> None:
    with running(ScriptedEngine(Script(fail_on="use_flow_steps")), SETTINGS) as driver:
        choose(driver, 4)
        assert driver.await_event(FlowStepsSet).flow_steps.chosen == 10
        driver.until(lambda: bool(driver.of(ErrorRaised)))
        (error,) = driver.of(ErrorRaised)
        assert (error.problem.what_is_wrong, error.problem.what_to_do) == (
            "The engine is out of order.",
            "Repair it.",
        )
        assert not error.is_fatal


@pytest.mark.slow
def test_replies_equal_those_of_an_engine_of_that_many_steps(random_bundle: Path) -> None:
    """Bit for bit: as many of the same questions, of which the last has these steps from the beginning."""

    def replies(at_first: int, later: int) -> list[Pcm]:
        engine = Engine.load(Bundle.open(random_bundle), EngineOptions(flow_steps=at_first))
        settings = replace(SETTINGS, flow_steps=at_first)
        with running(cast(ScriptedEngine, engine), settings) as driver:
            for turn, steps in ((1, at_first), (2, later)):
                choose(driver, steps)
                driver.session.send(AskText("what is two plus three"))
                driver.await_event(PlaybackFinished, turn)
            return [driver.session.reply_audio(turn)[0] for turn in (1, 2)]

    changed, kept, other = replies(1, 6), replies(1, 1), replies(6, 6)
    np.testing.assert_array_equal(changed[0], kept[0])
    np.testing.assert_array_equal(changed[1], other[1])
    assert not np.array_equal(changed[1], kept[1])
