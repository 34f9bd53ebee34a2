"""Colours of both themes: contrast, and differences with colour-vision deficiencies."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import numpy as np
import pytest
from PySide6.QtCore import QFile
from PySide6.QtGui import QGuiApplication, QImage, QPalette
from PySide6.QtWidgets import QApplication, QCheckBox, QTreeWidget, QTreeWidgetItem
from pytestqt.qtbot import QtBot

from app import paths
from app.gui.common import themes
from app.gui.common.themes import DARK, LIGHT, Theme, ThemeChoice, Tone
from app.gui.common.turn_times import LOCAL_STAGES, REMOTE_STAGES, REPORTED_STAGES, LatencyStage
from tests.tools.colour_vision import VISION, contrast, lab, linear

BOTH = pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda theme: theme.name)


@BOTH
def test_text_is_legible(theme: Theme) -> None:
    for background in (theme.window, theme.surface, theme.raised, theme.user_bubble):
        assert contrast(theme.text, background) >= 7
        assert contrast(theme.muted, background) >= 4.5
    assert contrast(theme.on_accent, theme.accent) >= 4.5
    assert contrast(theme.danger, theme.danger_surface) >= 4.5


@BOTH
def test_stages_stand_out_from_the_cards(theme: Theme) -> None:
    assert set(theme.stages) == set(LatencyStage)
    for stage, colour in theme.stages.items():
        assert contrast(colour, theme.surface) >= 3, stage


@BOTH
@pytest.mark.parametrize("vision", VISION)
def test_stages_stay_apart(theme: Theme, vision: str) -> None:
    seen = {stage: lab(VISION[vision] @ linear(colour)) for stage, colour in theme.stages.items()}
    for shown in (LOCAL_STAGES, REMOTE_STAGES, REPORTED_STAGES):
        for first, second in itertools.combinations(shown, 2):
            assert np.linalg.norm(seen[first] - seen[second]) > 18, (first, second)


@BOTH
def test_palette_and_style_sheet_are_applied(qapp: QApplication, theme: Theme) -> None:
    themes.apply(qapp, theme, paths.assets_dir() / "icons")
    assert qapp.palette().color(QPalette.ColorRole.Window).name() == theme.window
    assert theme.accent in qapp.styleSheet()


@BOTH
def test_the_style_sheet_names_files_that_exist(qapp: QApplication, theme: Theme) -> None:
    themes.apply(qapp, theme, paths.assets_dir() / "icons")
    files = [part.partition(")")[0] for part in qapp.styleSheet().split("url(")[1:]]
    assert len(files) >= 3
    assert all(QFile.exists(file) for file in files)


@pytest.mark.qt_log_ignore("Cannot open file")  # of the folder without icons
@pytest.mark.parametrize(
    "name", ["Grüße", "it's", 'a "b"', "100%20", "a & b", "c) d", "e\\f", "x\ny", "plain"]
)
@pytest.mark.slow
def test_icons_are_found_in_any_folder(qapp: QApplication, qtbot: QtBot, tmp_path: Path, name: str) -> None:
    def drawn() -> QImage:
        box = QCheckBox()
        box.setChecked(True)
        qtbot.addWidget(box)
        box.resize(40, 30)
        image = QImage(box.size(), QImage.Format.Format_RGB32)
        image.fill(0)
        box.render(image)
        return image

    shipped = paths.assets_dir() / "icons"
    themes.apply(qapp, LIGHT, shipped)
    expected = drawn()
    themes.apply(qapp, LIGHT, tmp_path)  # no icons there
    assert drawn() != expected
    themes.apply(qapp, LIGHT, shutil.copytree(shipped, tmp_path / name))
    assert drawn() == expected


def test_choices_are_resolved(qapp: QApplication) -> None:
    assert themes.resolve(ThemeChoice.DARK) is DARK
    assert themes.resolve(ThemeChoice.LIGHT) is LIGHT
    assert themes.resolve(ThemeChoice.SYSTEM) in (LIGHT, DARK)
    assert DARK.is_dark
    assert not LIGHT.is_dark


def test_inks() -> None:
    assert LIGHT.ink(LatencyStage.VOCODER) == LIGHT.stages[LatencyStage.VOCODER]
    assert DARK.ink(Tone.TEXT) == DARK.text


def test_the_font_is_one_that_is_installed(qapp: QApplication) -> None:
    before = QGuiApplication.font()
    try:
        themes.apply_font(qapp)
        assert QGuiApplication.font().pointSizeF() == 10.0
    finally:
        qapp.setFont(before)


@BOTH
def test_a_chosen_line_of_a_list_is_equally_legible_in_every_column(
    qtbot: QtBot, qapp: QApplication, theme: Theme
) -> None:
    themes.apply(qapp, theme, paths.assets_dir() / "icons")
    view = QTreeWidget()
    qtbot.addWidget(view)
    view.setRootIsDecorated(False)
    view.setColumnCount(2)
    item = QTreeWidgetItem(["88", "88"])
    view.addTopLevelItem(item)
    view.setCurrentItem(item, 0)
    with qtbot.waitActive(view):
        view.show()
        view.activateWindow()
    view.setFocus()
    assert view.hasFocus()
    first, second = (view.visualRect(view.indexFromItem(item, column)) for column in (0, 1))
    second.setWidth(first.width())
    image = view.viewport().grab().toImage()
    assert image.copy(first) == image.copy(second)
