#!/usr/bin/env python3
"""Set up and run, or set up and test, from a fresh clone with nothing but Python 3.11 or 3.12.

    python3 packaging/bootstrap.py run     open the window (without a display: a sample conversation)
    python3 packaging/bootstrap.py test    lint, types, architecture, tests
    python3 packaging/bootstrap.py download --wheels DIR    packages for a machine without network

Creates .venv in the checkout, installs the system libraries that are missing (as root or with sudo that asks
no password; otherwise it says which and stops) and the Python packages of packaging/constraints.txt, with
--wheels from that folder alone. What is already there is left alone, so a second start takes a second.
Standard library only.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shlex
import subprocess
import sys
import venv
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

from system_libraries import MissingLibrariesError, install_system_libraries

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
CONSTRAINTS = ROOT / "packaging" / "constraints.txt"
MARK = VENV / "moss-voice-installed"
_PACKAGE = "package "
"""What a line of MARK with the name of a package begins with; the others are fingerprints."""
SUPPORTED = ((3, 11), (3, 12))
TORCH = "torch==2.13.0"
CUDA_TORCH = TORCH.replace("==", "===")
"""The build of PyPI alone: 2.13.0+cpu, as installed by an earlier run without --gpu, meets == as well."""
# Where pip looks for the CPU build, in this order: a mirror may have it, PyPI has not.
CPU_TORCH_SOURCES = (
    (),
    ("--extra-index-url", "https://download.pytorch.org/whl/cpu", "--retries", "0", "--timeout", "15"),
)
# bigvgan asks for training tools (pesq is a C build, tensorboard, nnaudio, auraloss), silero-vad for
# torchaudio, pipecat-ai for a web framework. None of that is used: of bigvgan the network, of silero-vad and
# pipecat-ai (Smart Turn v3.2) an ONNX file each. What they do need is in pyproject.toml.
WITHOUT_DEPENDENCIES = ("bigvgan==2.4.1", "silero-vad==6.2.3", "pipecat-ai==1.14.0")
EXTRAS = "client,hotkey,released,serve"
"""Optional parts that every copy has: what README.md shows works without a second installation."""
# Builds the codec's engines without a GPU. For the tests alone, which go without where it cannot be had: its
# wheel (90 MB) is for Linux on x86-64.
TENSORRT_RTX = "tensorrt-rtx==1.7.1.116"

# Each process has a torch of its own: above four, memory is what runs short. What fails is run once more, and
# the report names it: tests with threads and sound streams compete with others for the cores.
PYTEST_OPTIONS = ("--maxprocesses", "4", "--reruns", "1")
PROCESSES = (os.cpu_count() or 1) + 1
"""For all tests: a quarter of their time they wait, for sound streams and for processes of their own."""

# The shipped bundle's codec for an RTX 4090: exported, compared with torch, built, its tensors checked.
BUILD_ENGINES = (
    *("-m", "app", "trt", "codec", "--compute-capability", "8.9"),
    *("--engines", str(ROOT / "build" / "engines")),
)

# Output of pip if it reaches no index; its last line is then about versions.
NO_NETWORK = re.compile(
    r"Retrying \(Retry|name resolution|Name or service not known|Network is unreachable|Connection refused|"
    r"NewConnectionError|ConnectTimeout|ProxyError|connect to proxy"
)


NO_SPACE = re.compile(r"No space left on device|Disk quota exceeded")


NOT_FOUND = re.compile(r"No matching distribution found")
_DOWNLOAD = "python3 packaging/bootstrap.py download --wheels DIR"


class SetUpError(Exception):
    """The reason why packages cannot be installed, and the remedy."""


def main() -> int:
    """Parse the command line and carry it out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("run", "test", "download"))
    parser.add_argument("--gpu", action="store_true", help="install the CUDA build of torch (about 3 GB)")
    parser.add_argument(
        "--headless", action="store_true", help="run: hold the sample conversation without a window"
    )
    parser.add_argument(
        "--wheels",
        type=Path,
        metavar="DIR",
        help="install from this folder, without network; download fills it",
    )
    parser.add_argument(
        "--skip-system-libraries",
        action="store_true",
        help="go on where some are missing, without sound or window",
    )
    parser.add_argument("rest", nargs="*", help="test: arguments for pytest (after --)")
    arguments = parser.parse_args()
    if arguments.command != "test" and arguments.rest:
        parser.error(f"{arguments.command} takes no arguments: {' '.join(arguments.rest)}")
    if arguments.command == "download" and arguments.wheels is None:
        parser.error("download needs --wheels DIR")
    if sys.version_info[:2] not in SUPPORTED:
        found = ".".join(map(str, sys.version_info[:3]))
        return _fail(
            f"Python {found} is not supported. Start this script with python3.11 or python3.12. If there is "
            f"neither, uv brings one: uv run --no-project --python 3.12 {' '.join(sys.argv)}"
        )
    try:
        if arguments.command == "download":
            return download_wheels(arguments.wheels, arguments.gpu)
        if not arguments.skip_system_libraries:
            install_system_libraries(with_tests=arguments.command == "test", gpu=arguments.gpu)
        if arguments.wheels is not None:
            use_wheels(arguments.wheels)
        install_packages(with_tests=arguments.command == "test", gpu=arguments.gpu)
    except KeyboardInterrupt:
        return _fail("Stopped. Start again to continue.", 130)
    except MissingLibrariesError as error:
        return _fail(f"{error}\nThen start again. --skip-system-libraries goes on without sound or window.")
    except SetUpError as error:
        return _fail(f"Set-up failed: {error} Start again to continue.")
    except (OSError, subprocess.CalledProcessError) as error:
        return _fail(f"Set-up failed: {error}. See the lines above for the reason; start again to continue.")
    if arguments.command == "run":
        run_program(arguments.headless)
    try:
        return run_tests(arguments.rest)
    except KeyboardInterrupt:
        return _fail("Stopped.", 130)


# ---- set-up ----


def install_packages(with_tests: bool, gpu: bool) -> None:
    """Create .venv and install the requirements of pyproject.toml, unless that was done before."""
    wanted = _fingerprint(with_tests, gpu)
    if MARK.is_file():
        lines = set(MARK.read_text(encoding="utf-8").splitlines())
        if wanted in lines and {line for line in lines if line.startswith(_PACKAGE)} <= _packages():
            return
    make_environment()
    _say("Installing Python packages (the first time this takes some minutes)")
    _pip("install", "setuptools", "wheel")
    _install_torch(gpu)
    extras = f"{EXTRAS},dev" if with_tests else EXTRAS
    _pip("install", "--no-build-isolation", "--editable", f"{ROOT}[{extras}]")
    _pip("install", "--no-deps", *WITHOUT_DEPENDENCIES)
    if with_tests and _pip("install", TENSORRT_RTX, check=False, quiet=True) != 0:
        _say("TensorRT for RTX cannot be installed here; no engines are built in the tests.")
    marks = [wanted] if not with_tests else [wanted, _fingerprint(False, gpu)]
    marks += sorted(_packages())
    MARK.write_text("\n".join(marks) + "\n", encoding="utf-8")


def _packages() -> set[str]:
    """A line of MARK for each package of .venv. One that was removed since is installed again."""
    folders = VENV.glob("lib/python3*/site-packages/*.dist-info")
    return {_PACKAGE + folder.name.partition("-")[0].lower() for folder in folders}


def make_environment() -> None:
    """Create .venv, unless it is there and complete."""
    if not _has_pip():  # also where making it was interrupted before
        _say(f"Making {VENV.name}")
        venv.EnvBuilder(with_pip=True, clear=VENV.exists()).create(VENV)


def use_wheels(folder: Path) -> None:
    """Let pip take everything from a folder. SetUpError if there is none."""
    if not folder.is_dir():
        raise SetUpError(f"there is no folder {folder}. Fill it where there is a network: {_DOWNLOAD}.")
    os.environ["PIP_NO_INDEX"] = "1"
    os.environ["PIP_FIND_LINKS"] = folder.resolve().as_uri()  # pip splits paths at blanks


def download_wheels(folder: Path, gpu: bool) -> int:
    """Fill a folder with what `run` and `test` install, for this version of Python; the exit status."""
    make_environment()
    _say(f"Downloading Python packages to {folder}")
    common = ("--dest", str(folder), "--find-links", folder.resolve().as_uri())
    torch = CUDA_TORCH if gpu else f"{TORCH}+cpu"
    sources = ((),) if gpu else CPU_TORCH_SOURCES
    if all(_pip("download", *common, *source, torch, check=False, quiet=True) != 0 for source in sources):
        raise SetUpError(
            f"{torch} cannot be had for this Python. Check the network; --gpu takes the CUDA build."
        )
    _pip("install", "setuptools", "wheel")  # which describe the project to pip
    _pip("download", *common, "--no-build-isolation", torch, "setuptools", "wheel", f"{ROOT}[{EXTRAS},dev]")
    _pip("download", *common, "--no-deps", *WITHOUT_DEPENDENCIES)
    _pip("download", *common, "--no-deps", TENSORRT_RTX, check=False, quiet=True)
    _say(f"Filled {folder}. There: python3 packaging/bootstrap.py run --wheels {shlex.quote(str(folder))}")
    return 0


def _install_torch(gpu: bool) -> None:
    """torch first, and on a machine without a GPU its CPU build: the default one brings gigabytes of CUDA."""
    has = _run([str(venv_python()), "-c", "import torch"], quiet=True, check=False) == 0
    if has and not gpu:
        return
    if not gpu:
        for source in CPU_TORCH_SOURCES:
            if _pip("install", *source, f"{TORCH}+cpu", check=False, quiet=True) == 0:
                return
        _say("The CPU build of torch cannot be reached; taking the default one with CUDA (about 3 GB).")
    _pip("install", CUDA_TORCH)


def _fingerprint(with_tests: bool, gpu: bool) -> str:
    """A hash of the files that determine the installed packages."""
    digest = hashlib.sha256(f"{sys.version_info[:2]} {with_tests} {gpu} {ROOT}".encode())
    for file in (CONSTRAINTS, ROOT / "pyproject.toml", ROOT / "app" / "version.py", Path(__file__)):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def venv_python() -> Path:
    """The interpreter of .venv."""
    return VENV / "bin" / "python"


def _has_pip() -> bool:
    """Whether .venv exists and is complete: pip is installed last."""
    is_there = venv_python().is_file()
    return is_there and _run([str(venv_python()), "-m", "pip", "--version"], quiet=True, check=False) == 0


def _pip(*arguments: str, check: bool = True, quiet: bool = False) -> int:
    options = ["--disable-pip-version-check", "--constraint", str(CONSTRAINTS), "--progress-bar", "on"]
    if not sys.stdout.isatty():
        options[-1] = "off"
    command = [str(venv_python()), "-m", "pip", arguments[0], "-q", *options, *arguments[1:]]
    status, errors = _run_and_listen(command, quiet)
    if status != 0 and NO_SPACE.search(errors):
        raise SetUpError(
            "the disk is full. Free some space: .venv takes 1.5 GB, with the tests or the CUDA build more."
        )
    if status == 0 or not check:
        return status
    if NO_NETWORK.search(errors):
        raise SetUpError(
            "the package index cannot be reached. Check the network; behind a proxy or with a mirror set "
            "HTTPS_PROXY or PIP_INDEX_URL."
        )
    if "PIP_NO_INDEX" in os.environ and NOT_FOUND.search(errors):
        raise SetUpError(f"a package is not in the folder of --wheels. Fill it for this Python: {_DOWNLOAD}.")
    raise subprocess.CalledProcessError(status, command)


def _run_and_listen(command: Sequence[str], quiet: bool) -> tuple[int, str]:
    """Exit status and output on stderr, which is also printed unless `quiet`."""
    sys.stdout.flush()
    errors = []
    output = subprocess.DEVNULL if quiet else None
    with subprocess.Popen(
        command, cwd=ROOT, stdout=output, stderr=subprocess.PIPE, text=True, errors="replace"
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            errors.append(line)
            if not quiet:
                sys.stderr.write(line)
                sys.stderr.flush()
    return process.returncode, "".join(errors)


# ---- after the set-up ----


def run_program(headless: bool) -> NoReturn:
    """Open the window, or hold the sample conversation where there is no display.

    In the place of this process, so that signals reach the program and it can end in order.
    """
    display = (
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or os.environ.get("QT_QPA_PLATFORM")
    )
    if display and not headless:
        _say("Opening the window")
        _become([str(venv_python()), "-m", "app"])
    if not headless:
        _say("No display: holding a sample conversation without a window instead.")
    _become([str(venv_python()), "-m", "app", "demo", "--out-dir", str(ROOT / "build" / "demo")])


def _become(command: list[str]) -> NoReturn:
    os.chdir(ROOT)
    os.execv(command[0], command)


def run_tests(pytest_arguments: Sequence[str]) -> int:
    """Every check of the project; all of them run, and the exit status is 1 if one failed.

    The others use a core each and run two at a time. The tests come last and alone: some watch the clock.
    """
    python = str(venv_python())
    environment = {**os.environ, "QT_QPA_PLATFORM": "offscreen"}
    steps = {
        "types": [python, "-m", "mypy"],
        "lint": [python, "-m", "ruff", "check", "."],
        "format": [python, "-m", "ruff", "format", "--check", "."],
        "architecture": [str(VENV / "bin" / "lint-imports")],
    }
    if _run([python, "-c", "import tensorrt_rtx"], quiet=True, check=False) == 0:
        steps["engines"] = [python, *BUILD_ENGINES]
    results = {}
    with ThreadPoolExecutor(max_workers=2) as pool:
        ended = pool.map(lambda command: _run_captured(command, environment), steps.values())
        for (name, command), (status, output) in zip(steps.items(), ended, strict=True):
            _announce(name, command)
            _say(output.rstrip())
            results[name] = status
    tests = [python, "-m", "pytest", "-n", str(PROCESSES), *PYTEST_OPTIONS, *pytest_arguments]
    _announce("tests", tests)
    results["tests"] = _run(tests, environment, check=False)
    failed = [name for name, status in results.items() if status != 0]
    _say("failed: " + ", ".join(failed) if failed else "all checks passed: " + ", ".join(results))
    return 1 if failed else 0


def _announce(name: str, command: Sequence[str]) -> None:
    python = str(venv_python())
    _say(f"== {name}: {' '.join(Path(part).name if part == python else part for part in command)}")


def _run_captured(command: Sequence[str], environment: dict[str, str]) -> tuple[int, str]:
    """Exit status and all output of a program."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    return done.returncode, done.stdout


def _run(
    command: Sequence[str], environment: dict[str, str] | None = None, check: bool = True, quiet: bool = False
) -> int:
    sys.stdout.flush()
    output = subprocess.DEVNULL if quiet else None
    return subprocess.run(
        command, cwd=ROOT, env=environment, check=check, stdout=output, stderr=output
    ).returncode


def _say(text: str) -> None:
    print(text, flush=True)


def _fail(text: str, status: int = 1) -> int:
    print(text, file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
