"""What one process serves: the engine thread, the end-of-turn thread, the metrics and the ASGI application.

In: settings, and factories of engine and detector. Out: the application of a loaded engine, for uvicorn
(run.py) or for a replica of Ray Serve (ray_replica.py). The thread that creates it waits for the engine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from app.dialog.vad import SileroVad, Vad
from app.server.access import Access
from app.server.connection import ConnectionLimits
from app.server.engine_load import choose_admission
from app.server.http_app import RealtimeApp, Reports
from app.server.metrics import Metrics
from app.session.clocks import PendingWork
from app.session.end_of_turn_worker import DetectorFactory, EndOfTurnWorker
from app.session.engine_host import EngineHost
from app.session.engine_slot import EngineFactory
from app.session.transcriber import EXTRA, Transcriber
from engine_runtime.whisper import check_model

HANG_UP_S = 5
"""Time limit for threads that should end at once."""


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Settings of the command line."""

    host: str = "127.0.0.1"
    port: int = 8_000
    """Port; 0 for any free one."""
    conversations: int | None = None
    """Conversations at once; None for as many as the engine is measured to serve."""
    batch_invariant: bool = False
    """Whether no reply depends on what else runs, not even by rounding."""
    seed: int | None = None
    """Seed of the sampling in every conversation; None for the bundle's, or else one for each."""
    access: Access = field(default_factory=Access)
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    drain_s: float = 30.0
    """For responses in progress at the end."""
    transcribe: Path | None = None
    """Folder of the Whisper model that transcribes what users say, None for none."""
    exits_with_stdin: bool = False
    """Whether the end of the standard input asks for the end: the program that started this one is gone."""


class RealtimeService:
    """A loaded engine and its application; `close` ends all threads."""

    def __init__(
        self,
        settings: ServeSettings,
        factory: EngineFactory,
        detector_factory: DetectorFactory,
        reports: Reports | None = None,
        new_vad: Callable[[], Vad] = SileroVad,
    ) -> None:
        """Waits until the engine is loaded: MossVoiceError if it cannot be, or for a Whisper model that
        cannot be used. `reports` asks all processes of a service for theirs; None if this is the only one."""
        new_vad()  # fails here and not at the first connection
        self._transcriber = None if settings.transcribe is None else _transcriber(settings.transcribe)
        self._detector = EndOfTurnWorker(detector_factory, PendingWork())
        self.host = EngineHost(
            factory,
            partial(choose_admission, wanted=settings.conversations),
            on_engine=lambda timing: metrics.watch(timing),
            is_batching=not settings.batch_invariant,
        )
        metrics = Metrics(self.host)
        self._threads = [
            threading.Thread(target=self.host.run, name="engine", daemon=True),
            threading.Thread(target=self._detector.run, name="end of turn", daemon=True),
        ]
        if (transcriber := self._transcriber) is not None:
            self._threads.append(threading.Thread(target=transcriber.run, name="transcription", daemon=True))
        for thread in self._threads:
            thread.start()
        self.host.loaded.wait()
        if self.host.problem is not None:
            self.close()
            raise self.host.problem
        self.app = RealtimeApp(
            self.host,
            settings.access.at(settings.host),
            settings.limits,
            metrics,
            self._detector,
            new_vad,
            settings.seed,
            reports,
            self._transcriber,
        )

    def close(self) -> None:
        """End all conversations, close the engine, end the threads."""
        self.host.close()
        self._detector.close()
        if self._transcriber is not None:
            self._transcriber.close()
        for thread in self._threads:
            thread.join(HANG_UP_S)


def _transcriber(folder: Path) -> Transcriber:
    """WhisperError for what cannot be a model, or without the extra."""
    check_model(folder, EXTRA)
    transcriber = Transcriber()
    transcriber.use(folder)
    return transcriber
