"""Exported files are complete or not there, and failures are told in words."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from app.export import ExportFile
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


def test_places_that_cannot_be_written_to(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="no folder"):
        ExportFile(tmp_path / "missing" / "a.txt")
    with pytest.raises(ExportError, match="folder has that name"):
        ExportFile(tmp_path)
