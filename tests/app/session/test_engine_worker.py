"""The engine worker alone: order of jobs, stale replies, errors."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from queue import Empty

import pytest

from app.session.engine_jobs import (
    Ask,
    Cancel,
    Close,
    Commit,
    EngineNotice,
    Hear,
    Heard,
    HistoryChanged,
    Interrupt,
    Loaded,
    LoadFailed,
    OpenTurn,
    Reopen,
    ReplyResult,
    Result,
    TurnFailed,
)
from app.session.engine_worker import EngineWorker
from app.session.pending_work import PendingWork
from engine_runtime.types import CancelScope, Modality, ReplyDone
from tests.doubles.scripted_engine import Script, ScriptedEngine
from tests.tools.session_driver import speech

SPEECH = Modality.SPEECH


class Rig:
    """A worker in a thread; `finish` ends it and returns all results."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self.engine = engine
        self.pending = PendingWork()
        self.worker = EngineWorker(lambda: engine, lambda loaded: None, self.pending)
        self.thread = threading.Thread(target=self.worker.run, daemon=True)
        self.thread.start()

    def finish(self) -> list[Result]:
        """All results but those about the history."""
        self.worker.submit(Close())
        self.thread.join(5)
        assert not self.thread.is_alive()
        results: list[Result] = []
        while True:
            try:
                results.append(self.worker.results.get_nowait())
            except Empty:
                return [result for result in results if not isinstance(result, HistoryChanged)]


@pytest.mark.slow
def test_a_turn_from_speech_to_reply() -> None:
    rig = Rig(ScriptedEngine())
    rig.worker.submit(OpenTurn(1, SPEECH, CancelScope()))
    rig.worker.submit(Hear(1, speech(0.1)))
    rig.worker.submit(Hear(1, speech(0.1)))
    scope = CancelScope()
    rig.worker.submit(Commit(1, SPEECH, None, scope))
    loaded, *results = rig.finish()
    assert isinstance(loaded, Loaded)
    assert (loaded.bundle, loaded.output_sample_rate) == ("scripted", 24_000)
    assert results[:2] == [Heard(1, 1), Heard(1, 1)]
    replies = [result for result in results if isinstance(result, ReplyResult)]
    assert {reply.scope for reply in replies} == {scope}
    assert isinstance(replies[-1].event, ReplyDone)
    assert rig.engine.ended == [1]
    assert rig.engine.is_closed
    assert rig.pending.idle.is_set()


def test_an_engine_of_somebody_else_stays_open_without_a_conversation() -> None:
    engine = ScriptedEngine()
    worker = EngineWorker(lambda: nullcontext(engine), lambda loaded: None, PendingWork())  # type: ignore[arg-type, return-value]
    worker.submit(Close())
    worker.run()
    assert engine.ended == [1]
    assert not engine.is_closed


@pytest.mark.slow
def test_idle_means_nothing_waits() -> None:
    gate = threading.Event()
    rig = Rig(ScriptedEngine(Script(gate=gate)))
    assert rig.pending.idle.wait(5)
    rig.worker.submit(OpenTurn(1, SPEECH, CancelScope()))
    rig.worker.submit(Commit(1, SPEECH, None, CancelScope()))
    assert not rig.pending.idle.wait(0.05)
    gate.set()
    assert rig.pending.idle.wait(5)
    rig.finish()


@pytest.mark.slow
def test_a_cancelled_reply_stops_and_nothing_of_it_arrives() -> None:
    gate = threading.Event()
    rig = Rig(ScriptedEngine(Script(gate=gate, chunks=1_000)))
    scope = CancelScope()
    rig.worker.submit(OpenTurn(1, SPEECH, scope))
    rig.worker.submit(Commit(1, SPEECH, None, CancelScope(scope)))
    while "commit" not in rig.engine.names_of(1):
        pass
    scope.cancel()
    rig.worker.submit(Cancel(1))
    gate.set()
    results = rig.finish()
    assert not [result for result in results if isinstance(result, ReplyResult)]
    assert rig.engine.names_of(1)[-1] == "cancel"


@pytest.mark.slow
def test_an_interrupted_reply_stops_and_the_engine_gets_the_position() -> None:
    gate = threading.Event()
    rig = Rig(ScriptedEngine(Script(gate=gate, chunks=1_000)))
    scope = CancelScope()
    rig.worker.submit(OpenTurn(1, SPEECH, scope))
    rig.worker.submit(Commit(1, SPEECH, None, CancelScope(scope)))
    while "commit" not in rig.engine.names_of(1):
        pass
    scope.cancel()
    rig.worker.submit(Interrupt(1, 1_234, 5))
    gate.set()
    results = rig.finish()
    assert not [result for result in results if isinstance(result, ReplyResult)]
    assert [call for call in rig.engine.calls if call[0] == "truncate"] == [("truncate", 1, 1_234, 5)]


@pytest.mark.slow
def test_a_complete_reply_can_still_be_cut_before_the_next_turn() -> None:
    rig = Rig(ScriptedEngine())
    rig.worker.submit(OpenTurn(1, SPEECH, CancelScope()))
    rig.worker.submit(Commit(1, SPEECH, None, CancelScope()))
    assert rig.pending.idle.wait(5)
    rig.worker.submit(Interrupt(1, 99, 0))
    rig.worker.submit(OpenTurn(2, SPEECH, CancelScope()))
    rig.finish()
    names = [call[0] for call in rig.engine.calls]
    assert names.index("truncate") < len(names) - 1 - names[::-1].index("open")


@pytest.mark.slow
def test_a_reply_that_failed_takes_the_position_and_nothing_else() -> None:
    rig = Rig(ScriptedEngine(Script(fail_on="reply")))
    rig.worker.submit(OpenTurn(1, SPEECH, CancelScope()))
    rig.worker.submit(Commit(1, SPEECH, None, CancelScope()))
    rig.worker.submit(Hear(1, speech(0.1)))
    assert rig.pending.idle.wait(5)
    rig.worker.submit(Interrupt(1, 99, 0))
    rig.finish()
    assert rig.engine.names_of(1) == ["open", "commit", "cancel", "truncate"]


@pytest.mark.slow
def test_a_reopened_turn_is_committed_again() -> None:
    gate = threading.Event()
    rig = Rig(ScriptedEngine(Script(gate=gate)))
    rig.worker.submit(OpenTurn(1, SPEECH, CancelScope()))
    first, second = CancelScope(), CancelScope()
    rig.worker.submit(Commit(1, SPEECH, None, first))
    first.cancel()
    rig.worker.submit(Reopen(1, first))
    rig.worker.submit(Hear(1, speech(0.1)))
    rig.worker.submit(Commit(1, SPEECH, None, second))
    gate.set()
    replies = [result for result in rig.finish() if isinstance(result, ReplyResult)]
    assert {reply.scope for reply in replies} == {second}
    assert rig.engine.names_of(1) == ["open", "commit", "reopen", "push", "commit"]


def test_a_turn_that_is_cancelled_before_it_is_opened_never_is() -> None:
    rig = Rig(ScriptedEngine())
    scope = CancelScope()
    scope.cancel()
    rig.worker.submit(OpenTurn(1, SPEECH, scope))
    rig.worker.submit(Hear(1, speech(0.1)))
    rig.worker.submit(Cancel(1))
    rig.finish()
    assert rig.engine.names_of(1) == []


def test_a_turn_that_is_cancelled_takes_no_more_speech() -> None:
    rig = Rig(ScriptedEngine())
    scope = CancelScope()
    rig.worker.submit(OpenTurn(1, SPEECH, scope))
    rig.worker.submit(Hear(1, speech(0.1)))
    assert rig.pending.idle.wait(5)
    scope.cancel()
    rig.worker.submit(Hear(1, speech(0.1)))
    rig.worker.submit(Commit(1, SPEECH, None, CancelScope(scope)))
    rig.worker.submit(Cancel(1))
    rig.finish()
    assert rig.engine.names_of(1) == ["open", "push", "cancel"]


@pytest.mark.slow
def test_what_slows_an_engine_down_is_noted_once_it_is_loaded() -> None:
    engine = ScriptedEngine()
    engine.notes = ("The GPU runs plain torch.",)
    loaded, noted = Rig(engine).finish()
    assert isinstance(loaded, Loaded)
    assert noted == EngineNotice("The GPU runs plain torch.")


@pytest.mark.slow
def test_jobs_of_another_turn_are_ignored() -> None:
    rig = Rig(ScriptedEngine())
    rig.worker.submit(Hear(1, speech(0.1)))
    rig.worker.submit(OpenTurn(2, SPEECH, CancelScope()))
    rig.worker.submit(Ask(1, "late"))
    rig.worker.submit(Cancel(1))
    rig.worker.submit(Ask(2, "in time"))
    rig.finish()
    assert rig.engine.names_of(1) == []
    assert rig.engine.names_of(2) == ["open", "push_text"]


@pytest.mark.slow
@pytest.mark.parametrize("call", ["open", "push", "commit", "reply"])
def test_a_failure_names_its_turn_and_drops_it(call: str) -> None:
    rig = Rig(ScriptedEngine(Script(fail_on=call)))
    rig.worker.submit(OpenTurn(1, SPEECH, CancelScope()))
    rig.worker.submit(Hear(1, speech(0.1)))
    rig.worker.submit(Commit(1, SPEECH, None, CancelScope()))
    failures = [result for result in rig.finish() if isinstance(result, TurnFailed)]
    assert failures == [TurnFailed(1, "The engine is out of order.", "Repair it.")]
    if call != "open":
        assert rig.engine.names_of(1)[-1] == "cancel"


def test_an_unexpected_error_while_loading() -> None:
    def fail() -> ScriptedEngine:
        raise FileNotFoundError("weights")

    worker = EngineWorker(fail, lambda loaded: None, PendingWork())
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    worker.submit(OpenTurn(1, SPEECH, CancelScope()))
    worker.submit(Close())
    thread.join(5)
    result = worker.results.get_nowait()
    assert isinstance(result, LoadFailed)
    assert "FileNotFoundError: weights" in result.message
    assert "doctor" in result.what_to_do
    assert worker.results.empty()
