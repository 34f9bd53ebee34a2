"""The status of the GPU runtime, for command line, doctor and settings.

In: the store and the lock. Out: a `RuntimeStatus`. Nothing is tested or changed. Any thread.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from app import paths
from app.gpu_runtime.lock import GpuRuntimeError, Lock, read_lock
from app.gpu_runtime.store import RuntimeRecord, RuntimeStore, size_bytes
from engine_runtime import installation

RuntimeState = Literal["absent", "active", "ready", "failed", "untested"]
"""absent: not installed for this version; active: this process uses it; ready: the next start does; failed:
see the record; untested: unpacked, but its test was not passed."""


@dataclass(frozen=True, slots=True)
class RuntimeStatus:
    """`folder` is that of this version of the program, `older` those of others; sizes in bytes."""

    state: RuntimeState
    folder: Path
    lock: Lock
    record: RuntimeRecord | None
    size: int
    older: tuple[Path, ...]
    older_size: int


def find_status() -> RuntimeStatus:
    """The status of this user's runtime. Raises GpuRuntimeError where there can be none, OSError."""
    refuse_elsewhere()
    lock, store = read_lock(), RuntimeStore(paths.gpu_runtime_dir())
    folder, record = store.folder(lock.key), store.read_record(lock.key)
    older = tuple(path for path in store.installed() if path != folder)
    return RuntimeStatus(
        _state(folder, record),
        folder,
        lock,
        record,
        size_bytes(folder) if folder.is_dir() else 0,
        older,
        sum(map(size_bytes, older)),
    )


def refuse_elsewhere() -> None:
    """GpuRuntimeError unless this is the packaged program with the CPU build of torch."""
    if not installation.is_frozen():
        raise GpuRuntimeError(
            "The GPU runtime is for the packaged program only.", "{remedy}", remedy=installation.gpu_remedy()
        )
    if not any(found.version.endswith("+cpu") for found in metadata.distributions(name="torch")):
        raise GpuRuntimeError(
            "This copy of the program includes torch for the GPU.", "No GPU runtime is needed."
        )


def _state(folder: Path, record: RuntimeRecord | None) -> RuntimeState:
    if record is not None and record.failure:
        return "failed"
    if not folder.is_dir():
        return "absent"
    if str(folder) in sys.path:
        return "active"
    return "untested" if record is None else "ready"
