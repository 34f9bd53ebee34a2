"""Y ranges of live plots: round upper bounds that grow immediately and shrink with hysteresis."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

_SMALLEST = 1e-9
_OUTLIER = 3.0
"""Times the median, beyond which one of the largest values does not count for the range."""
_STEPS = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)


def round_up(value: float) -> float:
    """The next of 1, 1.5, 2, 3, 4, 5, 6, 8, 10 times a power of ten."""
    value = max(value, _SMALLEST)
    scale = 10.0 ** math.floor(math.log10(value))
    return next(step * scale for step in (*_STEPS, 20.0) if step * scale >= value * (1 - 1e-9))


def robust_maximum(values: NDArray[np.float64]) -> float:
    """The largest value that is no outlier; 0 without values. An outlier is above three times the median, and
    at most one value in ten (or one of three to nine) is one."""
    ordered = np.sort(values)
    if len(ordered) < 3:
        return float(ordered[-1]) if len(ordered) else 0.0
    limit = _OUTLIER * float(np.median(ordered))
    end = len(ordered) - 1
    while end > 0 and len(ordered) - 1 - end < max(1, len(ordered) // 10) and ordered[end] > limit:
        end -= 1
    return float(ordered[end])


class AxisRange:
    """Upper bound of an axis that starts at 0.

    Attributes:
        upper: the bound now.
        patience: how many values in a row must need less than half of it before it shrinks.
    """

    def __init__(self, smallest: float, patience: int = 40) -> None:
        self.smallest = smallest
        self.patience = patience
        self.upper = smallest
        self._calm = 0

    def reset(self) -> None:
        """Start over with the smallest range."""
        self.upper = self.smallest
        self._calm = 0

    def fit(self, highest: float) -> bool:
        """Follow the highest value shown; True if the bound changed."""
        wanted = max(self.smallest, round_up(highest * 1.08))
        if highest <= self.upper and wanted > 0.5 * self.upper:
            self._calm = 0
            return False
        if wanted <= self.upper:
            self._calm += 1
            if self._calm < self.patience:
                return False
        self._calm = 0
        changed = wanted != self.upper
        self.upper = wanted
        return changed
