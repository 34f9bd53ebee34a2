"""A conversation through a client: the tool tells the client's driver what to do, and looks at both ends.

In: steps. Out: what the driver shows of its client, and what passed between client and server (tap.py). A
driver is a process that reads a step a line (JSON) on stdin and writes on stdout what has happened:
{"id": n} when the step of this number is done, with a "problem" if it failed; {"shown": kind, "value": v} for
what the client shows its user: "text" (a reply), "audio" (bytes of it), "heard" (a transcript of the user),
"call" (the arguments of a function) and "error". The first line has the steps that the driver knows. Event
loop.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from app.remote.dialect import event_name
from tests.tools.client_conformance.tap import Json, Tap

BLOCK_BYTES = 4_800
"""100 ms of the microphone."""
PACE_S = 0.05
"""Between two blocks: twice real time, which the protocol allows."""
LIMIT_S = 90.0
BENIGN = ("response_cancel_not_active",)
"""Errors that clients provoke and filter: they cancel without knowing whether there is anything to cancel."""
SHOW_S = 10.0
_LINE_LIMIT = 2**24


class Absent(Exception):
    """The client's API has no such thing."""


class Refused(Exception):
    """The server says by name that it does not do this."""


class Failed(Exception):
    """Something did not happen as it should."""


class Talk:
    """One conversation. `url` and `key` are those that the client connects with."""

    def __init__(self, tap: Tap, driver: asyncio.subprocess.Process, key: str) -> None:
        self.tap = tap
        self.shown: list[tuple[str, Any]] = []
        self._driver, self._key = driver, key
        self._steps: set[str] = set()
        self._numbers = 0
        self._pending: dict[int, asyncio.Future[None]] = {}
        self._speech: deque[bytes] = deque()
        self._tasks: list[asyncio.Task[None]] = []
        self.seen = 0
        """Responses whose end was waited for, or that the client made by connecting."""

    # ---- what the user does ----

    async def connect(self, turns: str | None = "server_vad", **settings: Any) -> None:
        """A session whose turns the server ends (None: the client), maybe with instructions or a tool."""
        await self.do("connect", url=self.tap.url, key=self._key, turns=turns, **settings)
        await self.until(lambda: self.of("session.updated"), "session.updated")
        await self._begin()
        self._tasks.append(asyncio.create_task(self._keep_microphone_open()))

    async def _begin(self) -> None:
        await self.settled()  # some clients greet
        self.seen = len(self.of("response.done"))

    async def say(self, pcm: bytes) -> None:
        """Speak; returns when all of it was sent. The microphone stays open."""
        whole = pcm + bytes(-len(pcm) % BLOCK_BYTES)
        self._speech.extend(whole[at : at + BLOCK_BYTES] for at in range(0, len(whole), BLOCK_BYTES))
        while self._speech:
            await asyncio.sleep(PACE_S)

    async def do(self, step: str, **values: Any) -> None:
        """A step of the driver, to its end."""
        if step not in self._steps:
            raise Absent(step)
        done = self._start(step, values)
        await self.until(done.done, f"end of {step}")
        await done

    async def reconnect(self, history: Sequence[tuple[str, str]]) -> None:
        """Break the connection, and have the client come back with what was said (role, text). What it
        reports meanwhile is no error."""
        self.tap.cut()
        done = self._start("reconnect", {"history": history})
        await asyncio.wait_for(done, LIMIT_S)
        self.shown = [(kind, value) for kind, value in self.shown if kind != "error"]
        await self._begin()

    def can(self, step: str) -> bool:
        """Whether the client's API has it."""
        return step in self._steps

    def _start(self, step: str, values: Json) -> asyncio.Future[None]:
        assert self._driver.stdin is not None
        self._numbers += 1
        done = self._pending[self._numbers] = asyncio.get_running_loop().create_future()
        self._driver.stdin.write((json.dumps({"id": self._numbers, "step": step} | values) + "\n").encode())
        return done

    async def _keep_microphone_open(self) -> None:
        while True:
            block = self._speech.popleft() if self._speech else bytes(BLOCK_BYTES)
            with suppress(Failed):  # the connection may be the cut one
                await self._start("hear", {"pcm": base64.b64encode(block).decode()})
            await asyncio.sleep(PACE_S)

    # ---- what is to be seen ----

    def of(self, kind: str, *, from_server: bool = True) -> list[Json]:
        """All events of a type, by its present name."""
        return [
            one.document
            for one in self.tap.passed
            if one.from_server is from_server and event_name(one.document) == kind
        ]

    def sent_bytes(self, item_id: str) -> int:
        """Audio of a reply."""
        deltas = self.of("response.output_audio.delta")
        return sum(int(event["delta"]) for event in deltas if event["item_id"] == item_id)

    def in_force(self) -> Json:
        """The session as the server has last shown it."""
        return dict(self.of("session.updated")[-1]["session"])

    async def until(self, condition: Callable[[], object], what: str, limit_s: float = LIMIT_S) -> None:
        """Wait; an error that the server or the client reports ends it, too."""
        try:
            await self.tap.wait_for(lambda: condition() or self._errors() or self._is_over(), limit_s)
        except TimeoutError:
            raise Failed(f"no {what} within {limit_s:g} s") from None
        self.check()
        if not condition():
            raise Failed(f"the driver has ended before {what}")

    def check(self) -> None:
        """Raise for an error that anybody has reported."""
        for found in self._refusals():
            raise Failed(f"error {found['code']} ({found.get('param')}): {found['message']}")
        if errors := self._errors():
            raise Failed(f"the client reports: {errors[0]}")
        if self.tap.refused:
            raise Failed(f"no connection: {self.tap.refused}")

    def _refusals(self) -> list[Json]:
        return [event["error"] for event in self.of("error") if event["error"]["code"] not in BENIGN]

    def _errors(self) -> Sequence[Any]:
        return self._refusals() or [value for kind, value in self.shown if kind == "error"]

    def _is_over(self) -> bool:
        return self._driver.returncode is not None or bool(self.tap.refused)

    async def response(self) -> Json:
        """The next response that ends."""
        self.seen += 1
        wanted = self.seen
        await self.until(lambda: len(self.of("response.done")) >= wanted, "response.done")
        return dict(self.of("response.done")[wanted - 1]["response"])

    async def answer(self, expected: str) -> None:
        """The next response has to be complete and say this, and the client has to show its words and its
        sound. One that was cut is passed over."""
        while (response := await self.response())["status"] == "cancelled":
            pass
        said = spoken(response)
        if response["status"] != "completed" or plain(said) != plain(expected):
            raise Failed(f"expected {expected!r}, got {response['status']} {said!r}")
        await self.until(lambda: self._shows(said), f"text and sound of {said!r} at the client", SHOW_S)

    def _shows(self, said: str) -> bool:
        texts = [plain(str(value)) for kind, value in self.shown if kind == "text"]
        sound = sum(value for kind, value in self.shown if kind == "audio")
        return bool(texts) and texts[-1] == plain(said) and sound > 24_000

    async def first_sound(self) -> None:
        """The client has got the first audio of another reply."""
        before = len(self.shown)
        await self.until(lambda: any(kind == "audio" for kind, _ in self.shown[before:]), "audio")

    async def settled(self) -> None:
        """Every response has ended, once."""
        await self.until(
            lambda: len(self.of("response.created")) == len(self.of("response.done")),
            "response.done for each response.created",
        )
        created, done = self.of("response.created"), self.of("response.done")
        ids = [[event["response"]["id"] for event in events] for events in (created, done)]
        if sorted(ids[0]) != sorted(ids[1]):
            raise Failed(f"{len(created)} responses were created, {len(done)} ended")
        self.check()

    # ---- the driver's process ----

    async def read_driver(self) -> None:
        """Take what the driver says until it ends."""
        assert self._driver.stdout is not None
        async for line in self._driver.stdout:
            if line.startswith(b"{"):
                self._take(json.loads(line))
                await self.tap.notify()
        await self._driver.wait()
        for pending in self._pending.values():
            pending.cancel()
        await self.tap.notify()

    def _take(self, said: Json) -> None:
        if "steps" in said:
            self._steps = set(said["steps"])
        elif "shown" in said:
            self.shown.append((said["shown"], said["value"]))
        elif done := self._pending.pop(said["id"], None):
            if done.done():
                return
            if "absent" in said:
                done.set_exception(Absent(said["absent"]))
            elif "problem" in said:
                done.set_exception(Failed(said["problem"]))
            else:
                done.set_result(None)

    async def close(self) -> None:
        """End the driver."""
        for task in self._tasks:
            task.cancel()
        if self._driver.returncode is None:
            self._driver.terminate()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._driver.wait(), 5.0)
        if self._driver.returncode is None:
            self._driver.kill()


@asynccontextmanager
async def talking(
    tap: Tap, command: Sequence[str], folder: Path, environment: dict[str, str], key: str, log: Path
) -> AsyncIterator[Talk]:
    """A conversation with a driver of its own; what the driver writes on stderr goes to `log`."""
    with log.open("ab") as stderr:
        driver = await asyncio.create_subprocess_exec(
            *command,
            cwd=folder,
            env=environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
            limit=_LINE_LIMIT,
        )
        talk = Talk(tap, driver, key)
        reader = asyncio.create_task(talk.read_driver())
        try:
            await talk.until(lambda: talk.can("connect"), "driver")
            yield talk
        finally:
            await talk.close()
            await reader


def spoken(response: Json) -> str:
    """The words of a response."""
    parts = [part for item in response["output"] for part in item.get("content", ())]
    return " ".join(str(part.get("transcript") or part.get("text") or "") for part in parts)


def plain(text: str) -> str:
    """Words alone."""
    return " ".join(re.findall(r"\w+", text.lower()))
