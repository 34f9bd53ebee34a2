#!/usr/bin/env python3
"""Write packaging/locks: what packaging/build.py installs, each file with its hashes.

    uvx --from uv python3.11 packaging/build_lock.py

In: pyproject.toml, packaging/constraints.txt and PyPI, asked through uv. Out: requirements for pip
--require-hashes, with the wheels alone that Python 3.11 on Linux x86-64 can use: tools.txt, program.txt, and
torch-cpu.txt, whose wheel is on no index that uv asks and is downloaded to be hashed. The CUDA build of torch
is in app/gpu_runtime/pylock.gpu.toml. To be run again when a pin changes; a test says so. Needs uv in PATH;
otherwise standard library only.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

import bootstrap
import build
import gpu_lock

PLATFORM = "x86_64-manylinux_2_34"
"""As new as the wheels of Qt ask for."""
_HEADER = "# Written by packaging/build_lock.py for packaging/build.py: Python 3.11, Linux x86-64.\n"


def main() -> int:
    """Write the three files."""
    if sys.version_info[:2] != build.LOCKED:
        print("Start this script with python3.11.", file=sys.stderr)
        return 1
    extras = [word for name in bootstrap.EXTRAS.split(",") for word in ("--extra", name)]
    left_out = [word for name in of_cuda() for word in ("--no-emit-package", name)]
    try:
        tools = compiled("\n".join(build.TOOLS))
        program = compiled(
            (bootstrap.ROOT / "pyproject.toml").read_text(encoding="utf-8"), *extras, *left_out
        )
        program += compiled("\n".join(bootstrap.WITHOUT_DEPENDENCIES), "--no-deps")
        torch = f"{bootstrap.TORCH}+cpu \\\n    --hash=sha256:{hash_of_torch()}\n"
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"The locks were not written: {error}.", file=sys.stderr)
        return 1
    build.LOCKS.mkdir(exist_ok=True)
    for name, text in (("tools", tools), ("program", program), ("torch-cpu", torch)):
        (build.LOCKS / f"{name}.txt").write_text(_HEADER + text, encoding="utf-8")
    return 0


def of_cuda() -> list[str]:
    """torch, and what its CUDA build requires beyond its CPU build."""
    packages = tomllib.loads(gpu_lock.LOCK.read_text(encoding="utf-8"))["packages"]
    names = [str(package["name"]) for package in packages]
    return [name for name in names if name.startswith(("nvidia-", "cuda-", "torch", "triton"))]


def compiled(content: str, *options: str) -> str:
    """What uv makes of requirements or a pyproject.toml. Raises subprocess.CalledProcessError, OSError."""
    with tempfile.TemporaryDirectory() as folder:
        kind = "pyproject.toml" if "[project]" in content else "requirements.in"
        wanted, found = Path(folder) / kind, Path(folder) / "found.txt"
        wanted.write_text(content, encoding="utf-8")
        command = ["uv", "pip", "compile", str(wanted), "--constraint", str(bootstrap.CONSTRAINTS)]
        command += ["--python-version", "3.11", "--python-platform", PLATFORM, "--generate-hashes"]
        command += ["--only-binary", ":all:", "--no-header", "--no-annotate", "--quiet"]
        subprocess.run([*command, *options, "--output-file", str(found)], check=True)
        return found.read_text(encoding="utf-8")


def hash_of_torch() -> str:
    """SHA-256 of the CPU build, from the first source that has it. Raises subprocess.CalledProcessError."""
    with tempfile.TemporaryDirectory() as folder:
        *others, last = bootstrap.CPU_TORCH_SOURCES
        if not any(_download(folder, source) == 0 for source in others):
            subprocess.run(_command(folder, last), check=True)
        (wheel,) = Path(folder).glob("torch-*.whl")
        with wheel.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()


def _download(folder: str, source: Sequence[str]) -> int:
    return subprocess.run(_command(folder, source), check=False).returncode


def _command(folder: str, source: Sequence[str]) -> list[str]:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
    return [*command, "--dest", folder, *source, f"{bootstrap.TORCH}+cpu"]


if __name__ == "__main__":
    sys.exit(main())
