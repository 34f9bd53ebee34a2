"""How colours look, also to people with a colour-vision deficiency. For tests of the themes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PySide6.QtGui import QColor

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
"""How linear RGB looks with a deficiency (Machado et al. 2009, severity 1)."""


def linear(colour: str) -> NDArray[np.float64]:
    """A colour (#rrggbb) as linear RGB, [3] from 0 to 1."""
    shown = QColor(colour)
    rgb = np.array([shown.redF(), shown.greenF(), shown.blueF()])
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def contrast(first: str, second: str) -> float:
    """The contrast of two colours by WCAG, from 1 to 21."""
    weights = np.array([0.2126, 0.7152, 0.0722])
    low, high = sorted((float(linear(first) @ weights), float(linear(second) @ weights)))
    return (high + 0.05) / (low + 0.05)


def lab(rgb: NDArray[np.float64]) -> NDArray[np.float64]:
    """Linear RGB in CIELAB (D65), in which the distance of two colours is how different they look."""
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(rgb, 0, 1) / np.array([0.9505, 1.0, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])
