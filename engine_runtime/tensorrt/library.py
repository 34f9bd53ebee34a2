"""Single access point to TensorRT and TensorRT for RTX: detection and common helpers.

In: nothing. Out: the modules `tensorrt` and `tensorrt_rtx`, imported on demand, or a message with install
instructions. Their Python APIs have the same names for everything used here. Both are large and for Linux
with NVIDIA GPUs only, so no other module may require them. Any thread.
"""

from __future__ import annotations

import importlib
import logging
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from engine_runtime import installation
from engine_runtime.errors import EngineError, Problem

LibraryName = Literal["tensorrt", "tensorrt_rtx"]
_NAMES: dict[str, str] = {"tensorrt": "TensorRT", "tensorrt_rtx": "TensorRT for RTX"}
_LONGEST = 200
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RuntimeLibrary:
    """An imported library. `is_rtx`: it builds for compute capabilities without a GPU, and runs on those of
    GeForce and RTX boards only (7.5, 8.6, 8.9, 12.x)."""

    module: Any
    is_rtx: bool

    @property
    def label(self) -> str:
        """Name and version, for reports and for the keys of cached engines."""
        return f"{_NAMES['tensorrt_rtx' if self.is_rtx else 'tensorrt']} {self.module.__version__}"


def tensorrt() -> Any:
    """The module `tensorrt`. Raises EngineError if it is missing or cannot be loaded."""
    return _module("tensorrt")


def tensorrt_rtx() -> Any:
    """The module `tensorrt_rtx`. Raises EngineError if it is missing or cannot be loaded."""
    return _module("tensorrt_rtx")


def runtime_library() -> RuntimeLibrary:
    """TensorRT for RTX if installed, because NVIDIA recommends it for desktop programs, otherwise TensorRT.

    Raises EngineError with the reasons of both.
    """
    reasons = []
    names: tuple[LibraryName, ...] = ("tensorrt_rtx", "tensorrt")
    for name in names:
        try:
            return RuntimeLibrary(_module(name), is_rtx=name == "tensorrt_rtx")
        except EngineError as error:
            reasons.append(error.problem)
    raise EngineError("{rtx} {tensorrt}", rtx=reasons[0], tensorrt=reasons[1])


def _module(name: LibraryName) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise EngineError(
                "The installation of {name} is incomplete ({error}).",
                "{remedy}",
                name=name,
                error=error,
                remedy=_how_to_get(name),
            ) from None
        raise EngineError(
            "{name} is not installed.", "{remedy}", name=_NAMES[name], remedy=_how_to_get(name)
        ) from None
    except (ImportError, OSError, RuntimeError) as error:
        raise EngineError(
            "{name} is installed but cannot be loaded: {error}.",
            "It needs an NVIDIA driver and the CUDA libraries of its own version; `moss-voice doctor` "
            "lists the installed ones.",
            name=name,
            error=error,
        ) from None


def _how_to_get(name: LibraryName) -> Problem:
    if name == "tensorrt_rtx":
        return installation.add("trt-codec")
    return Problem("TensorRT comes with TensorRT-LLM, in an environment of its own: packaging/TENSORRT.md.")


def reason(log: Any) -> str:
    """The last error of a logger in brackets, to append to a sentence; "" if there was none.

    Only the beginning of its first line: a library may print complete tensors.
    """
    line = (log.last_error.strip().splitlines() or [""])[0].rstrip(".")
    if len(line) > _LONGEST:
        line = line[:_LONGEST] + "..."
    return f" ({line})" if line else ""


@cache
def logger(library: RuntimeLibrary) -> Any:
    """The logger of a library: forwards messages to the log file, and keeps the last error in `last_error`.

    TensorRT uses the first logger of a process for all its objects.
    """
    trt = library.module

    class Logger(trt.ILogger):  # type: ignore[name-defined]
        """Forwards to `logging`."""

        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.last_error = ""

        def log(self, severity: Any, message: str) -> None:
            """Called by the library, from any of its threads."""
            if severity in (trt.ILogger.INTERNAL_ERROR, trt.ILogger.ERROR):
                self.last_error = message
                _log.error("%s", message)
            elif severity == trt.ILogger.WARNING:
                _log.info("%s", message)
            else:
                _log.debug("%s", message)

    return Logger()
