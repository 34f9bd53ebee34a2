"""Shares and spreads with their counts; a share of fewer than ten events has no rate.

In: outcomes of single events. Out: values for a table and for JSON. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

LEAST_EVENTS = 10


@dataclass(frozen=True, slots=True)
class Share:
    """`hits` of `total` events."""

    hits: int
    total: int

    @classmethod
    def of(cls, outcomes: Iterable[bool]) -> Share:
        """The share of true outcomes."""
        known = list(outcomes)
        return cls(sum(known), len(known))

    @property
    def rate(self) -> float | None:
        """None where there are too few events."""
        return self.hits / self.total if self.total >= LEAST_EVENTS else None


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles of some values; None of none."""

    count: int
    p50: float | None
    p95: float | None

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """The percentiles, interpolated."""
        known = list(values)
        if not known:
            return cls(0, None, None)
        p50, p95 = np.percentile(known, [50, 95])
        return cls(len(known), float(p50), float(p95))
