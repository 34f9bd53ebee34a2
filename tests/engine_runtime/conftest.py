"""An engine of tiny random networks for the tests of engine and turns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine_runtime.bundle import Bundle
from engine_runtime.engine import Engine
from tests.engine_runtime.turns import check


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
