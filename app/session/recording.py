"""Whether and where conversations are kept, as one frozen value. Any thread."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Recording:
    """What is kept of each conversation: texts, decisions and timings, and the sound of both sides."""

    root: Path
    """Each conversation gets a folder in it."""
    with_sound: bool = True
    name: str = ""
    """Name of the folder; "" for the date and time."""
