"""Valid and invalid output paths."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine_runtime.bundle.targets import require_file, require_folder
from engine_runtime.errors import ExportError


def test_what_is_there_and_what_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    require_folder(tmp_path, "--to")
    require_folder(tmp_path / "a" / "b", "--to")
    require_file(tmp_path / "file", "--out")
    require_file(tmp_path / "a" / "b", "--out")
    monkeypatch.chdir(tmp_path)
    require_folder(Path("a"), "--to")
    require_file(Path("file"), "--out")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_file_is_no_folder_and_a_folder_no_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "a" / "b"):
        with pytest.raises(ExportError, match=r"file is a file\. Give a folder with --to"):
            require_folder(folder, "--to")
    with pytest.raises(ExportError, match=r"is a folder\. Give the name of a file with --out"):
        require_file(tmp_path, "--out")
    with pytest.raises(ExportError, match="is a file"):
        require_file(tmp_path / "file" / "a", "--out")


def test_a_folder_of_someone_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: path == tmp_path and mode == os.F_OK)
    with pytest.raises(ExportError, match=f"{tmp_path} is not writable. Choose another"):
        require_folder(tmp_path / "a", "--to")
