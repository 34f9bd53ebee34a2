"""How this copy of the program was installed (checkout, frozen bundle, wheel), and the remedy where a part of
it is missing. Any thread.
"""

from __future__ import annotations

import sys
from pathlib import Path

_SCRIPT = Path("packaging", "bootstrap.py")
# As in packaging/bootstrap.py, which says why their dependencies are left out.
_WITHOUT_DEPENDENCIES = ("bigvgan==2.4.1", "silero-vad==6.2.3", "pipecat-ai==1.14.0")


def is_frozen() -> bool:
    """Whether this is a bundle made by PyInstaller, which brings everything and cannot be added to."""
    return bool(getattr(sys, "frozen", False))


def remedy() -> str:
    """What to do if a required library is missing."""
    if is_frozen():
        return "This copy is incomplete: install MOSS Voice again."
    if (Path(__file__).resolve().parents[1] / _SCRIPT).is_file():
        return f"Run: python3 {_SCRIPT} run"
    return f"Run: pip install moss-voice && pip install --no-deps {' '.join(_WITHOUT_DEPENDENCIES)}"


def gpu_remedy() -> str:
    """What to do if there is a GPU that this build of torch cannot use."""
    if is_frozen():
        return "Run: moss-voice gpu install"
    if (Path(__file__).resolve().parents[1] / _SCRIPT).is_file():
        return f"Run: python3 {_SCRIPT} run --gpu"
    return "Install the CUDA build of torch."
