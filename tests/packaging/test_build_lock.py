from __future__ import annotations

import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


@pytest.fixture
def build_lock(scripts: dict[str, ModuleType]) -> ModuleType:
    return scripts["build_lock"]


HERE = {"python_version": "3.11", "sys_platform": "linux"}


def _pins(file: Path) -> dict[str, str]:
    """Versions by name, for the Python of the locks."""
    lines = re.findall(r"^[\w.-]+==[^\\\n#]+", file.read_text(encoding="utf-8"), re.MULTILINE)
    found = [Requirement(line) for line in lines]
    return {
        canonicalize_name(one.name): str(one.specifier).removeprefix("==")
        for one in found
        if one.marker is None or one.marker.evaluate(HERE)
    }


def test_the_locks_have_the_versions_of_the_constraints(build_lock: ModuleType) -> None:
    constraints = _pins(build_lock.bootstrap.CONSTRAINTS)
    for file in build_lock.build.LOCKS.glob("*.txt"):
        locked = _pins(file)
        assert locked
        assert {name: constraints.get(name) for name in locked} == {
            name: version.removesuffix("+cpu") for name, version in locked.items()
        }, file


def test_the_locks_have_all_that_the_packages_need(build_lock: ModuleType, repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"], *build_lock.bootstrap.WITHOUT_DEPENDENCIES]
    for extra in build_lock.bootstrap.EXTRAS.split(","):
        lines += project["optional-dependencies"][extra]
    wanted = [Requirement(line) for line in lines]
    here = {"python_version": "3.11", "sys_platform": "linux"}
    needed = {
        canonicalize_name(one.name) for one in wanted if one.marker is None or one.marker.evaluate(here)
    }
    locks = build_lock.build.LOCKS
    assert needed <= ({*_pins(locks / "program.txt"), *_pins(locks / "torch-cpu.txt")})
    assert set(build_lock.build.TOOLS) <= set(_pins(locks / "tools.txt"))
    assert not set(build_lock.of_cuda()) & set(_pins(locks / "program.txt"))


def test_the_lock_of_the_gpu_runtime_is_read_as_requirements(build_lock: ModuleType) -> None:
    text = build_lock.build.requirements_of(build_lock.build.GPU_LOCK)
    assert re.search(r"^torch==2\.13\.0 --hash=sha256:[0-9a-f]{64}", text, re.MULTILINE)
    assert all("--hash=sha256:" in line for line in text.splitlines())
