from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.tags import compatible_tags, cpython_tags

from app.gpu_runtime import lock as lock_module
from app.gpu_runtime.lock import LOCK_FILE, GpuRuntimeError, Lock, read_lock
from tests.factories.gpu_wheels import make_runtime_wheels, make_wheel, write_lock

PLATFORMS = [
    *(f"manylinux_2_{minor}_x86_64" for minor in range(28, 4, -1)),
    *(f"manylinux{name}_x86_64" for name in ("2014", "2010", "1")),
]


@pytest.fixture(params=[11, 12])
def shipped(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Lock:
    """For Python 3.11 and 3.12 on a system with the oldest supported libraries."""
    version = (3, request.param)
    tags = [*cpython_tags(version, platforms=PLATFORMS), *compatible_tags(version, platforms=PLATFORMS)]
    monkeypatch.setattr(lock_module, "sys_tags", lambda: iter(tags))
    lock = read_lock()
    (torch,) = (wheel.file_name for wheel in lock.wheels if wheel.package == "torch")
    assert f"cp3{request.param}-cp3{request.param}-" in torch
    return lock


def test_the_shipped_lock_has_the_pinned_versions(shipped: Lock, repository: Path) -> None:
    lines = (repository / "packaging" / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(re.findall(r"^([\w.-]+)==([\w.]+)$", "\n".join(lines), re.MULTILINE))
    pins = {name.lower().replace("_", "-"): version for name, version in pins.items()}
    locked = {wheel.package: wheel.version for wheel in shipped.wheels}
    assert {name: pins[name] for name in locked if name in pins} == {
        name: version for name, version in locked.items() if name in pins
    }
    assert locked["torch"] == pins["torch"]
    assert "triton" in locked


def test_the_shipped_lock_states_addresses_sizes_and_hashes(shipped: Lock) -> None:
    for wheel in shipped.wheels:
        assert wheel.url.startswith("https://files.pythonhosted.org/")
        assert re.fullmatch("[0-9a-f]{64}", wheel.sha256)
        assert 0 < wheel.size <= 10**9
    assert 2e9 < shipped.download_bytes < shipped.unpacked_bytes
    assert shipped.cuda == (13, 0)


def test_the_shipped_lock_is_no_wish_but_a_list() -> None:
    content = tomllib.loads(LOCK_FILE.read_text(encoding="utf-8"))
    assert content["lock-version"] == "1.0"
    assert len({package["name"] for package in content["packages"]}) == len(content["packages"])


def test_the_key_changes_with_the_wheels(tmp_path: Path) -> None:
    first = read_lock(write_lock(tmp_path / "a", make_runtime_wheels(tmp_path / "1")))
    same = read_lock(write_lock(tmp_path / "b", make_runtime_wheels(tmp_path / "1")))
    other = read_lock(write_lock(tmp_path / "c", make_runtime_wheels(tmp_path / "2", torch="#")))
    assert first.key == same.key != other.key
    assert first.key.startswith("torch-2.13.0-cpython-31")


def test_a_package_without_a_fitting_wheel_is_an_error(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "torch", "2.13.0", {})
    text = write_lock(tmp_path / "lock", [wheel]).read_text().replace("py3-none-any", "cp27-cp27m-win32")
    (tmp_path / "lock").write_text(text)
    with pytest.raises(GpuRuntimeError, match="torch has no wheel"):
        read_lock(tmp_path / "lock")


def test_a_lock_without_cuda_asks_for_no_driver(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "torch", "2.13.0", {})
    assert read_lock(write_lock(tmp_path / "lock", [wheel])).cuda is None
