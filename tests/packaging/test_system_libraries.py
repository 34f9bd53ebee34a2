from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def libraries(scripts: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """On a Debian where one library and one font are missing, and without root."""
    module = scripts["system_libraries"]
    absent = {"libegl1", "fonts-noto-cjk"}
    monkeypatch.setattr(module, "_has_library", lambda package, library: package not in absent)
    monkeypatch.setattr(module, "_root_prefix", lambda: None)
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(module.shutil, "which", lambda name: f"/usr/bin/{name}")
    return module


def test_required_and_optional_packages_are_told_apart(libraries: ModuleType) -> None:
    assert libraries.missing_system_packages(with_tests=True) == (["libegl1"], ["fonts-noto-cjk"])


def test_a_gpu_needs_what_triton_compiles_with(
    libraries: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(libraries.sysconfig, "get_path", lambda name, scheme: str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    headers = f"python3.{sys.version_info.minor}-dev"
    assert libraries.missing_system_packages(with_tests=False, gpu=True)[0] == ["libegl1", headers]
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(libraries.shutil, "which", lambda name: None)
    found, _ = libraries.missing_system_packages(with_tests=False, gpu=True)
    assert found == ["libegl1", "gcc", "libc6-dev"]
    assert libraries.missing_system_packages(with_tests=False)[0] == ["libegl1"]


def test_what_may_not_be_installed_is_named_with_the_command(libraries: ModuleType) -> None:
    command = "sudo apt-get install -y --no-install-recommends libegl1 fonts-noto-cjk"
    with pytest.raises(libraries.MissingLibrariesError, match=command):
        libraries.install_system_libraries(with_tests=False)


def test_a_missing_font_stops_nothing(
    libraries: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(libraries, "_has_library", lambda package, library: package != "fonts-noto-cjk")
    libraries.install_system_libraries(with_tests=False)
    assert "fonts-noto-cjk\nIt goes without them" in capsys.readouterr().out


def test_elsewhere_the_packages_are_named(libraries: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries.shutil, "which", lambda name: None)
    with pytest.raises(
        libraries.MissingLibrariesError, match=r"not Debian or Ubuntu.*libegl1 fonts-noto-cjk"
    ):
        libraries.install_system_libraries(with_tests=False)


def test_root_installs_them(libraries: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        ran.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(libraries, "_root_prefix", lambda: ["sudo", "-n"])
    monkeypatch.setattr(libraries.subprocess, "run", run)
    libraries.install_system_libraries(with_tests=False)
    assert [words[:4] for words in ran] == [["sudo", "-n", "apt-get", word] for word in ("update", "install")]
    assert ran[1][-2:] == ["libegl1", "fonts-noto-cjk"]


def test_a_package_that_the_archive_does_not_have_keeps_no_other_one_out(
    libraries: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed: list[str] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        if is_unknown := "fonts-noto-cjk" in command:
            return subprocess.CompletedProcess(command, 100 * is_unknown)
        installed.extend(command[4:])
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(libraries, "_root_prefix", lambda: [])
    monkeypatch.setattr(libraries.subprocess, "run", run)
    libraries.install_system_libraries(with_tests=False)
    assert installed == ["libegl1"]
    assert "fonts-noto-cjk could not be installed" in capsys.readouterr().out


def test_started_by_itself_it_installs_or_names_what_is_missing(
    repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where nothing is found, and there is neither apt-get nor sudo."""
    script = repository / "packaging" / "system_libraries.py"
    result = subprocess.run(
        [sys.executable, "-S", str(script)], capture_output=True, text=True, env={"PATH": str(tmp_path)}
    )
    assert result.returncode in (0, 1)  # 0 where this machine has them all
    assert "Traceback" not in result.stderr
    assert result.returncode == 0 or "Install what these packages hold" in result.stderr
