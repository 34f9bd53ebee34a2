"""What starts Triton's kernels, compiled of the Triton that is installed here, without a compiler."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from tests.doubles.interpreted_triton import needs_triton
from tests.factories.cuda_driver import make_cuda_driver

pytestmark = [
    pytest.mark.slow,
    needs_triton,
    pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed"),
]
USE = """
import sys
from pathlib import Path
from engine_runtime.cuda import triton_launcher
triton_launcher.FOLDER = Path(sys.argv[1])
print("packaged:", triton_launcher.use_packaged_launcher())
from triton.backends.nvidia.driver import CudaUtils
print("signature:", list(CudaUtils().build_signature_metadata(["*fp32", "i32"])))
"""


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """As much of the wheel of Triton as is compiled."""
    found = importlib.util.find_spec("triton")
    assert found is not None
    assert found.submodule_search_locations is not None
    (package,) = found.submodule_search_locations
    folder = Path(package, "backends", "nvidia")
    with zipfile.ZipFile(tmp_path / "triton-1.2-cp311.whl", "w") as archive:
        for file in (folder / "driver.c", *folder.glob("include/**/*.h")):
            archive.write(file, f"triton/backends/nvidia/{file.relative_to(folder)}")
        archive.writestr("triton-1.2.dist-info/licenses/LICENSE", "the licence")
        archive.writestr("triton/_C/libtriton.so", "large")
    return tmp_path / "triton-1.2-cp311.whl"


def run_without_compiler(folder: Path, driver: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    """Start Triton's driver with what is in `folder`; the library of the NVIDIA driver is in `driver`."""
    variables = {name: text for name, text in os.environ.items() if name not in ("CC", "TRITON_INTERPRET")}
    variables |= {"PATH": str(driver), "LD_LIBRARY_PATH": str(driver), "TRITON_LIBCUDA_PATH": str(driver)}
    variables |= {"TRITON_CACHE_DIR": str(cache), "PYTHONPATH": os.getcwd()}  # noqa: PTH109
    command = [sys.executable, "-c", USE, str(folder)]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


def test_triton_starts_without_a_compiler(
    scripts: dict[str, ModuleType], wheel: Path, tmp_path: Path
) -> None:
    module, bundle = scripts["triton_launcher"], tmp_path / "bundle"
    (bundle / "_internal" / "licenses").mkdir(parents=True)
    module.add(wheel, bundle)
    folder = bundle / module.FOLDER
    assert {file.name for file in folder.iterdir()} == {"driver.c", "cuda_utils.so"}
    assert (bundle / "_internal/licenses/triton-1.2/LICENSE").read_text() == "the licence"
    compiled = folder / "cuda_utils.so"
    assert compiled.stat().st_size < 100_000
    driver = make_cuda_driver(compiled, tmp_path / "driver")
    ended = run_without_compiler(folder, driver, tmp_path / "cache")
    assert ended.stdout.splitlines() == ["packaged: True", "signature: [1, 4]"], ended.stderr
    # Where it is of another Triton, that one asks for a compiler.
    (folder / "driver.c").write_text("another")
    ended = run_without_compiler(folder, driver, tmp_path / "another cache")
    assert ended.stdout.splitlines() == ["packaged: False"]
    assert "Failed to find C compiler" in ended.stderr


def test_the_same_source_gives_the_same_bytes(
    scripts: dict[str, ModuleType], wheel: Path, tmp_path: Path
) -> None:
    made = []
    for name in ("one", "another"):
        (tmp_path / name / "_internal" / "licenses").mkdir(parents=True)
        scripts["triton_launcher"].add(wheel, tmp_path / name)
        made.append((tmp_path / name / scripts["triton_launcher"].FOLDER / "cuda_utils.so").read_bytes())
    assert made[0] == made[1]
