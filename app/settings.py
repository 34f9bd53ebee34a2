"""How the program was started: bundle, device, seed. What a user changes in the window is kept by app.gui.

In: the command line and the environment. Out: one frozen value that the composition root reads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from app import paths
from engine_runtime.options import EngineOptions


@dataclass(frozen=True, slots=True)
class StartSettings:
    """Choices that hold for the life of the process."""

    bundle: Path = field(default_factory=paths.default_bundle)
    """Folder of the model bundle."""
    engine: EngineOptions = field(default_factory=EngineOptions)
    """How the networks run."""
    seed: int | None = None
    """Seed of the sampling, or None for the bundle's own."""
    voice: Path | None = None
    """Recording of the voice to speak with, or None for the bundle's own."""
