from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest

from engine_runtime import installation


@pytest.fixture
def wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The site-packages of an installed wheel, with a package `app` of two files."""
    folder = tmp_path / "site-packages"
    (folder / "app").mkdir(parents=True)
    for name in ("__init__.py", "cli.py"):
        (folder / "app" / name).write_text("x = 1\n")
    monkeypatch.setattr(installation, "_ROOT", folder)
    record = (
        "app/__init__.py,sha256=x,6\napp/cli.py,sha256=x,6\napp/__pycache__/cli.pyc,,\nother.py,sha256=x,9\n"
    )
    monkeypatch.setattr(installation, "_record", lambda: record)
    monkeypatch.setattr(metadata, "packages_distributions", lambda: {"app": ["moss-voice"]})
    monkeypatch.syspath_prepend(str(folder))
    before = _take_modules_of_app()
    yield folder
    _take_modules_of_app()  # else `app.cli` of the wheel stays known beside the `app` of this project
    sys.modules.update(before)


def _take_modules_of_app() -> dict[str, ModuleType]:
    names = [name for name in sys.modules if name.partition(".")[0] == "app"]
    return {name: sys.modules.pop(name) for name in names}


def test_a_checkout_is_set_up_by_its_script(repository: Path) -> None:
    script = repository / "packaging" / "bootstrap.py"
    assert str(installation.remedy()) == f"Run: python3 {script} run"
    assert str(installation.gpu_remedy()) == f"Run: python3 {script} run --gpu"
    assert installation.is_checkout()
    assert not installation.is_frozen()


def test_a_frozen_copy_is_installed_again_or_used_as_a_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert "reinstall MOSS Voice" in str(installation.remedy())
    assert "reinstall MOSS Voice" in str(installation.add("serve"))
    assert str(installation.gpu_remedy()) == "Run: moss-voice gpu install"
    assert re.search(
        r"pip install 'moss_voice-[\d.]+-py3-none-any\.whl\[ray\]'", str(installation.add("ray"))
    )
    quality = str(installation.add("quality"))
    assert re.search(r"whl\[quality\]' && pip install --no-deps distillmos==\S+ xls-r-sqa==\S+$", quality)


@pytest.mark.usefixtures("wheel")
def test_a_wheel_is_completed_by_the_pip_of_its_environment(repository: Path) -> None:
    remedy = str(installation.remedy())
    assert remedy.startswith(f"Run: {sys.executable} -m pip install moss-voice && ")
    pins = set(re.findall(r"[\w-]+==[\w.]+", remedy))
    tested = (repository / "packaging" / "constraints.txt").read_text(encoding="utf-8").split()
    assert {pin.partition("==")[0] for pin in pins} == {"bigvgan", "silero-vad", "pipecat-ai"}
    assert pins <= set(tested)
    assert str(installation.add("serve")) == f"Run: {sys.executable} -m pip install 'moss-voice[serve]'"
    assert str(installation.add("quality")).endswith(
        f"&& {sys.executable} -m pip install --no-deps distillmos==0.9.1 xls-r-sqa==0.1.0"
    )
    version = metadata.version("torch").partition("+")[0]
    assert str(installation.gpu_remedy()) == f"Run: {sys.executable} -m pip install torch==={version}"


def test_a_checkout_that_was_not_installed_is_installed_with_the_part(
    monkeypatch: pytest.MonkeyPatch, repository: Path
) -> None:
    monkeypatch.setattr(installation, "_is_installed", lambda: False)
    assert str(installation.add("onnx")).endswith(f"-m pip install --editable '{repository}[onnx]'")


@pytest.mark.slow
def test_the_command_installs_a_part_where_no_index_has_the_program(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, needs in (("moss_voice", 'Requires-Dist: a-part; extra == "serve"\n'), ("a_part", "")):
        with zipfile.ZipFile(tmp_path / f"{name}-1.0-py3-none-any.whl", "w") as file:
            about = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0\n"
            about += "Provides-Extra: serve\n"
            file.writestr(f"{name}-1.0.dist-info/METADATA", about + needs)
            tags = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            file.writestr(f"{name}-1.0.dist-info/WHEEL", tags)
            file.writestr(f"{name}-1.0.dist-info/RECORD", "")
    parts = tmp_path / "parts"
    parts.mkdir()
    (tmp_path / "a_part-1.0-py3-none-any.whl").rename(parts / "a_part-1.0-py3-none-any.whl")
    venv.EnvBuilder(with_pip=True).create(tmp_path / "environment with blank")
    python = tmp_path / "environment with blank" / "bin" / "python"
    alone = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(parts), "PYTHONPATH": ""}
    program = str(tmp_path / "moss_voice-1.0-py3-none-any.whl")
    subprocess.run([str(python), "-m", "pip", "install", "-q", program], env=alone, check=True)
    monkeypatch.setattr(sys, "executable", str(python))
    command = str(installation.add("serve")).removeprefix("Run: ")
    subprocess.run(command, shell=True, env=alone, check=True, capture_output=True)
    assert list(tmp_path.glob("environment*/lib/*/site-packages/a_part-1.0.dist-info"))


def test_no_other_file_says_how_to_install_a_part(repository: Path) -> None:
    sources = [file for folder in ("app", "engine_runtime") for file in (repository / folder).rglob("*.py")]
    sources.remove(Path(installation.__file__))
    found = [file for file in sources if re.search(r"pip install|moss-voice\[", file.read_text("utf-8"))]
    assert found == []


def test_an_own_app_starts(wheel: Path) -> None:
    (wheel / "app" / "__main__.py").write_text("def start():\n    return 7\n")
    assert installation.start() == 7


def test_a_required_package_that_is_missing_is_named(wheel: Path) -> None:
    (wheel / "app" / "__main__.py").write_text("import a_package_that_is_missing\n")
    said = str(installation.start())
    assert said.startswith("moss-voice: The package a_package_that_is_missing is missing. Run: ")
    (wheel / "app" / "__main__.py").write_text("import app.not_there\n")
    with pytest.raises(ModuleNotFoundError):
        installation.start()


def test_another_app_in_front_is_named(wheel: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "app").mkdir(parents=True)
    (other / "app" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(other))
    said = str(installation.start())
    assert f"is not that of MOSS Voice ({other / 'app'})" in said
    assert "Unset PYTHONPATH" in said


def test_a_package_that_wrote_over_app_is_named(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (wheel / "app" / "cli.py").write_text("# changed by hand\n")
    installation.require_own_app()
    owners = {"app": ["moss-voice", "their-service"]}
    monkeypatch.setattr(metadata, "packages_distributions", lambda: owners)
    with pytest.raises(installation.InstallationError, match="their-service installs a package named app"):
        installation.require_own_app()


def test_a_file_that_another_package_took_away_is_named(wheel: Path) -> None:
    (wheel / "app" / "cli.py").unlink()
    with pytest.raises(installation.InstallationError, match=r"cli\.py of MOSS Voice cannot be used: it is"):
        installation.require_own_app()


def test_a_compiler_is_found_as_triton_finds_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    headers = tmp_path / "include"
    headers.mkdir()
    (headers / "Python.h").touch()
    monkeypatch.setattr(sysconfig, "get_path", lambda name, scheme: str(headers))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert not installation.has_compiler()
    compiler = tmp_path / "my-cc"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", "my-cc -O2")
    assert installation.has_compiler()
    monkeypatch.delenv("CC")
    compiler.rename(tmp_path / "gcc")
    assert installation.has_compiler()
    (headers / "Python.h").unlink()
    assert not installation.has_compiler()
