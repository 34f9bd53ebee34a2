"""The flow steps of a loaded engine change from one reply to the next."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine_runtime.bundle.bundle import Bundle
from engine_runtime.engine import Engine
from engine_runtime.errors import FlowCacheError
from engine_runtime.options import EngineOptions
from engine_runtime.setting import OptionsError
from engine_runtime.timing import TimingBus, TimingEvent
from engine_runtime.types import Modality, Pcm, ReplyAudio
from engine_runtime.work import run_alone
from tests.tools.turns import GREEDY, LONG, ask, exchange, sound

QUESTION = "what is two plus three"


@pytest.fixture(scope="module")
def bundle(random_bundle: Path) -> Bundle:
    return Bundle.open(random_bundle)


def loaded(bundle: Bundle, steps: int | None, timing: TimingBus | None = None) -> Engine:
    return Engine.load(bundle, EngineOptions(flow_steps=steps), timing=timing)


def reply_of(bundle: Bundle, steps: int | None, turns: int = 1) -> Pcm:
    """The sound of the last of some replies of an engine that was loaded with so many steps."""
    with loaded(bundle, steps) as engine:
        conversation = engine.new_conversation()
        made = [exchange(engine, conversation, QUESTION, turn_id=turn + 1) for turn in range(turns)]
    return sound(made[-1])


def test_replies_equal_those_of_an_engine_of_that_many_steps(bundle: Bundle) -> None:
    """Bit for bit, more steps and fewer, and those of the bundle again."""
    own = bundle.flow.steps
    with loaded(bundle, None) as engine:
        for steps, count in ((own + 2, own + 2), (1, 1), (None, own)):
            engine.use_flow_steps(steps)
            assert engine.flow_steps == count
            made = sound(exchange(engine, engine.new_conversation(), QUESTION))
            np.testing.assert_array_equal(made, reply_of(bundle, steps))
            assert made.any()
    assert not np.array_equal(reply_of(bundle, 1), reply_of(bundle, own + 2))


def test_a_change_during_a_reply_applies_to_the_next_one(bundle: Bundle) -> None:
    events: list[TimingEvent] = []
    timing = TimingBus()
    timing.subscribe(events.append)
    with loaded(bundle, 2, timing) as engine:
        conversation = engine.new_conversation()
        turn = run_alone(engine.open_turn(conversation, 1))
        ask(turn, QUESTION)
        parts = []
        for event in run_alone(turn.commit(Modality.SPEECH, GREEDY)):
            if isinstance(event, ReplyAudio):
                parts.append(event.pcm)
                engine.use_flow_steps(5)
        assert len(parts) > 1
        following = sound(exchange(engine, conversation, QUESTION, turn_id=2))
    np.testing.assert_array_equal(np.concatenate(parts), reply_of(bundle, 2))
    np.testing.assert_array_equal(following, reply_of(bundle, 5, turns=2))
    assert [event.attributes["flow_steps"] for event in events if event.name == "reply"] == [2, 5]


def test_an_abandoned_reply_does_not_hold_up_the_change(bundle: Bundle) -> None:
    with loaded(bundle, 2) as engine:
        conversation = engine.new_conversation()
        turn = run_alone(engine.open_turn(conversation, 1))
        ask(turn, QUESTION)
        next(iter(run_alone(turn.commit(Modality.SPEECH, LONG))))
        engine.use_flow_steps(3)
        assert (engine.flow_steps, engine.stages.token2mel.steps) == (3, 2)
        run_alone(engine.open_turn(conversation, 2))
        assert engine.stages.token2mel.steps == 3


@pytest.mark.parametrize("steps", [0, -1, 101])
def test_a_number_out_of_range_is_refused(bundle: Bundle, steps: int) -> None:
    with loaded(bundle, 2) as engine:
        with pytest.raises(OptionsError, match=f"flow_steps is {steps}. Give 1 to 100."):
            engine.use_flow_steps(steps)
        assert engine.flow_steps == 2


def test_what_a_backend_cannot_run_is_refused_at_once(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Static caches that are too small, and those that several conversations share."""

    def check(steps: int) -> None:
        raise FlowCacheError("Too small for {steps}.", "Choose fewer.", steps=steps)

    with loaded(bundle, 2) as engine:
        monkeypatch.setattr(engine.stages.token2mel, "check_steps", check)
        with pytest.raises(FlowCacheError, match="Too small for 9"):
            engine.use_flow_steps(9)
        assert engine.flow_steps == engine.stages.token2mel.steps == 2


def test_memory_that_runs_out_before_a_turn_keeps_the_steps(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def run_out(steps: int) -> None:
        raise FlowCacheError("Too little memory.", "Choose fewer.")

    with loaded(bundle, 2) as engine:
        conversation = engine.new_conversation()
        turn = run_alone(engine.open_turn(conversation, 1))
        ask(turn, QUESTION)
        events = iter(run_alone(turn.commit(Modality.SPEECH, GREEDY)))
        next(events)
        engine.use_flow_steps(9)
        monkeypatch.setattr(engine.stages.token2mel, "use_steps", run_out)
        list(events)
        following = sound(exchange(engine, conversation, QUESTION, turn_id=2))
        assert engine.flow_steps == 2
    np.testing.assert_array_equal(following, reply_of(bundle, 2, turns=2))
    assert "The flow steps stay at 2: Too little memory. Choose fewer." in caplog.messages
