"""A session whose engine is a server on loopback: the conversation, lost connections, refusals."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from app.remote import server_engine
from app.remote.server_engine import ServerEngine
from app.server_address import ServerAddress
from app.session.commands import LoadEngine
from app.session.engine_jobs import (
    Commit,
    EngineLost,
    EngineNotice,
    Hear,
    Load,
    Loaded,
    LoadFailed,
    OpenTurn,
    ReplyResult,
    TurnFailed,
)
from app.session.events import EngineReady, StateChanged
from engine_runtime.types import CancelScope, Modality, ReplyAudio
from tests.doubles.realtime_server import RealtimeServer
from tests.doubles.remote_client import RemoteClient
from tests.doubles.scripted_engine import ScriptedEngine
from tests.tools.session_driver import Driver, running, speech

SPEECH = Modality.SPEECH
LIMIT_S = 100.0


@contextmanager
def client(server: RealtimeServer, key: str = "", **options: Any) -> Iterator[RemoteClient]:
    found = RemoteClient(ServerAddress(server.url, key), **options)
    try:
        yield found
    finally:
        found.close()


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_engine, "WAITS_S", (0.0, 0.05))


def test_a_conversation_over_loopback() -> None:
    with RealtimeServer(key="0123456789abcdef") as server:
        with client(server, "0123456789abcdef") as user:
            user.until(lambda: user.of(Loaded))
            (loaded,) = user.of(Loaded)
            assert (loaded.bundle, loaded.can_speculate, loaded.keeps_history) == ("scripted", True, True)
            assert (loaded.input_sample_rate, loaded.output_sample_rate) == (24_000, 24_000)
            user.ask(1, "hello")
            user.until(user.done)
            scope = CancelScope()
            user.slot.submit(OpenTurn(2, SPEECH, scope))
            user.slot.submit(Hear(2, speech(0.4, 24_000)))
            user.slot.submit(Commit(2, SPEECH, None, CancelScope(scope)))
            user.until(lambda: len(user.done()) == 2)
        assert user.pending.idle.is_set()
        assert [event.text for event in user.done()] == ["word0 word1 word2"] * 2
        assert server.sent("session.update")[0]["session"]["audio"]["input"]["turn_detection"] is None


def test_a_server_that_comes_back_goes_on_with_the_conversation() -> None:
    with RealtimeServer() as server, client(server) as user:
        user.ask(1, "one")
        user.until(user.done)
        server.stalls_after = 2  # the first text and the first audio
        user.ask(2, "two")
        user.until(
            lambda: [
                r for r in user.of(ReplyResult) if r.event.turn_id == 2 and isinstance(r.event, ReplyAudio)
            ]
        )
        server.kill()
        user.until(lambda: user.of(EngineNotice))
        user.ask(3, "three")  # nobody is there
        server.stalls_after = None
        server.start()
        user.until(lambda: len(user.done()) == 3)
        user.until(lambda: len(user.of(EngineNotice)) == 2)
        lost, back = (str(notice.problem) for notice in user.of(EngineNotice))
        assert "was lost" in lost
        assert "is back" in back
        remembered = [call for call in server.engines[-1].calls if call[0] == "remember"]
        assert [call[2:] for call in remembered] == [(("one",), "word0 word1 word2"), (("two",), "word0")]
        assert user.done()[-1].finish_reason == "stop"


def reconnecting(driver: Driver) -> list[bool]:
    """Whether the session reported that it reconnects, one state after the other."""
    return [event.is_reconnecting for event in driver.of(StateChanged)]


def test_the_state_of_a_session_says_that_it_reconnects() -> None:
    with RealtimeServer() as server, running(ScriptedEngine()) as driver:
        driver.await_event(EngineReady)
        driver.session.send(LoadEngine(lambda: ServerEngine(ServerAddress(server.url))))
        driver.await_event(EngineReady, 2)
        assert not any(reconnecting(driver))
        server.kill()
        driver.until(lambda: reconnecting(driver)[-1])
        server.start()
        driver.until(lambda: not reconnecting(driver)[-1])
        server.kill()
        driver.until(lambda: reconnecting(driver)[-1])
        driver.session.send(LoadEngine(ScriptedEngine))
        driver.await_event(EngineReady, 3)
        assert not reconnecting(driver)[-1]


@pytest.mark.slow
def test_a_server_that_stays_away_is_given_up() -> None:
    with RealtimeServer() as server, client(server, give_up_s=0.2) as user:
        user.until(lambda: user.of(Loaded))
        server.kill()
        user.until(lambda: user.of(EngineLost))
        assert len(user.of(EngineNotice)) == 1, "it is announced once"
        assert "refused the connection" in user.of(EngineLost)[0].problem.what_is_wrong
        user.slot.submit(Load(ScriptedEngine))
        user.until(lambda: len(user.of(Loaded)) == 2)
        assert user.of(Loaded)[-1].samples_per_code, "of an engine of this process"


def test_a_key_that_is_refused_after_a_loss_ends_the_attempts() -> None:
    with RealtimeServer() as server, client(server) as user:
        user.until(lambda: user.of(Loaded))
        server.refusal = (401, "The API key is missing or wrong.")
        server.kill()
        server.start()
        user.until(lambda: user.of(EngineLost))
        assert "does not accept the key" in user.of(EngineLost)[0].problem.what_is_wrong


@pytest.mark.slow
def test_another_engine_takes_the_place_of_a_server() -> None:
    with RealtimeServer() as server, client(server) as user:
        user.ask(1, "one")
        user.until(user.done)
        user.slot.submit(Load(ScriptedEngine))
        user.until(lambda: len(user.of(Loaded)) == 2)
        assert not user.of(Loaded)[-1].keeps_history, "the server held the conversation"
        user.slot.submit(Load(lambda: ServerEngine(ServerAddress(server.url))))
        user.until(lambda: len(user.of(Loaded)) == 3)


@pytest.mark.parametrize(
    ("refusal", "message", "advice"),
    [
        ((401, "No key."), "does not accept the key: No key", "Check the key"),
        ((403, "Not you."), "refuses this client: Not you", "Ask the operator"),
        ((503, "All 3 seats are taken."), "accepts no conversation now: All 3 seats are taken", "Try again"),
        ((404, "Nothing here."), "answered with HTTP 404: Nothing here", "/v1/realtime"),
    ],
)
def test_refusals_say_why_and_what_to_do(refusal: tuple[int, str], message: str, advice: str) -> None:
    with RealtimeServer() as server:
        server.refusal = refusal
        with client(server, "a-key-nobody-may-see") as user:
            user.until(lambda: user.of(LoadFailed))
    (failed,) = user.of(LoadFailed)
    assert message in failed.problem.what_is_wrong
    assert advice in failed.problem.what_to_do
    assert "a-key-nobody-may-see" not in failed.problem.what_is_wrong + failed.problem.what_to_do


def test_an_address_where_nobody_listens() -> None:
    with socket.socket() as closed:  # taken, so that nobody else listens there
        closed.bind(("127.0.0.1", 0))
        user = RemoteClient(ServerAddress(f"ws://127.0.0.1:{closed.getsockname()[1]}/v1/realtime"))
        user.until(lambda: user.of(LoadFailed))
        user.close()
    (failed,) = user.of(LoadFailed)
    assert "refused the connection" in failed.problem.what_is_wrong
    assert "Check that the server runs" in failed.problem.what_to_do


def test_a_server_that_speaks_something_else() -> None:
    with RealtimeServer(change=lambda event: ["no event"]) as server, client(server) as user:  # type: ignore[arg-type, return-value]
        user.until(lambda: user.of(LoadFailed))
    assert "not an event of the Realtime protocol" in user.of(LoadFailed)[0].problem.what_is_wrong


@pytest.mark.parametrize("garbage", ["[" * 200_000, '{"type": NaN}', "no JSON", "[1, 2]", b"\x00\xff"])
def test_garbage_fails_one_reply_and_the_conversation_goes_on(garbage: str | bytes) -> None:
    with RealtimeServer() as server, client(server) as user:
        user.ask(1, "one")
        user.until(user.done)
        server.stalls_after = 0
        user.ask(2, "two")
        user.until(lambda: server.sent("response.create")[1:])
        server.send(garbage)
        user.until(lambda: user.of(TurnFailed))
        assert "not an event of the Realtime protocol" in user.of(TurnFailed)[0].problem.what_is_wrong
        server.stalls_after = None
        user.ask(3, "three")
        user.until(lambda: [done for done in user.done() if done.turn_id == 3])
        assert not user.of(EngineLost)
        assert len(server.clients) == 1


def test_a_server_that_sends_nothing_but_garbage_is_left() -> None:
    with RealtimeServer() as server, client(server) as user:
        user.ask(1, "one")
        user.until(user.done)
        server.send("no JSON", 150)
        user.until(lambda: user.of(EngineNotice))
        assert "not events of the Realtime protocol" in str(user.of(EngineNotice)[0].problem)
        user.ask(2, "two")
        user.until(lambda: len(user.done()) == 2)


def test_sound_that_leaves_without_encryption_is_announced_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServerAddress, "is_loopback", False)
    with RealtimeServer() as server, client(server) as user:
        user.until(lambda: user.of(EngineNotice))
        assert "without encryption" in str(user.of(EngineNotice)[0].problem)
        assert isinstance(user.results[0], Loaded)
        assert not server.sent("input_audio_buffer.append")
