"""Fixtures for the tests of checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine_runtime.trtllm.calibrate import Calibration
from engine_runtime.trtllm.reading import Checkpoint
from tests.trt_checkpoints import calibrate, convert


@pytest.fixture(scope="session")
def plain(random_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """The random bundle's language model in float32. Read only."""
    return convert(random_bundle, tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="session")
def calibration(random_bundle: Path, plain: Checkpoint) -> Calibration:
    """What the products of `plain` see."""
    return calibrate(random_bundle, plain)
