"""The GPU runtime in a package, on a bare machine: part of package_smoke.

In: the bundle of an archive. Out: checks. The runtime is a stand-in of some kilobytes with a lock of its
own; the program that installs it, tests it and starts with it is the packaged one. Main thread.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from tests.factories.gpu_wheels import make_runtime_wheels, write_lock
from tests.tools.bare_root import HOME, BareRoot, CompletedRun, Mount
from tests.tools.checks import Checks, require

LOCK = Path("_internal", "app", "gpu_runtime", "pylock.gpu.toml")
_CUDA = Path("_internal", "torch", "lib", "libtorch_cuda.so")
_FOLDER = Path("/srv/gpu")
_WHEELS = Path("/srv/wheels")
_RUNTIMES = HOME / ".local" / "share" / "moss-voice" / "gpu-runtime"


def check_gpu_runtime(checks: Checks, root: BareRoot, bundle: Path, folder: Path) -> None:
    """Installed from a folder, used, broken, reported once, removed. `folder` is for files of the test."""
    if (bundle / _CUDA).exists():
        check_no_runtime_needed(checks, root, bundle)
        return
    wheels = make_runtime_wheels(folder / "wheels")
    mounts = (
        Mount(with_lock(bundle, folder / "gpu", wheels), _FOLDER, is_read_only=True),
        Mount(folder / "wheels", _WHEELS, is_read_only=True),
    )

    def run(*words: str) -> CompletedRun:
        return root.run([str(_FOLDER / "moss-voice"), *words], mounts=mounts)

    with checks.check("archive: the GPU runtime is installed from a folder") as notes:
        ended = run("gpu", "install", "--wheels", str(_WHEELS), "--without-gpu")
        require(ended.status == 0, ended.stderr[-500:])
        require(ended.unroutable == 0, f"{ended.unroutable} attempts to use the network")
        require("GPU runtime: in use" in run("gpu", "status").stdout, "it is not in use")
        notes.append(ended.stdout.splitlines()[0])
    with checks.check("archive: a broken GPU runtime is reported once"):
        for torch in root.inside(_RUNTIMES).glob("*/torch/__init__.py"):
            torch.write_text("import os; os.abort()\n")
        said = [run("doctor").stderr for _ in range(2)]
        require("SIGABRT" in said[0], said[0][-500:])
        require(not re.search("GPU runtime", said[1]), said[1][-500:])
    with checks.check("archive: the GPU runtime is removed"):
        require(run("gpu", "remove").status == 0, "it failed")
        require(not root.inside(_RUNTIMES).exists(), "files are left")


def check_no_runtime_needed(checks: Checks, root: BareRoot, bundle: Path) -> None:
    """A bundle made with `--gpu` has torch for the GPU inside, and says so."""
    mounts = (Mount(bundle, _FOLDER, is_read_only=True),)
    with checks.check("archive: no GPU runtime is installed over torch for the GPU") as notes:
        ended = root.run([str(_FOLDER / "moss-voice"), "gpu", "install"], mounts=mounts)
        require(ended.status == 1, f"exit status {ended.status}")
        require("has torch for the GPU inside" in ended.stderr, ended.stderr[-500:])
        notes.append(ended.stderr.strip())


def with_lock(bundle: Path, copy: Path, wheels: list[Path]) -> Path:
    """A copy of the bundle, of links, that wants these wheels."""
    shutil.copytree(bundle, copy, symlinks=True, copy_function=os.link)
    (copy / LOCK).unlink()
    write_lock(copy / LOCK, wheels)
    return copy
