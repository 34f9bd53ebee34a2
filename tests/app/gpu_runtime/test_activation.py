from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from app.gpu_runtime import activation
from app.gpu_runtime.lock import GpuRuntimeError, Lock
from app.gpu_runtime.store import RuntimeRecord, RuntimeStore, fingerprint
from app.gpu_runtime.trial import VARIABLE
from app.gpu_runtime.wheels import unpack


@pytest.fixture(autouse=True)
def _program(lock: Lock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frozen program with the lock of the test."""
    monkeypatch.setattr(activation, "read_lock", lambda: lock)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)


@pytest.fixture
def folder(lock: Lock, store: RuntimeStore, wheels: list[Path]) -> Path:
    """A runtime that has passed its test."""
    folder = store.folder(lock.key)
    for wheel in wheels:
        unpack(wheel, folder, lambda done: None)
    store.write_record(lock.key, RuntimeRecord(fingerprint(folder), "2.13.0"))
    return folder


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Folders that were tested again; each passes."""
    folders: list[Path] = []

    def try_out(folder: Path, *, needs_gpu: bool) -> RuntimeRecord:
        assert not needs_gpu
        folders.append(folder)
        return RuntimeRecord(fingerprint(folder), "tested again")

    monkeypatch.setattr(activation, "try_out", try_out)
    return folders


def _fail(folder: Path, *, needs_gpu: bool) -> RuntimeRecord:
    raise GpuRuntimeError("its test ended with SIGSEGV")


def test_a_runtime_that_passed_comes_first(folder: Path, trials: list[Path]) -> None:
    activation.activate()
    assert sys.path[0] == str(folder)
    assert not sys.dont_write_bytecode
    assert not trials
    assert activation.take_notice() is None


def test_without_one_nothing_changes(store: RuntimeStore) -> None:
    before = list(sys.path)
    activation.activate()
    assert sys.path == before
    assert activation.take_notice() is None
    assert not store.root.exists()


def test_the_environment_switches_it_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "off")
    activation.activate()
    assert str(folder) not in sys.path


def test_one_that_never_passed_is_not_used(folder: Path, store: RuntimeStore, lock: Lock) -> None:
    (store.root / f"{lock.key}.json").unlink()
    activation.activate()
    assert str(folder) not in sys.path


def test_files_that_have_changed_are_tested_again_once(
    folder: Path, trials: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "more.py").write_text("# changed")
    activation.activate()
    assert trials == [folder]
    assert sys.path[0] == str(folder)
    assert "Testing it" in capsys.readouterr().err
    activation.activate()
    assert trials == [folder]


def test_a_driver_that_has_changed_means_another_test(
    folder: Path, trials: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "version").write_text("NVRM version: 999")
    monkeypatch.setattr("app.gpu_runtime.store._DRIVER", tmp_path / "version")
    activation.activate()
    assert trials == [folder]


def test_a_broken_one_is_reported_once_and_the_processor_used(
    folder: Path, store: RuntimeStore, lock: Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activation, "try_out", _fail)
    (folder / "torch" / "__init__.py").write_text("import os; os.abort()")
    activation.activate()
    assert str(folder) not in sys.path
    notice = activation.take_notice()
    assert notice is not None
    assert notice.what_is_wrong == "The GPU runtime is not used: its test ended with SIGSEGV."
    assert "moss-voice gpu install" in notice.what_to_do
    assert activation.take_notice() is None
    monkeypatch.setattr(activation, "try_out", lambda *_, **__: pytest.fail("tested again"))
    activation.activate()
    assert str(folder) not in sys.path
    assert activation.take_notice() is None


def test_one_of_another_version_is_reported_once(folder: Path, store: RuntimeStore, lock: Lock) -> None:
    folder.rename(store.root / "torch-2.12.0-cpython-311-0123456789ab")
    (store.root / f"{lock.key}.json").unlink()
    activation.activate()
    notice = activation.take_notice()
    assert notice is not None
    assert "another version of the program" in str(notice)
    activation.activate()
    assert activation.take_notice() is None


@pytest.mark.parametrize("damage", ["{", "record", "lock"])
def test_nothing_keeps_the_program_from_starting(
    damage: str, folder: Path, store: RuntimeStore, lock: Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("anything")

    if damage == "lock":
        monkeypatch.setattr(activation, "read_lock", fail)
    elif damage == "record":
        monkeypatch.setattr(RuntimeStore, "read_record", fail)
    else:
        (store.root / f"{lock.key}.json").write_text(damage)
    activation.activate()
    assert str(folder) not in sys.path


def test_a_store_that_is_read_only_is_used_all_the_same(
    folder: Path, trials: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(RuntimeStore, "write_record", fail)
    (folder / "more.py").write_text("# changed")
    activation.activate()
    assert sys.path[0] == str(folder)


def test_outside_of_the_packaged_program_there_is_no_notice(
    store: RuntimeStore, lock: Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write_record(lock.key, RuntimeRecord(failure="it is broken"))
    monkeypatch.setattr(sys, "frozen", False)
    assert activation.take_notice() is None


@pytest.mark.parametrize("exposed", ["root", "folder"])
def test_one_that_others_can_write_to_is_not_used(
    exposed: str, folder: Path, store: RuntimeStore, trials: list[Path]
) -> None:
    (store.root if exposed == "root" else folder).chmod(0o775)
    activation.activate()
    assert str(folder) not in sys.path
    assert not trials, "not even to be tested"
    notice = activation.take_notice()
    assert "other users of this computer could have changed its folder" in str(notice)
    activation.activate()
    assert activation.take_notice() is None, "once"
