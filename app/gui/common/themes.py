"""Colours of the window: two explicit Fusion palettes with their style sheet, and the colour of each stage.

One `Theme` colours widgets, plots and waterfall alike. The stage colours differ in lightness as well as in
hue, so that they can be distinguished with common colour-vision deficiencies; nothing is encoded by colour
alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from PySide6.QtCore import QDir, QSize, Qt
from PySide6.QtGui import QColor, QFont, QFontDatabase, QGuiApplication, QPalette
from PySide6.QtWidgets import QApplication

from app.gui.common.turn_times import LatencyStage

_FONT_FAMILIES = (
    "Inter",
    "Segoe UI Variable",
    "Segoe UI",
    "SF Pro Text",
    "Noto Sans CJK SC",
    "Noto Sans",
    "PingFang SC",
    "Microsoft YaHei UI",
    "DejaVu Sans",
)
_LENGTH = re.compile(r"\b([0-9]+)(px|pt)\b")
_ICONS = "themeicons"
"""Search path of the icons: naming their folder in a style sheet breaks on quotes, umlauts and line ends."""


class ThemeChoice(str, Enum):
    """Choice of the user; SYSTEM follows the desktop."""

    SYSTEM = "system"
    LIGHT = "light"
    DARK = "dark"


class Tone(str, Enum):
    """Colours for figures that belong to no single stage."""

    ACCENT = "accent"
    TEXT = "text"
    MUTED = "muted"


Ink = LatencyStage | Tone


@dataclass(frozen=True, slots=True)
class Theme:
    """Every colour of the window, as #rrggbb, and the size of its texts and plots.

    Attributes:
        scale: 1 is the usual size, in which all widths and heights of the code are written.
    """

    name: str
    window: str
    surface: str
    raised: str
    sunken: str
    border: str
    text: str
    muted: str
    accent: str
    on_accent: str
    user_bubble: str
    positive: str
    caution: str
    danger: str
    danger_surface: str
    grid: str
    stages: dict[LatencyStage, str]
    scale: float = 1.0

    def px(self, length: float) -> int:
        """A length in pixels at this scale; never 0."""
        return max(1, round(length * self.scale))

    def square(self, side: float) -> QSize:
        """The size of an icon at this scale."""
        return QSize(self.px(side), self.px(side))

    @property
    def is_dark(self) -> bool:
        """Whether the background is dark."""
        return QColor(self.window).lightnessF() < 0.5

    def ink(self, ink: Ink) -> str:
        """The colour of a stage, or of an end-to-end metric."""
        if isinstance(ink, LatencyStage):
            return self.stages[ink]
        return {Tone.ACCENT: self.accent, Tone.TEXT: self.text, Tone.MUTED: self.muted}[ink]


LIGHT = Theme(
    name="light",
    window="#f3f4f8",
    surface="#ffffff",
    raised="#f7f8fb",
    sunken="#e9ebf1",
    border="#dcdfe8",
    text="#1a1f2e",
    muted="#5f687b",
    accent="#3d5be0",
    on_accent="#ffffff",
    user_bubble="#e2e8ff",
    positive="#0b7a5b",
    caution="#9a5b00",
    danger="#b3261e",
    danger_surface="#fdeceb",
    grid="#e6e8ee",
    stages={
        LatencyStage.ENDPOINTING: "#6f7889",
        LatencyStage.PREFILL: "#1160e0",
        LatencyStage.STEP: "#731a8c",
        LatencyStage.TOKEN2MEL: "#a33000",
        LatencyStage.VOCODER: "#0fa26a",
        LatencyStage.SERVER: "#731a8c",
        LatencyStage.NETWORK: "#1d0f3d",
        LatencyStage.HOLD: "#78243c",
        LatencyStage.DEVICE: "#ab860c",
    },
)
DARK = Theme(
    name="dark",
    window="#11141b",
    surface="#191d27",
    raised="#212633",
    sunken="#0c0f15",
    border="#2b3140",
    text="#e9ecf3",
    muted="#9aa4b8",
    accent="#809bff",
    on_accent="#0d111b",
    user_bubble="#28345c",
    positive="#4cc79b",
    caution="#e8b24a",
    danger="#ff8a80",
    danger_surface="#3a1d20",
    grid="#262c39",
    stages={
        LatencyStage.ENDPOINTING: "#737d90",
        LatencyStage.PREFILL: "#4391ff",
        LatencyStage.STEP: "#ef9af0",
        LatencyStage.TOKEN2MEL: "#f0622c",
        LatencyStage.VOCODER: "#74dcb2",
        LatencyStage.SERVER: "#ef9af0",
        LatencyStage.NETWORK: "#8533ff",
        LatencyStage.HOLD: "#b46054",
        LatencyStage.DEVICE: "#f5e07a",
    },
)


def resolve(choice: ThemeChoice, scale: float = 1.0) -> Theme:
    """The theme of a choice in this size; "system" is light if the desktop has no preference."""
    if choice is ThemeChoice.SYSTEM:
        is_dark = QGuiApplication.styleHints().colorScheme() is Qt.ColorScheme.Dark
    else:
        is_dark = choice is ThemeChoice.DARK
    theme = DARK if is_dark else LIGHT
    return theme if scale == theme.scale else replace(theme, scale=scale)


def palette(theme: Theme) -> QPalette:
    """The Fusion palette of a theme."""
    role = QPalette.ColorRole
    colours = {
        role.Window: theme.window,
        role.WindowText: theme.text,
        role.Base: theme.surface,
        role.AlternateBase: theme.raised,
        role.Text: theme.text,
        role.PlaceholderText: theme.muted,
        role.Button: theme.raised,
        role.ButtonText: theme.text,
        role.BrightText: theme.danger,
        role.ToolTipBase: theme.raised,
        role.ToolTipText: theme.text,
        role.Highlight: theme.accent,
        role.HighlightedText: theme.on_accent,
        role.Link: theme.accent,
        role.LinkVisited: theme.accent,
        role.Light: theme.raised,
        role.Midlight: theme.raised,
        role.Mid: theme.border,
        role.Dark: theme.border,
        role.Shadow: theme.sunken,
        role.Accent: theme.accent,
    }
    made = QPalette()
    for each, colour in colours.items():
        made.setColor(each, QColor(colour))
    for each in (role.WindowText, role.Text, role.ButtonText):
        faded = QColor(theme.muted)
        faded.setAlphaF(0.6)
        made.setColor(QPalette.ColorGroup.Disabled, each, faded)
    return made


def apply(application: QApplication, theme: Theme, icons: Path) -> None:
    """Apply palette and style sheet, unless they are in force: Qt would visit all widgets again. `icons` is
    the folder with the arrows of combo and spin boxes."""
    sheet, folders = style_sheet(theme), [str(icons)]
    if application.styleSheet() == sheet and QDir.searchPaths(_ICONS) == folders:
        return
    QDir.setSearchPaths(_ICONS, folders)
    application.setStyle("Fusion")
    application.setPalette(palette(theme))
    application.setStyleSheet(sheet)


def apply_font(application: QApplication, scale: float = 1.0) -> None:
    """Use the first of the preferred families that are installed, at this scale."""
    installed = set(QFontDatabase.families())
    families = [family for family in _FONT_FAMILIES if family in installed]
    font = QFont(application.font())
    if families:
        font.setFamilies(families)
    font.setPointSizeF(10.0 * scale)
    application.setFont(font)


def style_sheet(theme: Theme) -> str:
    """The style sheet of a theme. Widgets are addressed by their `role` property, icons by the
    search path that `apply` sets."""
    arrow_down, arrow_up = (f"{_ICONS}:chevron-{direction}.svg" for direction in ("down", "up"))
    tick = f"{_ICONS}:tick-{theme.name}.svg"
    t = theme
    sheet = f"""
QToolTip {{ background: {t.raised}; color: {t.text}; border: 1px solid {t.border}; padding: 6px; }}
QFrame[role="header"] {{ background: {t.surface}; border: none; border-bottom: 1px solid {t.border}; }}
QFrame[role="footer"] {{ background: {t.surface}; border: none; border-top: 1px solid {t.border}; }}
QFrame[role="card"], QFrame[role="reply"] {{
    background: {t.surface}; border: 1px solid {t.border}; border-radius: 12px; }}
QFrame[role="user"] {{ background: {t.user_bubble}; border: none; border-radius: 12px; }}
QFrame[role="banner"] {{ background: {t.danger_surface}; border: 1px solid {t.danger}; border-radius: 10px; }}
QFrame[role="composer"] {{ background: {t.surface}; border: 1px solid {t.border}; border-radius: 14px; }}
QFrame[role="composer"][focused="true"] {{ border: 1px solid {t.accent}; }}
QFrame[role="badge"] {{ background: {t.raised}; border: 1px solid {t.border}; border-radius: 13px; }}
QFrame[role="group"] {{ background: {t.sunken}; border: none; border-radius: 9px; }}
QFrame[role="separator"] {{ background: {t.border}; border: none; }}
QLabel[role="product"] {{ font-size: 13pt; font-weight: 600; }}
QLabel[role="title"] {{ font-weight: 600; }}
QLabel[role="muted"] {{ color: {t.muted}; }}
QLabel[role="small"] {{ color: {t.muted}; font-size: 9pt; }}
QLabel[role="legend"] {{ font-size: 9pt; }}
QLabel[role="hint-title"] {{ font-size: 14pt; font-weight: 600; }}
QLabel[role="figure"] {{ font-size: 16pt; font-weight: 600; }}
QLabel[role="unit"] {{ color: {t.muted}; font-size: 9pt; }}
QLabel[role="banner-title"] {{ color: {t.danger}; font-weight: 600; }}
QLabel[role="counter"] {{ color: {t.muted}; }}
QLabel[role="counter"][alert="true"] {{ color: {t.danger}; font-weight: 600; }}
QPlainTextEdit[role="composer"] {{ background: transparent; border: none; padding: 0px; }}
QScrollArea[role="plain"], QScrollArea > QWidget > QWidget[role="plain"] {{
    background: transparent; border: none; }}
QScrollArea[role="reading"] {{ background: transparent; border: 1px solid transparent; border-radius: 6px; }}
QScrollArea[role="reading"]:focus {{ border-color: {t.accent}; }}
QSplitter::handle {{ background: {t.border}; }}
QPushButton {{ background: {t.raised}; border: 1px solid {t.border}; border-radius: 8px; padding: 6px 14px; }}
QPushButton:hover {{ border-color: {t.accent}; }}
QPushButton:pressed {{ background: {t.sunken}; }}
QPushButton:checked {{ background: {t.user_bubble}; border-color: {t.accent}; }}
QPushButton:focus {{ border: 1px solid {t.accent}; }}
QPushButton:disabled {{ color: {t.muted}; background: {t.sunken}; border-color: {t.sunken}; }}
QPushButton[role="primary"], QPushButton:default {{
    background: {t.accent}; color: {t.on_accent}; border: 1px solid {t.accent}; font-weight: 600; }}
QPushButton[role="primary"]:hover {{ background: {mix(t.accent, t.text, 0.15)}; }}
QPushButton[role="primary"]:focus, QPushButton:default:focus {{
    border: 2px solid {t.text}; padding: 5px 13px; }}
QPushButton[role="primary"]:disabled {{ background: {t.sunken}; color: {t.muted}; border-color: {t.sunken}; }}
QPushButton[role="talk"] {{ min-height: 22px; }}
QPushButton[role="talk"][active="true"] {{ background: {t.accent}; color: {t.on_accent};
    border-color: {t.accent}; }}
QPushButton[role="chip"] {{ border-radius: 14px; padding: 4px 12px; background: {t.surface}; }}
QPushButton[role="chip"][active="true"] {{ background: {t.user_bubble}; border-color: {t.accent}; }}
QPushButton[role="chip"]:pressed {{ background: {t.sunken}; }}
QPushButton[role="link"] {{ background: transparent; border: none; color: {t.accent}; padding: 2px 4px; }}
QPushButton[role="link"]:focus {{ border: 1px solid {t.accent}; border-radius: 6px; padding: 1px 3px; }}
QPushButton[role="segment"] {{ background: transparent; border: 1px solid transparent; border-radius: 7px;
    padding: 4px 10px; color: {t.muted}; }}
QPushButton[role="segment"]:checked {{ background: {t.surface}; color: {t.text}; border-color: {t.border};
    font-weight: 600; }}
QPushButton[role="segment"]:focus {{ border-color: {t.accent}; }}
QToolButton {{ background: transparent; border: 1px solid transparent; border-radius: 8px; padding: 5px; }}
QToolButton:hover {{ background: {t.sunken}; }}
QToolButton:focus {{ border-color: {t.accent}; }}
QToolButton:checked {{ background: {t.danger_surface}; border-color: {t.danger}; }}
QToolButton[role="send"] {{ background: {t.accent}; border-radius: 15px; padding: 6px; }}
QToolButton[role="send"]:disabled {{ background: {t.sunken}; }}
QToolButton[role="send"]:focus {{ border: 2px solid {t.text}; }}
QToolButton::menu-indicator {{ image: none; width: 0px; }}
QComboBox, QSpinBox, QLineEdit {{ background: {t.surface}; border: 1px solid {t.border}; border-radius: 8px;
    padding: 4px 8px; min-height: 20px; selection-background-color: {t.accent};
    selection-color: {t.on_accent}; }}
QComboBox:hover, QSpinBox:hover, QLineEdit:hover,
QComboBox:focus, QSpinBox:focus, QLineEdit:focus {{ border-color: {t.accent}; }}
QTreeView QLineEdit {{ border-radius: 0px; padding: 0px 2px; min-height: 0px; }}
QComboBox::drop-down {{ border: none; width: 22px; }}
QComboBox::down-arrow, QSpinBox::down-arrow {{ image: url({arrow_down}); width: 12px; height: 12px; }}
QSpinBox::up-arrow {{ image: url({arrow_up}); width: 12px; height: 12px; }}
QSpinBox::up-button, QSpinBox::down-button {{ border: none; background: transparent; width: 20px; }}
QCheckBox::indicator {{ width: 16px; height: 16px; border: 1px solid {t.muted}; border-radius: 4px;
    background: {t.surface}; }}
QCheckBox::indicator:checked {{ background: {t.accent}; border-color: {t.accent}; image: url({tick}); }}
QRadioButton::indicator {{ width: 14px; height: 14px; border: 1px solid {t.muted}; border-radius: 8px;
    background: {t.surface}; }}
QRadioButton::indicator:checked {{ width: 6px; height: 6px; border: 5px solid {t.accent};
    background: {t.on_accent}; }}
QRadioButton::indicator:disabled {{ border-color: {t.border}; }}
QCheckBox::indicator:focus, QRadioButton::indicator:focus {{ border-color: {t.accent}; }}
QCheckBox:focus, QRadioButton:focus {{ color: {t.accent}; }}
QProgressBar {{ background: {t.sunken}; border: none; border-radius: 3px; text-align: center; }}
QProgressBar::chunk {{ background: {t.accent}; border-radius: 3px; }}
QComboBox QAbstractItemView {{ background: {t.surface}; border: 1px solid {t.border}; padding: 4px;
    selection-background-color: {t.accent}; selection-color: {t.on_accent}; outline: none; }}
QTreeView {{ outline: none; border: 1px solid {t.border}; border-radius: 8px; }}
QTreeView:focus {{ border-color: {t.accent}; }}
QTreeView::item {{ padding: 4px 6px; }}
QHeaderView::section {{ background: {t.raised}; color: {t.muted}; border: none; padding: 5px 6px; }}
QMenu {{ background: {t.surface}; border: 1px solid {t.border}; padding: 6px; }}
QMenu::item {{ padding: 6px 18px 6px 14px; border-radius: 6px; }}
QMenu::item:selected {{ background: {t.sunken}; }}
QMenu::separator {{ height: 1px; background: {t.border}; margin: 5px 8px; }}
QDialogButtonBox {{ dialogbuttonbox-buttons-have-icons: 0; }}
QSlider {{ border: 1px solid transparent; border-radius: 6px; }}
QSlider:focus {{ border-color: {t.accent}; }}
QSlider::groove:horizontal {{ height: 4px; background: {t.border}; border-radius: 2px; }}
QSlider::sub-page:horizontal {{ background: {t.muted}; border-radius: 2px; }}
QSlider::handle:horizontal {{ width: 10px; margin: -3px 0px; background: {t.text}; border-radius: 5px; }}
QScrollBar:vertical {{ background: transparent; width: 10px; margin: 0px; }}
QScrollBar:horizontal {{ background: transparent; height: 8px; margin: 0px; }}
QScrollBar::handle {{ background: {t.border}; border-radius: 4px; min-height: 28px; min-width: 28px; }}
QScrollBar::handle:hover {{ background: {t.muted}; }}
QScrollBar::add-line, QScrollBar::sub-line {{ width: 0px; height: 0px; }}
QScrollBar::add-page, QScrollBar::sub-page {{ background: transparent; }}
QTabWidget::pane {{ border: 1px solid {t.border}; border-radius: 10px; background: {t.surface}; top: -1px; }}
QTabBar::tab {{ padding: 7px 16px; color: {t.muted}; border: none; border-bottom: 2px solid transparent; }}
QTabBar::tab:selected {{ color: {t.text}; border-bottom: 2px solid {t.accent}; font-weight: 600; }}
QTabBar::tab:focus {{ color: {t.accent}; }}
"""
    if t.scale == 1.0:
        return sheet
    return _LENGTH.sub(lambda found: f"{round(int(found[1]) * t.scale)}{found[2]}", sheet)


def mix(first: str, second: str, amount: float) -> str:
    """A colour between two, as #rrggbb; `amount` is the share of the second."""
    a, b = QColor(first), QColor(second)
    parts = ((1 - amount) * x + amount * y for x, y in zip(a.getRgb()[:3], b.getRgb()[:3], strict=True))  # type: ignore[index]
    return QColor(*(round(part) for part in parts)).name()
