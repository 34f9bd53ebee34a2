"""Lets the packaged program use the GPU runtime: its folder comes before the program's own libraries.

In: the folder of this program's lock and its record. Out: `sys.path` with that folder first, or as it was.
The runtime is used if its test was passed by the files and with the driver that are there; if these have
changed, the test is repeated in a child process. Nothing here keeps the program from starting: why a runtime
cannot be used is recorded, and `take_notice` returns it once. Before torch is imported, in the main thread.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys

from app import paths
from app.gpu_runtime.lock import GpuRuntimeError, Lock, read_lock
from app.gpu_runtime.store import RuntimeRecord, RuntimeStore, fingerprint
from app.gpu_runtime.trial import VARIABLE, try_out
from app.progress import note
from engine_runtime import installation
from engine_runtime.errors import Problem

_OUTDATED = Problem("it belongs to another version of the program")
_EXPOSED = Problem("other users of this computer could have changed its folder")
_REMEDY = "The program runs on the processor; `moss-voice gpu install` repairs it."


def activate() -> None:
    """Use the runtime of this user, if there is one that can be used. Raises nothing."""
    with contextlib.suppress(Exception):
        root = paths.gpu_runtime_dir()
        if os.environ.get(VARIABLE) != "off" and root.is_dir():
            _use(RuntimeStore(root), read_lock())


def take_notice() -> GpuRuntimeError | None:
    """Why the runtime is not used; None if it is, if there is none, or if this was given out before."""
    root = paths.gpu_runtime_dir()
    if not installation.is_frozen() or not root.is_dir():
        return None
    store, key = RuntimeStore(root), read_lock().key
    record = store.read_record(key)
    if record is None or not record.failure or record.is_reported:
        return None
    with contextlib.suppress(OSError):
        store.write_record(key, dataclasses.replace(record, is_reported=True))
    known = {str(problem): problem for problem in (_OUTDATED, _EXPOSED)}
    return GpuRuntimeError(
        "The GPU runtime is not used: {failure}.",
        _REMEDY,
        failure=known.get(record.failure, record.failure),
    )


def _use(store: RuntimeStore, lock: Lock) -> None:
    folder, record = store.folder(lock.key), store.read_record(lock.key)
    if not folder.is_dir():
        if record is None and store.installed():
            store.write_record(lock.key, RuntimeRecord(failure=str(_OUTDATED)))
        return
    if record is None:  # never passed its test
        return
    if not store.is_private(lock.key):
        if record.failure != str(_EXPOSED):
            store.write_record(lock.key, RuntimeRecord(failure=str(_EXPOSED)))
        return
    if record.state != fingerprint(folder):
        record = _test_again(store, lock)
    if not record.failure:
        sys.path.insert(0, str(folder))
        sys.dont_write_bytecode = False  # a frozen program writes none, and would compile torch at each start


def _test_again(store: RuntimeStore, lock: Lock) -> RuntimeRecord:
    note("The GPU runtime or the driver has changed. Testing it (once).")
    folder = store.folder(lock.key)
    try:
        record = try_out(folder, needs_gpu=False)
    except GpuRuntimeError as error:
        record = RuntimeRecord(fingerprint(folder), failure=str(error))
    with contextlib.suppress(OSError):
        store.write_record(lock.key, record)
    return record
