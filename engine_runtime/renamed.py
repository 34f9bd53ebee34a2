"""Keys of files that earlier versions of the program wrote, and their present names.

Models, settings and conversations are kept for years, so that a key stays here for as long as the format of
its file does. Whoever renames a key of a file adds a line. Any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Renamed:
    """A key of a table that has another name since a version."""

    table: str
    old: str
    new: str
    since: str


IN_BUNDLE = (Renamed("lm", "context_rows", "context_tokens", since="0.2.0"),)
"""Of bundle.toml."""
IN_TIMINGS = (
    Renamed("prefill", "rows", "tokens", since="0.2.0"),
    Renamed("prefill", "cached_rows", "cached_tokens", since="0.2.0"),
    Renamed("prefill", "rows_at_commit", "tokens_at_commit", since="0.2.0"),
)
"""Of events.jsonl: attributes of timings, whose names are the tables."""


def with_new_names(table: str, content: Mapping[str, Any], renamed: tuple[Renamed, ...]) -> dict[str, Any]:
    """A table in which old keys have their present names. A key that is there under both keeps the new."""
    names = {known.old: known.new for known in renamed if known.table == table and known.new not in content}
    return {names.get(key, key): value for key, value in content.items()}
