"""Clients of a Realtime server that are broken, slow, or mean harm; then whether it still works.

python -m tests.tools.server_faults ADDRESS [--connections 1000] [--seed 1]

ADDRESS is host and port of a running `moss-voice serve` with free session slots. Afterwards no conversation
and no KV block may be left, and the next client has to get its own answer. Used with fewer connections by the
tests.
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import re
import socket
import sys
import threading
import urllib.request
from collections.abc import Callable
from contextlib import suppress

from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.sync.client import ClientConnection, connect

_QUIET_LIMIT = 3_000
_LOOK_S = 0.02
EVENTS = """session.update input_audio_buffer.append input_audio_buffer.commit input_audio_buffer.clear
conversation.item.create conversation.item.retrieve conversation.item.delete conversation.item.truncate
response.create response.cancel""".split()


class FaultError(AssertionError):
    """The server did not do what it has to."""


def conversations(address: str) -> int:
    """How many are held now."""
    with urllib.request.urlopen(f"http://{address}/health", timeout=60) as answer:
        return int(json.load(answer)["conversations"])


def failed_sessions(address: str) -> float:
    """Sessions that ended by a fault of the server, of /metrics."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    return sum(map(float, re.findall(r'sessions_total\{end="failed".*?\} (\S+)', text)))


def kv_blocks(address: str) -> dict[str, float]:
    """KV blocks by state, of /metrics; of all replicas together."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    blocks: dict[str, float] = {}
    for state, count in re.findall(r'kv_blocks\{.*?state="(\w+)"\} (\S+)', text):
        blocks[state] = blocks.get(state, 0.0) + float(count)
    return blocks


def await_quiet(address: str, most: int = 0) -> None:
    """Until no more conversations than this are held."""
    for _ in range(_QUIET_LIMIT):
        if conversations(address) <= most:
            return
        threading.Event().wait(_LOOK_S)
    raise FaultError(f"{conversations(address)} conversations are left")


def ask(connection: ClientConnection, text: str) -> None:
    """A typed question."""
    part = {"type": "input_text", "text": text}
    item = {"type": "message", "role": "user", "content": [part]}
    connection.send(json.dumps({"type": "conversation.item.create", "item": item}))
    connection.send(json.dumps({"type": "response.create"}))


def answer_to(address: str, text: str) -> str:
    """What a client without faults is told."""
    with connect(f"ws://{address}/v1/realtime") as connection:
        ask(connection, text)
        while (event := json.loads(connection.recv(60)))["type"] != "response.done":
            if event["type"] == "error":
                raise FaultError(str(event))
    return str(event["response"]["output"][0]["content"][0]["transcript"])


def _raw(address: str, data: bytes) -> None:
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout=60) as line:
        line.sendall(data)


def _no_http(address: str, rng: random.Random) -> None:
    _raw(address, rng.randbytes(500))


def _half_a_request(address: str, rng: random.Random) -> None:
    request = b"GET /v1/realtime HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    _raw(address, request[: rng.randrange(1, len(request))])


def _vanish(connection: ClientConnection) -> None:
    """Go without a close frame."""
    with suppress(OSError):
        connection.socket.shutdown(socket.SHUT_RDWR)


def _garbage(connection: ClientConnection, rng: random.Random) -> None:
    for _ in range(rng.randrange(1, 8)):
        kind = rng.randrange(4)
        if kind == 0:
            connection.send(rng.randbytes(rng.randrange(200)))
        elif kind == 1:
            connection.send("{" * rng.randrange(1_000))
        elif kind == 2:
            connection.send(json.dumps([rng.random(), None, {"type": rng.randrange(9)}]))
        else:
            connection.send(json.dumps({"type": rng.choice(EVENTS), "audio": "?", "item": 7, "session": []}))


def _oversized(connection: ClientConnection, rng: random.Random) -> None:
    connection.send("x" * 2_600_000)
    with suppress(TimeoutError):
        connection.recv(10)
        connection.recv(10)


def _out_of_order(connection: ClientConnection, rng: random.Random) -> None:
    sound = base64.b64encode(rng.randbytes(4_800)).decode()
    for _ in range(rng.randrange(5, 25)):
        kind = rng.choice(EVENTS)
        fields = {"item_id": f"item_{rng.randrange(5)}", "content_index": 0}
        fields["audio_end_ms"] = rng.randrange(900)
        if kind == "input_audio_buffer.append":
            fields = {"audio": sound}
        elif kind == "session.update":
            detection = rng.choice([None, {"type": "server_vad"}, {"type": "semantic_vad"}])
            fields = {"session": {"audio": {"input": {"turn_detection": detection}}}}
        elif kind == "conversation.item.create":
            part = {"type": "input_text", "text": "hello"}
            fields = {"item": {"type": "message", "role": "user", "content": [part]}}
        connection.send(json.dumps({"type": kind} | fields))


def _in_the_middle_of_a_reply(connection: ClientConnection, rng: random.Random) -> None:
    ask(connection, "what can you do")
    for _ in range(rng.randrange(12)):
        connection.recv(30)


def _does_not_read(connection: ClientConnection, rng: random.Random) -> None:
    for _ in range(3):
        ask(connection, "count down from five")


OVER_TCP: tuple[Callable[[str, random.Random], None], ...] = (_no_http, _half_a_request)
IN_A_SESSION: tuple[Callable[[ClientConnection, random.Random], None], ...] = (
    _garbage,
    _oversized,
    _out_of_order,
    _in_the_middle_of_a_reply,
    _does_not_read,
)


def misbehave(address: str, kind: int, rng: random.Random) -> None:
    """One connection of a client with the fault of this number."""
    kind %= len(OVER_TCP) + len(IN_A_SESSION)
    if kind < len(OVER_TCP):
        OVER_TCP[kind](address, rng)
        return
    # It is refused while the session slots of those before are being freed; the server may hang up first.
    with (
        suppress(InvalidHandshake, ConnectionClosed),
        connect(f"ws://{address}/v1/realtime", compression=None) as connection,
    ):
        with suppress(ConnectionClosed):
            IN_A_SESSION[kind - len(OVER_TCP)](connection, rng)
        _vanish(connection)


def half_open(address: str) -> socket.socket:
    """A connection whose client is gone without a word: it is never read, and never closed."""
    host, port = address.split(":")
    line = socket.create_connection((host, int(port)), timeout=60)
    key = base64.b64encode(b"0123456789abcdef").decode()
    line.sendall(
        f"GET /v1/realtime HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode()
    )
    if b"101" not in line.recv(1_000):
        raise FaultError("the server refused a half-open connection")
    return line


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("address")
    parser.add_argument("--connections", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    address, rng = arguments.address, random.Random(arguments.seed)
    answer_to(address, "hello")
    await_quiet(address)
    before = kv_blocks(address)
    for number in range(arguments.connections):
        misbehave(address, number, rng)
    await_quiet(address)
    after = kv_blocks(address)
    answer = answer_to(address, "what is two plus three")
    sys.stdout.write(f"{arguments.connections} connections, then: {answer}\n")
    sys.stdout.write(f"KV blocks before {before}, after {after}\n")
    failed = failed_sessions(address)
    sys.stdout.write(f"sessions that failed in the server: {failed:.0f}\n")
    return 0 if after.get("used") == before.get("used") and not failed else 1


if __name__ == "__main__":
    raise SystemExit(main())
