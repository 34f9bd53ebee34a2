"""How this copy was installed (checkout, wheel, frozen bundle), and the command that adds what is missing.

In: the name of an optional part (an extra of pyproject.toml). Out: one sentence with a command that works in
this copy. Also the entry point of the installed command, which makes sure that `app` is this program's. Any
thread.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shlex
import shutil
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

from engine_runtime.errors import MossVoiceError, Problem

DISTRIBUTION = "moss-voice"
BUNDLED = ("client", "hotkey", "released", "serve")
"""Extras that every complete copy has: packaging/bootstrap.py and packaging/build.py install them."""
_ROOT = Path(__file__).resolve().parents[1]
_SCRIPT = Path("packaging", "bootstrap.py")
# As in packaging/bootstrap.py, which says why their dependencies are left out.
_WITHOUT_DEPENDENCIES = ("bigvgan==2.4.1", "silero-vad==6.2.3", "pipecat-ai==1.14.0")
_ADDED_WITHOUT_DEPENDENCIES = {"quality": ("distillmos==0.9.1", "xls-r-sqa==0.1.0")}
"""Packages of an extra whose dependencies are not used here; both are under the MIT licence."""
COMPILER_REMEDY = "Install them: sudo apt-get install gcc libc6-dev python3-dev."
"""What to do where Triton finds nothing to compile with."""
_INCOMPLETE = Problem("This copy is incomplete: reinstall MOSS Voice.")


class InstallationError(MossVoiceError):
    """This copy of the program cannot start as it is installed."""


def is_frozen() -> bool:
    """Whether this is a bundle made by PyInstaller, which brings everything and cannot be added to."""
    return bool(getattr(sys, "frozen", False))


def is_checkout() -> bool:
    """Whether the sources lie in a checkout, installed or not."""
    return not is_frozen() and (_ROOT / _SCRIPT).is_file()


def remedy() -> Problem:
    """What to do if a required library is missing."""
    if is_frozen():
        return _INCOMPLETE
    if is_checkout():
        return _run(f"{_set_up()} run")
    # pip installs what an installed package lacks; it asks no index for that package itself.
    return _run(f"{_pip(DISTRIBUTION)} && {_pip('--no-deps', *_WITHOUT_DEPENDENCIES)}")


def add(extra: str) -> Problem:
    """What to do if a library of an optional part is missing; `extra` is its name in pyproject.toml."""
    if is_frozen():
        return _INCOMPLETE if extra in BUNDLED else _beside_the_bundle(extra)
    named = (f"{DISTRIBUTION}[{extra}]",) if _is_installed() else ("--editable", f"{_ROOT}[{extra}]")
    commands = [_pip(*named)]
    if bare := _ADDED_WITHOUT_DEPENDENCIES.get(extra):
        commands.append(_pip("--no-deps", *bare))
    return _run(" && ".join(commands))


def gpu_remedy() -> Problem:
    """What to do if there is a GPU that this build of torch cannot use."""
    if is_frozen():
        return _run("moss-voice gpu install")
    if is_checkout():
        return _run(f"{_set_up()} run --gpu")
    # === takes no local version: neither 2.13.0+cpu that is there nor another CPU build.
    return _run(_pip("torch===" + metadata.version("torch").partition("+")[0]))


def has_compiler() -> bool:
    """Whether there are a C compiler that Triton would call, to build what starts its kernels ($CC, else gcc
    or clang), and the headers of this Python."""
    named = os.environ.get("CC", "").split()[:1]
    has_headers = Path(sysconfig.get_path("include", "posix_prefix"), "Python.h").is_file()
    return has_headers and any(shutil.which(name) for name in named or ("gcc", "clang"))


def start() -> int | str:
    """Run the installed command; the exit status for sys.exit, or the reason why it cannot start."""
    try:
        require_own_app()
    except InstallationError as error:
        return f"moss-voice: {error}"
    try:
        # NOTE: by name, because the engine imports nothing of the application.
        status: int = importlib.import_module("app.__main__").start()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in ("app", "engine_runtime"):
            raise
        return f"moss-voice: The package {error.name} is missing. {remedy()}"
    return status


def require_own_app() -> None:
    """InstallationError unless the package `app` is this program's, complete and not overwritten.

    `app` is a common name. pip lets two distributions write into one folder of that name without a word.
    """
    spec = importlib.util.find_spec("app")
    places = [Path(place).resolve() for place in (spec and spec.submodule_search_locations) or ()]
    if places[:1] != [_ROOT / "app"]:
        found = str(places[0]) if places else "missing"
        raise InstallationError(
            "The package app that Python finds is not that of MOSS Voice ({found}).",
            "Unset PYTHONPATH, or install MOSS Voice in an environment of its own.",
            found=found,
        )
    if (file := _overwritten()) is None:
        return
    others = sorted(set(metadata.packages_distributions().get("app", ())) - {DISTRIBUTION})
    if others or not file.is_file():
        cause = f"{', '.join(others)} installs a package named app, too" if others else "it is missing"
        raise InstallationError(
            "The file {file} of MOSS Voice cannot be used: {cause}.",
            "Install MOSS Voice again, in an environment of its own.",
            file=file,
            cause=cause,
        )


def _overwritten() -> Path | None:
    """A file of `app` that is missing or of another size than was installed; only a wheel has such a list."""
    if is_checkout() or not _is_installed():
        return None
    for line in _record().splitlines():
        name, _, size = line.rpartition(",")
        if name.startswith("app/") and size:  # bytecode has none
            file = _ROOT / name.partition(",")[0]
            try:
                if file.stat().st_size == int(size):
                    continue
            except OSError:
                pass
            return file
    return None


def _record() -> str:
    """The list of installed files. metadata.files takes 30 ms longer, at every start."""
    return metadata.distribution(DISTRIBUTION).read_text("RECORD") or ""


def _is_installed() -> bool:
    """Whether pip knows this program in this environment."""
    try:
        metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return False
    return True


def _run(command: str) -> Problem:
    return Problem("Run: {command}", command=command)


def _set_up() -> str:
    return shlex.join(["python3", str(_ROOT / _SCRIPT)])


def _pip(*words: str) -> str:
    """A command for the environment that runs this program, which `pip` alone may miss."""
    return shlex.join([sys.executable, "-m", "pip", "install", *words])


def _beside_the_bundle(extra: str) -> Problem:
    wheel = f"moss_voice-{metadata.version(DISTRIBUTION)}-py3-none-any.whl[{extra}]"
    commands = [["pip", "install", wheel]]
    if bare := _ADDED_WITHOUT_DEPENDENCIES.get(extra):
        commands.append(["pip", "install", "--no-deps", *bare])
    return Problem(
        "The packaged program cannot be added to.",
        "Use its wheel in an environment of Python 3.11 or 3.12: {command}",
        command=" && ".join(map(shlex.join, commands)),
    )
