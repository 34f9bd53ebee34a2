"""Files of packages that are never imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from app.dialog.packaged_model import find_model


def test_a_file_of_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "somepackage" / "data").mkdir(parents=True)
    (tmp_path / "somepackage" / "__init__.py").write_text("raise RuntimeError('imported')")
    model = tmp_path / "somepackage" / "data" / "model.onnx"
    model.write_bytes(b"weights")
    monkeypatch.syspath_prepend(tmp_path)
    assert find_model("somepackage", "data/model.onnx") == model
    assert find_model("somepackage", "data/other.onnx") is None
    assert find_model("nosuchpackage", "data/model.onnx") is None


def test_the_packages_are_not_imported() -> None:
    code = (
        "import sys\n"
        "from app.dialog.packaged_model import find_model\n"
        "assert find_model('silero_vad', 'data/silero_vad.onnx')\n"
        "find_model('pipecat', 'audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx')\n"
        "print(sorted({'torch', 'silero_vad', 'pipecat'} & set(sys.modules)))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
