from __future__ import annotations

from pathlib import Path

from packaging.version import Version

from app.newest_version import newest_version
from app.package_index import PackageIndex
from tests.doubles.package_server import PackageServer

FILES = (
    "moss_voice-0.9.0-py3-none-any.whl",
    "moss_voice-0.10.0.tar.gz",
    "moss_voice-0.11.0rc1-py3-none-any.whl",
    "moss_voice-broken.whl",
    "moss_voice-0.12.exe",
)


def test_the_newest_release_of_an_index(tmp_path: Path) -> None:
    for name in FILES:
        (tmp_path / name).write_bytes(b"")
    with PackageServer(tmp_path) as server:
        assert newest_version(PackageIndex(server.url)) == Version("0.10.0")
        assert not server.asked_for  # the page alone


def test_an_index_without_it(tmp_path: Path) -> None:
    with PackageServer(tmp_path) as server:
        assert newest_version(PackageIndex(server.url)) is None
