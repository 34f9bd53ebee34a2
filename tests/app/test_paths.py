from __future__ import annotations

import sys
from pathlib import Path

import pytest

from app import paths


def test_assets_of_the_checkout(repository: Path) -> None:
    assert paths.assets_dir() == repository / "assets"
    assert paths.default_bundle() == repository / "assets" / "bundles" / "nano"


def test_the_environment_chooses_another_bundle(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(paths.BUNDLE_VARIABLE, "~/mine")
    assert paths.default_bundle() == tmp_path / "mine"


def test_a_frozen_program_brings_its_assets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "assets").mkdir()
    monkeypatch.setattr(sys, "_MEIPASS", str(tmp_path), raising=False)
    assert paths.assets_dir() == tmp_path / "assets"


def test_an_installed_copy_finds_its_assets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed = tmp_path / "share" / "moss-voice" / "assets"
    installed.mkdir(parents=True)
    monkeypatch.setattr(paths, "__file__", str(tmp_path / "lib" / "app" / "paths.py"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert paths.assets_dir() == installed


def test_a_copy_without_assets_says_where_it_looked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(paths, "__file__", str(tmp_path / "lib" / "app" / "paths.py"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        paths.assets_dir()


def test_bundles_are_found_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    fetched = paths.user_bundles_dir() / "moss-speech"
    assert paths.find_bundle(Path("moss-speech")) == Path("moss-speech")
    fetched.mkdir(parents=True)
    assert paths.find_bundle(Path("moss-speech")) == fetched
    assert paths.find_bundle(Path("nano")) == paths.bundles_dir() / "nano"
    assert paths.find_bundle(Path("a") / "nano") == Path("a") / "nano"
    (tmp_path / "moss-speech").mkdir()
    assert paths.find_bundle(Path("moss-speech")) == Path("moss-speech")
