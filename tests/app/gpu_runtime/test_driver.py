from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from app.gpu_runtime.driver import driver_cuda


def _driver(version: int, status: int = 0) -> SimpleNamespace:
    def get_version(target: Any) -> int:
        target._obj.value = version
        return status

    return SimpleNamespace(cuDriverGetVersion=get_version)


@pytest.mark.parametrize(("version", "expected"), [(13000, (13, 0)), (12080, (12, 8)), (13020, (13, 2))])
def test_the_version_of_the_driver(
    monkeypatch: pytest.MonkeyPatch, version: int, expected: tuple[int, int]
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: _driver(version))
    assert driver_cuda() == expected


def test_a_driver_that_fails_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: _driver(13000, 100))
    assert driver_cuda() is None


@pytest.mark.parametrize("library", ["libnowhere.so.1", "libc.so.6"])
def test_without_a_driver(library: str) -> None:
    assert driver_cuda(library) is None
