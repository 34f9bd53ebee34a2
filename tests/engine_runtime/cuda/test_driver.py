"""The library of the CUDA driver, without a GPU."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from engine_runtime.cuda.driver import driver_library, shared_memory_limit


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    driver_library.cache_clear()
    yield
    driver_library.cache_clear()


@pytest.mark.parametrize(("platform", "name"), [("linux", "libcuda.so.1"), ("win32", "nvcuda.dll")])
def test_the_driver_of_the_system_is_loaded_once(
    monkeypatch: pytest.MonkeyPatch, platform: str, name: str
) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(ctypes, "CDLL", lambda library: loaded.append(library) or object())
    assert driver_library() is driver_library()
    assert loaded == [name]


def test_a_missing_driver_is_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def load(name: str) -> object:
        tried.append(name)
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", load)
    for _ in range(2):
        with pytest.raises(OSError, match="cuda"):
            driver_library()
    assert len(tried) == 2


def test_a_block_can_have_what_the_device_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(shared_memory_per_block_optin=99 << 10)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    assert shared_memory_limit(torch.device("cuda")) == 101376
