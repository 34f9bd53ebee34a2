from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = (
    "system_libraries",
    "bootstrap",
    "linux_packages",
    "build",
    "gpu_lock",
    "build_lock",
    "sbom",
    "triton_launcher",
    "trt_environment",
)


@pytest.fixture
def scripts(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    """The scripts of packaging/, which import each other by name as when one of them is started. Other
    modules of these names, such as the package build, are back afterwards."""
    monkeypatch.syspath_prepend(str(repository / "packaging"))
    before = {name: sys.modules.pop(name) for name in SCRIPTS if name in sys.modules}
    yield {name: importlib.import_module(name) for name in SCRIPTS}
    for name in SCRIPTS:
        del sys.modules[name]
    sys.modules.update(before)


@pytest.fixture
def build(scripts: dict[str, ModuleType]) -> ModuleType:
    return scripts["build"]


@pytest.fixture
def gpu_lock(scripts: dict[str, ModuleType]) -> ModuleType:
    return scripts["gpu_lock"]


@pytest.fixture
def linux_packages(scripts: dict[str, ModuleType]) -> ModuleType:
    return scripts["linux_packages"]


@pytest.fixture
def sbom(scripts: dict[str, ModuleType]) -> ModuleType:
    return scripts["sbom"]


@pytest.fixture
def launch(repository: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("launch", repository / "packaging" / "bundle" / "launch.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def frozen(tmp_path: Path) -> Path:
    """A folder laid out as PyInstaller does, with a program of the system as executables."""
    folder = tmp_path / "dist" / "moss-voice"
    (folder / "_internal" / "torch" / "lib").mkdir(parents=True)
    (folder / "_internal" / "licenses").mkdir()
    (folder / "_internal" / "torch" / "lib" / "libtorch_cpu.so").write_bytes(b"x" * 3_000_000)
    (folder / "_internal" / "torch" / "version.py").write_bytes(b"x" * 1_000_000)
    for name in ("moss-voice", "moss-voice-window"):
        (folder / name).write_bytes(Path("/bin/true").read_bytes())
        (folder / name).chmod(0o700)
    return folder
