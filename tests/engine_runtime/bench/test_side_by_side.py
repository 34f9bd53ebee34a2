from __future__ import annotations

from engine_runtime.bench.side_by_side import is_complete, side_by_side


def table(rows_name: str, rows: int, **cells: object) -> dict[str, object]:
    return {"rows": [{rows_name: rows, **cells}], "note": ""}


def test_every_variant_and_what_has_no_time() -> None:
    stages = {
        "trtllm": {
            "prefill": table("rows", 64, ms=9.0, ms_p95=9.5, device_ms=8.0, valid="yes", tflop=1.0),
            "decode step": table("cached_rows", 512, valid="no: a step failed"),
            "flow": table("steps", 4, ms=1.0),
        },
        "native": {"decode step": table("cached_rows", 512, ms=11.0, ms_p95=12.0, ratio=1.2, valid="yes")},
        "int4": {"error": "no memory"},
    }
    section = side_by_side(stages)
    assert [(row["variant"], row["work"], row.get("ms"), row["valid"]) for row in section.rows] == [
        ("trtllm", "prefill 64", 9.0, "yes"),
        ("trtllm", "step 512", None, "no: a step failed"),
        ("native", "step 512", 11.0, "yes"),
        ("int4", "the rest", None, "no: no memory"),
    ]
    assert set().union(*section.rows) <= set(section.columns)
    assert not is_complete(section)
    assert is_complete(side_by_side({"native": stages["native"]}))
    lines = section.lines()
    assert any(line.split()[:3] == ["trtllm", "step", "512"] and line.count("-") >= 4 for line in lines)
