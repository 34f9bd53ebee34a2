"""What the README says about the tree has to be true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from app.cli import build_parser


def _readme(repository: Path) -> str:
    return (repository / "README.md").read_text(encoding="utf-8")


def test_every_file_it_names_exists(repository: Path) -> None:
    text = _readme(repository)
    named = set(re.findall(r"`((?:app|engine_runtime|assets|packaging|tests)/[\w./-]*)`", text))
    named |= {link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link}
    assert len(named) > 15
    assert not [name for name in named if not (repository / name).exists()]


def test_every_command_it_shows_is_accepted(repository: Path) -> None:
    lines = re.findall(r"^moss-voice ([^#\n]+?)\s*(?:#.*)?$", _readme(repository), re.MULTILINE)
    assert len(lines) >= 6
    for line in lines:
        words = [quoted or plain for quoted, plain in re.findall(r'"([^"]*)"|(\S+)', line)]
        try:
            build_parser().parse_args(words)
        except SystemExit:
            pytest.fail(f"the README shows `moss-voice {line}`, which is not accepted")


def test_it_gives_the_command_that_guards_main(repository: Path) -> None:
    assert "python3 packaging/bootstrap.py test" in _readme(repository)
    assert "python3 packaging/bootstrap.py test" in (repository / ".ci" / "run").read_text(encoding="utf-8")
