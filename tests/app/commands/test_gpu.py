from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from app import paths
from app.cli import main
from app.commands import gpu
from app.gpu_runtime import activation, install, status
from app.gpu_runtime.lock import Lock, read_lock
from app.gpu_runtime.store import RuntimeRecord, RuntimeStore, fingerprint
from tests.doubles.package_server import PackageServer
from tests.factories.gpu_wheels import make_runtime_wheels, write_lock


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the wheels of the lock."""
    return make_runtime_wheels(tmp_path / "wheels")[0].parent


@pytest.fixture(autouse=True)
def lock(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lock:
    """That of a frozen program with torch for the processor."""
    lock = read_lock(write_lock(tmp_path / "pylock.toml", sorted(folder.iterdir())))
    for module in (gpu, status, activation):
        monkeypatch.setattr(module, "read_lock", lambda: lock)
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(metadata, "distributions", lambda **_: [SimpleNamespace(version="2.13.0+cpu")])

    def try_out(folder: Path, *, needs_gpu: bool) -> RuntimeRecord:
        devices = ("cuda:0 Test GPU",) if needs_gpu else ()
        return RuntimeRecord(fingerprint(folder), "2.13.0+cu130 (CUDA 13.0)", devices, "no C compiler")

    monkeypatch.setattr(install, "try_out", try_out)
    monkeypatch.setattr(install, "driver_cuda", lambda: (13, 0))
    return lock


@pytest.fixture
def store() -> RuntimeStore:
    return RuntimeStore(paths.gpu_runtime_dir())


@pytest.mark.slow
def test_installed_from_a_mirror_shown_and_removed(
    folder: Path, store: RuntimeStore, lock: Lock, capsys: pytest.CaptureFixture[str]
) -> None:
    with PackageServer(folder) as server:
        assert main(["gpu", "install", "--index-url", server.url]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[:2] == ["torch 2.13.0+cu130 (CUDA 13.0)", "cuda:0 Test GPU"]
    assert "--device cuda" in err
    assert main(["gpu", "status"]) == 0
    out = capsys.readouterr().out
    assert "installed; the next start uses it" in out
    assert str(store.folder(lock.key)) in out
    assert "Triton kernels cannot run (no C compiler)" in out
    assert main(["gpu", "status", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["state"], found["devices"]) == ("ready", ["cuda:0 Test GPU"])
    assert found["size"] > 0
    assert found["download"] == lock.download_bytes
    assert main(["gpu", "remove"]) == 0
    assert not store.root.exists()
    assert main(["gpu", "status"]) == 0
    assert "GPU runtime: not installed" in capsys.readouterr().out


def test_progress_for_programs_is_lines_of_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpu", "install", "--json", "--wheels", str(folder), "--without-gpu"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["step"] for line in lines[:-1] if not line["total"]] == ["check", "test"]
    unpacked = [line for line in lines[:-1] if line["step"] == "unpack"]
    assert unpacked
    assert all(0 < line["done"] <= line["total"] for line in unpacked)
    assert lines[-1] == {"torch": "2.13.0+cu130 (CUDA 13.0)", "devices": [], "no_triton": "no C compiler"}


def test_a_folder_for_another_machine(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "frozen", False)  # from a checkout as well
    with PackageServer(folder) as server:
        assert main(["gpu", "download", str(tmp_path / "stick"), "--index-url", server.url]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "stick")
    assert {file.name for file in (tmp_path / "stick").iterdir()} == {file.name for file in folder.iterdir()}


def test_older_ones_are_removed_on_request(
    folder: Path, store: RuntimeStore, lock: Lock, capsys: pytest.CaptureFixture[str]
) -> None:
    (store.root / "torch-1").mkdir(parents=True)
    assert main(["gpu", "install", "--wheels", str(folder)]) == 0
    assert main(["gpu", "status"]) == 0
    assert "moss-voice gpu remove --older" in capsys.readouterr().out
    assert main(["gpu", "remove", "--older"]) == 0
    assert store.installed() == [store.folder(lock.key)]
    assert store.read_record(lock.key) is not None


def test_removing_what_is_not_there_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpu", "remove"]) == 0
    assert "No GPU runtime is installed." in capsys.readouterr().err


def test_two_sources_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpu", "install", "--wheels", str(folder), "--index-url", "https://mirror"]) == 1
    assert "exclude each other" in capsys.readouterr().err


def test_elsewhere_the_remedy_is_that_of_the_installation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "frozen", False)
    assert main(["gpu", "install"]) == 1
    assert "packaging/bootstrap.py run --gpu" in capsys.readouterr().err


def test_a_runtime_that_is_not_used_is_reported_once_by_any_command(
    store: RuntimeStore, lock: Lock, capsys: pytest.CaptureFixture[str]
) -> None:
    store.write_record(lock.key, RuntimeRecord(failure="its test ended with SIGSEGV"))
    main(["inspect", "nowhere"])
    assert "moss-voice: The GPU runtime is not used: its test ended with SIGSEGV." in capsys.readouterr().err
    main(["inspect", "nowhere"])
    assert "GPU runtime" not in capsys.readouterr().err
    main(["gpu", "status"])
    assert "reason: its test ended with SIGSEGV" in capsys.readouterr().out
