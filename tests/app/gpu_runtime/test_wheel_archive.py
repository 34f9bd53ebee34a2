from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.gpu_runtime.lock import GpuRuntimeError
from app.gpu_runtime.wheel_archive import is_intact, unpack
from tests.factories.gpu_wheels import make_wheel


@pytest.fixture
def folder(wheels: list[Path], tmp_path: Path) -> Path:
    for wheel in wheels:
        unpack(wheel, tmp_path / "to", lambda done: None)
    return tmp_path / "to"


def test_files_lie_where_an_installer_puts_them(folder: Path) -> None:
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert {"torch/__init__.py", "nvidia/cu13/lib/libcudart.so.13", "more.py"} <= found
    assert not [name for name in found if name.endswith(("tool", "c10.h"))]


def test_programs_can_be_started(folder: Path) -> None:
    assert os.access(folder / "cuda_tools/bin/ptxas", os.X_OK)
    assert not os.access(folder / "torch/__init__.py", os.X_OK)


def test_a_folder_is_intact_until_a_file_changes(folder: Path) -> None:
    assert is_intact(folder)
    file = folder / "nvidia/cu13/lib/libcudart.so.13"
    content = file.read_bytes()
    file.write_bytes(bytes(len(content)))
    assert not is_intact(folder)
    file.write_bytes(content)
    assert is_intact(folder)
    file.unlink()
    assert not is_intact(folder)


def test_an_empty_folder_is_not_intact(tmp_path: Path) -> None:
    assert not is_intact(tmp_path)


@pytest.mark.parametrize("name", ["../outside", "/outside", "a/../../outside", "a\\outside"])
def test_nothing_is_written_outside(tmp_path: Path, name: str) -> None:
    wheel = make_wheel(tmp_path, "evil", "1", {name: "x"})
    with pytest.raises(GpuRuntimeError, match="outside of its folder"):
        unpack(wheel, tmp_path / "to", lambda done: None)
    assert not (tmp_path / "outside").exists()


def test_what_is_no_archive_is_named(tmp_path: Path) -> None:
    (tmp_path / "torch.whl").write_bytes(b"no archive")
    with pytest.raises(GpuRuntimeError, match=r"torch\.whl cannot be unpacked"):
        unpack(tmp_path / "torch.whl", tmp_path / "to", lambda done: None)
