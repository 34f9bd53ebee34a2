"""Verdict of a comparison: one row per check, with its value, its threshold and whether it holds.

In: values that were measured. Out: a table, and whether everything is aligned. Any thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine_runtime.errors import MossVoiceError
from engine_runtime.table import Section

COLUMNS = {
    "check": "compared quantity; heads: over conversations of the tested engine, against the reference",
    "value": "agreement or cosine 0..1; mel distance: mean absolute difference of natural-log mels; "
    "error: norm of the difference over that of the reference",
    "threshold": "minimum (>=) or maximum (<=) that counts as aligned",
    "of": "rows, codes, frames or words that were compared",
    "aligned": "whether the threshold is met; - for a value that is only reported",
}


class VerifyError(MossVoiceError):
    """There is nothing to compare."""


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison. `threshold` None: the value is only reported."""

    name: str
    value: float
    threshold: float | None
    count: int
    is_least: bool = True

    @property
    def is_aligned(self) -> bool:
        """Whether the value meets the threshold."""
        if self.threshold is None:
            return True
        return self.value >= self.threshold if self.is_least else self.value <= self.threshold


@dataclass(slots=True)
class Verdict:
    """All checks. `notes`: what could not be checked, and why."""

    checks: list[Check] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    tables: list[Section] = field(default_factory=list)
    """Details of some of the checks."""

    @property
    def is_aligned(self) -> bool:
        """Whether every check is aligned."""
        return all(check.is_aligned for check in self.checks)

    def section(self, title: str) -> Section:
        """As a table."""
        section = Section(title, COLUMNS, note="; ".join(self.notes))
        for check in self.checks:
            sign = ">=" if check.is_least else "<="
            section.rows.append(
                {
                    "check": check.name,
                    "value": check.value,
                    "threshold": "-" if check.threshold is None else f"{sign} {check.threshold:g}",
                    "of": check.count,
                    "aligned": _said(check),
                }
            )
        return section


def _said(check: Check) -> str:
    if check.threshold is None:
        return "-"
    return "yes" if check.is_aligned else "no"
