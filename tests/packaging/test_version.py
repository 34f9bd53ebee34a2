"""One version, of the command, the packages, their metadata and the documents."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest
from setuptools import Distribution
from setuptools.config.pyprojecttoml import apply_configuration

from app.cli import main
from app.version import VERSION


def test_the_command_states_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"moss-voice {VERSION}\n"


def test_metadata_and_packages_state_it(repository: Path, build: ModuleType) -> None:
    described = apply_configuration(Distribution(), str(repository / "pyproject.toml"))
    assert described.get_version() == VERSION
    assert build.version() == VERSION, "of .deb, .tar.zst and their bill of materials"


def test_documents_state_it(repository: Path) -> None:
    newest = re.search(r"^## (\S+)", (repository / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert newest is not None
    assert newest[1] == VERSION
    readme = (repository / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"moss_voice-([\d.]+)-py3", readme)) == {VERSION}
