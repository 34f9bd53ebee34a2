"""Start-up settings: bundle, device, seed. Preferences changed in the window are saved by app.gui.

In: the command line and the environment. Out: one frozen value that the composition root reads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from app import paths
from engine_runtime.options import EngineOptions

Eagerness = Literal["off", "patient", "balanced", "eager"]
"""How soon a pause that sounds finished ends a turn; "off" goes by silence alone."""
SpeculationMode = Literal["auto", "on", "off"]
"""Whether a reply is made before the turn is confirmed; "auto": while the engine keeps up."""

InputMode = Literal["voice", "push", "both"]
"""What opens a turn: voice activity, the button of push-to-talk, or both."""
EchoLibrary = Literal["pywebrtc", "livekit"]
"""What cancels the echo: the package pywebrtc-audio, or the audio processing of livekit."""


PREFERRED = frozenset({"device", "weight_format", "rounds_tails", "kv_dtype"})
"""Engine options that have no value for "not given", and that the window's preferences may set."""


@dataclass(frozen=True, slots=True)
class StartSettings:
    """Choices of the command line; in the window others can be made while it runs."""

    bundle: Path = field(default_factory=paths.default_bundle)
    """Folder of the model bundle."""
    engine: EngineOptions = field(default_factory=EngineOptions)
    """How the networks run."""
    left_open: frozenset[str] = PREFERRED
    """Those of `PREFERRED` that were not given: the window's preferences complete them."""
    seed: int | None = None
    """Seed of the sampling, or None for the bundle's own."""
    voice: Path | None = None
    """Recording of the voice to speak with, or None for the bundle's own."""
    eagerness: Eagerness | None = None
    """How soon turns end, or None for what the user chose in the window."""
    input_mode: InputMode | None = None
    """What opens a turn, or None for what the user chose in the window."""
    speculate: SpeculationMode | None = None
    """Whether replies are made speculatively, or None for what the user chose in the window."""
    server: str = ""
    """Address of the Realtime server that makes the replies, "" for an engine of this process."""
    server_key: str = field(default="", repr=False)
    """Key for it, "" if it wants none."""
    engine_python: Path | None = None
    """Interpreter of the environment that runs the engine as a child process, or None for this process."""
    echo_library: EchoLibrary | None = None
    """What cancels the echo, or None for what the user chose in the window."""

    @property
    def is_remote(self) -> bool:
        """Whether another process makes the replies."""
        return bool(self.server) or self.engine_python is not None
