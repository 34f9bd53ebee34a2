"""Level meters and the level history."""

from __future__ import annotations

import pytest
from pytestqt.qtbot import QtBot

from app.gui.common.themes import Theme
from app.gui.conversation.bubbles import WaveStrip, bars
from app.gui.window.controls import LevelMeter, fraction


@pytest.mark.parametrize(("dbfs", "place"), [(-120, 0.0), (-60, 0.0), (-30, 0.5), (0, 1.0), (6, 1.0)])
def test_the_meter_spans_sixty_decibels(dbfs: float, place: float) -> None:
    assert fraction(dbfs) == pytest.approx(place)


def test_a_level_is_shown_and_said(qtbot: QtBot, theme: Theme) -> None:
    meter = LevelMeter(theme)
    qtbot.addWidget(meter)
    meter.set_label("Input level")
    meter.show_level(-23.4, is_active=True)
    assert meter.level_dbfs == -23.4
    assert meter.accessibleName() == "Input level"
    assert meter.accessibleDescription() == "-23 dBFS"


def test_a_meter_that_measures_nothing_is_empty(qtbot: QtBot, theme: Theme) -> None:
    meter = LevelMeter(theme)
    qtbot.addWidget(meter)
    empty = meter.grab().toImage()
    meter.show_level(-12.0)
    assert meter.grab().toImage() != empty
    meter.reset()
    assert meter.grab().toImage() == empty


def test_the_meter_paints_more_for_more(qtbot: QtBot, theme: Theme) -> None:
    meter = LevelMeter(theme)
    qtbot.addWidget(meter)
    meter.resize(200, 8)

    def painted(dbfs: float) -> int:
        meter.show_level(dbfs)
        image = meter.grab().toImage()
        return sum(image.pixelColor(x, 4).name() == theme.positive for x in range(image.width()))

    assert painted(-50.0) < painted(-30.0) < painted(-10.0)


def test_bars_keep_the_loudest_of_each_share() -> None:
    heights = bars([-60.0] * 10 + [-10.0] + [-60.0] * 10, 7)
    assert heights.tolist().count(1.0) == 1
    assert heights.sum() == pytest.approx(1.0)
    assert bars([], 5).tolist() == [0.0] * 5
    assert len(bars([-20.0], 30)) == 30


def test_a_long_turn_is_thinned_out(qtbot: QtBot, theme: Theme) -> None:
    strip = WaveStrip(theme)
    qtbot.addWidget(strip)
    for index in range(5000):
        strip.add_level(-10.0 if index == 4000 else -60.0)
    assert len(strip.levels) <= 1200
    assert max(strip.levels) == -10.0
    strip.clear()
    assert strip.levels == ()
