"""The devices' memory, from a command in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from app.gui.settings.lookups import DevicePlans


@pytest.fixture
def plans(host: QWidget) -> Iterator[DevicePlans]:
    plans = DevicePlans(host)
    yield plans
    plans.kill()


@pytest.mark.slow
def test_the_plan_of_a_bundle_is_found(qtbot: QtBot, plans: DevicePlans, random_bundle: Path) -> None:
    with qtbot.waitSignal(plans.found) as found:
        plans.look_up(str(random_bundle))
        plans.look_up(str(random_bundle))
    assert found.args == [str(random_bundle)]
    processor = plans.rooms[str(random_bundle)][0]
    assert processor.is_processor
    assert 0 < processor.needs["native", False] < processor.total_bytes
    assert 0 < processor.free_bytes <= processor.total_bytes


@pytest.mark.slow
def test_a_bundle_that_cannot_be_read_has_none(qtbot: QtBot, plans: DevicePlans, tmp_path: Path) -> None:
    with qtbot.waitSignal(plans.found):
        plans.look_up(str(tmp_path / "none"))
    assert plans.rooms == {}
