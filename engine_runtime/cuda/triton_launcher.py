"""The part of Triton that starts its kernels, compiled when the program was packaged.

Triton compiles it from a file of its own (driver.c) where it runs first, which takes a C compiler and the
headers of Python. A packaged program has none of them, but the compiled file (packaging/triton_launcher.py).
In: the Triton that is installed. Out: whether it takes that file. Before its first kernel; engine thread.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from engine_runtime.installation import has_compiler

FOLDER = Path(__file__).parent / "launcher"
"""Exist in a packaged program only: the source and its compiled file."""
_SOURCE, _COMPILED = "driver.c", "cuda_utils.so"


def has_launcher() -> bool:
    """Whether Triton has the launcher of its kernels: the packaged file, or else a compiler to make it."""
    return use_packaged_launcher() or has_compiler()


def use_packaged_launcher() -> bool:
    """Let Triton take the packaged file. False if there is none, or if it was compiled for another Triton,
    whose source differs."""
    compiled, source = FOLDER / _COMPILED, _triton_source()
    if source is None or not compiled.is_file() or (FOLDER / _SOURCE).read_bytes() != source.read_bytes():
        return False
    from triton import knobs

    # Triton calls this in place of a compiler and loads its own copy of the result, from its cache.
    knobs.build.impl = lambda *_: str(compiled)
    return True


def _triton_source() -> Path | None:
    """The file that this Triton would compile. Before 3.7 it compiled another one for each kernel, beside
    it, so that one file would not do."""
    found = importlib.util.find_spec("triton")
    for folder in (found and found.submodule_search_locations) or ():
        source = Path(folder, "backends", "nvidia", _SOURCE)
        if source.is_file():
            return source
    return None
