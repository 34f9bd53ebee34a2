"""Clients of a Realtime server that come and go, and whether the server grows.

python -m tests.tools.server_churn [--minutes 30] [--clients 3] [--seed 1] [--json FILE]

Starts `moss-voice serve` with nano and a session slot for each client. Each client connects, asks one to
three questions, leaves in the middle of every third reply, and comes again. Every minute: conversations so
far, and the memory (unique set size), threads and file descriptors of the server. At the end nothing may be
held for anybody, every answer has to be that of its question, and the last minutes may not take more than the
first.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass

import psutil
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from engine_runtime.table import Section
from tests.tools.server_faults import ask, await_quiet, kv_blocks
from tests.tools.tool_report import parse, tool_report

QUESTIONS = {
    "what is two plus three": "Two plus three is five.",
    "what is three plus four": "Three plus four is seven.",
    "hello": "Hello how can I help you.",
}
_COLUMNS = {
    "minutes": "since the first client",
    "conversations": "that ended so far",
    "memory_mb": "unique set size of the server (10^6 bytes)",
    "threads": "of the server",
    "files": "file descriptors of the server",
}
MOST_GROWTH = 0.05
"""Of the memory, from the first third to the last: what the allocator takes for itself."""


@dataclass(frozen=True)
class Row:
    """The server at one time."""

    minutes: float
    conversations: int
    memory_mb: float
    threads: int
    files: int

    def __str__(self) -> str:
        return (
            f"{self.minutes:6.1f} min {self.conversations:6d} conversations {self.memory_mb:7.1f} MB "
            f"{self.threads:4d} threads {self.files:4d} files"
        )


@contextmanager
def served(
    clients: int, *options: str, program: tuple[str, ...] = ("app", "serve")
) -> Iterator[tuple[str, psutil.Process]]:
    """A server with a session slot for each client: its address without the scheme, and its process."""
    command = [sys.executable, "-m", *program, "--port", "0", "--conversations", str(clients), *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "listening on" in line)
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield line.split("://")[1].split("/")[0], psutil.Process(process.pid)
        process.terminate()


class Churn:
    """Clients, each in a thread of its own; `conversations` is how many they held."""

    def __init__(self, address: str, clients: int, seed: int) -> None:
        self.conversations = 0
        self.wrong: list[str] = []
        self._url = f"ws://{address}/v1/realtime"
        self._ends = threading.Event()
        self._threads = [threading.Thread(target=self._come_and_go, args=(seed + n,)) for n in range(clients)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join()

    def _come_and_go(self, seed: int) -> None:
        rng = random.Random(seed)
        while not self._ends.is_set():
            # The session slot of the client before may not be free yet.
            with suppress(InvalidStatus, ConnectionClosed), connect(self._url) as connection:
                for _ in range(rng.randint(1, 3)):
                    question = rng.choice(list(QUESTIONS))
                    ask(connection, question)
                    stays = rng.randrange(3) > 0
                    while (event := json.loads(connection.recv(60)))["type"] != "response.done":
                        if event["type"] == "response.output_audio.delta" and not stays:
                            break
                    if not stays:
                        break
                    said = event["response"]["output"][0]["content"][0]["transcript"]
                    if said != QUESTIONS[question]:
                        self.wrong.append(f"{question}: {said}")
                self.conversations += 1


def grown(rows: list[Row]) -> float:
    """Memory of the last third of the time over that of the first, without the first row of all."""
    third = max((len(rows) - 1) // 3, 1)
    return max(row.memory_mb for row in rows[-third:]) / max(row.memory_mb for row in rows[1 : third + 1]) - 1


def say(text: object) -> None:
    """Tell who waits how far it is."""
    sys.stderr.write(f"{text}\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parse(parser)
    rows = []
    with served(arguments.clients) as (address, process):
        used = kv_blocks(address)["used"]
        churn, began_s = Churn(address, arguments.clients, arguments.seed), time.monotonic()
        while (minutes := (time.monotonic() - began_s) / 60) < arguments.minutes:
            memory_mb = process.memory_full_info().uss / 1e6
            rows.append(
                Row(minutes, churn.conversations, memory_mb, process.num_threads(), process.num_fds())
            )
            say(rows[-1])
            time.sleep(min(60.0, arguments.minutes * 60 / 6))
        churn.end()
        await_quiet(address)
        left = kv_blocks(address)["used"] - used
    growth = grown(rows)
    section = Section("the server while clients come and go", _COLUMNS, [asdict(row) for row in rows])
    section.note = f"memory {growth:+.1%}; KV blocks leaked: {left:.0f}; wrong answers: {churn.wrong[:5]}"
    with tool_report("server_churn", arguments) as report:
        report.add(section)
    return 0 if growth <= MOST_GROWTH and left == 0 and not churn.wrong else 1


if __name__ == "__main__":
    raise SystemExit(main())
