#!/usr/bin/env python3
"""Show that this project and TensorRT-LLM 1.2.1 fit into one environment, without TensorRT-LLM itself.

    python3 packaging/trt_environment.py resolve    let pip find versions for both, install nothing
    python3 packaging/trt_environment.py install    install them into .venv-trt
    python3 packaging/trt_environment.py test       the same, and run tests on the CPU
    python3 packaging/trt_environment.py test -- tests      the same, and run all tests

`test` runs what can differ between two sets of versions (Python, torch, triton, numpy, onnx, transformers,
PySide6): the tests of both packages that are not slow, and the slow ones of all that computes with torch, of
the executors and what belongs to TensorRT-LLM, of the comparison with transformers, and of one conversation
from recording to sound and a picture. Left out, for packaging/bootstrap.py, are the slow tests of sessions,
sound streams, processes and documents, and those that run in many orders what other tests here compute once:
overlapped steps, pages and slots of several streams (ONLY_ORDER).

The wheels of TensorRT-LLM and TensorRT are on NVIDIA's index and are left out; everything else that it
requires of packages both use (engine_runtime/tensorrt/requirements.txt) counts. PyPI's torch 2.9.1 is the
build for CUDA 12.8 (3 GB with its libraries); a workstation takes the one for CUDA 13. Needs Python 3.12.
Standard library only.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import bootstrap

ROOT = bootstrap.ROOT
REQUIREMENTS = ROOT / "engine_runtime" / "tensorrt" / "requirements.txt"
CONSTRAINTS = ROOT / "packaging" / "constraints-trt.txt"
VENV = ROOT / ".venv-trt"
MARK = VENV / "moss-voice-installed"
PYTHON = "3.12"
FROM_NVIDIA = ("tensorrt", "tensorrt-llm", "tensorrt-rtx")
"""Requirements without a wheel on PyPI."""
LEFT_OUT = ("ray", "transcribe")
"""Extras: neither Ray nor Whisper is part of [dev] either."""
_ENGINE = "tests/engine_runtime"
ONLY_ORDER = (
    "executors/cuda/test_step_ahead.py",  # batched steps: test_batched_steps.py
    "codec/flow/test_paged.py",  # kernels of the flow: test_triton_estimator.py
    "codec/flow/test_static.py",  # packets of the flow: test_token2mel.py
    "codec/speech_tokenizer/test_encoder_pool.py",  # kernels of the encoder: test_split_encoder.py
)
"""Slow tests, below tests/engine_runtime, of the order in which calls are made."""
TESTS = (
    ("-m", "not slow", _ENGINE, "tests/app"),
    (
        *("-m", "slow"),
        *(f"{_ENGINE}/{name}" for name in ("codec", "cuda", "executors", "lm", "models", "tensorrt")),
        *(f"{_ENGINE}/{name}" for name in ("bundle/test_weights.py", "bench/test_compare.py")),
        "tests/app/commands/test_demo.py",
        *(f"--ignore={_ENGINE}/{name}" for name in ONLY_ORDER),
    ),
)
"""What `test` runs, as arguments of one pytest after the other."""
CANNOT = 3
"""Exit status if there is no Python 3.12."""


def main() -> int:
    """Parse the command line and carry it out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("resolve", "install", "test"))
    parser.add_argument(
        "rest", nargs="*", help="test: arguments for pytest (after --) that choose other tests"
    )
    arguments = parser.parse_args()
    python = find_python()
    if python is None:
        print(f"There is no Python {PYTHON} here. Install it (python{PYTHON}) to try this.", file=sys.stderr)
        return CANNOT
    if sys.version_info < (3, 11):  # noqa: UP036  as the Python of Ubuntu 22.04, which has no tomllib
        return subprocess.run([python, *sys.argv], check=False).returncode
    try:
        if arguments.command == "resolve":
            return resolve(python)
        install(python)
    except (OSError, subprocess.CalledProcessError) as error:
        print(
            f"Set-up failed: {error}. See the lines above for the reason; start again to continue.",
            file=sys.stderr,
        )
        return 1
    return run_tests(arguments.rest) if arguments.command == "test" else 0


def find_python() -> str | None:
    """An interpreter of Python 3.12: this one, one on the path, or one that pyenv keeps."""
    candidates = [sys.executable, f"python{PYTHON}"]
    if pyenv := shutil.which("pyenv"):
        kept = subprocess.run([pyenv, "root"], capture_output=True, text=True, check=False).stdout.strip()
        candidates += map(str, sorted(Path(kept).glob(f"versions/{PYTHON}.*/bin/python")))
    return next((name for name in candidates if _version_of(name) == PYTHON), None)


def _version_of(python: str) -> str | None:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return found.stdout.strip()


def required(lines: Iterable[str]) -> list[str]:
    """Requirements without comments, and without those that have no wheel on PyPI."""
    found = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    return [line for line in found if _name(line) not in FROM_NVIDIA]


def own_requirements() -> list[str]:
    """Requirements of pyproject.toml, with all extras but those of LEFT_OUT."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    lines = [line for name, group in extras.items() if name not in LEFT_OUT for line in group]
    return [line for line in [*project["dependencies"], *lines] if _name(line) != project["name"]]


def _name(requirement: str) -> str:
    end = next((i for i, letter in enumerate(requirement) if letter in "<>=!~;[ "), len(requirement))
    return requirement[:end].lower()


def resolve(python: str) -> int:
    """Let pip find versions that satisfy both; print those of the packages that TensorRT-LLM requires."""
    theirs = required(REQUIREMENTS.read_text(encoding="utf-8").splitlines())
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        options = ["--dry-run", "--ignore-installed", "--only-binary", ":all:", "--report", str(report)]
        options += ["--constraint", str(CONSTRAINTS)]
        status = _pip(python, "install", *options, *theirs, *required(own_requirements()), check=False)
        if status != 0:
            print("No versions satisfy both. pip lists the conflicting requirements above.", file=sys.stderr)
            return 1
        found = json.loads(report.read_text(encoding="utf-8"))["install"]
    versions = {entry["metadata"]["name"].lower(): entry["metadata"]["version"] for entry in found}
    for line in theirs:
        print(f"{_name(line):<20} {versions[_name(line)]:<12} meets {line}")
    print(f"resolved: {len(versions)} packages for Python {PYTHON} meet this project and TensorRT-LLM 1.2.1")
    return 0


def install(python: str) -> None:
    """Make .venv-trt with the versions of constraints-trt.txt, unless that was done before."""
    wanted = _fingerprint()
    if MARK.is_file() and MARK.read_text(encoding="utf-8").strip() == wanted:
        return
    print(f"Making {VENV.name} (about 8 GB)", flush=True)
    subprocess.run([python, "-m", "venv", "--clear", str(VENV)], check=True)
    own = str(VENV / "bin" / "python")
    constraints = ["--constraint", str(CONSTRAINTS)]
    _pip(own, "install", *constraints, "setuptools", "wheel", *own_requirements())
    _pip(own, "install", "--no-deps", *bootstrap.WITHOUT_DEPENDENCIES)
    _pip(own, "install", "--no-deps", "--no-build-isolation", "--editable", str(ROOT))
    MARK.write_text(wanted + "\n", encoding="utf-8")


def run_tests(pytest_arguments: Sequence[str]) -> int:
    """Those of TESTS, or what the arguments choose; the first failure decides the exit status."""
    environment = {**os.environ, "QT_QPA_PLATFORM": "offscreen"}
    pytest = [str(VENV / "bin" / "python"), "-m", "pytest", "-n", "logical", *bootstrap.PYTEST_OPTIONS]
    runs = [pytest_arguments] if pytest_arguments else TESTS
    results = [
        subprocess.run([*pytest, *choice], cwd=ROOT, env=environment, check=False).returncode
        for choice in runs
    ]
    return next((status for status in results if status != 0), 0)


def _fingerprint() -> str:
    digest = hashlib.sha256(f"{ROOT} {bootstrap.WITHOUT_DEPENDENCIES}".encode())
    for file in (CONSTRAINTS, REQUIREMENTS, ROOT / "pyproject.toml", Path(__file__)):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _pip(python: str, command: str, *arguments: str, check: bool = True) -> int:
    options = ["-q", "--disable-pip-version-check", "--progress-bar", "off"]
    return subprocess.run(
        [python, "-m", "pip", command, *options, *arguments], cwd=ROOT, check=check
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
