"""What a GPU allows according to its data sheet, beside measured times.

A floor is the time that no program can beat (roofline): the larger of operations / matrix rate and of
bytes / bandwidth, of the language model alone for TTFA and RTF. On the GPU of the data sheet itself
floor / measured is a share of what is possible, and more than 100 % means that a measurement is wrong. For
another GPU a time is expected by the ratio of its floor to that of the GPU that was measured, where that one
is in the table, too; what is not the language model's is expected to take as long as here.

In: the language model's benchmark, its tables, measured replies. Out: sections (table.py). Engine thread.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args

import torch

from engine_runtime.bench.costs import LMCosts
from engine_runtime.bench.gpu_spec import GPUSpec
from engine_runtime.bench.language_model import LMBench
from engine_runtime.bench.networks import budget_in_words
from engine_runtime.bench.replies import BenchReport, TimesFromCommit
from engine_runtime.codec.loading import codec_bytes
from engine_runtime.cuda.gpu_memory import demand_of
from engine_runtime.lm.step import Tails
from engine_runtime.loading import Stages
from engine_runtime.options import WeightFormat
from engine_runtime.table import Section

OVER_BOOST = 1.2
"""How much faster than on its data sheet a GPU may multiply: boards run above the boost clock of the sheet,
on which its rates are based. Nothing of the kind holds for the bandwidth."""

_COLUMNS = {
    "figure": "ms; RTF without unit; copy and matrices: the measured ceilings, in GB/s and TFLOP/s",
    "floor": "least time by the data sheet, products at 120 % of its rate; of a rate the largest",
    "measured": "here, in this run",
    "share": "floor / measured in percent, or measured / largest rate; - if this is another GPU",
    "expected": "of the GPU of the data sheet, by the ratio of both floors; - without a sheet of this GPU",
    "possible": "no if the share is above 100 %, or above 120 % of a matrix rate: boards run above the boost "
    "clock of the sheet",
}
_MEMORY_COLUMNS = {
    "weights": "weight format of the shared layers; smaller: also of both tails, and keys and values in fp8",
    "needs_gb": "weights, KV pool, codec and reserve by their shapes (10^9 bytes)",
    "left_gb": "of the GPU's memory by its data sheet; driver and desktop take a part of it",
    "positions": "of the KV cache that what is left would hold",
    "minutes": "of speech in these positions",
}


@dataclass(frozen=True, slots=True)
class _Roofline:
    """Floors of the language model on a GPU, in ms."""

    spec: GPUSpec
    costs: LMCosts
    prefill_tails: Tails
    step_tails: Tails
    dtype: torch.dtype

    @property
    def matrix_rate(self) -> float:
        """The fastest of the formats that its products have."""
        if self.costs.formats.trunk == "fp8" and self.spec.fp8 is not None:
            return self.spec.fp8
        return self.spec.fp32 if self.dtype == torch.float32 else self.spec.bf16

    def step_ms(self, cached_tokens: int) -> float:
        return self._read_ms(cached_tokens, self.step_tails)

    def prefill_ms(self, rows: int) -> float:
        compute_s = self.costs.prefill_flops(rows, self.prefill_tails) / (OVER_BOOST * self.matrix_rate)
        return max(compute_s * 1000, self._read_ms(0, self.prefill_tails))

    def reply_ms(self, times: TimesFromCommit, tokens_at_commit: int) -> float:
        """Floor of the language model's part of a reply."""
        return self.prefill_ms(tokens_at_commit) + times.steps * self.step_ms(0)

    def _read_ms(self, cached_tokens: int, tails: Tails) -> float:
        return self.costs.step_bytes(cached_tokens, tails) / self.spec.bandwidth * 1000


@dataclass(frozen=True, slots=True)
class Prediction:
    """Floors on `spec`, beside measured values of `own`, the data sheet of the GPU that was measured (None if
    there is none). `tables` are those of the measured variant by title, as in the JSON document."""

    spec: GPUSpec
    own: GPUSpec | None
    lm: LMBench
    tables: Mapping[str, Any]
    replies: BenchReport | None

    def section(self) -> Section:
        """All figures."""
        section = Section(f"{self.spec.name} by its data sheet", _COLUMNS)
        if self.spec == self.own:
            self._add_ceilings(section)
        there = self._roofline(self.spec)
        here = None if self.own is None else self._roofline(self.own)
        for title, column, name in (
            ("prefill", "tokens", "prefill"),
            ("decode step", "cached_tokens", "step"),
        ):
            for row in self.tables.get(title, {}).get("rows", ()):
                if row.get("ms") is not None:
                    rows, measured = int(row[column]), float(row["ms"])
                    floor = _floor(there, name, rows)
                    expected = None if here is None else measured * floor / _floor(here, name, rows)
                    self._add(section, f"{name} {rows}", floor, measured, expected)
        if self.replies is not None:
            self._add_reply(section, self.replies, there, here)
        kernels = "{}.{}".format(*self.spec.capability)
        section.note = (
            f"{self.spec.memory_gib} GiB, {self.spec.bandwidth / 1e9:.0f} GB/s, {self.spec.sms} "
            f"multiprocessors, compute capability {kernels}"
        )
        if self.own is not None and self.own.capability != self.spec.capability:
            section.note += f"; --compute-capability {kernels} measures the kernels that it runs"
        return section

    def _roofline(self, spec: GPUSpec) -> _Roofline:
        dtype: torch.dtype = getattr(torch, self.lm.stages.options.lm_dtype)
        return _Roofline(spec, self.lm.costs, self.lm.prefill_tails, self.lm.step_tails, dtype)

    def _add(
        self, section: Section, name: str, floor: float, measured: float, expected: float | None
    ) -> None:
        share = 100 * floor / measured if self.spec == self.own else None
        possible = "-" if share is None else "no" if share > 100 else "yes"
        section.rows.append(
            {
                "figure": name,
                "floor": floor,
                "measured": measured,
                "share": share,
                "expected": expected,
                "possible": possible,
            }
        )

    def _add_ceilings(self, section: Section) -> None:
        ceilings, rates = self.lm.ceilings, {"bfloat16": self.spec.bf16, "float32": self.spec.fp32}
        for name, largest, measured, most in (
            ("copy", self.spec.bandwidth / 1e9, ceilings.copy_bytes_per_s / 1e9, 100.0),
            (
                "matrices",
                rates[ceilings.matrix_dtype] / 1e12,
                ceilings.matrix_flops_per_s / 1e12,
                100 * OVER_BOOST,
            ),
        ):
            share = 100 * measured / largest
            possible = "no" if share > most else "yes"
            section.rows.append(
                {"figure": name, "floor": largest, "measured": measured, "share": share, "possible": possible}
            )

    def _add_reply(
        self, section: Section, replies: BenchReport, there: _Roofline, here: _Roofline | None
    ) -> None:
        counted = replies.runs[replies.warm_up :]
        tokens_at_commit = round(replies.metrics["tokens_at_commit"].mean)
        reply_s = replies.metrics["reply_s"].mean
        for name, all_times, unit in (
            ("TTFA", [reply.to_first for reply in counted], 1.0),
            ("RTF", [reply.complete for reply in counted], 1000 * reply_s),
        ):
            floor = statistics.fmean(there.reply_ms(times, tokens_at_commit) for times in all_times)
            measured = statistics.fmean(times.wall_ms for times in all_times)
            expected = None
            if here is not None:
                by_lm = statistics.fmean(
                    times.stages.get("prefill", 0.0) + times.stages.get("step", 0.0) for times in all_times
                )
                own_floor = statistics.fmean(here.reply_ms(times, tokens_at_commit) for times in all_times)
                expected = (measured - by_lm + by_lm * floor / own_floor) / unit
            self._add(section, name, floor / unit, measured / unit, expected)


def impossible(section: Section) -> list[str]:
    """Figures of a section of `Prediction` that are faster than the GPU can be."""
    return [str(row["figure"]) for row in section.rows if row["possible"] == "no"]


def memory_section(stages: Stages, spec: GPUSpec) -> Section:
    """The memory plan of a GPU for the language model in each weight format, with the options of this run."""
    bundle, options = stages.bundle, stages.options
    dtype = options.dtype or "bfloat16"
    on_gpu = replace(options, device="cuda", dtype=dtype)
    plain = demand_of(
        bundle.lm,
        stages.lm_config,
        on_gpu,
        codec_bytes(bundle, on_gpu),
        multiplies_fp8=dtype == "bfloat16" and spec.fp8 is not None,
    )
    code_s = stages.samples_per_code / stages.vocoder.sample_rate
    section = Section(f"memory of {spec.name}", _MEMORY_COLUMNS)
    for suffix, demand in (("", plain), (", smaller", replace(plain, rounds_tails=True, kv_bytes=1))):
        for weights in get_args(WeightFormat):
            needed = demand.bytes(weights)
            left = spec.memory_bytes - needed
            positions = max(int(left / demand.bytes_per_row), 0)
            section.rows.append(
                {
                    "weights": weights + suffix,
                    "needs_gb": needed / 1e9,
                    "left_gb": left / 1e9,
                    "positions": positions,
                    "minutes": positions * code_s / 60,
                }
            )
            if (weights, suffix) == (options.weight_format, ""):
                words = budget_in_words(left, demand.bytes_per_row, code_s)
                section.note = f"{weights}: {words}" if left > 0 else f"{weights} does not fit"
    return section


def _floor(roofline: _Roofline, name: str, rows: int) -> float:
    return roofline.prefill_ms(rows) if name == "prefill" else roofline.step_ms(rows)
