"""Compiles CUDA C++ at run time, with the NVRTC of torch's CUDA packages.

In: source, the headers that it includes, the architecture of a GPU. Out: a cubin for that GPU, and the
compiler's log. Needs no GPU, CUDA toolkit or host compiler. Any thread.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch


def compile_program(
    source: str, architecture: str, *options: str, headers: Mapping[str, str] | None = None
) -> tuple[bytes, str]:
    """The program (a cubin) and the compiler's log, for an architecture such as sm_90.

    `headers` are the texts of the files that `source` includes, by name.
    Raises OSError if NVRTC is missing, RuntimeError with the log if the source does not compile.
    """
    library, program, size = _library(), ctypes.c_void_p(), ctypes.c_size_t()
    given = _strings([f"--gpu-architecture={architecture}", *options])
    names, texts = _strings(headers or {}), _strings((headers or {}).values())
    _check(
        library.nvrtcCreateProgram(
            ctypes.byref(program), source.encode(), b"source.cu", len(names), texts, names
        )
    )
    try:
        failed = library.nvrtcCompileProgram(program, len(given), given)
        _check(library.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
        log = ctypes.create_string_buffer(size.value)
        _check(library.nvrtcGetProgramLog(program, log))
        if failed:
            raise RuntimeError(log.value.decode(errors="replace").strip() or f"NVRTC error {failed}")
        _check(library.nvrtcGetCUBINSize(program, ctypes.byref(size)))
        cubin = ctypes.create_string_buffer(size.value)
        _check(library.nvrtcGetCUBIN(program, cubin))
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))
    return cubin.raw, log.value.decode(errors="replace")


def _strings(values: Iterable[str]) -> ctypes.Array[ctypes.c_char_p]:
    encoded = [value.encode() for value in values]
    return (ctypes.c_char_p * len(encoded))(*encoded)


def _check(error: int) -> None:
    if error:
        raise RuntimeError(f"NVRTC error {error}")


def _library() -> ctypes.CDLL:
    for name in _names():
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise OSError("NVRTC is not installed; it comes with torch for CUDA")


def _names() -> Iterator[str]:
    """Candidate paths: in its package, for torch's CUDA version if known, then the system's search path."""
    major = torch.version.cuda.split(".")[0] if torch.version.cuda else "*"
    is_windows = sys.platform == "win32"
    pattern = f"**/nvrtc64_{major}*_0.dll" if is_windows else f"**/libnvrtc.so.{major}"
    found = importlib.util.find_spec("nvidia")
    for folder in [] if found is None else list(found.submodule_search_locations or []):
        yield from sorted(str(path) for path in Path(folder).glob(pattern))
    if major != "*":
        yield f"nvrtc64_{major}0_0.dll" if is_windows else f"libnvrtc.so.{major}"
