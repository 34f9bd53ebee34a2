"""Entry point of the frozen program, both executables.

In: the command line. Out: the program's exit status. `-m MODULE` runs one of the program's modules as Python
does, so that child processes have the same command line as in a checkout. Before anything else, the GPU
runtime of the user comes into place (app/gpu_runtime/activation.py). Main thread.
"""

from __future__ import annotations

import os
import runpy
import sys

_PACKAGES = ("app", "engine_runtime")


def restore_library_path() -> None:
    """Give child processes the LD_LIBRARY_PATH of the user: PyInstaller's loader has put the bundle's folder
    first, which the dynamic linker of this process has read by now, and other programs must not see.
    """
    original = os.environ.pop("LD_LIBRARY_PATH_ORIG", None)
    if original is not None:
        os.environ["LD_LIBRARY_PATH"] = original
    else:
        os.environ.pop("LD_LIBRARY_PATH", None)


def main() -> int:
    """Run the command line or, after `-m`, a module."""
    restore_library_path()
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
