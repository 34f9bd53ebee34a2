"""The server as a process, with nano: the official client holds a conversation with it over loopback."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvicorn
from openai.types.realtime import RealtimeSessionCreateRequest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from app.audio.resample import Resampler
from app.audio.wav import read_beginning
from app.audio.wire_format import PCM16
from app.server.access import Access, AccessError
from app.server.run import ServeError, open_listener, serve
from app.server.service import ServeSettings
from app.server_address import ServerAddress
from app.session.engine_jobs import EngineNotice, ReplyResult
from engine_runtime.whisper import WhisperError
from tests.doubles.remote_client import RemoteClient
from tests.doubles.scripted_engine import ScriptedEngine
from tests.factories.certificates import self_signed
from tests.tools.client_conformance.__main__ import OK, Ends, converse
from tests.tools.client_conformance.clients import CACHE, CLIENTS
from tests.tools.client_conformance.script import FEATURES
from tests.tools.server_faults import answer_to, await_quiet, failed_sessions, half_open, kv_blocks, misbehave

KEY = "a-key-of-the-tests"


@contextmanager
def served(
    repository: Path, *options: str, key: str = "", status: int = 0
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A running server and its address without the scheme; it has to end by itself after a SIGTERM, with this
    exit status."""
    command = [sys.executable, "-m", "app", "serve", "--port", "0", "--conversations", "1", *options]
    process = subprocess.Popen(
        command, cwd=repository, stderr=subprocess.PIPE, text=True, env=_environment(key)
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if "listening on" in line:
                break
        else:
            pytest.fail("the server ended")
        yield line.split("://")[1].split("/")[0], process
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == status
    finally:
        process.kill()
        process.stderr.close()


@pytest.fixture(scope="module")
def shared(repository: Path, nano_bundle: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A server with two seats for tests that leave it as they found it."""
    with served(repository, "--conversations", "2") as running:
        yield running


def _environment(key: str) -> dict[str, str]:
    return os.environ | {"MOSS_VOICE_API_KEYS": key}


async def _ask(connection: Any, wav: Path) -> list[Any]:
    """Send a recording and the silence after it, faster than real time; returns the events up to the end of
    the response."""
    data = _spoken(wav)
    for start in range(0, len(data), 4_800):
        block = base64.b64encode(data[start : start + 4_800]).decode()
        await connection.input_audio_buffer.append(audio=block)
    return [event async for event in _until_done(connection)]


def _spoken(wav: Path) -> bytes:
    """A recording between two seconds of silence, as on the wire."""
    pcm, rate = read_beginning(wav, 30.0)
    resampler = Resampler(rate, PCM16.sample_rate)
    silence = np.zeros(PCM16.sample_rate, np.float32)
    return PCM16.encode(np.concatenate([silence, resampler.push(pcm), resampler.finish(), silence]))


async def _until_done(connection: Any) -> AsyncIterator[Any]:
    async for event in connection:
        assert event.type != "error", event
        yield event
        if event.type == "response.done":
            return


def _transcript(events: list[Any]) -> str:
    (done,) = [event for event in events if event.type == "response.output_audio_transcript.done"]
    return str(done.transcript)


@pytest.mark.slow
def test_the_official_client_holds_a_conversation_with_nano(repository: Path, nano_bundle: Path) -> None:
    from openai import AsyncOpenAI

    async def converse(address: str) -> None:
        client = AsyncOpenAI(
            api_key=KEY, base_url=f"http://{address}/v1", websocket_base_url=f"ws://{address}/v1"
        )
        samples = repository / "assets" / "samples"
        async with client.realtime.connect(model="nano") as connection:
            created = await connection.recv()
            assert created.type == "session.created"
            assert isinstance(created.session, RealtimeSessionCreateRequest)
            assert created.session.model == "nano"
            events = await _ask(connection, samples / "03-three-plus-four.wav")
            assert _transcript(events) == "Three plus four is seven."
            deltas = [event.delta for event in events if event.type == "response.output_audio.delta"]
            sound = PCM16.decode(b"".join(map(base64.b64decode, deltas)))
            assert 1.0 < len(sound) / PCM16.sample_rate < 5.0
            assert float(np.sqrt(np.mean(sound**2))) > 0.01
            item = next(event.item for event in events if event.type == "response.output_item.done")
            events = await _ask(connection, samples / "04-and-plus-two.wav")
            assert _transcript(events) == "Seven plus two is nine.", "it knows the question before"
            await connection.conversation.item.truncate(item_id=item.id, content_index=0, audio_end_ms=500)
            assert (await connection.recv()).type == "conversation.item.truncated"
            await connection.session.update(session={"type": "realtime", "output_modalities": ["text"]})
            part = {"type": "input_text", "text": "what is the capital of france"}
            question: Any = {"type": "message", "role": "user", "content": [part]}
            await connection.conversation.item.create(item=question)
            await connection.response.create()
            events = [event async for event in _until_done(connection)]
            (text,) = [event.text for event in events if event.type == "response.output_text.done"]
            assert "Paris" in text

    with served(repository, key=KEY) as (address, _):
        asyncio.run(asyncio.wait_for(converse(address), 240))
        with urllib.request.urlopen(f"http://{address}/health", timeout=120) as answer:
            assert json.load(answer)["status"] == "ready"


@pytest.mark.slow
def test_history_is_replayed_after_a_reconnect(shared: tuple[str, subprocess.Popen[str]]) -> None:
    from openai import AsyncOpenAI

    async def converse(address: str) -> str:
        client = AsyncOpenAI(
            api_key="none", base_url=f"http://{address}/v1", websocket_base_url=f"ws://{address}/v1"
        )
        async with client.realtime.connect(model="nano") as connection:
            for role, kind, text in (
                ("user", "input_text", "what is three plus four"),
                ("assistant", "output_text", "Three plus four is seven."),
                ("user", "input_text", "and plus two"),
            ):
                item: Any = {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}
                await connection.conversation.item.create(item=item)
            await connection.response.create(response={"output_modalities": ["text"]})
            events = [event async for event in _until_done(connection)]
        return next(event.text for event in events if event.type == "response.output_text.done")

    assert asyncio.run(asyncio.wait_for(converse(shared[0]), 240)) == "Seven plus two is nine."


@pytest.mark.slow
def test_the_agents_package_holds_a_conversation_with_nano(
    repository: Path, nano_bundle: Path, tmp_path: Path
) -> None:
    client = next(client for client in CLIENTS if client.driver == "openai_agents.mjs")
    if shutil.which("node") is None or not client.is_installed(CACHE):
        pytest.skip(f"not installed (python -m tests.tools.client_conformance --clients '{client.name}')")
    features = ("second turn", "typed message", "barge-in, truncation")
    with served(repository, "--conversations", "2", key=KEY) as (address, _):
        ends = Ends(client.command(CACHE), tmp_path / "stderr.txt", f"ws://{address}", KEY)
        cells = asyncio.run(converse(ends, {name: FEATURES[name] for name in features}))
    assert cells == dict.fromkeys(features, (OK, ""))


@pytest.mark.slow
def test_garbage_and_vanishing_clients_leave_a_server_that_works(
    shared: tuple[str, subprocess.Popen[str]],
) -> None:
    rng, (address, process) = random.Random(1), shared
    assert answer_to(address, "hello")
    await_quiet(address)
    before = kv_blocks(address)
    for number in range(42):
        misbehave(address, number, rng)
    await_quiet(address)
    assert process.poll() is None
    assert kv_blocks(address)["used"] == before["used"], "no block is lost"
    assert failed_sessions(address) == 0, "they were ended by their clients"
    assert answer_to(address, "what is two plus three") == "Two plus three is five."


@pytest.mark.slow
def test_messages_are_not_compressed(shared: tuple[str, subprocess.Popen[str]]) -> None:
    with connect(f"ws://{shared[0]}/v1/realtime", compression="deflate") as connection:
        assert connection.protocol.extensions == []
    await_quiet(shared[0])


@pytest.mark.slow
def test_a_half_open_connection_takes_a_seat_and_no_more(shared: tuple[str, subprocess.Popen[str]]) -> None:
    address, _ = shared
    await_quiet(address)
    with half_open(address):
        assert answer_to(address, "what is two plus three") == "Two plus three is five."
        await_quiet(address, 1)
        with half_open(address), pytest.raises(InvalidStatus) as caught:
            connect(f"ws://{address}/v1/realtime")
        assert caught.value.response.status_code == 503
    await_quiet(address)


@pytest.mark.slow
def test_a_server_that_was_killed_and_comes_back_goes_on(repository: Path, nano_bundle: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    with served(repository, "--port", port, status=-signal.SIGKILL) as (address, process):
        user = RemoteClient(ServerAddress(f"ws://{address}/v1/realtime"))
        user.ask(1, "what is three plus four")
        user.until(user.done)
        user.ask(2, "what is three plus four")
        user.until(lambda: 2 in {result.event.turn_id for result in user.of(ReplyResult)})
        process.kill()
    user.until(lambda: user.of(EngineNotice))
    user.ask(3, "and plus two")  # nobody is there
    with served(repository, "--port", port):
        user.until(lambda: 3 in {event.turn_id for event in user.done()})
        assert user.done()[-1].finish_reason == "stop"
        assert user.done()[-1].text == "Seven plus two is nine.", "it knows the questions before"
        assert len(user.of(EngineNotice)) == 2, "lost, and back"
        user.close()


@pytest.mark.slow
def test_tls(repository: Path, nano_bundle: Path, tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    context = ssl.create_default_context(cafile=str(certificate))
    with (
        served(repository, "--tls-cert", str(certificate), "--tls-key", str(key)) as (address, _),
        urllib.request.urlopen(f"https://{address}/health", context=context, timeout=120) as answer,
    ):
        assert json.load(answer)["capacity"] == 1


def _serve(settings: ServeSettings) -> None:
    serve(settings, lambda: nullcontext(ScriptedEngine()), lambda: None, lambda address: None)


def test_an_address_that_is_in_use_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServeError, match=f"127.0.0.1:{port}"):
            _serve(ServeSettings(port=port))


def test_connections_do_not_wait_for_acknowledgements() -> None:
    with (
        open_listener(uvicorn.Config("none", port=0)) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_model_that_cannot_transcribe_is_an_error_before_the_engine_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(WhisperError):
        serve(ServeSettings(port=0, transcribe=tmp_path), ScriptedEngine, lambda: None, lambda _: None)


def test_others_cannot_be_let_in_without_a_key() -> None:
    with pytest.raises(AccessError, match="no API key"):
        _serve(ServeSettings(host="0.0.0.0", access=Access()))


def test_more_conversations_than_fit_are_an_error() -> None:
    with pytest.raises(Exception, match=r"\b8 .*\b9\b"):
        _serve(ServeSettings(port=0, conversations=9))
