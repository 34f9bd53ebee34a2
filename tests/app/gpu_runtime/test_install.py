from __future__ import annotations

import ctypes
import errno
import os
import shutil
import stat
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.gpu_runtime import install, wheels
from app.gpu_runtime.install import driver_cuda, fill_folder
from app.gpu_runtime.lock import GpuRuntimeError, Lock, read_lock
from app.gpu_runtime.store import RuntimeRecord, RuntimeStore, fingerprint
from app.gpu_runtime.wheels import missing_bytes
from app.process import Stopped
from tests.doubles.package_server import PackageServer
from tests.factories.gpu_wheels import make_runtime_wheels, write_lock

Usage = namedtuple("Usage", "total used free")


class Steps(list[tuple[str, int, int]]):
    """What was reported; raises at the first report of the step `stops_at`."""

    stops_at = ""

    def __call__(self, step: str, done: int, total: int) -> None:
        self.append((step, done, total))
        if step == self.stops_at:
            raise Stopped(15)

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(name for name, _, _ in self))


@pytest.fixture
def steps() -> Steps:
    return Steps()


@pytest.fixture(autouse=True)
def tested(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders that were tested; the test itself is that of test_trial.py."""
    folders: list[Path] = []

    def try_out(folder: Path, *, needs_gpu: bool) -> RuntimeRecord:
        folders.append(folder)
        return RuntimeRecord(fingerprint(folder), "2.13.0")

    monkeypatch.setattr(install, "try_out", try_out)
    monkeypatch.setattr(install, "driver_cuda", lambda: (13, 0))
    return folders


def test_downloaded_unpacked_tested_and_recorded(
    lock: Lock, store: RuntimeStore, steps: Steps, tested: list[Path]
) -> None:
    record = install.install(lock, store, steps)
    folder = store.folder(lock.key)
    assert (folder / "torch" / "__init__.py").is_file()
    assert tested == [folder]
    assert store.read_record(lock.key) == record
    assert steps.names == ["check", "download", "unpack", "test"]
    assert max(done for name, done, _ in steps if name == "unpack") <= lock.unpacked_bytes
    assert {path.name for path in store.root.iterdir()} == {folder.name, f"{folder.name}.json", "busy"}


@pytest.mark.parametrize("step", ["download", "unpack", "test"])
def test_stopped_at_any_step_it_is_not_used_and_goes_on_the_next_time(
    step: str, lock: Lock, store: RuntimeStore, steps: Steps, server: PackageServer
) -> None:
    steps.stops_at = step
    with pytest.raises(Stopped):
        install.install(lock, store, steps)
    assert store.read_record(lock.key) is None
    before = len(server.asked_for)
    install.install(lock, store, Steps())
    assert store.read_record(lock.key) is not None
    assert len(server.asked_for) - before < len(lock.wheels)


def test_the_second_time_nothing_is_downloaded(
    lock: Lock, store: RuntimeStore, steps: Steps, server: PackageServer
) -> None:
    install.install(lock, store, Steps())
    server.asked_for.clear()
    install.install(lock, store, steps)
    assert not server.asked_for
    assert steps.names == ["check", "test"]


def test_a_damaged_runtime_is_installed_anew(lock: Lock, store: RuntimeStore, server: PackageServer) -> None:
    install.install(lock, store, Steps())
    file = store.folder(lock.key) / "torch" / "__init__.py"
    file.write_text("damaged")
    install.install(lock, store, Steps())
    assert "As much of torch" in file.read_text()


def test_another_version_lies_beside_the_older_one(lock: Lock, store: RuntimeStore, tmp_path: Path) -> None:
    install.install(lock, store, Steps())
    wheels = make_runtime_wheels(tmp_path / "newer", version="2.14.0")
    newer = read_lock(write_lock(tmp_path / "newer.toml", wheels))
    install.install(newer, store, Steps(), wheels=tmp_path / "newer")
    assert store.installed() == [store.folder(lock.key), store.folder(newer.key)]
    assert store.read_record(lock.key) is not None


def test_a_failed_test_leaves_what_was_used_before(
    lock: Lock, store: RuntimeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tested: list[Path]
) -> None:
    install.install(lock, store, Steps())
    used = store.read_record(lock.key)
    wheels = make_runtime_wheels(tmp_path / "newer", version="2.14.0")
    newer = read_lock(write_lock(tmp_path / "newer.toml", wheels))

    def fail(folder: Path, *, needs_gpu: bool) -> RuntimeRecord:
        raise GpuRuntimeError("its test ended with SIGSEGV")

    with monkeypatch.context() as broken:
        broken.setattr(install, "try_out", fail)
        with pytest.raises(GpuRuntimeError, match="SIGSEGV"):
            install.install(newer, store, Steps(), wheels=tmp_path / "newer")
    assert store.read_record(lock.key) == used
    assert store.read_record(newer.key) is None
    install.install(newer, store, Steps(), wheels=tmp_path / "nowhere")  # tests again what is there
    assert store.read_record(newer.key) is not None


def test_a_full_disk_is_noticed_before_the_download(
    lock: Lock, store: RuntimeStore, server: PackageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 10**9, 10**6))
    with pytest.raises(GpuRuntimeError, match=r"0\.0 GB .*0\.5 GB"):
        install.install(lock, store, Steps())
    assert not server.asked_for


def test_a_disk_that_becomes_full_keeps_what_has_arrived(
    lock: Lock, store: RuntimeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(install, "unpack", fail)
        with pytest.raises(GpuRuntimeError, match=r"full.*kept"):
            install.install(lock, store, Steps())
    assert missing_bytes(lock.wheels, store.downloads) == 0
    assert store.installed() == []


def test_a_folder_that_cannot_be_written_to_is_named(lock: Lock, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(GpuRuntimeError, match="Not a directory"):
        install.install(lock, RuntimeStore(tmp_path / "file" / "runtime"), Steps())


# ---- without network ----


def test_from_a_folder_nothing_is_sent(
    lock: Lock, store: RuntimeStore, server: PackageServer, steps: Steps
) -> None:
    install.install(lock, store, steps, wheels=server.folder)
    assert not server.asked_for
    assert "download" not in steps.names
    assert all((server.folder / wheel.file_name).is_file() for wheel in lock.wheels)


def test_the_folder_is_filled_elsewhere(
    lock: Lock, store: RuntimeStore, tmp_path: Path, steps: Steps
) -> None:
    fill_folder(lock, tmp_path / "stick", steps, None)
    assert steps[-1] == ("download", lock.download_bytes, lock.download_bytes)
    install.install(lock, store, Steps(), wheels=tmp_path / "stick")
    assert store.read_record(lock.key) is not None


def test_a_folder_that_lacks_wheels_is_refused_at_once(
    lock: Lock, store: RuntimeStore, server: PackageServer, steps: Steps
) -> None:
    (server.folder / lock.wheels[1].file_name).unlink()
    with pytest.raises(GpuRuntimeError, match=f"1 of 3 .*{lock.wheels[1].file_name}"):
        install.install(lock, store, steps, wheels=server.folder)
    assert "unpack" not in steps.names
    with pytest.raises(GpuRuntimeError, match="no folder"):
        install.install(lock, store, steps, wheels=server.folder / "nowhere")


def test_a_wheel_of_the_folder_with_a_wrong_hash_is_named_and_kept(
    lock: Lock, store: RuntimeStore, server: PackageServer
) -> None:
    file = server.folder / lock.wheels[1].file_name
    file.write_bytes(bytes(file.stat().st_size))
    with pytest.raises(GpuRuntimeError, match=f"{file.name} .*lock"):
        install.install(lock, store, Steps(), wheels=server.folder)
    assert file.is_file()
    assert store.installed() == []


def test_a_download_that_was_damaged_since_is_loaded_again(
    lock: Lock, store: RuntimeStore, server: PackageServer, steps: Steps
) -> None:
    steps.stops_at = "unpack"
    with pytest.raises(Stopped):
        install.install(lock, store, steps)
    file = store.downloads / lock.wheels[2].file_name
    file.write_bytes(bytes(file.stat().st_size))
    with pytest.raises(GpuRuntimeError, match="hash"):
        install.install(lock, store, Steps())
    install.install(lock, store, Steps())
    assert store.read_record(lock.key) is not None


def test_a_wheel_that_is_swapped_after_its_check_is_not_installed(
    lock: Lock, store: RuntimeStore, server: PackageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By somebody who may write to the folder: what is unpacked are the bytes that were checked."""
    unpack = wheels.unpack

    def swap_and_unpack(wheel: Path, *rest: Any) -> None:
        for file in server.folder.iterdir():
            file.write_bytes(b"other code")
        unpack(wheel, *rest)

    monkeypatch.setattr(install, "unpack", swap_and_unpack)
    with pytest.raises(GpuRuntimeError, match="lock"):
        install.install(lock, store, Steps(), wheels=server.folder)
    part = store.part(lock.key)
    assert list(part.iterdir()), "the first wheel was unpacked as it was checked"
    assert not [file for file in part.rglob("*") if file.is_file() and b"other code" in file.read_bytes()]
    assert not list(store.downloads.iterdir())


def test_a_link_in_the_folder_is_refused(
    lock: Lock, store: RuntimeStore, server: PackageServer, tmp_path: Path
) -> None:
    file = server.folder / lock.wheels[0].file_name
    file.rename(tmp_path / "elsewhere.whl")
    file.symlink_to(tmp_path / "elsewhere.whl")
    with pytest.raises(GpuRuntimeError, match=f"{file.name} .*link"):
        install.install(lock, store, Steps(), wheels=server.folder)


def test_nobody_else_may_look_into_it_whatever_the_umask(lock: Lock, store: RuntimeStore) -> None:
    before = os.umask(0)
    try:
        install.install(lock, store, Steps())
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (store.root, store.folder(lock.key))]
    assert modes == [0o700, 0o700]
    assert store.is_private(lock.key)


def test_one_that_others_could_write_to_is_installed_anew(
    lock: Lock, store: RuntimeStore, steps: Steps, server: PackageServer
) -> None:
    install.install(lock, store, Steps())
    store.root.chmod(0o777)
    install.install(lock, store, steps)
    assert "unpack" in steps.names
    assert store.is_private(lock.key)


# ---- the driver ----


@pytest.mark.parametrize(
    ("driver", "reason"), [(None, "No NVIDIA driver was found"), ((12, 8), r"supports CUDA 12\.8, but 13\.0")]
)
def test_a_driver_that_does_not_do_is_told_before_the_download(
    driver: Any, reason: str, lock: Lock, store: RuntimeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "driver_cuda", lambda: driver)
    with pytest.raises(GpuRuntimeError, match=reason):
        install.install(lock, store, Steps())
    assert not store.root.exists()
    install.install(lock, store, Steps(), needs_gpu=False)


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
