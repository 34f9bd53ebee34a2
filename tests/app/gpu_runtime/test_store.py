from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.gpu_runtime.lock import GpuRuntimeError
from app.gpu_runtime.store import RuntimeRecord, RuntimeStore, fingerprint, size_bytes

RECORD = RuntimeRecord("state", "2.13.0", ("GPU 0", "GPU 1"), "no compiler")


def test_a_record_comes_back(store: RuntimeStore) -> None:
    assert store.read_record("torch-1") is None
    store.write_record("torch-1", RECORD)
    assert store.read_record("torch-1") == RECORD
    assert store.read_record("torch-2") is None


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"devices": 1}', '{"devices": [], "new": 1}', "\0"])
def test_a_damaged_record_counts_as_none(store: RuntimeStore, content: str) -> None:
    store.write_record("torch-1", RECORD)
    (store.root / "torch-1.json").write_text(content)
    assert store.read_record("torch-1") is None


def test_only_complete_folders_are_installed(store: RuntimeStore) -> None:
    assert store.installed() == []
    for name in ("torch-1", "torch-2.part", "downloads"):
        (store.root / name).mkdir(parents=True)
    store.write_record("torch-1", RECORD)
    assert store.installed() == [store.root / "torch-1"]


def test_removing_one_leaves_the_others(store: RuntimeStore) -> None:
    for name in ("torch-1", "torch-1.part", "torch-2"):
        (store.root / name).mkdir(parents=True)
        store.write_record(name, RECORD)
    store.remove("torch-1")
    assert store.installed() == [store.root / "torch-2"]
    assert store.read_record("torch-1") is None
    assert store.read_record("torch-2") == RECORD
    store.remove_all()
    assert not store.root.exists()


def test_two_processes_do_not_install_at_once(store: RuntimeStore) -> None:
    with store.busy(), pytest.raises(GpuRuntimeError, match="another process"), store.busy():
        pass
    with store.busy():
        pass


def test_the_fingerprint_changes_with_the_files_but_not_with_bytecode(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    file = tmp_path / "torch" / "library.so"
    file.write_bytes(b"1234")
    os.utime(file, ns=(0, 10**18))
    first = fingerprint(tmp_path)
    (tmp_path / "torch" / "__pycache__").mkdir()
    (tmp_path / "torch" / "__pycache__" / "a.pyc").write_bytes(b"12345678")
    assert fingerprint(tmp_path) == first
    assert size_bytes(tmp_path) == 4
    os.utime(file, ns=(0, 10**18 + 1))
    assert fingerprint(tmp_path) != first
    os.utime(file, ns=(0, 10**18))
    assert fingerprint(tmp_path) == first
    file.unlink()
    assert fingerprint(tmp_path) != first


def test_what_is_older_goes_with_all_that_was_unfinished(store: RuntimeStore) -> None:
    for name in ("torch-2", "torch-2.part", "torch-1", "torch-1.part"):
        (store.root / name).mkdir(parents=True)
    for name in ("torch-1", "torch-2"):
        store.write_record(name, RECORD)
    store.downloads.mkdir()
    for name in ("new.whl.part", "old.whl", "old.whl.part"):
        (store.downloads / name).touch()
    with store.busy():
        store.remove_others(["torch-2", "new.whl"])
    left = {str(path.relative_to(store.root)) for path in store.root.rglob("*")}
    assert left == {"busy", "downloads", "downloads/new.whl.part", "torch-2", "torch-2.json", "torch-2.part"}
