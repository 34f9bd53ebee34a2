"""`moss-voice serve --ray` as a process, with nano: two replicas on the CPU. Skipped without Ray."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.tools.replica_kills import TARGET_S, Service, kill_in_mid_reply, ray_service
from tests.tools.server_faults import answer_to, ask, await_quiet, conversations

pytest.importorskip("ray", reason="Ray is not installed (pip install '.[ray]')")

from app.server.ray_run import _check_haproxy, haproxy_files
from app.server.run import ServeError
from app.server.service import ServeSettings

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def service(nano_bundle: Path) -> Iterator[Service]:
    with ray_service("--replicas", "2", "--conversations", "1") as running:
        yield running


def _close_code(connection: ClientConnection, events: list[Any]) -> int:
    """Receive events until the server closes the connection."""
    while True:
        try:
            events.append(json.loads(connection.recv(60)))
        except ConnectionClosed as closed:
            return closed.rcvd.code if closed.rcvd is not None else 1006  # without a close frame


def test_the_official_client_gets_an_answer(service: Service) -> None:
    from openai import AsyncOpenAI

    async def converse() -> str:
        client = AsyncOpenAI(
            api_key="none",
            base_url=f"http://{service.address}/v1",
            websocket_base_url=f"ws://{service.address}/v1",
        )
        async with client.realtime.connect(model="nano") as connection:
            part = {"type": "input_text", "text": "what is two plus three"}
            item = {"type": "message", "role": "user", "content": [part]}
            await connection.conversation.item.create(item=item)  # type: ignore[arg-type]
            await connection.response.create(response={"output_modalities": ["text"]})
            async for event in connection:
                assert event.type != "error", event
                if event.type == "response.output_text.done":
                    return event.text
        raise AssertionError("no text")

    assert asyncio.run(asyncio.wait_for(converse(), 240)) == "Two plus three is five."


def test_no_other_user_can_reach_the_files_of_ray(service: Service) -> None:
    sockets = [
        Path(part)
        for process in psutil.Process(service.process.pid).children(recursive=True)
        for part in " ".join(process.cmdline()).replace("=", " ").split()
        if part.endswith(("/plasma_store", "/raylet")) and "/sockets/" in part
    ]
    assert sockets
    for socket in sockets:
        assert socket.exists()
        above = [folder.stat() for folder in socket.parents]
        assert any(found.st_mode & 0o077 == 0 and found.st_uid == os.getuid() for found in above), socket


def test_both_replicas_are_used_and_the_next_client_is_refused(service: Service) -> None:
    await_quiet(service.address)
    url = f"ws://{service.address}/v1/realtime"
    with connect(url), connect(url):
        assert conversations(service.address) == 2
        with pytest.raises(InvalidStatus) as caught:
            connect(url)
    assert caught.value.response.status_code == 503
    assert caught.value.response.headers["retry-after"] == "5"
    assert json.loads(caught.value.response.body or b"")["error"]["code"] == "no_capacity"
    await_quiet(service.address)


def test_a_message_that_is_too_big_ends_its_connection_alone(service: Service) -> None:
    url = f"ws://{service.address}/v1/realtime"
    with connect(url) as connection:
        connection.send("x" * 2_600_000)
        assert _close_code(connection, []) == 1009
    assert answer_to(service.address, "what is two plus three") == "Two plus three is five."


def test_a_conversation_goes_on_when_its_replica_is_killed(service: Service) -> None:
    await_quiet(service.address)
    recovery = kill_in_mid_reply(service)
    assert recovery.session_s < TARGET_S
    assert "plus two is nine" in recovery.reply, "it knows the question before"
    service.await_replicas(2)


def test_the_number_of_replicas_is_changed_while_they_serve(service: Service) -> None:
    await_quiet(service.address)
    for count in (1, 2):
        code = f"from tests.tools.replica_scaling import scale; scale({count})"
        token = os.environ | {"RAY_AUTH_MODE": "token"}
        subprocess.run([sys.executable, "-c", code], check=True, env=token, timeout=60)
        service.await_replicas(count)
    assert answer_to(service.address, "what is two plus three") == "Two plus three is five."


def test_haproxy_keeps_its_files_with_the_others(tmp_path: Path) -> None:
    environ = {"RAY_SERVE_HAPROXY_SOCKET_PATH": "/run/chosen.sock"}
    haproxy_files(tmp_path, environ)
    assert environ.pop("RAY_SERVE_HAPROXY_SOCKET_PATH") == "/run/chosen.sock"
    assert len(environ) == 4
    assert all(Path(place).is_relative_to(tmp_path) for place in environ.values())


def test_haproxy_without_tls_is_not_taken_for_one_with(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_SERVE_ENABLE_HA_PROXY", "1")
    _check_haproxy(ServeSettings())
    assert "8404 and 9101" in capsys.readouterr().err
    with pytest.raises(ServeError, match="without TLS"):
        _check_haproxy(ServeSettings(tls_certificate=Path("cert.pem")))


_SIGNALLED_TWICE = """
import signal, subprocess, sys, threading
from app.server.ray_run import _asker
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
asked = threading.Event()
ask = _asker(asked)
ask(signal.SIGINT, None)
assert asked.is_set() and child.poll() is None
print(child.pid, flush=True)
ask(signal.SIGINT, None)
"""


def test_a_second_signal_ends_everything() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SIGNALLED_TWICE], stdout=subprocess.PIPE, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    with contextlib.suppress(psutil.NoSuchProcess):  # if its new parent has reaped it
        assert psutil.Process(int(done.stdout)).status() == psutil.STATUS_ZOMBIE


def test_responses_in_progress_end_before_the_server_does(nano_bundle: Path) -> None:
    with (
        ray_service("--replicas", "1", "--conversations", "1") as service,
        connect(f"ws://{service.address}/v1/realtime") as connection,
    ):
        ask(connection, "count down from five")
        events = [json.loads(connection.recv(60))]
        while events[-1]["type"] != "response.output_audio.delta":
            events.append(json.loads(connection.recv(60)))
        service.end()
        assert _close_code(connection, events) == 1012
    (done,) = [event for event in events if event["type"] == "response.done"]
    assert done["response"]["status"] == "completed"
