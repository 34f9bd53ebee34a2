"""An engine of tiny random networks for the tests of engine and turns."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from engine_runtime.bundle.bundle import Bundle
from engine_runtime.codec.graph import Graph
from engine_runtime.codec.onnx_graph import export_onnx
from engine_runtime.engine import Engine
from engine_runtime.tensorrt.checkpoint.calibrate import Calibration
from engine_runtime.tensorrt.checkpoint.reading import Checkpoint
from tests.factories.graphs import Exported
from tests.factories.tiny_checkpoint import convert_tiny
from tests.factories.trt_checkpoints import calibrate, convert
from tests.tools.turns import check


@pytest.fixture(scope="module")
def loaded(random_bundle: Path) -> Engine:
    """Its networks, loaded once for a module."""
    return Engine.load(Bundle.open(random_bundle))


@pytest.fixture
def engine(loaded: Engine) -> Iterator[Engine]:
    """An engine without conversations; checks afterwards that no block was lost."""
    engine = Engine(loaded.stages)
    yield engine
    check(engine)
    engine.close()
    engine.stages.lm.blocks.check_integrity([])


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


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """The file of a graph, exported once for each name of a network."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "onnx"
    folder.mkdir(exist_ok=True)

    def export(name: str, graph: Graph) -> Path:
        file = folder / f"{name}.onnx"
        with FileLock(f"{file}.lock"):
            if not file.is_file():
                export_onnx(graph, file)
        return file

    return export
