"""Fixtures: a lock of small wheels, a server that has them, the store of a user."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app import paths
from app.gpu_runtime.lock import Lock, read_lock
from app.gpu_runtime.store import RuntimeStore
from tests.doubles.package_server import PackageServer
from tests.factories.gpu_wheels import make_runtime_wheels, write_lock


@pytest.fixture
def wheels(tmp_path: Path) -> list[Path]:
    return make_runtime_wheels(tmp_path / "wheels")


@pytest.fixture
def server(wheels: list[Path]) -> Iterator[PackageServer]:
    with PackageServer(wheels[0].parent) as running:
        yield running


@pytest.fixture
def lock(tmp_path: Path, wheels: list[Path], server: PackageServer) -> Lock:
    return read_lock(write_lock(tmp_path / "pylock.toml", wheels, server.file_url("").rstrip("/")))


@pytest.fixture
def store() -> RuntimeStore:
    return RuntimeStore(paths.gpu_runtime_dir())
