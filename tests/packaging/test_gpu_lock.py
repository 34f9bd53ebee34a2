from __future__ import annotations

import io
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.doubles.package_server import PackageServer
from tests.factories.gpu_wheels import make_wheel


def _package(name: str, version: str, *files: str) -> dict[str, Any]:
    wheels = [{"url": f"https://x/{file}", "size": 1, "hashes": {"sha256": file}} for file in files]
    return {"name": name, "version": version, "wheels": wheels}


def test_wheels_of_both_pythons_become_one_package(gpu_lock: ModuleType) -> None:
    first = [_package("torch", "1", "torch-cp311"), _package("networkx", "3", "networkx-any")]
    second = [_package("torch", "1", "torch-cp312"), _package("networkx", "3", "networkx-any")]
    networkx, torch = gpu_lock.merge([first, second])
    assert [wheel["url"] for wheel in torch["wheels"]] == ["https://x/torch-cp311", "https://x/torch-cp312"]
    assert len(networkx["wheels"]) == 1


def test_two_versions_of_a_package_are_refused(gpu_lock: ModuleType) -> None:
    with pytest.raises(ValueError, match="networkx differs: 3 and 4"):
        gpu_lock.merge([[_package("networkx", "3")], [_package("networkx", "4")]])


def test_the_unpacked_size_is_read_without_the_file(gpu_lock: ModuleType, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "torch", "1", {"torch/a": b"x" * 3_000_000, "torch/b": "y"})
    with zipfile.ZipFile(wheel) as archive:
        expected = sum(entry.file_size for entry in archive.infolist())
    with PackageServer(tmp_path) as server:
        found = gpu_lock.unpacked_size(server.file_url(wheel.name), wheel.stat().st_size)
        assert found == expected
        assert server.ranges
        server.resumes = False
        with pytest.raises(zipfile.BadZipFile):
            gpu_lock.unpacked_size(server.file_url(wheel.name), wheel.stat().st_size)


def test_a_file_of_ranges_ends_at_its_size(gpu_lock: ModuleType) -> None:
    file = gpu_lock.RangeFile("https://x/file", 10)
    assert file.seek(0, io.SEEK_END) == file.tell() == 10
    assert file.read(5) == b""


def test_the_text_is_a_lock_of_its_packages(gpu_lock: ModuleType) -> None:
    package = _package("torch", "1", "torch-cp311", "torch-cp312")
    for wheel, size in zip(package["wheels"], (5, 7), strict=True):
        wheel["unpacked"] = size
    content = tomllib.loads(gpu_lock.lock_text([package]))
    assert content["lock-version"] == "1.0"
    (found,) = content["packages"]
    assert [wheel["url"] for wheel in found["wheels"]] == ["https://x/torch-cp311", "https://x/torch-cp312"]
    assert found["tool"]["moss-voice"]["unpacked"] == 7
