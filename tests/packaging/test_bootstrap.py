from __future__ import annotations

import re
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement

from engine_runtime import installation


@pytest.fixture
def bootstrap(scripts: dict[str, ModuleType]) -> ModuleType:
    return scripts["bootstrap"]


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
    said = capsys.readouterr().err
    assert "Python 3.9.2 is not supported" in said
    assert "uv run --no-project --python 3.12 bootstrap.py run" in said


def test_without_its_libraries_nothing_is_started(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(**_: bool) -> None:
        raise bootstrap.MissingLibrariesError("Only root can install them: sudo apt-get install libegl1")

    installed: list[bool] = []
    monkeypatch.setattr(bootstrap, "install_packages", lambda **_: installed.append(True))
    monkeypatch.setattr(bootstrap, "install_system_libraries", missing)
    monkeypatch.setattr(bootstrap, "run_tests", lambda words: 0)
    monkeypatch.setattr(sys, "argv", ["bootstrap.py", "test"])
    assert bootstrap.main() == 1
    assert "sudo apt-get install libegl1\nThen start again." in capsys.readouterr().err
    assert not installed
    monkeypatch.setattr(sys, "argv", ["bootstrap.py", "test", "--skip-system-libraries"])
    assert bootstrap.main() == 0
    assert installed


@pytest.mark.slow
def test_wheels_of_a_folder_are_all_that_pip_sees(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
        monkeypatch.setenv(name, "")  # restored afterwards
    folder = tmp_path / "with blank"
    with pytest.raises(bootstrap.SetUpError, match="there is no folder"):
        bootstrap.use_wheels(folder)
    folder.mkdir()
    bootstrap.use_wheels(folder)
    monkeypatch.setattr(bootstrap, "venv_python", lambda: Path(sys.executable))
    with pytest.raises(bootstrap.SetUpError, match="a package is not in the folder of --wheels"):
        bootstrap._pip("download", "--no-deps", "a-package-that-is-not-here")
    wheel(folder, "a_package_that_is_here")
    assert bootstrap._pip("download", "--no-deps", "--dest", str(tmp_path), "a-package-that-is-here") == 0
    assert list(tmp_path.glob("*.whl"))


def wheel(folder: Path, name: str) -> None:
    """The smallest wheel that pip takes."""
    about = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as file:
        file.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        file.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{about}/RECORD", "")


def test_a_folder_is_filled_with_what_both_commands_install(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[str, ...]] = []

    def pip(*words: str, **_: object) -> int:
        asked.append(words)
        return 0

    monkeypatch.setattr(bootstrap, "_pip", pip)
    monkeypatch.setattr(bootstrap, "make_environment", lambda: None)
    monkeypatch.setattr(sys, "argv", ["bootstrap.py", "download", "--wheels", str(tmp_path)])
    assert bootstrap.main() == 0
    loaded = [word for words in asked if words[0] == "download" for word in words]
    assert {"torch==2.13.0+cpu", f"{bootstrap.ROOT}[{bootstrap.EXTRAS},dev]", "setuptools"} <= set(loaded)
    assert set(bootstrap.WITHOUT_DEPENDENCIES) <= set(loaded)


def test_a_build_of_torch_that_cannot_be_had_is_named(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bootstrap, "_pip", lambda *words, **_: 1)
    monkeypatch.setattr(bootstrap, "make_environment", lambda: None)
    with pytest.raises(bootstrap.SetUpError, match=r"torch==2.13.0\+cpu cannot be had"):
        bootstrap.download_wheels(tmp_path, gpu=False)


def test_nothing_is_installed_twice(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    mark.write_text(bootstrap._fingerprint(True, False) + "\n")
    monkeypatch.setattr(bootstrap, "MARK", mark)
    monkeypatch.setattr(bootstrap, "_pip", lambda *a, **k: pytest.fail("must not install"))
    bootstrap.install_packages(with_tests=True, gpu=False)


def test_what_the_readme_shows_is_installed(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(bootstrap, "MARK", tmp_path / "mark")
    monkeypatch.setattr(bootstrap, "_has_pip", lambda: True)
    monkeypatch.setattr(bootstrap, "_install_torch", lambda gpu: None)
    monkeypatch.setattr(bootstrap, "_pip", lambda *words, **_: asked.append(words) or 0)
    bootstrap.install_packages(with_tests=False, gpu=False)
    (own,) = [words[-1] for words in asked if "--editable" in words]
    assert set(installation.BUNDLED) == set(re.findall(r"\w+", own.partition("[")[2]))
    assert {"client", "hotkey", "released", "serve"} == set(installation.BUNDLED)


def test_a_package_that_was_removed_is_installed_again(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    about = tmp_path / "lib" / "python3.11" / "site-packages" / "onnxruntime-1.0.dist-info"
    about.mkdir(parents=True)
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(bootstrap, "VENV", tmp_path)
    monkeypatch.setattr(bootstrap, "MARK", tmp_path / "mark")
    monkeypatch.setattr(bootstrap, "_has_pip", lambda: True)
    monkeypatch.setattr(bootstrap, "_install_torch", lambda gpu: None)
    monkeypatch.setattr(bootstrap, "_pip", lambda *words, **_: asked.append(words) or 0)
    bootstrap.install_packages(with_tests=False, gpu=False)
    asked.clear()
    bootstrap.install_packages(with_tests=False, gpu=False)
    assert not asked
    about.rmdir()
    bootstrap.install_packages(with_tests=False, gpu=False)
    assert any("--editable" in words for words in asked)


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
    assert asked[-1] == ("install", "torch===2.13.0")


def test_the_cpu_build_does_not_pass_for_the_one_with_cuda(bootstrap: ModuleType) -> None:
    """As it would with ==: `run --gpu` after `run` would change nothing."""
    wanted = Requirement(bootstrap.CUDA_TORCH).specifier
    assert wanted.contains("2.13.0")
    assert not wanted.contains("2.13.0+cpu")
    assert Requirement(bootstrap.TORCH).specifier.contains("2.13.0+cpu")


def test_a_library_for_engines_that_cannot_be_had_is_said_and_left_out(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(bootstrap, "MARK", tmp_path / "mark")
    monkeypatch.setattr(bootstrap, "_has_pip", lambda: True)
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
    monkeypatch.setattr(bootstrap, "_run_captured", lambda command, _: (run(command), ""))
    assert bootstrap.run_tests([]) == 0
    engines = [line for line in ran if line.startswith("-m app trt codec --compute-capability 8.9")]
    assert len(engines) == is_there
    assert ran[-1].startswith("-m pytest")


def test_each_check_runs_and_what_one_says_stays_together(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    captured = bootstrap._run_captured

    def run(command: list[str], environment: dict[str, str]) -> tuple[int, str]:
        words = f"import sys; print('out'); sys.stdout.flush(); sys.exit('{command[-1]} failed')"
        result: tuple[int, str] = captured([sys.executable, "-S", "-c", words], environment)
        return result if "mypy" in command else (0, f"{command[-1]} passed\n")

    monkeypatch.setattr(bootstrap, "_run_captured", run)
    monkeypatch.setattr(bootstrap, "_run", lambda command, *_, **__: int("-c" in command))
    assert bootstrap.run_tests(["tests/chosen"]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[:4] == ["== types: python -m mypy", "out", "mypy failed", "== lint: python -m ruff check ."]
    assert said[-2].endswith(" tests/chosen")
    assert said[-1] == "failed: types"


def test_pins_agree_with_the_constraints(bootstrap: ModuleType) -> None:
    pins = set(re.findall(r"^[\w.-]+==[^\s;]+", bootstrap.CONSTRAINTS.read_text(), re.MULTILINE))
    assert {bootstrap.TORCH, bootstrap.TENSORRT_RTX, *bootstrap.WITHOUT_DEPENDENCIES} <= pins


@pytest.mark.slow
def test_an_environment_whose_making_was_interrupted_is_made_again(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / ".venv"
    monkeypatch.setattr(bootstrap, "VENV", folder)
    monkeypatch.setattr(bootstrap, "MARK", folder / "mark")
    monkeypatch.setattr(bootstrap, "_install_torch", lambda gpu: None)
    monkeypatch.setattr(bootstrap, "_pip", lambda *a, **k: 0)
    bootstrap.venv.EnvBuilder(with_pip=False).create(folder)
    (folder / "left.txt").touch()
    assert bootstrap.venv_python().is_file()
    assert not bootstrap._has_pip()
    made: list[bool] = []

    class Builder:
        def __init__(self, *, with_pip: bool, clear: bool) -> None:
            made.append(with_pip and clear)

        def create(self, folder: Path) -> None:
            pass

    monkeypatch.setattr(bootstrap.venv, "EnvBuilder", Builder)
    bootstrap.install_packages(with_tests=False, gpu=False)
    assert made == [True]
    monkeypatch.setattr(bootstrap, "venv_python", lambda: Path(sys.executable))  # one that has pip
    (folder / "mark").unlink()
    bootstrap.install_packages(with_tests=False, gpu=False)
    assert made == [True]


def _set_up(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, install: Callable[..., None]) -> int:
    monkeypatch.setattr(sys, "argv", ["bootstrap.py", "run"])
    monkeypatch.setattr(bootstrap, "install_system_libraries", lambda **_: None)
    monkeypatch.setattr(bootstrap, "install_packages", install)
    status: int = bootstrap.main()
    return status


@pytest.mark.slow
def test_without_a_network_that_is_what_it_says(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The index is a port of this machine at which nothing listens."""
    monkeypatch.setenv("PIP_RETRIES", "1")
    monkeypatch.setattr(bootstrap, "venv_python", lambda: Path(sys.executable))

    def install(**_: bool) -> None:
        bootstrap._pip("download", "--no-deps", "a-package-that-is-not-here")

    with socket.socket() as taken:  # so that nobody else listens there meanwhile
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{taken.getsockname()[1]}/simple")
        assert _set_up(bootstrap, monkeypatch, install) == 1
    last = capfd.readouterr().err.splitlines()[-1]
    assert last.startswith("Set-up failed: the package index cannot be reached. Check the network")


def test_a_full_disk_is_not_taken_for_a_missing_build(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pip = tmp_path / "python"
    pip.write_text("#!/bin/sh\necho 'OSError: [Errno 28] No space left on device' >&2\nexit 1\n")
    pip.chmod(0o755)
    monkeypatch.setattr(bootstrap, "venv_python", lambda: pip)
    assert _set_up(bootstrap, monkeypatch, lambda **_: bootstrap._install_torch(gpu=False)) == 1
    out, errors = capfd.readouterr()
    assert "cannot be reached" not in out
    assert errors.startswith("Set-up failed: the disk is full. Free some space")


def test_run_takes_no_arguments(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["bootstrap.py", "run", "tests"])
    monkeypatch.setattr(bootstrap, "install_system_libraries", lambda **_: pytest.fail("must not"))
    with pytest.raises(SystemExit) as caught:
        bootstrap.main()
    assert caught.value.code == 2


def test_an_interrupt_says_that_one_may_start_again(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def install(**_: bool) -> None:
        raise KeyboardInterrupt

    assert _set_up(bootstrap, monkeypatch, install) == 130
    assert capsys.readouterr().err == "Stopped. Start again to continue.\n"


@pytest.mark.parametrize(
    ("display", "words"), [(":5", ["-m", "app"]), (None, ["-m", "app", "demo", "--out-dir"])]
)
def test_the_program_takes_the_place_of_the_set_up(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, display: str | None, words: list[str]
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM"):
        monkeypatch.delenv(name, raising=False)
    if display is not None:
        monkeypatch.setenv("DISPLAY", display)
    became: list[list[str]] = []

    def become(program: str, command: list[str]) -> None:
        became.append(command)
        raise SystemExit

    monkeypatch.setattr(bootstrap.os, "execv", become)
    monkeypatch.setattr(bootstrap.os, "chdir", lambda folder: None)
    with pytest.raises(SystemExit):
        _set_up(bootstrap, monkeypatch, lambda **_: None)
    assert became[0][1 : 1 + len(words)] == words
