"""The GPU runtime in a package, on a bare machine: part of package_smoke.

In: the bundle of an archive. Out: checks. The runtime is a stand-in of some kilobytes with a lock of its
own; the program that installs it, tests it and starts with it is the packaged one. Main thread.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.factories.cuda_driver import make_cuda_driver
from tests.factories.gpu_wheels import TORCH, make_runtime_wheels, write_lock
from tests.tools.bare_root import HOME, BareRoot, CompletedRun, Mount
from tests.tools.checks import Checks, require

LOCK = Path("_internal", "app", "gpu_runtime", "pylock.gpu.toml")
_CUDA = Path("_internal", "torch", "lib", "libtorch_cuda.so")
_LAUNCHER = Path("_internal", "engine_runtime", "cuda", "launcher", "cuda_utils.so")
_STARTS_TRITON = f"""{TORCH}
from engine_runtime.cuda.triton_launcher import use_packaged_launcher

if not use_packaged_launcher():
    raise RuntimeError("the launcher is not of this Triton")
from triton.backends.nvidia.driver import CudaUtils

if list(CudaUtils().build_signature_metadata(["*fp32", "i32"])) != [1, 4]:
    raise RuntimeError("the launcher does not work")
"""
_FOLDER = Path("/srv/gpu")
_WHEELS = Path("/srv/wheels")
_RUNTIMES = HOME / ".local" / "share" / "moss-voice" / "gpu-runtime"


def check_gpu_runtime(checks: Checks, root: BareRoot, bundle: Path, folder: Path) -> None:
    """Installed from a folder, used, broken, reported once, removed. `folder` is for files of the test."""
    check_triton(checks, root, bundle, folder)
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


def check_triton(checks: Checks, root: BareRoot, bundle: Path, folder: Path) -> None:
    """The Triton of the lock, as it is, has what starts its kernels: on a machine without a compiler, with a
    stand-in for the NVIDIA driver."""
    with checks.check("archive: Triton starts without a compiler") as notes:
        require(root.run(["sh", "-c", "command -v gcc clang cc"]).status != 0, "there is a compiler")
        packages = tomllib.loads((bundle / LOCK).read_text(encoding="utf-8"))["packages"]
        wanted = next(f"triton=={one['version']}" for one in packages if one["name"] == "triton")
        place = folder / "with-triton"
        options = ["--no-deps", "--only-binary", ":all:", "--python-version", "3.11", "--dest", str(place)]
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", *options, wanted], check=True)
        wheels = [*make_runtime_wheels(place, torch=_STARTS_TRITON), *place.glob("triton-*.whl")]
        driver = Path("/srv/driver")
        mounts = (
            Mount(with_lock(bundle, folder / "triton", wheels), _FOLDER, is_read_only=True),
            Mount(place, _WHEELS, is_read_only=True),
            Mount(make_cuda_driver(bundle / _LAUNCHER, folder / "driver"), driver, is_read_only=True),
        )
        program, variables = str(_FOLDER / "moss-voice"), {"TRITON_LIBCUDA_PATH": str(driver)}
        ended = root.run(
            [program, "gpu", "install", "--wheels", str(_WHEELS), "--without-gpu"],
            environment=variables | {"LD_LIBRARY_PATH": str(driver)},
            mounts=mounts,
        )
        require(ended.status == 0, ended.stderr[-500:])
        require(root.run([program, "gpu", "remove"], mounts=mounts).status == 0, "it cannot be removed")
        notes.append(f"{wanted}, {(bundle / _LAUNCHER).stat().st_size / 1000:.0f} KB")


def check_no_runtime_needed(checks: Checks, root: BareRoot, bundle: Path) -> None:
    """A bundle made with `--gpu` has torch for the GPU inside, and says so."""
    mounts = (Mount(bundle, _FOLDER, is_read_only=True),)
    with checks.check("archive: no GPU runtime is installed over torch for the GPU") as notes:
        ended = root.run([str(_FOLDER / "moss-voice"), "gpu", "install"], mounts=mounts)
        require(ended.status == 1, f"exit status {ended.status}")
        require("includes torch for the GPU" in ended.stderr, ended.stderr[-500:])
        notes.append(ended.stderr.strip())


def with_lock(bundle: Path, copy: Path, wheels: list[Path]) -> Path:
    """A copy of the bundle, of links, that wants these wheels."""
    shutil.copytree(bundle, copy, symlinks=True, copy_function=os.link)
    (copy / LOCK).unlink()
    write_lock(copy / LOCK, wheels)
    return copy
