"""One line of what `moss-voice doctor` reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    status: Literal["ok", "note", "missing"]
    what: str
    detail: str
    what_to_do: str = ""
