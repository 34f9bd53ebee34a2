"""Keys that earlier versions wrote."""

from __future__ import annotations

from app.version import VERSION
from engine_runtime.renamed import IN_BUNDLE, IN_TIMINGS, Renamed, with_new_names

RENAMED = (Renamed("lm", "rows", "tokens", since="0.2.0"),)


def test_an_old_key_is_read_under_its_new_name() -> None:
    assert with_new_names("lm", {"rows": 5, "other": 1}, RENAMED) == {"tokens": 5, "other": 1}


def test_the_new_key_counts_where_both_are_there() -> None:
    assert with_new_names("lm", {"rows": 5, "tokens": 6}, RENAMED) == {"rows": 5, "tokens": 6}


def test_tables_of_other_names_are_left_alone() -> None:
    assert with_new_names("flow", {"rows": 5}, RENAMED) == {"rows": 5}


def test_each_key_was_renamed_once_and_not_in_a_later_version() -> None:
    for known in (IN_BUNDLE, IN_TIMINGS):
        assert len({(one.table, one.old) for one in known}) == len(known)
        assert all(_numbers(one.since) <= _numbers(VERSION) for one in known)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
