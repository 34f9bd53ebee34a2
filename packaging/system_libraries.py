"""The Debian packages that a checkout needs: which are missing, and how they are installed.

    sudo python3 packaging/system_libraries.py    for an environment that packaging/bootstrap.py does not make

In: what is to be started. Out: missing packages are installed, or named in the error. Used by
packaging/bootstrap.py. Standard library only.
"""

from __future__ import annotations

import ctypes.util
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

# Debian package -> a shared library, which shows whether it is already installed.
RUN_LIBRARIES = {
    "libportaudio2": "portaudio",
    "libasound2-plugins": None,
    "libegl1": "EGL",
    "libgl1": "GL",
    "libxkbcommon0": "xkbcommon",
    "libxkbcommon-x11-0": "xkbcommon-x11",
    "libfontconfig1": "fontconfig",
    "libdbus-1-3": "dbus-1",
    "libxcb-cursor0": "xcb-cursor",
    "libxcb-icccm4": "xcb-icccm",
    "libxcb-keysyms1": "xcb-keysyms",
    "libxcb-image0": "xcb-image",
    "libxcb-render-util0": "xcb-render-util",
    "libxcb-shape0": "xcb-shape",
    "libxcb-xkb1": "xcb-xkb",
    "libwayland-client0": "wayland-client",
    "libwayland-cursor0": "wayland-cursor",
    "libwayland-egl1": "wayland-egl",
    "libgomp1": "gomp",
}
PYTHON = f"python{sys.version_info[0]}.{sys.version_info[1]}"
FONTS = ("fonts-dejavu-core", "fonts-noto-cjk")
TEST_PROGRAMS = {
    "chromium": "chromium",
    "dbus-daemon": "dbus-daemon",
    "pulseaudio": "pulseaudio",
    "pulseaudio-utils": "pactl",
    "strace": "strace",
    "xvfb": "Xvfb",
}


class MissingLibrariesError(Exception):
    """What is missing, and the command that installs it."""


def install_system_libraries(with_tests: bool, gpu: bool = False) -> None:
    """Install missing Debian packages. MissingLibrariesError if a required one may not be installed."""
    required, optional = missing_system_packages(with_tests, gpu)
    if not required and not optional:
        return
    missing = [*required, *optional]
    command = ["apt-get", "install", "-y", "--no-install-recommends"]
    shown = " ".join([*command, *missing])
    if shutil.which("apt-get") is None:
        words = f"This is not Debian or Ubuntu. Install what these packages hold: {' '.join(missing)}."
    elif (prefix := _root_prefix()) is not None:
        _install([*prefix, *command], missing, [*prefix, "apt-get", "update", "-q"])
        return
    else:
        words = f"Libraries of the system are missing, which only root can install: sudo {shown}"
    if required:
        raise MissingLibrariesError(words)
    print(f"{words}\nIt goes without them: they are fonts, or programs that tests use.", flush=True)


def _install(install: list[str], packages: list[str], update: list[str]) -> None:
    print(f"Installing system libraries: {' '.join(packages)}", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(update, env=environment, check=False)
    if subprocess.run([*install, *packages], env=environment, check=False).returncode == 0:
        return
    # apt-get installs nothing if it does not know one of them: Ubuntu has no chromium.
    for package in packages:
        if subprocess.run([*install, package], env=environment, check=False).returncode != 0:
            print(f"{package} could not be installed; `moss-voice doctor` shows what is missing.", flush=True)


def missing_system_packages(with_tests: bool, gpu: bool = False) -> tuple[list[str], list[str]]:
    """Debian packages of which neither the library is found nor dpkg knows: required and optional ones."""
    required = [package for package, library in RUN_LIBRARIES.items() if not _has_library(package, library)]
    if importlib.util.find_spec("ensurepip") is None:  # Debian keeps it, and so venv, in a package of its own
        required.append(f"{PYTHON}-venv")
    if gpu:
        required += _missing_of_compiler()
    optional = [font for font in FONTS if not _has_library(font, None)]
    if with_tests:
        optional += [package for package, program in TEST_PROGRAMS.items() if shutil.which(program) is None]
    return required, optional


def _missing_of_compiler() -> Iterator[str]:
    """Of what Triton compiles with, as `has_compiler` of engine_runtime/installation.py tells."""
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        yield from ("gcc", "libc6-dev")
    if not Path(sysconfig.get_path("include", "posix_prefix"), "Python.h").is_file():
        yield f"{PYTHON}-dev"


def _has_library(package: str, library: str | None) -> bool:
    if library is not None and ctypes.util.find_library(library):
        return True
    if shutil.which("dpkg-query") is None:
        return library is None
    result = subprocess.run(
        ["dpkg-query", "--show", "--showformat=${Status}", package],
        capture_output=True,
        text=True,
        check=False,
    )
    return result.stdout.endswith("install ok installed")


def _root_prefix() -> list[str] | None:
    """Prefix of a command that needs root; None if root access requires a password."""
    if os.geteuid() == 0:
        return []
    if (
        shutil.which("sudo")
        and subprocess.run(["sudo", "-n", "true"], capture_output=True, check=False).returncode == 0
    ):
        return ["sudo", "-n", "--preserve-env=DEBIAN_FRONTEND"]
    return None


if __name__ == "__main__":
    try:
        install_system_libraries(with_tests=False)
    except MissingLibrariesError as error:
        sys.exit(str(error))
