"""The server over HTTP and WebSocket, with a scripted engine: admission, refusals, metrics, draining."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from starlette.testclient import WebSocketDenialResponse, WebSocketTestSession
from starlette.websockets import WebSocketDisconnect

from app.server.access import Access
from app.server.connection import ConnectionLimits
from app.server.engine_load import choose_admission
from app.server.http_app import PATH, RealtimeApp
from app.server.metrics import Metrics
from app.server.service import RealtimeService, ServeSettings
from app.session.clocks import PendingWork
from app.session.end_of_turn_worker import EndOfTurnWorker
from app.session.engine_host import EngineHost
from app.session.transcriber import Transcriber
from tests.doubles import transcriber_child
from tests.doubles.scripted_detector import ScriptedDetector
from tests.doubles.scripted_engine import LoudnessVad, Script, ScriptedEngine

KEY = "0123456789abcdef"


class Rig:
    def __init__(
        self, client: TestClient, app: RealtimeApp, engine: ScriptedEngine, host: EngineHost
    ) -> None:
        self.client, self.app, self.engine, self.host = client, app, engine, host


@contextmanager
def server(
    engine: ScriptedEngine | None = None,
    most: int = 2,
    access: Access | None = None,
    limits: ConnectionLimits | None = None,
    transcriber: Transcriber | None = None,
) -> Iterator[Rig]:
    engine = engine or ScriptedEngine(Script(chunks=2))
    host = EngineHost(
        lambda: engine,
        partial(choose_admission, wanted=most),
        on_engine=lambda timing: metrics.watch(timing),
        is_batching=True,
    )
    metrics = Metrics(host)
    detector = EndOfTurnWorker(lambda: ScriptedDetector(0.9), PendingWork())
    threads = [
        threading.Thread(target=host.run, daemon=True),
        threading.Thread(target=detector.run, daemon=True),
    ]
    if transcriber is not None:
        threads.append(threading.Thread(target=transcriber.run, daemon=True))
    for thread in threads:
        thread.start()
    assert host.loaded.wait(60)
    app = RealtimeApp(
        host,
        access or Access(),
        limits or ConnectionLimits(),
        metrics,
        detector,
        LoudnessVad,
        transcriber=transcriber,
    )
    with TestClient(app.asgi) as client:
        yield Rig(client, app, engine, host)
    host.close()
    detector.close()
    if transcriber is not None:
        transcriber.close()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert engine.conversations == len(engine.ended), "no conversation is left in the engine"


def until(socket: WebSocketTestSession, kind: str) -> dict[str, Any]:
    while (event := json.loads(socket.receive_text()))["type"] != kind:
        assert event["type"] != "error", event
    return event


def send(socket: WebSocketTestSession, kind: str, **fields: Any) -> None:
    socket.send_text(json.dumps({"type": kind} | fields))


def ask(socket: WebSocketTestSession) -> None:
    part = {"type": "input_text", "text": "what is two plus three"}
    send(socket, "conversation.item.create", item={"role": "user", "content": [part]})
    send(socket, "response.create")


def test_a_conversation_and_what_is_counted() -> None:
    with server() as rig:
        with rig.client.websocket_connect(PATH, subprotocols=["realtime", "other"]) as socket:
            assert socket.accepted_subprotocol == "realtime"
            assert until(socket, "session.created")["session"]["model"] == "scripted"
            ask(socket)
            assert until(socket, "response.done")["response"]["status"] == "completed"
            assert rig.client.get("/health").json() == {"status": "ready", "conversations": 1, "capacity": 2}
            socket.send_bytes(b"\x00")
            error = json.loads(socket.receive_text())
            while error["type"] != "error":
                error = json.loads(socket.receive_text())
            assert error["error"]["code"] == "invalid_event"
        metrics = rig.client.get("/metrics").text
        assert 'moss_voice_responses_total{status="completed"} 1.0' in metrics
        assert "moss_voice_conversation_limit 2.0" in metrics
        assert "moss_voice_engine_busy_seconds_total" in metrics
        assert 'moss_voice_client_errors_total{code="invalid_event"} 1.0' in metrics


@pytest.mark.parametrize(
    "asks", [{"headers": {"openai-beta": "realtime=v1"}}, {"subprotocols": ["openai-beta.realtime-v1"]}]
)
def test_a_client_of_before_ga_gets_the_events_of_its_time(asks: dict[str, Any]) -> None:
    with server() as rig, rig.client.websocket_connect(PATH, **asks) as socket:
        session = until(socket, "session.created")["session"]
        assert (session["modalities"], session["input_audio_format"]) == (["audio", "text"], "pcm16")
        ask(socket)
        assert until(socket, "conversation.item.created")["item"]["role"] == "user"
        assert until(socket, "conversation.item.created")["item"]["role"] == "assistant"
        kinds = set()
        while (event := json.loads(socket.receive_text()))["type"] != "response.done":
            kinds.add(event["type"])
        assert {"response.audio.delta", "response.audio_transcript.delta"} <= kinds
        assert not {kind for kind in kinds if "output_audio" in kind} | kinds & {"conversation.item.done"}
        (item,) = event["response"]["output"]
        assert item["content"][0]["type"] == "audio"


def test_who_does_not_fit_or_has_no_key_is_refused_before_the_socket_opens() -> None:
    with server(most=1, access=Access((KEY,))) as rig:
        headers = {"authorization": f"Bearer {KEY}"}
        with rig.client.websocket_connect(PATH, headers=headers) as socket:
            until(socket, "session.created")
            for given, status, code in ((headers, 503, "no_capacity"), ({}, 401, "access_denied")):
                with (
                    pytest.raises(WebSocketDenialResponse) as caught,
                    rig.client.websocket_connect(PATH, headers=given),
                ):
                    pass
                assert caught.value.status_code == status
                assert caught.value.json()["error"]["code"] == code
        assert rig.client.get("/metrics").status_code == 401
        metrics = rig.client.get("/metrics", headers=headers).text
        assert 'moss_voice_refused_connections_total{status="503"} 1.0' in metrics
        assert rig.client.get("/health").status_code == 200


def test_answers_go_to_who_asked() -> None:
    with server(ScriptedEngine(Script(chunks=3))) as rig:
        with rig.client.websocket_connect(PATH) as first, rig.client.websocket_connect(PATH) as second:
            ids = [until(socket, "session.created")["session"]["id"] for socket in (first, second)]
            assert ids[0] != ids[1]
            ask(first)
            ask(second)
            done = [until(socket, "response.done") for socket in (first, second)]
            for event, session in zip(done, ids, strict=True):
                assert session.removeprefix("sess_") in event["response"]["id"]
        conversations = [call[3] for call in rig.engine.calls if call[0] == "open" and call[1] == 1]
        assert len(set(conversations)) == 2


def test_a_client_that_goes_in_the_middle_of_a_reply_leaves_its_slot() -> None:
    gate = threading.Event()
    with server(most=1) as rig:
        rig.engine.script.gate = gate
        with rig.client.websocket_connect(PATH) as socket:
            ask(socket)
            until(socket, "response.created")
        gate.set()
        for _ in range(1_000):
            if rig.host.conversations == 0:
                break
            threading.Event().wait(0.01)
        with rig.client.websocket_connect(PATH) as socket:
            ask(socket)
            assert until(socket, "response.done")["response"]["status"] == "completed"


@pytest.mark.parametrize(
    ("limits", "code"),
    [(ConnectionLimits(session_s=0.05), "session_expired"), (ConnectionLimits(idle_s=0.05), "idle")],
)
def test_sessions_end_at_their_limits(limits: ConnectionLimits, code: str) -> None:
    with server(limits=limits) as rig:
        with rig.client.websocket_connect(PATH) as socket:
            until(socket, "session.created")
            said = "session_expired" if code == "session_expired" else "session_idle"
            assert json.loads(socket.receive_text())["error"]["code"] == said
            with pytest.raises(WebSocketDisconnect) as caught:
                socket.receive_text()
            assert (caught.value.code, caught.value.reason) == (1001, code)
        assert f'moss_voice_sessions_total{{end="{code}"}} 1.0' in rig.client.get("/metrics").text


def test_a_client_that_listens_to_a_reply_is_not_idle() -> None:
    gate = threading.Event()
    limits = ConnectionLimits()
    with server(limits=limits) as rig:
        rig.engine.script.gate = gate
        with rig.client.websocket_connect(PATH) as socket:
            ask(socket)
            until(socket, "rate_limits.updated")
            object.__setattr__(limits, "idle_s", 0.01)
            send(socket, "session.update", session={})
            until(socket, "session.updated")
            threading.Event().wait(0.05)
            gate.set()
            assert until(socket, "response.done")["response"]["status"] == "completed"
            error = json.loads(socket.receive_text())
            assert error["error"]["code"] == "session_idle"


def test_clients_for_azure_connect_at_its_paths_with_its_header() -> None:
    with server(access=Access((KEY,))) as rig:
        for path in (
            "/openai/realtime?api-version=2025-04-01&deployment=nano",
            "/openai/v1/realtime?model=nano",
        ):
            with rig.client.websocket_connect(path, headers={"api-key": KEY}) as socket:
                until(socket, "session.created")


def test_a_wrong_path_is_answered_with_the_right_one() -> None:
    with server() as rig:
        answer = rig.client.get("/v1/realtime/calls")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
        with pytest.raises(WebSocketDenialResponse) as caught, rig.client.websocket_connect("/realtime"):
            pass
        assert caught.value.status_code == 404
        assert PATH in caught.value.json()["error"]["message"]


def test_words_come_from_the_process_that_transcribes(tmp_path: Path) -> None:
    (tmp_path / "words").mkdir()
    transcriber = Transcriber(transcriber_child.command)
    transcriber.use(tmp_path / "words")
    with server(transcriber=transcriber) as rig, rig.client.websocket_connect(PATH) as socket:
        heard = {"turn_detection": None, "transcription": {"model": "whisper-1", "prompt": "tea"}}
        socket.send_json({"type": "session.update", "session": {"audio": {"input": heard}}})
        shown = until(socket, "session.updated")["session"]["audio"]["input"]["transcription"]
        assert shown["model"] == "words"
        pcm = base64.b64encode(bytes(48_000)).decode()
        socket.send_json({"type": "input_audio_buffer.append", "audio": pcm})
        socket.send_json({"type": "input_audio_buffer.commit"})
        committed = until(socket, "input_audio_buffer.committed")
        completed = until(socket, "conversation.item.input_audio_transcription.completed")
        assert (completed["item_id"], completed["transcript"]) == (committed["item_id"], "16000 tea")


def test_the_model_is_listed() -> None:
    with server(access=Access((KEY,))) as rig:
        assert rig.client.get("/v1/models").status_code == 401
        models = rig.client.get("/v1/models", headers={"authorization": f"Bearer {KEY}"}).json()
        assert [model["id"] for model in models["data"]] == ["scripted"]


def test_another_name_that_leads_to_this_machine_is_not_answered() -> None:
    with server(access=Access().at("127.0.0.1")) as rig:
        for path in ("/health", "/metrics", "/v1/models"):
            assert rig.client.get(path, headers={"host": "evil.example"}).status_code == 421
            for host in ("localhost:8000", "127.0.0.1:8000", "[::1]:8000"):
                assert rig.client.get(path, headers={"host": host}).status_code == 200
        with (
            pytest.raises(WebSocketDenialResponse) as caught,
            rig.client.websocket_connect(PATH, headers={"host": "evil.example"}),
        ):
            pass
        assert caught.value.status_code == 421


@pytest.mark.parametrize(("settings", "status"), [(ServeSettings(), 421), (ServeSettings("0.0.0.0"), 200)])
def test_a_service_knows_the_address_that_it_serves(settings: ServeSettings, status: int) -> None:
    service = RealtimeService(settings, ScriptedEngine, lambda: ScriptedDetector(0.9), new_vad=LoudnessVad)
    try:
        with TestClient(service.app.asgi) as client:
            assert client.get("/health", headers={"host": "evil.example"}).status_code == status
    finally:
        service.close()


@pytest.mark.slow
def test_a_message_that_is_too_big_ends_its_session() -> None:
    with server(limits=ConnectionLimits(message_bytes=100)) as rig:
        with rig.client.websocket_connect(PATH) as socket:
            until(socket, "session.created")
            socket.send_text("x" * 101)
            with pytest.raises(WebSocketDisconnect) as caught:
                socket.receive_text()
            assert caught.value.code == 1009
        assert 'moss_voice_sessions_total{end="message_too_big"} 1.0' in rig.client.get("/metrics").text


def test_a_cancelled_request_is_a_client_that_has_gone() -> None:
    """Ray Serve cancels the request of a client that HAProxy has lost."""

    async def connect_and_vanish(app: RealtimeApp) -> None:
        has_begun = asyncio.Event()

        async def receive() -> dict[str, Any]:
            return {"type": "websocket.connect"} if not has_begun.is_set() else await asyncio.Future()

        async def send(message: Any) -> None:
            if message["type"] == "websocket.send":
                has_begun.set()

        scope = {"type": "websocket", "path": PATH, "headers": [], "query_string": b"", "subprotocols": []}
        request = asyncio.create_task(app.asgi(scope, receive, send))
        await asyncio.wait_for(has_begun.wait(), 60)
        request.cancel()
        await asyncio.wait({request}, timeout=60)
        assert request.cancelled()

    with server() as rig:
        asyncio.run(connect_and_vanish(rig.app))
        assert 'moss_voice_sessions_total{end="client"} 1.0' in rig.client.get("/metrics").text
        assert 'end="failed"' not in rig.client.get("/metrics").text


def test_draining_lets_a_response_end() -> None:
    gate = threading.Event()
    with server() as rig:
        rig.engine.script.gate = gate
        with rig.client.websocket_connect(PATH) as busy, rig.client.websocket_connect(PATH) as quiet:
            ask(busy)
            until(busy, "response.created")
            until(quiet, "session.created")
            assert rig.client.portal is not None
            drained = rig.client.portal.start_task_soon(rig.app.drain, 10.0)
            with pytest.raises(WebSocketDisconnect) as caught:
                quiet.receive_text()
            assert caught.value.code == 1012
            assert rig.client.get("/health").status_code == 503
            with pytest.raises(WebSocketDenialResponse), rig.client.websocket_connect(PATH):
                pass
            gate.set()
            assert until(busy, "response.done")["response"]["status"] == "completed"
            with pytest.raises(WebSocketDisconnect):
                until(busy, "never")
            drained.result(60)


def test_draining_does_not_wait_for_ever() -> None:
    gate = threading.Event()
    with server() as rig:
        rig.engine.script.gate = gate
        with rig.client.websocket_connect(PATH) as busy:
            ask(busy)
            until(busy, "response.created")
            assert rig.client.portal is not None
            rig.client.portal.call(rig.app.drain, 0.01)
            with pytest.raises(WebSocketDisconnect) as caught:
                until(busy, "response.done")
            assert caught.value.code == 1012
        gate.set()
