"""How many conversations fit into the time of an engine."""

from __future__ import annotations

import pytest

from app.server.engine_load import USABLE, EngineLoad, choose_admission, measure_load
from app.session.engine_host import Admission
from engine_runtime.errors import MossVoiceError
from engine_runtime.scheduler import Scheduler
from tests.doubles.scripted_engine import Script, ScriptedEngine


@pytest.mark.parametrize(
    ("rtf", "speaking", "capacity"), [(0.1, 8, 72), (0.3, 1, 3), (USABLE, 1, 1), (2.0, 1, 1)]
)
def test_replies_at_once_without_a_gap(rtf: float, speaking: int, capacity: int) -> None:
    assert EngineLoad(rtf, rtf, speaking).capacity == capacity


def test_more_replies_are_made_at_once_as_long_as_twice_as_many_fit() -> None:
    fast = ScriptedEngine(Script(chunks=1, chunk_s=30.0))
    load = measure_load(fast, Scheduler(), 12)
    assert load.speaking == 8, "at most 12"
    assert load.capacity > 8
    assert fast.conversations == len(fast.ended) == 1 + 2 + 4 + 8
    slow = measure_load(ScriptedEngine(Script(chunks=1, chunk_s=0.001, step_s=0.01)), Scheduler(), 12)
    assert (slow.speaking, slow.capacity) == (1, 1)


def admission(engine: ScriptedEngine, wanted: int | None = None) -> Admission:
    return choose_admission(engine, Scheduler(), wanted)


@pytest.mark.slow
def test_memory_and_speed_set_the_number_of_conversations() -> None:
    fast = admission(ScriptedEngine(Script(chunks=1, chunk_s=30.0)))
    assert fast.conversations == 8, "by the KV cache: the engine is fast"
    slow = admission(ScriptedEngine(Script(chunks=1, chunk_s=0.001, step_s=0.01)))
    assert slow.conversations == 1, "however slow it is, one conversation is served"
    assert fast.rtf < slow.rtf
    with pytest.raises(
        MossVoiceError, match=r"KV cache of scripted holds 8 .* fewer than 9.*--context-tokens"
    ):
        admission(ScriptedEngine(), 9)


@pytest.mark.slow
def test_what_has_least_room_sets_the_number_of_conversations(caplog: pytest.LogCaptureFixture) -> None:
    engine = ScriptedEngine(Script(chunks=1, chunk_s=30.0))
    engine.conversation_limits["speech encoder"] = 5
    found = admission(engine)
    assert (found.conversations, found.limit) == (5, "by its speech encoder")
    engine.speaking_limit = 2
    assert admission(engine).conversations == 4, "users listen half of the time"
    assert admission(engine, 4).conversations == 4
    assert not caplog.messages
    assert admission(engine, 5).conversations == 5, "as was asked for"
    assert (
        "--conversations 5: without it 4 would be admitted at once (limited by its flow's caches)"
        in caplog.text
    )
    engine.conversation_limits["speech encoder"] = 5
    with pytest.raises(
        MossVoiceError, match=r"speech encoder of scripted holds 5 .* fewer than 6"
    ) as refused:
        admission(engine, 6)
    assert "--context-tokens" not in str(refused.value)
