from __future__ import annotations

import os
import runpy
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was done, in order."""
    done: list[str] = []
    monkeypatch.setattr("app.process.end_without_traceback", lambda: done.append("Ctrl-C"))
    monkeypatch.setattr("app.gpu_runtime.activation.activate", lambda: done.append("GPU runtime"))
    monkeypatch.setattr("app.__main__.start", lambda: done.append("start") or 7)
    monkeypatch.setattr(runpy, "run_module", lambda *_, **__: done.append("start"))
    return done


@pytest.mark.parametrize("original", ["/users/own", None])
def test_other_programs_do_not_see_the_libraries_of_the_bundle(
    launch: ModuleType, monkeypatch: pytest.MonkeyPatch, original: str | None
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/bundle/_internal")
    monkeypatch.setenv("LD_LIBRARY_PATH_ORIG", original or "")
    if original is None:
        monkeypatch.delenv("LD_LIBRARY_PATH_ORIG")
    launch.restore_environment()
    assert os.environ.get("LD_LIBRARY_PATH") == original
    assert "LD_LIBRARY_PATH_ORIG" not in os.environ


def test_this_program_as_a_child_finds_the_libraries_of_the_bundle(
    launch: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyInstaller's loader sets its path again, unless these say that a parent has done so."""
    for name in ("ARCHIVE_FILE", "PARENT_PROCESS_LEVEL", "LINUX_PROCESS_NAME", "APPLICATION_HOME_DIR"):
        monkeypatch.setenv(f"_PYI_{name}", "1")
    launch.restore_environment()
    assert not [name for name in os.environ if name.startswith("_PYI_")]


@pytest.mark.parametrize("given", ["/users/own/plugins", None])
def test_other_programs_do_not_see_the_plugins_of_the_bundle(
    launch: ModuleType, monkeypatch: pytest.MonkeyPatch, given: str | None
) -> None:
    """Qt itself takes those of the bundle alone, with the user's variable back in place."""
    taken: list[list[str]] = []
    core = ModuleType("PySide6.QtCore")
    core.QCoreApplication = SimpleNamespace(setLibraryPaths=taken.append)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "PySide6.QtCore", core)
    monkeypatch.setattr(launch, "_given_environment", lambda: {"QT_PLUGIN_PATH": given} if given else {})
    monkeypatch.setenv("QT_PLUGIN_PATH", "/bundle/_internal/PySide6/Qt/plugins")
    monkeypatch.setenv("QML2_IMPORT_PATH", "/bundle/_internal/PySide6/Qt/qml")
    launch.restore_environment()
    assert os.environ.get("QT_PLUGIN_PATH") == given
    assert "QML2_IMPORT_PATH" not in os.environ
    assert taken == [["/bundle/_internal/PySide6/Qt/plugins"]]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps it")
def test_what_a_process_was_started_with_is_read_from_the_system(
    launch: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QML2_IMPORT_PATH", "/set/later")
    given = launch._given_environment()
    assert given["PATH"]
    assert given.get("QML2_IMPORT_PATH") != "/set/later"


def test_a_module_of_the_program_runs_as_with_python(
    launch: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[Any, ...]] = []
    monkeypatch.setattr(runpy, "run_module", lambda name, **how: ran.append((name, list(sys.argv), how)))
    monkeypatch.setattr(sys, "argv", ["moss-voice", "-m", "app.gui.window.application", "word"])
    assert launch.main() == 0
    assert ran == [
        ("app.gui.window.application", ["moss-voice", "word"], {"run_name": "__main__", "alter_sys": True})
    ]


@pytest.mark.parametrize("words", [["-m"], ["-m", "pip"], ["doctor"], []])
def test_everything_else_is_for_the_command_line(
    launch: ModuleType, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["moss-voice", *words])
    assert launch.main() == 7
    assert sys.argv == ["moss-voice", *words]


@pytest.mark.parametrize("words", [["-m", "app", "doctor"], ["doctor"]])
def test_the_gpu_runtime_is_put_in_place_first(
    launch: ModuleType, monkeypatch: pytest.MonkeyPatch, words: list[str], steps: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["moss-voice", *words])
    launch.main()
    assert steps == ["Ctrl-C", "GPU runtime", "start"]
