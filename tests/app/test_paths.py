from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from app import paths


def test_assets_of_the_checkout(repository: Path) -> None:
    assert paths.assets_dir() == repository / "assets"
    assert paths.default_bundle() == repository / "assets" / "bundles" / "nano"


def test_the_environment_chooses_another_bundle(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(paths.BUNDLE_VARIABLE, "~/mine")
    assert paths.default_bundle() == tmp_path / "mine"


@pytest.mark.parametrize("name", ["~nosuch/x", "x" * 5000, "x\0y"])
def test_a_name_that_nothing_has_stays_as_it_is(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(os, "environ", os.environ | {paths.BUNDLE_VARIABLE: name})
    assert paths.default_bundle() == Path(name)
    assert paths.user_path(name) == Path(name)


@pytest.mark.parametrize("home", [None, "", "relative"])
@pytest.mark.parametrize("has_entry", [True, False])
def test_there_is_a_home_folder_in_any_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: str | None, has_entry: bool
) -> None:
    def find(number: int) -> SimpleNamespace:
        if has_entry:
            return SimpleNamespace(pw_dir=str(tmp_path))
        raise KeyError(number)

    monkeypatch.setattr("pwd.getpwuid", find)
    monkeypatch.setenv("HOME", "absent")
    if home is None:
        monkeypatch.delenv("HOME")
    else:
        monkeypatch.setenv("HOME", home)
    paths.require_home()
    assert Path.home() == (tmp_path if has_entry else Path("/"))
    assert paths.log_file().is_relative_to(Path.home())


def test_a_home_folder_that_is_set_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    paths.require_home()
    assert Path.home() == tmp_path


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


def test_a_copy_of_another_prefix_finds_its_assets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As `pip install --user`, or pip of a distribution that installs into /usr/local."""
    installed = tmp_path / "share" / "moss-voice" / "assets"
    installed.mkdir(parents=True)
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    monkeypatch.setattr(paths, "__file__", str(packages / "app" / "paths.py"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "elsewhere"))
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


def test_folders_of_the_program_are_private(tmp_path: Path) -> None:
    """Also those of an earlier version; others stay as they are."""
    mask = os.umask(0o022)
    try:
        paths.make_private(tmp_path / "a" / "moss-voice" / "log")
        for name in ("a", "a/moss-voice", "a/moss-voice/log"):
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o700
        for name, mode in (("moss-voice", 0o700), ("moss-voice/log", 0o700), ("b", 0o755)):
            (tmp_path / name).mkdir(mode=0o755)
            paths.make_private(tmp_path / name)
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == mode
    finally:
        os.umask(mask)
