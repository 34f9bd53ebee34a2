"""The engine of a session on a Realtime server: connects, reconnects, hands jobs and events over.

In: the jobs of a slot. Out: what `RemoteConversation` makes of them. A lost connection is announced once,
and tried again with growing waits. Runs an event loop in the engine thread; jobs wake it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any

from app.remote.conversation import RemoteConversation
from app.remote.dialect import Json
from app.remote.link import Link, LinkError
from app.server_address import ServerAddress
from app.session.engine_jobs import EngineNotice, Loaded
from app.session.engine_slot import SlotPort
from engine_runtime.errors import Problem
from engine_runtime.timing import TimingBus

WAITS_S = (0.0, 0.1, 0.2, 0.4, 0.8, 1.5)
"""Waits before the attempts to reconnect; the last one repeats. A server that is back is noticed within 1.5
s."""
GIVE_UP_S = 300.0
"""Time without a connection after which it gives up."""
_STABLE_S = 5.0
"""A connection that ends sooner counts as a failed attempt."""
_log = logging.getLogger(__name__)


class ServerEngine:
    """The `RemoteEngine` of one server."""

    def __init__(
        self,
        address: ServerAddress,
        *,
        voice: str = "",
        give_up_s: float = GIVE_UP_S,
        after_jobs: Callable[[], None] = lambda: None,
    ) -> None:
        """`voice` is that of the replies, "" for the server's choice. `after_jobs` is called in the engine
        thread whenever jobs were carried out; it must not block."""
        self._address, self._voice = address, voice
        self._give_up_s = give_up_s
        self._after_jobs = after_jobs

    def converse(self, port: SlotPort, *, has_history: bool) -> None:
        """Raises LinkError without a connection."""

        async def hold() -> None:
            line = _Line(self._address, self._voice, port, self._give_up_s, self._after_jobs)
            await line.hold(keeps_history=not has_history)

        asyncio.run(hold())


class _Line:
    """One conversation, over as many connections as it takes."""

    def __init__(
        self,
        address: ServerAddress,
        voice: str,
        port: SlotPort,
        give_up_s: float,
        after_jobs: Callable[[], None],
    ) -> None:
        self._address, self._voice, self._port, self._give_up_s = address, voice, port, give_up_s
        self._after_jobs = after_jobs
        self._loop = asyncio.get_running_loop()
        self._timing = TimingBus()
        self._conversation: RemoteConversation | None = None
        self._link: Link | None = None
        self._outgoing: asyncio.Queue[Json] = asyncio.Queue()
        self._over: asyncio.Future[None] = self._loop.create_future()
        """Done once the slot wants to end the conversation here."""
        self._renewal = asyncio.Event()
        """Set when a new conversation wants another connection."""
        self._is_announced = False
        """Whether the user was told that there is no connection."""

    async def hold(self, *, keeps_history: bool) -> None:
        """Hold the conversation. Raises LinkError if there is no connection, or it cannot be restored."""
        began_s = time.perf_counter()
        link = await Link.open(self._address)
        session = link.session
        self._conversation = RemoteConversation(
            session, self._port, self._timing, self._renewal.set, self._round_trip_s, self._voice
        )
        loaded = Loaded(
            session.model or self._address.name,
            time.perf_counter() - began_s,
            session.input_format.sample_rate,
            session.output_format.sample_rate,
            samples_per_code=0,
            keeps_history=keeps_history,
            can_speculate=session.offers_speculation,
            flow_steps=session.flow_steps,
        )
        self._port.ready(loaded, self._timing)
        if self._address.warning:  # before the first job, and with it the first sound
            self._port.give(EngineNotice(self._address.warning))
        self._port.on_job(self._wake)
        try:
            self._take_jobs()
            await self._hold(link, self._conversation)
        finally:
            self._port.on_job(None)
            self._conversation.close()

    async def _hold(self, first: Link, conversation: RemoteConversation) -> None:
        link: Link | None = first
        lost_s: float | None = None
        while link is not None:
            opened_s = self._loop.time()
            problem = await self._use(link, conversation)
            if self._over.done():
                return
            if self._loop.time() - opened_s >= _STABLE_S:
                lost_s = None
            lost_s = self._loop.time() if lost_s is None else lost_s
            if problem is not None and not problem.is_expected:
                self._announce(problem.problem)
            link = await self._reconnect(lost_s)
            if link is not None and self._is_announced:
                self._is_announced = False
                back = Problem("The connection to {server} is back.", server=self._address.name)
                self._port.give(EngineNotice(back, is_connected=True))

    async def _use(self, link: Link, conversation: RemoteConversation) -> LinkError | None:
        """Converse over one connection; returns why it was lost, None if it is not wanted any more."""
        self._link, self._outgoing = link, asyncio.Queue()
        self._renewal.clear()
        conversation.connect(link.session, self._outgoing.put_nowait)
        tasks = [
            asyncio.create_task(self._read(link, conversation)),
            asyncio.create_task(self._write(link)),
            asyncio.create_task(self._renewal.wait()),
        ]
        try:
            await self._first_of(*tasks)
            for task in tasks[:2]:
                if task.done() and (error := task.exception()) is not None:
                    if isinstance(error, LinkError) and not error.is_final:
                        return error
                    raise error
            return None
        finally:
            self._link = None
            conversation.lose()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await link.close()

    async def _read(self, link: Link, conversation: RemoteConversation) -> None:
        async for event in link.events():
            if event is None:
                conversation.on_garbage()
            else:
                conversation.on_event(event)

    async def _write(self, link: Link) -> None:
        while True:
            await link.send(await self._outgoing.get())

    async def _reconnect(self, lost_s: float) -> Link | None:
        """Another connection; None once the conversation is over. LinkError if there is none in time."""
        attempt = 0
        while True:
            wait_s = WAITS_S[min(attempt, len(WAITS_S) - 1)]
            attempt += 1
            await asyncio.wait({self._over}, timeout=wait_s)
            if self._over.done():
                return None
            opening = asyncio.create_task(Link.open(self._address))
            await self._first_of(opening)
            if not opening.done():
                opening.cancel()
                await asyncio.wait({opening})
                return None
            try:
                return opening.result()
            except LinkError as error:
                _log.info("attempt %d to reconnect: %s", attempt, error.what_is_wrong)
                if error.is_final or self._loop.time() - lost_s > self._give_up_s:
                    raise
                self._announce(error.problem)

    def _announce(self, problem: Problem) -> None:
        """Tell the user, once, that there is no connection."""
        if not self._is_announced:
            self._is_announced = True
            lost = problem.with_remedy("It is being restored; then the conversation continues.")
            self._port.give(EngineNotice(lost, is_connected=False))

    async def _first_of(self, *tasks: asyncio.Task[Any]) -> None:
        """Wait until one of these is done or the conversation is over."""
        await asyncio.wait([*tasks, self._over], return_when=asyncio.FIRST_COMPLETED)

    # ---- jobs ----

    def _wake(self) -> None:
        """Wake the event loop for a new job. Dialog thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._take_jobs)

    def _take_jobs(self) -> None:
        while self._conversation is not None and (job := self._port.take()) is not None:
            try:
                self._conversation.carry_out(job)
            finally:
                self._port.pending.end()
        if self._port.is_over and not self._over.done():
            self._over.set_result(None)
        self._after_jobs()

    def _round_trip_s(self) -> float | None:
        return None if self._link is None else self._link.round_trip_s


def remote_source(address: ServerAddress, voice: str = "") -> Callable[[], ServerEngine]:
    """The server as the engine of a session, with this voice, "" for its own choice."""
    return lambda: ServerEngine(address, voice=voice)
