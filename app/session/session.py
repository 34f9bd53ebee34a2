"""A running conversation: owns the dialog thread and the engine thread; the only file that starts threads.

In: commands (`send`). Out: events (`poll`). Sound flows device -> capture ring -> dialog thread -> engine
thread -> dialog thread -> playback ring -> device; the audio callbacks belong to PortAudio. `send` and `poll`
may be called from any one thread (a GUI polls with a timer) and never block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from app.session.messages import Command, Event
from app.session.session_settings import SessionSettings
from engine_runtime.timing import TimingBus


class SessionEngine(Protocol):
    """What a session needs of the engine (`engine_runtime.engine.Engine` has it). Used by the engine thread
    alone."""

    timing: TimingBus

    @property
    def input_sample_rate(self) -> int:
        """Rate of the PCM given to a turn, in Hz."""

    @property
    def output_sample_rate(self) -> int:
        """Rate of reply PCM, in Hz."""


EngineFactory = Callable[[], SessionEngine]
"""Loads the engine. Called once, in the engine thread; may raise a MossVoiceError."""


class Session:
    """One conversation between a user and an engine.

    >>> session = Session(load_engine)      # doctest: +SKIP
    >>> session.start()                     # doctest: +SKIP
    >>> session.send(AskText("hello"))      # doctest: +SKIP
    >>> events = session.poll()             # doctest: +SKIP
    >>> session.stop()                      # doctest: +SKIP
    """

    def __init__(self, engine_factory: EngineFactory, settings: SessionSettings | None = None) -> None:
        """Make a session; nothing is opened and no thread runs before `start`.

        `engine_factory` is called once, in the engine thread. Without `audio_in` and `audio_out` the sound
        devices named in `settings` are used; WAV files can take their place (see app.audio.wav_streams).
        """
        raise NotImplementedError

    def start(self) -> None:
        """Start the threads and load the engine; returns at once. First events: StateChanged(LOADING), later
        EngineReady and StateChanged(STOPPED), or LISTENING if `Start()` was sent meanwhile. Call it once."""
        raise NotImplementedError

    def stop(self, timeout_s: float = 5.0) -> bool:
        """Cancel what runs, close devices and engine, end the threads. Waits at most `timeout_s`; returns
        False if a thread did not end in time (it is a daemon thread, so the process can exit anyway). May be
        called twice."""
        raise NotImplementedError

    def send(self, command: Command) -> None:
        """Hand over a command; never blocks. Commands are carried out in order; what cannot be done is
        answered with ErrorRaised."""
        raise NotImplementedError

    def poll(self) -> list[Event]:
        """All events since the last call, oldest first; never blocks. Timings come here as Timing events."""
        raise NotImplementedError
