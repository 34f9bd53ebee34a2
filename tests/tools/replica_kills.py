"""How soon a conversation resumes after its replica was killed in the middle of a reply, through Ray Serve.

python -m tests.tools.replica_kills [--kills 5]

Starts `moss-voice serve --ray` with two replicas of nano, each with room for one conversation. A client
asks, gets a reply, asks again, and the process that speaks is killed with SIGKILL. Timed from there: until
the client has another session, and until the first audio of the next reply, which is asked for as soon as
the loss is noticed. That reply needs what was said before the kill.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from app.server_address import ServerAddress
from app.session.engine_jobs import EngineNotice, ReplyResult
from engine_runtime.types import ReplyAudio
from tests.doubles.remote_client import RemoteClient

TARGET_S = 3.0
_OPENED = re.compile(r"pid=(\d+).*session_opened")
_READY_S = 120


@dataclass
class Service:
    """A running `moss-voice serve --ray`."""

    address: str
    process: subprocess.Popen[str]
    replicas: list[int]
    """Process ids, in the order in which sessions were opened there."""

    is_ending: bool = False

    def end(self) -> None:
        """Ask it to end, once: asked again it would do so at once."""
        if not self.is_ending:
            self.is_ending = True
            self.process.send_signal(signal.SIGTERM)

    def health(self) -> dict[str, int]:
        with urllib.request.urlopen(f"http://{self.address}/health", timeout=30) as answer:
            found: dict[str, int] = json.load(answer)
        return found

    def await_replicas(self, count: int) -> None:
        """Until so many are there, and hold no conversation."""
        end_s = time.monotonic() + _READY_S
        while (found := self.health())["replicas"] != count or found["conversations"]:
            assert time.monotonic() < end_s, found
            time.sleep(0.2)


@contextmanager
def ray_service(*options: str) -> Iterator[Service]:
    """A server on a free port, ended with SIGTERM; its exit status has to be 0 then."""
    command = [sys.executable, "-m", "app", "serve", "--ray", "--port", "0", *options]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ.copy()
    )
    assert process.stdout is not None
    lines: list[str] = []
    try:
        for line in process.stdout:
            lines.append(line)
            if "listening on" in line:
                break
        else:
            raise AssertionError("the server ended: " + "".join(lines[-20:]))
        service = Service(line.split("://")[1].split("/")[0], process, [])
        threading.Thread(target=_follow, args=(service,), daemon=True).start()
        yield service
        service.end()
        assert process.wait(60) == 0
    finally:
        process.kill()


def _follow(service: Service) -> None:
    assert service.process.stdout is not None
    for line in service.process.stdout:
        if found := _OPENED.search(line):
            service.replicas.append(int(found[1]))


@dataclass(frozen=True)
class Recovery:
    """Seconds from the kill, and what the next reply said."""

    session_s: float
    audio_s: float
    reply: str


def kill_in_mid_reply(service: Service) -> Recovery:
    """Hold a conversation, and kill its replica while it replies."""
    before = len(service.replicas)
    user = RemoteClient(ServerAddress(f"ws://{service.address}/v1/realtime"))
    user.ask(1, "what is three plus four")
    user.until(user.done)
    user.ask(2, "count down from five")
    user.until(lambda: _audio(user, 2))
    user.until(lambda: len(service.replicas) > before)
    os.kill(service.replicas[-1], signal.SIGKILL)
    killed_s = time.monotonic()
    user.until(lambda: user.of(EngineNotice))
    user.ask(3, "and plus two")
    user.until(lambda: len(user.of(EngineNotice)) == 2)
    session_s = time.monotonic() - killed_s
    user.until(lambda: _audio(user, 3))
    audio_s = time.monotonic() - killed_s
    user.until(lambda: 3 in {event.turn_id for event in user.done()})
    user.close()
    return Recovery(session_s, audio_s, user.done()[-1].text)


def _audio(user: RemoteClient, turn_id: int) -> bool:
    events = [result.event for result in user.of(ReplyResult)]
    return any(isinstance(event, ReplyAudio) and event.turn_id == turn_id for event in events)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--kills", type=int, default=5)
    arguments = parser.parse_args()
    recoveries = []
    with ray_service("--replicas", "2", "--conversations", "1") as service:
        for _ in range(arguments.kills):
            recoveries.append(found := kill_in_mid_reply(service))
            sys.stdout.write(f"session {found.session_s:.2f} s  audio {found.audio_s:.2f} s  {found.reply}\n")
            sys.stdout.flush()
            service.await_replicas(2)
    return 0 if max(found.session_s for found in recoveries) <= TARGET_S else 1


if __name__ == "__main__":
    raise SystemExit(main())
