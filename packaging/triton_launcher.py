"""Compile, for the packaged program, what Triton would compile on the machine where it first runs a kernel.

In: the wheel of Triton that the GPU runtime locks. Out, in the bundle: 50 KB beside
engine_runtime/cuda/triton_launcher.py, which hands them to Triton, and Triton's licence. Used by
packaging/build.py; needs gcc and the headers of the Python that runs it. Standard library only.
"""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
import tempfile
import zipfile
from pathlib import Path

FOLDER = Path("_internal", "engine_runtime", "cuda", "launcher")
SOURCE, COMPILED = "driver.c", "cuda_utils.so"
_IN_TRITON = "triton/backends/nvidia/"
_DRIVER = "libcuda.so.1"


def add(wheel: Path, bundle: Path) -> None:
    """Put source, compiled file and licence into the bundle. OSError, subprocess.CalledProcessError."""
    name = "-".join(wheel.name.split("-")[:2])
    with tempfile.TemporaryDirectory() as folder:
        work, target = Path(folder), bundle / FOLDER
        with zipfile.ZipFile(wheel) as archive:
            wanted = (f"{_IN_TRITON}{SOURCE}", f"{_IN_TRITON}include/", f"{name}.dist-info/licenses/")
            archive.extractall(work, [file for file in archive.namelist() if file.startswith(wanted)])
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(work / _IN_TRITON / SOURCE, target)
        compile_launcher(target, work / _IN_TRITON / "include")
        licence, place = work / f"{name}.dist-info" / "licenses", bundle / "_internal" / "licenses" / name
        shutil.copytree(licence, place, dirs_exist_ok=True)


def compile_launcher(folder: Path, headers: Path) -> None:
    """Compile the source in `folder`, as Triton does. Raises subprocess.CalledProcessError, OSError.

    The NVIDIA driver need not be there: an empty library stands for it, so that the linker notes its name.
    """
    with tempfile.TemporaryDirectory() as stand_in:
        driver = Path(stand_in, _DRIVER)
        empty = ["gcc", "-shared", "-x", "c", "/dev/null", f"-Wl,-soname,{_DRIVER}", "-o", str(driver)]
        subprocess.run(empty, check=True)
        options = ["-O3", "-shared", "-fPIC", "-s", "-Wno-psabi", f"-I{headers}"]
        options += [f"-I{sysconfig.get_path('include', 'posix_prefix')}", "-Wl,--no-as-needed", str(driver)]
        # Here, by a relative name: the source has its own in its messages, and each build has the same bytes.
        subprocess.run(["gcc", SOURCE, *options, "-o", COMPILED], cwd=folder, check=True)
