from __future__ import annotations

from engine_runtime.bench.verdict import Check, Verdict


def test_a_verdict_is_that_of_all_checks() -> None:
    good, actual = Check("a", 0.95, 0.9, 10), Check("b", 0.1, None, 10)
    bad = Check("c", 0.2, 0.1, 10, is_least=False)
    assert Verdict([good, actual]).is_aligned
    verdict = Verdict([good, actual, bad], ["one thing left out"])
    assert not verdict.is_aligned
    section = verdict.section("any")
    assert section.note == "one thing left out"
    assert [row["aligned"] for row in section.rows] == ["yes", "-", "no"]
    assert [row["threshold"] for row in section.rows] == [">= 0.9", "-", "<= 0.1"]
    assert not Check("d", float("nan"), 0.9, 1).is_aligned
    assert not Check("e", float("nan"), 0.9, 1, is_least=False).is_aligned
