"""Another Python environment is examined without importing anything large."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from app.other_python import examination, inherited_variables
from app.version import VERSION


@pytest.mark.slow
@pytest.mark.parametrize("has_program", [True, False])
def test_an_environment_says_what_it_has(repository: Path, tmp_path: Path, has_program: bool) -> None:
    library = tmp_path / "tensorrt_llm-1.2.1.dist-info"
    library.mkdir()
    (library / "METADATA").write_text("Metadata-Version: 2.1\nName: tensorrt-llm\nVersion: 1.2.1\n")
    places = [str(tmp_path), *([str(repository)] if has_program else [])]
    blocked = "" if has_program else "import sys; sys.modules['app'] = sys.modules['fastapi'] = None\n"
    python, isolation, option, script = examination(sys.executable)
    found = json.loads(
        subprocess.run(
            [python, isolation, option, blocked + script],
            env=inherited_variables() | {"PYTHONPATH": ":".join(places)},
            cwd=tmp_path,
            check=True,
            capture_output=True,
        ).stdout
    )
    assert found["tensorrt-llm"] == "1.2.1"
    assert found["python"].startswith("3.")
    assert found["moss-voice"] == (VERSION if has_program else None)
    assert isinstance(found["missing"], list)


def test_variables_of_this_python_are_not_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONHOME", "PYTHONPATH", "MOSS_TEST"):
        monkeypatch.setenv(name, "here")
    assert inherited_variables().items() >= {("MOSS_TEST", "here")}
    assert not {"PYTHONHOME", "PYTHONPATH"} & inherited_variables().keys()
