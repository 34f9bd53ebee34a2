from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.gpu_runtime.lock import GpuRuntimeError, Lock
from app.gpu_runtime.wheels import check, download, is_intact, missing_bytes, unpack
from app.package_index import PackageIndex
from tests.doubles.package_server import PackageServer
from tests.factories.gpu_wheels import make_wheel


def _download(lock: Lock, to: Path, index: PackageIndex | None = None) -> list[int]:
    seen: list[int] = []
    download(lock.wheels, to, index, seen.append)
    return seen


def _names(lock: Lock) -> list[str]:
    return [wheel.file_name for wheel in lock.wheels]


def test_every_wheel_arrives_with_progress(lock: Lock, tmp_path: Path) -> None:
    to = tmp_path / "to"
    seen = _download(lock, to)
    assert sorted(file.name for file in to.iterdir()) == sorted(_names(lock))
    assert seen == sorted(seen)
    assert seen[-1] == lock.download_bytes
    assert missing_bytes(lock.wheels, to) == 0


def test_what_is_there_is_not_asked_for_again(lock: Lock, server: PackageServer, tmp_path: Path) -> None:
    _download(lock, tmp_path / "to")
    server.asked_for.clear()
    _download(lock, tmp_path / "to")
    assert not server.asked_for


def test_an_answer_that_breaks_off_is_continued(lock: Lock, server: PackageServer, tmp_path: Path) -> None:
    server.cut_off = set(_names(lock))
    _download(lock, tmp_path / "to")
    assert len(server.ranges) == len(lock.wheels)
    assert not list((tmp_path / "to").glob("*.part"))


def test_a_later_call_continues_where_an_earlier_one_ended(
    lock: Lock, server: PackageServer, tmp_path: Path
) -> None:
    to, last = tmp_path / "to", lock.wheels[-1]
    server.always_cut_off = {last.file_name}
    with pytest.raises(GpuRuntimeError, match="kept"):
        _download(lock, to)
    assert missing_bytes(lock.wheels, to) == last.size - last.size // 2
    server.always_cut_off = set()
    server.asked_for.clear()
    _download(lock, to)
    assert server.asked_for == [last.file_name]
    assert server.ranges[-1] == f"bytes={last.size // 2}-"


def test_a_server_that_cannot_resume_sends_everything(
    lock: Lock, server: PackageServer, tmp_path: Path
) -> None:
    server.resumes, server.cut_off = False, {lock.wheels[0].file_name}
    _download(lock, tmp_path / "to")
    assert (tmp_path / "to" / lock.wheels[0].file_name).stat().st_size == lock.wheels[0].size


def test_a_wrong_hash_removes_the_file_alone(lock: Lock, server: PackageServer, tmp_path: Path) -> None:
    to, last = tmp_path / "to", lock.wheels[-1].file_name
    server.damaged = {last}
    with pytest.raises(GpuRuntimeError, match="damaged"):
        _download(lock, to)
    assert sorted(file.name for file in to.iterdir()) == sorted(_names(lock)[:-1])


def test_a_file_that_is_not_there_is_named(lock: Lock, server: PackageServer, tmp_path: Path) -> None:
    (server.folder / lock.wheels[0].file_name).unlink()
    with pytest.raises(GpuRuntimeError, match=f"{lock.wheels[0].file_name} cannot be downloaded: Not Found"):
        _download(lock, tmp_path / "to")


def test_a_server_that_is_gone_is_one_sentence(lock: Lock, server: PackageServer, tmp_path: Path) -> None:
    with PackageServer(server.folder) as gone:
        index = PackageIndex(gone.url)
    with pytest.raises(GpuRuntimeError, match=r"refused.*Check the connection"):
        _download(lock, tmp_path / "to", index)


def test_a_mirror_takes_the_place_of_the_addresses(lock: Lock, server: PackageServer, tmp_path: Path) -> None:
    with PackageServer(server.folder) as mirror:
        _download(lock, tmp_path / "to", PackageIndex(mirror.url))
        assert sorted(mirror.asked_for) == sorted(_names(lock))
    assert not server.asked_for


def test_a_mirror_without_the_file_is_named(lock: Lock, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with (
        PackageServer(tmp_path / "empty") as mirror,
        pytest.raises(GpuRuntimeError, match=r"has no torch-2\.13"),
    ):
        _download(lock, tmp_path / "to", PackageIndex(mirror.url))


def test_an_index_that_is_no_address_is_one_sentence(lock: Lock, tmp_path: Path) -> None:
    with pytest.raises(GpuRuntimeError, match="unknown url type"):
        _download(lock, tmp_path / "to", PackageIndex("mirror"))


def test_another_file_under_the_name_of_a_wheel(lock: Lock, tmp_path: Path) -> None:
    file = tmp_path / "other.whl"
    file.write_bytes(b"other")
    with pytest.raises(GpuRuntimeError, match="hash"):
        check(lock.wheels[0], file)


@pytest.mark.parametrize("kind", ["symbolic", "hard"])
def test_a_planted_link_is_not_written_through(lock: Lock, tmp_path: Path, kind: str) -> None:
    to, mine = tmp_path / "to", tmp_path / "mine.txt"
    to.mkdir()
    mine.write_text("mine")
    link = to / f"{lock.wheels[0].file_name}.part"
    if kind == "symbolic":
        link.symlink_to(mine)
    else:
        link.hardlink_to(mine)
    with pytest.raises(GpuRuntimeError, match="link"):
        _download(lock, to)
    assert mine.read_text() == "mine"


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
    with pytest.raises(GpuRuntimeError, match="outside"):
        unpack(wheel, tmp_path / "to", lambda done: None)
    assert not (tmp_path / "outside").exists()


def test_what_is_no_archive_is_named(tmp_path: Path) -> None:
    (tmp_path / "torch.whl").write_bytes(b"no archive")
    with pytest.raises(GpuRuntimeError, match=r"torch\.whl"):
        unpack(tmp_path / "torch.whl", tmp_path / "to", lambda done: None)
