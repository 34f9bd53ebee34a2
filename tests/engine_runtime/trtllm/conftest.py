"""Fixtures for the tests of checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine_runtime.trtllm.calibrate import Calibration
from engine_runtime.trtllm.reading import Checkpoint
from tests.tiny_checkpoint import convert_tiny
from tests.trt_checkpoints import calibrate, convert


@pytest.fixture(scope="session")
def plain(random_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """The random bundle's language model in float32. Read only."""
    return convert(random_bundle, tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="session")
def calibration(random_bundle: Path, plain: Checkpoint) -> Calibration:
    """What the products of `plain` see."""
    return calibrate(random_bundle, plain)


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny language model with stored weights, in float32. Read only."""
    return convert_tiny(tmp_path_factory.mktemp("tiny"))
