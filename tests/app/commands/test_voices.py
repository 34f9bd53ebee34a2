from __future__ import annotations

import pytest

from app import paths
from app.cli import main


def test_voice_prints_are_shown_and_removed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["voices"]) == 0
    assert "0 voice prints" in capsys.readouterr().out
    folder = paths.voices_dir()
    folder.mkdir(parents=True)
    for name in ("0a.safetensors", "0b.safetensors", "0c.17"):
        (folder / name).write_bytes(b"x" * 500_000)
    assert main(["voices"]) == 0
    out, err = capsys.readouterr()
    assert out == f"{folder}: 3 voice prints, 1.5 MB\n"
    assert "moss-voice voices --remove" in err
    assert main(["voices", "--remove"]) == 0
    assert list(folder.iterdir()) == []
    (folder / "0a.safetensors").write_bytes(b"x")
    assert main(["voices"]) == 0
    assert capsys.readouterr().out == f"{folder}: 1 voice print, 0.0 MB\n"
    assert main(["voices", "--remove"]) == 0
    assert main(["voices", "--remove"]) == 0, "nothing to remove is no error"


def test_what_cannot_be_removed_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    (paths.voices_dir() / "folder").mkdir(parents=True)
    assert main(["voices", "--remove"]) == 1
    assert "folder cannot be removed" in capsys.readouterr().err
