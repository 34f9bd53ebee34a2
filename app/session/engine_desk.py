"""The jobs of a session for a host that holds the conversation elsewhere, and its results.

In: the queue of the engine worker. Out: jobs, one at a time; results for the dialog thread. Engine thread,
apart from `notify`.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue

from app.session.engine_jobs import Commit, EngineLost, Job, Loaded, LoadFailed, Result
from app.session.pending_work import PendingWork
from engine_runtime.timing import TimingBus


class EngineDesk:
    """A `JobDesk` for one host; see there."""

    def __init__(
        self,
        jobs: SimpleQueue[Job],
        pending: PendingWork,
        give: Callable[[Result], None],
        on_engine: Callable[[TimingBus], None],
    ) -> None:
        """`pending` counts the loading, which is over with `ready` or `fail`."""
        self.has_turns = False
        """Whether a reply was requested."""
        self._jobs, self._pending = jobs, pending
        self._give, self._on_engine = give, on_engine
        self._is_loading = True
        self._notify: Callable[[], None] | None = None

    def notify(self) -> None:
        """There is another job. Dialog thread."""
        if (notify := self._notify) is not None:
            notify()

    def on_job(self, notify: Callable[[], None] | None) -> None:
        """Call `notify` whenever there is a job."""
        self._notify = notify

    def take(self) -> Job | None:
        """The next job, None if there is none now."""
        try:
            job = self._jobs.get_nowait()
        except Empty:
            return None
        self.has_turns = self.has_turns or isinstance(job, Commit)
        return job

    def begin(self) -> None:
        """Work that outlasts its job begins."""
        self._pending.begin()

    def done(self) -> None:
        """A job was carried out, or such work is over."""
        self._pending.end()

    def give(self, result: Result) -> None:
        """A result for the dialog thread."""
        self._give(result)

    def ready(self, loaded: Loaded, timing: TimingBus) -> None:
        """The conversation can begin."""
        self._on_engine(timing)
        self._give(loaded)
        self._end_loading()

    def fail(self, message: str, what_to_do: str) -> None:
        """There is no engine, or none any more."""
        self._give((LoadFailed if self._is_loading else EngineLost)(message, what_to_do))
        self._end_loading()

    def _end_loading(self) -> None:
        if self._is_loading:
            self._is_loading = False
            self._pending.end()
