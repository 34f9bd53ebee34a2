"""Entry point of the frozen program, both executables.

In: the command line. Out: the program's exit status. `-m MODULE` runs one of the program's modules as Python
does, so that child processes have the same command line as in a checkout. Before anything else, the GPU
runtime of the user comes into place (app/gpu_runtime/activation.py). Main thread.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

_PACKAGES = ("app", "engine_runtime")


_OF_QT = ("QT_PLUGIN_PATH", "QML2_IMPORT_PATH")
"""What PyInstaller's hook for PySide6 overwrites, keeping no copy."""
_OF_THE_LOADER = "_PYI_"
"""Prefix of variables by which PyInstaller's loader knows its own child; that gets no LD_LIBRARY_PATH."""


def restore_environment() -> None:
    """Give child processes the environment of the user: a file manager that is opened from here must not load
    the libraries and the Qt plugins of the bundle.

    PyInstaller's loader has put the bundle's folder first in LD_LIBRARY_PATH, which the dynamic linker of
    this process has read by now. Qt reads its variables when a window is made, hence `_keep_own_plugins`.
    This program as a child of its own is then started as any other: its loader sets the path again.
    """
    _keep_own_plugins()
    given = _given_environment()
    _restore("LD_LIBRARY_PATH", os.environ.pop("LD_LIBRARY_PATH_ORIG", None))
    for name in _OF_QT:
        _restore(name, given.get(name))
    for name in [name for name in os.environ if name.startswith(_OF_THE_LOADER)]:
        del os.environ[name]


def _keep_own_plugins() -> None:
    """Let the Qt of this process load plugins of the bundle alone, whatever the user's variable says: those
    of another build of Qt end the process."""
    core, plugins = sys.modules.get("PySide6.QtCore"), os.environ.get("QT_PLUGIN_PATH")
    if core is not None and plugins is not None:  # the hook has imported it
        core.QCoreApplication.setLibraryPaths([plugins])


def _given_environment() -> dict[str, str]:
    """What this process was started with; empty where the system does not keep it."""
    try:
        content = Path("/proc/self/environ").read_bytes()
    except OSError:
        return {}
    pairs = (os.fsdecode(entry).partition("=") for entry in content.split(b"\0") if entry)
    return {name: value for name, _, value in pairs}


def _restore(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def main() -> int:
    """Run the command line or, after `-m`, a module."""
    restore_environment()
    from app.process import end_without_traceback

    end_without_traceback()
    from app.gpu_runtime.activation import activate

    activate()
    if sys.argv[1:2] == ["-m"] and sys.argv[2:] and sys.argv[2].partition(".")[0] in _PACKAGES:
        module = sys.argv[2]
        del sys.argv[1:3]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        return 0
    from app.__main__ import start

    return start()


if __name__ == "__main__":
    sys.exit(main())
