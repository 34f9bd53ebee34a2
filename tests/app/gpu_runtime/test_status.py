from __future__ import annotations

import sys
from importlib import metadata
from types import SimpleNamespace

import pytest

from app.gpu_runtime import status
from app.gpu_runtime.lock import GpuRuntimeError, Lock
from app.gpu_runtime.store import RuntimeRecord, RuntimeStore


@pytest.fixture(autouse=True)
def _program(lock: Lock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frozen program with torch for the processor."""
    monkeypatch.setattr(status, "read_lock", lambda: lock)
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(metadata, "distributions", lambda name: [SimpleNamespace(version="2.13.0+cpu")])


def test_the_states_of_a_runtime(store: RuntimeStore, lock: Lock) -> None:
    assert status.find_status().state == "absent"
    folder = store.folder(lock.key)
    folder.mkdir(parents=True)
    (folder / "library.so").write_bytes(b"1234")
    found = status.find_status()
    assert (found.state, found.size, found.older) == ("untested", 4, ())
    store.write_record(lock.key, RuntimeRecord("state", "2.13.0"))
    assert status.find_status().state == "ready"
    sys.path.insert(0, str(folder))
    assert status.find_status().state == "active"
    store.write_record(lock.key, RuntimeRecord("state", failure="it is broken"))
    assert status.find_status().state == "failed"


def test_runtimes_of_other_versions_are_counted(store: RuntimeStore) -> None:
    (store.root / "torch-1").mkdir(parents=True)
    (store.root / "torch-1" / "library.so").write_bytes(b"1234")
    found = status.find_status()
    assert (found.state, found.older, found.older_size) == ("absent", (store.root / "torch-1",), 4)


def test_only_the_packaged_program_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", False)
    with pytest.raises(GpuRuntimeError, match=r"for the packaged program.*run --gpu"):
        status.find_status()


def test_a_package_for_the_gpu_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "distributions", lambda name: [SimpleNamespace(version="2.13.0")])
    with pytest.raises(GpuRuntimeError, match="includes torch for the GPU"):
        status.find_status()
