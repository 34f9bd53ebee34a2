"""What counts as served, and the ratio of several replicas to one."""

from __future__ import annotations

from tests.tools.replica_scaling import Measured, single_users, verdict


def measured(replicas: int, users: int, p95: float = 200.0, gaps: int = 0) -> Measured:
    ttfa = {"p50": 100.0, "p95": p95, "max": 400.0}
    late = {"p50": 0.0, "p95": 0.0, "max": 0.0}
    report = {"ttfa_ms": ttfa, "network_ms": None, "lateness_ms": late, "gaps": gaps}
    return Measured(replicas, users, report | {"replies_with_gaps": gaps, "replies": 9})


def test_served_means_in_time_and_without_a_gap() -> None:
    assert measured(1, 8).is_served
    assert not measured(1, 8, p95=301.0).is_served
    assert not measured(1, 8, gaps=1).is_served
    assert not Measured(1, 8, None, "a reply was silent").is_served


def test_one_replica_gets_its_share_and_what_would_miss_the_target() -> None:
    assert single_users(192, 2) == [96, 102]
    assert 192 / 102 < 1.9 < 192 / 101
    assert single_users(160, 4) == [40, 43]


def test_the_ratio_is_that_of_the_largest_numbers_served() -> None:
    found = [measured(2, 192, gaps=1), measured(2, 160), measured(1, 80), measured(1, 85, p95=400.0)]
    text, is_met = verdict(found, 2)
    assert "2.00 times as many" in text
    assert "one does not serve 85, so the ratio is at least 1.90" in text
    assert is_met
    assert not verdict([measured(2, 160), measured(1, 80), measured(1, 90)], 2)[1]
    assert verdict([measured(2, 160, gaps=1), measured(1, 80)], 2)[0].startswith("no ratio")


def test_a_line_says_why_there_are_no_times() -> None:
    line = Measured(2, 8, None, "User 3 got no reply", (5, 3), {"ProxyActor 7": 0.5}).line()
    assert line.endswith("not served: User 3 got no reply; conversations 5, 3; cores: ProxyActor 7 0.50")
    assert "TTFA p50 100, p95 200, max 400 ms" in measured(1, 8).line()
