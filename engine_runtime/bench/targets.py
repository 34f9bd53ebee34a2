"""Targets of a benchmark: which figures have to be reached, and whether they are.

The defaults are this project's definitions of a conversation that feels immediate: the first sample within
300 ms of the end of the turn, the codec's part of it within 200 ms, speech made in at most 0.7 of its
duration, and decode steps in at most 1.5 times what reading their bytes takes. In: limits and measured
figures. Out: a table with a verdict for each. Any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from engine_runtime.setting import OptionsError
from engine_runtime.table import Cell, Section

COLUMNS = {
    "target": "the figure",
    "measured": "its value; - if it was not measured",
    "limit": "largest value that passes",
    "result": "passed, failed, or not measured",
}
TERMS = {
    "ttfa": "commit of the turn to the first PCM sample ready, ms, 95th percentile of the measured replies",
    "first_chunk": "flow matching and vocoder of the first chunk, ms, 95th percentile",
    "rtf": "wall time of the complete reply / its audio, 95th percentile",
    "step_floor": "a decode step / the time to read its bytes at the measured copy bandwidth, the largest of "
    "all context lengths, of each weight format; on a GPU (what a CPU reads may come from its caches)",
}
STEP_FLOORS = {"native": 1.5, "fp8": 1.75, "int8": 1.75, "int4": 2.25}
"""By weight format: what an H200 achieves with the kernels of compute capability 8.9. The smaller the
weights, the larger the part of a step that does not read them."""
_FIGURES = {"ttfa": "ttfa_ms", "first_chunk": "first_chunk_ms", "rtf": "rtf_total"}


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest value of each figure that passes; see TERMS."""

    ttfa: float = 300.0
    first_chunk: float = 200.0
    rtf: float = 0.7
    step_floor: float | None = None
    """None for the limit of the variant's weight format."""

    @classmethod
    def parse(cls, words: list[str]) -> Limits:
        """The defaults but for `words`, such as "ttfa=250". Raises OptionsError."""
        known = [field.name for field in fields(cls)]
        limits = cls()
        for word in words:
            name, _, value = word.partition("=")
            try:
                number = float(value)
            except ValueError:
                number = 0.0
            if name not in known or not 0 < number < float("inf"):
                raise OptionsError(
                    "{word!r} is not a target.",
                    "Give NAME=NUMBER with one of {known}, above 0.",
                    word=word,
                    known=", ".join(known),
                )
            limits = replace(limits, **{name: number})
        return limits


def targets_section(
    limits: Limits, metrics: Mapping[str, Any], stages: Mapping[str, Mapping[str, Any]], *, on_gpu: bool
) -> Section:
    """Judge the replies by `metrics`, summaries by name, and the decode steps of every variant by the tables
    in `stages`; both as in the JSON document."""
    section = Section("targets", COLUMNS, terms=TERMS)
    for name, figure in _FIGURES.items():
        value = metrics[figure]["p95"] if figure in metrics else None
        section.rows.append(_judged(name, value, getattr(limits, name)))
    for number, (variant, tables) in enumerate(stages.items()):
        name = f"step_floor, {variant}" if number else "step_floor"
        value = _largest_ratio(tables) if on_gpu else None
        section.rows.append(_judged(name, value, limits.step_floor or _step_floor(variant)))
    return section


def _step_floor(variant: str) -> float:
    weights = next((word for word in STEP_FLOORS if word in variant), "native")
    return STEP_FLOORS[weights]


def _largest_ratio(tables: Mapping[str, Any]) -> float | None:
    """Largest ratio of all decode steps; None if one of them has no time, such as one that failed."""
    ratios = [row.get("ratio") for row in tables.get("decode step", {}).get("rows", ())]
    return None if not ratios or None in ratios else max(ratios)


def _judged(name: str, value: float | None, limit: float) -> dict[str, Cell]:
    result = "not measured" if value is None else "passed" if value <= limit else "failed"
    return {"target": name, "measured": value, "limit": limit, "result": result}


def missed(section: Section) -> list[str]:
    """Names of the targets that failed."""
    return [str(row["target"]) for row in section.rows if row["result"] == "failed"]
