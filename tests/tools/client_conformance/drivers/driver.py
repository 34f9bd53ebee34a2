"""What the drivers in Python have in common: steps in, what a client shows out (talk.py says in what form).

A driver is a class whose public coroutines are its steps. It imports its client, and else only the standard
library. Event loop.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
import time
import traceback
from typing import Any

Json = dict[str, Any]
MODEL = "nano"
_BYTES_PER_MS = 48


class Absent(Exception):
    """The client's API has no such thing."""


def show(kind: str, value: object) -> None:
    """What the client shows its user."""
    _write({"shown": kind, "value": value})


def _write(document: Json) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


class Driver:
    """One client. It plays a reply in real time from its first audio on."""

    def __init__(self) -> None:
        self.idle = asyncio.Event()
        """Whether no response is in progress."""
        self.idle.set()
        self.settings: Json = {}
        """The arguments of the first connection."""
        self._item_id = ""
        self._began_s = 0.0
        self._bytes = 0

    def play(self, item_id: str, size: int) -> None:
        """So many bytes of a reply have come."""
        if item_id != self._item_id:
            self._item_id, self._began_s, self._bytes = item_id, time.monotonic(), 0
        self._bytes += size
        show("audio", size)

    def interrupt(self) -> tuple[str, int] | None:
        """Stop playing: the item, and how much of it was heard (ms); None if nothing was being played."""
        item_id, self._item_id = self._item_id, ""
        heard_ms, whole_ms = round((time.monotonic() - self._began_s) * 1e3), self._bytes // _BYTES_PER_MS
        if not item_id or (heard_ms >= whole_ms and self.idle.is_set()):
            return None
        return item_id, min(heard_ms, whole_ms)


async def _carry_out(driver: Driver, step: Json) -> None:
    number, name = step.pop("id"), step.pop("step")
    try:
        await getattr(driver, name)(**step)
        _write({"id": number})
    except Absent as absent:
        _write({"id": number, "absent": str(absent)})
    except Exception as error:
        traceback.print_exc()
        _write({"id": number, "problem": f"{type(error).__name__}: {error}"})


async def _serve(driver: Driver) -> None:
    reader = asyncio.StreamReader(limit=2**24)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    found = inspect.getmembers(driver, inspect.iscoroutinefunction)
    _write({"steps": [name for name, _ in found if not name.startswith("_")]})
    tasks = set()
    async for line in reader:
        step = json.loads(line)
        if step["step"] == "hear":  # the order of sound is that of the lines
            await _carry_out(driver, step)
            continue
        tasks.add(task := asyncio.create_task(_carry_out(driver, step)))
        task.add_done_callback(tasks.discard)


def run(kind: type[Driver]) -> None:
    """Drive a client until stdin ends."""

    async def serve() -> None:
        await _serve(kind())

    asyncio.run(serve())
    os._exit(0)  # whatever the client still has open
