"""Exported files are complete or absent, and failures have messages."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path

import pytest

from app.export import ExportFile, check_names, check_target
from engine_runtime.errors import ExportError


class BrokenFile:
    """A file on a disk that fails."""

    def __init__(self, file: object, number: int) -> None:
        self._file = file
        self._number = number

    def write(self, content: bytes) -> int:
        raise OSError(self._number, os.strerror(self._number))

    def close(self) -> None:
        self._file.close()  # type: ignore[attr-defined]


def test_a_file_is_kept_with_ordinary_permissions(tmp_path: Path) -> None:
    with ExportFile(tmp_path / "a.txt") as file:
        file.write(b"....")
        file.write(b"body")
        file.keep(b"head")
    assert (tmp_path / "a.txt").read_bytes() == b"headbody"
    (tmp_path / "plain").touch()
    assert (tmp_path / "a.txt").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_an_error_leaves_what_was_there_before(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("before")

    def fail() -> None:
        with ExportFile(tmp_path / "a.txt") as file:
            file.write(b"after")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert (tmp_path / "a.txt").read_text() == "before"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "disk is full. Free"),
        (errno.EROFS, "no permission. Choose"),
        (errno.EIO, "error. Choose"),
    ],
)
def test_failures_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    opened = os.fdopen
    monkeypatch.setattr("app.export.os.fdopen", lambda *given: BrokenFile(opened(*given), number))
    with pytest.raises(ExportError, match=words), ExportFile(tmp_path / "a.txt") as file:
        file.write(b"x")
    assert list(tmp_path.iterdir()) == []


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    link, file = tmp_path / "link.txt", tmp_path / "elsewhere" / "a.txt"
    link.symlink_to(file)
    for content in (b"new", b"replaced"):  # one that leads nowhere yet, too
        with ExportFile(link) as export:
            export.write(content)
        assert link.is_symlink()
        assert file.read_bytes() == content
    assert list(file.parent.iterdir()) == [file]


def test_the_permissions_of_a_file_stay(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.touch(0o600)
    with ExportFile(file) as export:
        export.write(b"x")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_device_is_written_to() -> None:
    with ExportFile(Path(os.devnull)) as export:
        export.write(b"....body")
        export.keep(b"head")
    assert Path(os.devnull).is_char_device()
    with pytest.raises(ExportError, match="disk is full"), ExportFile(Path("/dev/full")) as export:
        export.write(b"x")


def test_what_is_no_ordinary_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        for name in ("pipe", "socket"):
            with pytest.raises(ExportError, match="not a regular file"):
                ExportFile(tmp_path / name)
    leader, terminal = os.openpty()
    with pytest.raises(ExportError, match="not a regular file"):
        ExportFile(Path(os.ttyname(terminal)))
    os.close(leader)
    os.close(terminal)
    assert (tmp_path / "pipe").is_fifo()


def test_a_file_that_is_standard_output_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "printed.txt"
    with file.open("w") as stdout:
        monkeypatch.setattr("sys.stdout", stdout)
        with pytest.raises(ExportError, match="own output goes there"):
            ExportFile(file)


def test_names_of_any_length(tmp_path: Path) -> None:
    longest = tmp_path / ("ä" * 120 + "abc.wav")
    with ExportFile(longest) as export:
        export.write(b"x")
    assert longest.read_bytes() == b"x"
    for name in ("x" * 5000, "x/" * 5000 + "x", "ä" * 200):
        with pytest.raises(ExportError, match="too long"):
            ExportFile(tmp_path / name)
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    with pytest.raises(ExportError, match="was not written"):
        ExportFile(tmp_path / "circle")


def test_a_check_leaves_everything_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("before")
    check_target(tmp_path / "a.txt")
    check_target(tmp_path / "b.txt")
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "before"
    with pytest.raises(ExportError, match="no folder"):
        check_target(tmp_path / "missing" / "a.txt")


def test_one_name_for_two_files_is_refused(tmp_path: Path) -> None:
    a, b, link = tmp_path / "a", tmp_path / "b", tmp_path / "link"
    a.touch()
    link.symlink_to(a)
    check_names({"--out": a, "--record": b, "--trace": None}, {"--in": tmp_path / "c", "--voice": None})
    check_names({"--out": Path(os.devnull), "--record": Path(os.devnull)}, {})
    for first, second in ((a, a), (b, b), (a, link), (b, tmp_path / "x" / ".." / "b")):
        with pytest.raises(ExportError, match="--out and --record are the same file"):
            check_names({"--out": first, "--record": second}, {})
    with pytest.raises(ExportError, match="--in and --out are the same file"):
        check_names({"--out": link}, {"--in": a})


def test_places_that_cannot_be_written_to(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="no folder"):
        ExportFile(tmp_path / "missing" / "a.txt")
    with pytest.raises(ExportError, match="folder has that name"):
        ExportFile(tmp_path)


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_permissions_come_from_the_umask_which_no_other_thread_sees_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mask: int, mode: int
) -> None:
    before = os.umask(mask)
    try:
        monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("changed for the whole process"))
        with ExportFile(tmp_path / "new.txt") as file:
            file.write(b"text")
        with ExportFile(tmp_path / "private.txt", is_private=True) as file:
            file.write(b"text")
    finally:
        monkeypatch.undo()
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("new.txt", "private.txt")]
    assert modes == [mode, 0o600]


def test_a_folder_that_takes_no_files_is_not_said_to_be_missing() -> None:
    if not Path("/proc/self").is_dir():
        pytest.skip("no /proc")
    with pytest.raises(ExportError, match=r"/proc cannot hold files\. Choose another"):
        check_target(Path("/proc/reply.wav"))
    with pytest.raises(ExportError, match=r"there is no folder /nowhere\. Create it"):
        check_target(Path("/nowhere/reply.wav"))


def test_a_path_with_the_end_of_a_sentence_stays_whole(tmp_path: Path) -> None:
    target = tmp_path / "Dr. Foo" / "moss.csv"
    with pytest.raises(ExportError) as raised:
        check_target(target)
    assert raised.value.what_is_wrong == f"{target} was not written: there is no folder {target.parent}."
    assert raised.value.what_to_do == "Create it first."
