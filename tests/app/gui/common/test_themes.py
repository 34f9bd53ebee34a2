"""Colours of both themes: contrast, and differences with colour-vision deficiencies."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PySide6.QtCore import QFile
from PySide6.QtGui import QColor, QGuiApplication, QImage, QPalette
from PySide6.QtWidgets import QApplication, QCheckBox, QTreeWidget, QTreeWidgetItem
from pytestqt.qtbot import QtBot

from app import paths
from app.gui.common import themes
from app.gui.common.themes import DARK, LIGHT, Theme, ThemeChoice, Tone
from app.gui.common.turn_times import LOCAL_STAGES, REMOTE_STAGES, REPORTED_STAGES, LatencyStage

BOTH = pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda theme: theme.name)
# How linear RGB looks with a deficiency (Machado et al. 2009, severity 1).
VISION: dict[str, NDArray[np.float64]] = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}


def linear(colour: str) -> NDArray[np.float64]:
    shown = QColor(colour)
    rgb = np.array([shown.redF(), shown.greenF(), shown.blueF()])
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def contrast(first: str, second: str) -> float:
    weights = np.array([0.2126, 0.7152, 0.0722])
    low, high = sorted((float(linear(first) @ weights), float(linear(second) @ weights)))
    return (high + 0.05) / (low + 0.05)


def lab(rgb: NDArray[np.float64]) -> NDArray[np.float64]:
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(rgb, 0, 1) / np.array([0.9505, 1.0, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


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
