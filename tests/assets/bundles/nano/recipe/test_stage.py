"""What the training stages share."""

from __future__ import annotations


def test_a_time_is_due_once_in_each_interval(recipe, monkeypatch) -> None:
    stage = recipe("stage")
    clock = [0.0]
    monkeypatch.setattr(stage.time, "monotonic", lambda: clock[0])
    due = stage.Every(90)
    seen = []
    for now in (10.0, 89.0, 91.0, 92.0, 180.0, 181.5, 400.0, 401.0):
        clock[0] = now
        seen.append(bool(due))
    assert seen == [False, False, True, False, False, True, True, False]
