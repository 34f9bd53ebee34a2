"""Selection of the TensorRT library, and the error if there is none."""

from __future__ import annotations

import importlib
import logging
import sys
import types
from pathlib import Path

import pytest

from engine_runtime.errors import EngineError
from engine_runtime.tensorrt import library
from engine_runtime.tensorrt.library import RuntimeLibrary


def _module(version: str) -> types.ModuleType:
    module = types.ModuleType("stand-in")
    vars(module)["__version__"] = version
    return module


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """Neither library is found, whatever is installed."""
    real = importlib.import_module

    def look(name: str, package: str | None = None) -> types.ModuleType:
        if name in ("tensorrt", "tensorrt_rtx") and name not in sys.modules:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", look)
    for name in ("tensorrt", "tensorrt_rtx"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return monkeypatch


def test_without_either_the_sentence_names_both_ways(absent: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineError, match=r"moss-voice\[trt-codec\].*packaging/TENSORRT\.md"):
        library.runtime_library()


def test_the_executors_library_is_never_the_one_for_rtx(absent: pytest.MonkeyPatch) -> None:
    absent.setitem(sys.modules, "tensorrt_rtx", _module("1.7.1"))
    with pytest.raises(EngineError, match="TensorRT is not installed"):
        library.tensorrt()
    assert library.tensorrt_rtx().__version__ == "1.7.1"


def test_rtx_comes_first(absent: pytest.MonkeyPatch) -> None:
    absent.setitem(sys.modules, "tensorrt", _module("10.14.1"))
    assert library.runtime_library().label == "TensorRT 10.14.1"
    absent.setitem(sys.modules, "tensorrt_rtx", _module("1.7.1"))
    assert library.runtime_library().label == "TensorRT for RTX 1.7.1"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ModuleNotFoundError("No module named 'tensorrt_libs'", name="tensorrt_libs"), "incomplete"),
        (OSError("libnvinfer.so.10: cannot open shared object file"), "cannot be loaded: libnvinfer"),
    ],
)
def test_a_broken_installation_is_named(monkeypatch: pytest.MonkeyPatch, error: Exception, text: str) -> None:
    def refuse(name: str, package: str | None = None) -> types.ModuleType:
        raise error

    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.raises(EngineError, match=text):
        library.tensorrt()


def test_what_a_library_said_becomes_part_of_a_sentence() -> None:
    said = types.SimpleNamespace(last_error="out of memory.\n  at line 3")
    assert library.reason(said) == " (out of memory)"
    said.last_error = ""
    assert library.reason(said) == ""
    said.last_error = "x" * 5000
    assert len(library.reason(said)) < 210


def test_what_the_library_says_goes_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    class ILogger:
        INTERNAL_ERROR, ERROR, WARNING, INFO = range(4)

    module = _module("1.0")
    vars(module)["ILogger"] = ILogger
    spoken = library.logger(RuntimeLibrary(module, is_rtx=True))
    with caplog.at_level(logging.DEBUG):
        spoken.log(ILogger.INFO, "a detail")
        spoken.log(ILogger.ERROR, "tensor x is not set")
    assert spoken.last_error == "tensor x is not set"
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("DEBUG", "a detail"),
        ("ERROR", "tensor x is not set"),
    ]
    assert library.logger(RuntimeLibrary(module, is_rtx=True)) is spoken
