from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from app import installation


def test_a_checkout_is_set_up_by_its_script() -> None:
    assert installation.remedy() == "Run: python3 packaging/bootstrap.py run"
    assert installation.gpu_remedy() == "Run: python3 packaging/bootstrap.py run --gpu"
    assert not installation.is_frozen()


def test_a_frozen_copy_is_installed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert "install MOSS Voice again" in installation.remedy()
    assert installation.gpu_remedy() == "Run: moss-voice gpu install"


def test_a_wheel_is_completed_by_pip_at_the_tested_versions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, repository: Path
) -> None:
    monkeypatch.setattr(installation, "__file__", str(tmp_path / "site-packages" / "app" / "installation.py"))
    pins = set(re.findall(r"[\w-]+==[\w.]+", installation.remedy()))
    tested = (repository / "packaging" / "constraints.txt").read_text(encoding="utf-8").split()
    assert {pin.partition("==")[0] for pin in pins} == {"bigvgan", "silero-vad", "pipecat-ai"}
    assert pins <= set(tested)
