from __future__ import annotations

from typing import Any

import pytest

from engine_runtime.bench.targets import Limits, missed, targets_section
from engine_runtime.setting import OptionsError
from engine_runtime.table import Section


def _judge(limits: Limits = Limits(), *, on_gpu: bool = True, ratios: tuple[float | None, ...]) -> Section:  # noqa: B008
    metrics = {
        name: {"p50": 0.0, "p95": p95} for name, p95 in (("ttfa_ms", 299.0), ("first_chunk_ms", 201.0))
    }
    tables: dict[str, Any] = {"decode step": {"rows": [{"ratio": ratio} for ratio in ratios]}}
    return targets_section(limits, metrics, {"native": tables}, on_gpu=on_gpu)


def test_steps_of_every_weight_format_have_theirs() -> None:
    stages: dict[str, dict[str, Any]] = {
        "native": {"decode step": {"rows": [{"ratio": 1.1}]}},
        "fp8": {"decode step": {"rows": [{"ratio": 1.8}]}},
        "int8": {"error": "too little memory"},
        "int4": {"decode step": {"rows": [{"ratio": 2.0}]}},
    }
    rows = targets_section(Limits(), {}, stages, on_gpu=True).rows
    assert [(row["target"], row["result"]) for row in rows[3:]] == [
        ("step_floor", "passed"),
        ("step_floor, fp8", "failed"),
        ("step_floor, int8", "not measured"),
        ("step_floor, int4", "passed"),
    ]


def test_each_target_has_its_verdict() -> None:
    section = _judge(ratios=(1.2, 1.6))
    assert [(row["target"], row["measured"], row["result"]) for row in section.rows] == [
        ("ttfa", 299.0, "passed"),
        ("first_chunk", 201.0, "failed"),
        ("rtf", None, "not measured"),
        ("step_floor", 1.6, "failed"),
    ]
    assert missed(section) == ["first_chunk", "step_floor"]
    assert missed(_judge(Limits.parse(["first_chunk=201", "step_floor=1.6"]), ratios=(1.6,))) == []


@pytest.mark.parametrize(("on_gpu", "ratios"), [(False, (1.2,)), (True, ()), (True, (1.2, None))])
def test_the_largest_ratio_of_steps_is_known_only_if_all_are(
    on_gpu: bool, ratios: tuple[float | None, ...]
) -> None:
    assert _judge(on_gpu=on_gpu, ratios=ratios).rows[-1]["result"] == "not measured"


@pytest.mark.parametrize("word", ["ttfa", "ttfa=", "ttfa=-1", "ttfa=nan", "rtf=inf", "speed=1"])
def test_no_target(word: str) -> None:
    with pytest.raises(OptionsError, match="is not a target"):
        Limits.parse([word])
