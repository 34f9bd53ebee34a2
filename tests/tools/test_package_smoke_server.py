from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.tools.bare_root import CompletedRun
from tests.tools.checks import CheckFailed
from tests.tools.package_smoke_server import answer, interpreter

PRINTED = "1. you      what is the capital of france\n   reply    The capital of France is Paris.\n"


def test_the_reply_is_read_and_compared() -> None:
    assert answer(CompletedRun(0, PRINTED, "", 0)) == "The capital of France is Paris."


@pytest.mark.parametrize(
    ("ended", "reason"),
    [
        (CompletedRun(9, "", "no bundle", 0), "exit status 9: no bundle"),
        (CompletedRun(0, PRINTED, "", 2), "2 attempts"),
        (CompletedRun(0, PRINTED.replace("Paris", "Rome"), "", 0), "Rome"),
    ],
)
def test_what_is_not_right_fails(ended: CompletedRun, reason: str) -> None:
    with pytest.raises(CheckFailed, match=reason):
        answer(ended)


def test_the_program_takes_the_place_of_an_interpreter(tmp_path: Path) -> None:
    program, script = tmp_path / "with blanks" / "program", tmp_path / "python"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    script.write_text(interpreter(str(program)))
    for file in (program, script):
        file.chmod(0o755)
    words = ["-P", "-m", "app", "serve", "--bundle=a b"]
    done = subprocess.run([script, *words], capture_output=True, text=True, check=True)
    assert done.stdout == "serve|--bundle=a b|"
