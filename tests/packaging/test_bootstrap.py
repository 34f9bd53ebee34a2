from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def bootstrap(repository: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("bootstrap", repository / "packaging" / "bootstrap.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_help_needs_nothing_installed(repository: Path) -> None:
    script = repository / "packaging" / "bootstrap.py"
    result = subprocess.run(
        [sys.executable, "-S", str(script), "--help"], capture_output=True, text=True, check=True
    )
    assert "packaging/bootstrap.py test" in result.stdout


def test_another_python_is_refused_in_words(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 2, "final", 0))
    monkeypatch.setattr(sys, "argv", ["bootstrap.py", "run"])
    assert bootstrap.main() == 1
    assert "Python 3.9.2 is not supported" in capsys.readouterr().err


def test_missing_libraries_are_named_where_they_may_not_be_installed(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bootstrap, "missing_system_packages", lambda with_tests: ["libportaudio2"])
    monkeypatch.setattr(bootstrap, "_root_prefix", lambda: None)
    monkeypatch.setattr(bootstrap.shutil, "which", lambda name: "/usr/bin/apt-get")
    monkeypatch.setattr(bootstrap, "_run", lambda *a, **k: pytest.fail("must not install"))
    bootstrap.install_system_libraries(with_tests=False)
    assert "sudo apt-get install -y --no-install-recommends libportaudio2" in capsys.readouterr().out


def test_nothing_is_installed_twice(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    mark.write_text(bootstrap._fingerprint(True, False) + "\n")
    monkeypatch.setattr(bootstrap, "MARK", mark)
    monkeypatch.setattr(bootstrap, "_pip", lambda *a, **k: pytest.fail("must not install"))
    bootstrap.install_packages(with_tests=True, gpu=False)


def test_a_changed_constraint_installs_again(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = bootstrap._fingerprint(True, False)
    changed = tmp_path / "constraints.txt"
    changed.write_text(bootstrap.CONSTRAINTS.read_text() + "\nsomething==1\n")
    monkeypatch.setattr(bootstrap, "CONSTRAINTS", changed)
    assert bootstrap._fingerprint(True, False) != before


def test_without_a_gpu_the_cpu_build_is_asked_for_first(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, ...]] = []

    def pip(*arguments: str, **_: object) -> int:
        asked.append(arguments)
        return 0

    monkeypatch.setattr(bootstrap, "_pip", pip)
    monkeypatch.setattr(bootstrap, "_run", lambda *a, **k: 1)  # torch is not there yet
    bootstrap._install_torch(gpu=False)
    assert asked == [("install", "torch==2.13.0+cpu")]
    bootstrap._install_torch(gpu=True)
    assert asked[-1] == ("install", "torch==2.13.0")


def test_a_library_for_engines_that_cannot_be_had_is_said_and_left_out(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(bootstrap, "MARK", tmp_path / "mark")
    monkeypatch.setattr(bootstrap, "VENV", tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    monkeypatch.setattr(bootstrap, "_install_torch", lambda gpu: None)
    monkeypatch.setattr(bootstrap, "_pip", lambda *words, **_: int(bootstrap.TENSORRT_RTX in words))
    bootstrap.install_packages(with_tests=True, gpu=False)
    assert "no engines are built in the tests" in capsys.readouterr().out
    assert (tmp_path / "mark").is_file()


@pytest.mark.parametrize("is_there", [True, False])
def test_engines_are_built_where_they_can_be(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    ran: list[str] = []

    def run(command: list[str], *_: object, **__: object) -> int:
        ran.append(" ".join(command[1:]))
        return 0 if is_there or "import tensorrt_rtx" not in command else 1

    monkeypatch.setattr(bootstrap, "_run", run)
    assert bootstrap.run_tests([]) == 0
    assert ran[-1].startswith("-m app trt codec --compute-capability 8.9" if is_there else "-m pytest")


def test_pins_agree_with_the_constraints(bootstrap: ModuleType) -> None:
    pins = set(re.findall(r"^[\w.-]+==[^\s;]+", bootstrap.CONSTRAINTS.read_text(), re.MULTILINE))
    assert {bootstrap.TORCH, bootstrap.TENSORRT_RTX, *bootstrap.WITHOUT_DEPENDENCIES} <= pins
