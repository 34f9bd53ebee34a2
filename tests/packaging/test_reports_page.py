"""packaging/REPORTS.md: its figures, definitions and messages are those of RESULTS.md and of the program."""

from __future__ import annotations

import json
import re
from math import prod
from pathlib import Path

import pytest
import torch

from engine_runtime.bench import replies
from engine_runtime.bench.gpu_spec import GPU_SPECS
from engine_runtime.bench.quality import MOST_LOSS
from engine_runtime.bench.targets import TERMS, Limits
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.bundle.released.full_size import describe
from engine_runtime.errors import EngineError
from engine_runtime.lm.step import ExecutorLimits
from engine_runtime.models.flow.cfm import time_span
from engine_runtime.models.moss_lm import MossLMConfig
from engine_runtime.options import EngineOptions
from engine_runtime.tensorrt.checkpoint.format import (
    ARCHITECTURE,
    LAYERS,
    CheckpointConfig,
    expected_tensors,
    tensor_slices,
)
from engine_runtime.tensorrt.llm import library, loading
from engine_runtime.tensorrt.llm.contract import CONTRACTS
from tests.factories.engine_folder import EngineWorld, edit_config

_FIGURE = re.compile(r"(?<![\w.])\d+(?:\.\d+)?")
_RESULTS_LINK = re.compile(r"\]\(\.\./engine_runtime/bench/RESULTS\.md#([\w-]+)\)")


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "packaging" / "REPORTS.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def rows(page: str) -> list[list[str]]:
    """The cells of each row of a table, headings left out."""
    lines = [line.split("|")[1:-1] for line in page.splitlines() if line.startswith("| ")]
    return [
        [cell.strip() for cell in row]
        for row in lines
        if row[0].strip() not in ("early reports", "in the engine")
    ]


@pytest.fixture(scope="module")
def released() -> Bundle:
    return describe("moss-speech")


@pytest.fixture(scope="module")
def checkpoint(released: Bundle) -> CheckpointConfig:
    return CheckpointConfig.of(MossLMConfig.from_dict(released.lm.config), "bfloat16", 40960)


def section(results: str, anchor: str) -> str:
    """The text below the heading of RESULTS.md that has this anchor, up to the next heading of its level."""
    for heading in re.finditer(r"^(#+) (.+)$", results, re.MULTILINE):
        if re.sub(r"[^\w\- ]", "", heading[2].lower()).replace(" ", "-") == anchor:
            rest = results[heading.end() :]
            return re.split(rf"^#{{1,{len(heading[1])}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]
    raise AssertionError(f"RESULTS.md has no heading {anchor}")


def test_our_figures_stand_in_the_section_that_is_linked(rows: list[list[str]], repository: Path) -> None:
    results = (repository / "engine_runtime" / "bench" / "RESULTS.md").read_text(encoding="utf-8")
    missing, count = [], 0
    for row in rows:
        if not _RESULTS_LINK.search(row[1]):
            continue
        *parts, rest = _RESULTS_LINK.split(row[1])
        assert not _FIGURE.search(rest), f"a figure without a link: {row[1]}"
        for text, anchor in zip(parts[::2], parts[1::2], strict=True):
            figures = _FIGURE.findall(text)
            assert figures, row[1]
            count += len(figures)
            there = set(_FIGURE.findall(section(results, anchor)))
            missing += [f"{figure} is not in {anchor}" for figure in figures if figure not in there]
    assert count > 15
    assert not missing


def test_rates_are_those_of_the_released_codec(page: str, released: Bundle) -> None:
    mel, flow, samples = released.flow.mel, released.flow, released.samples_per_code
    assert f"{mel.sample_rate / samples} codes a second" in page
    assert f"{mel.sample_rate // mel.hop} audio tokens a second" in page, "the rate of the mel frames"
    assert samples // mel.hop == 4
    assert f"a code of {1000 * samples // mel.sample_rate} ms" in page
    assert (flow.chunk_codes, flow.first_chunk_codes, flow.look_ahead_codes) == (5, 5, 3)
    assert f"five codes are {5000 * samples // mel.sample_rate} ms" in page
    assert (
        f"{5 * samples // mel.hop} mel frames, {5 * samples:,} samples at {mel.sample_rate // 1000} kHz"
        in page
    )
    assert (flow.steps, released.vocoder.kind) == (10, "hift")
    assert time_span(10) == time_span(10, "cosine")
    assert "first_chunk_ratio" in replies.DEFINITIONS
    assert "`first_chunk_ratio`" in page


def test_the_quotients_of_the_reports_are_counted_anew(page: str) -> None:
    assert f"With the 400 ms of five codes it would have been {138.5 / 400:.2f}" in page
    assert f"If it counts 50 tokens a second, 12.5 make it {4.25 * 12.5 / 50:.2f}" in page


def test_targets_are_those_that_bench_checks(page: str) -> None:
    limits = Limits()
    times = f"TTFA below {limits.ttfa:g} ms, first chunk below {limits.first_chunk:g} ms"
    assert f"| {times}, RTF below {limits.rtf:g} |" in page
    assert f"MOS differs by less than {100 * MOST_LOSS:g} % |" in page
    assert all("95th percentile" in TERMS[name] for name in ("ttfa", "first_chunk", "rtf"))


def test_the_data_sheet_is_that_of_the_prediction(page: str) -> None:
    sheet = GPU_SPECS["4090"]
    assert f"theory of a 4090 from {sheet.fp32 / 1e12:g} TFLOPS" in page
    assert f"| {sheet.bf16 / 1e12:g} TFLOP/s in bf16 and {sheet.bandwidth / 1e9:,.0f} GB/s:" in page


def test_counts_and_names_are_those_of_the_checkpoint(page: str, checkpoint: CheckpointConfig) -> None:
    tensors = expected_tensors(checkpoint)
    parameters = sum(prod(tensor.shape) for tensor in tensors.values())
    assert f"{parameters / 1e9:.2f} B parameters, {2 * parameters / 1e9:.2f} GB in bf16" in page
    assert f"all {len(tensor_slices(checkpoint))}, as {len(tensors)}" in page
    layers = (checkpoint.num_shared_layers, checkpoint.num_text_layers, checkpoint.num_audio_layers)
    assert f"{sum(layers)} layers, {' + '.join(map(str, layers))}" in page
    assert f"a text id, or {checkpoint.text_vocab_size:,} + code" in page
    assert f"| {checkpoint.rotary_base:,.0f} |" in page
    assert f"`{ARCHITECTURE}`; {', '.join(f'`{name}`' for name in LAYERS)}" in page
    assert f"| {library.VERSION}, the last stable release" in page


def test_both_contracts_have_the_inputs_that_are_stated(page: str) -> None:
    new, old = (len(contract.inputs(ExecutorLimits(1, 1, 1, 1, 1, 1, 1))) for contract in CONTRACTS)
    assert f"| {old} inputs and 2 outputs | {new} inputs and 2 outputs; {old} and 2 also run |" in page


def test_an_engine_like_that_of_the_reports_is_refused_in_these_words(
    rows: list[list[str]], engine_world: EngineWorld, random_bundle: Path, tmp_path: Path
) -> None:
    """One of 0.13 with its defaults, and each of its faults alone."""
    folder = engine_world.build(random_bundle, tmp_path / "engine", "0.13")
    options = EngineOptions(backend="trtllm", engine=folder, device="cpu")
    bundle = Bundle.open(random_bundle)
    config = MossLMConfig.from_dict(bundle.lm.config)
    sound = (folder / "config.json").read_text()

    def message() -> str:
        with pytest.raises(EngineError) as refused:
            loading.open_engine(bundle, config, torch.device("cpu"), options, 0)
        (folder / "config.json").write_text(sound)
        text = str(refused.value).replace(str(folder), "FOLDER")
        return text.replace(f"bundle {bundle.name}:", "bundle NAME:")

    loading.open_engine(bundle, config, torch.device("cpu"), options, 0)
    found = []
    for table, change in (
        ("pretrained_config", {"architecture": "NAME"}),
        ("pretrained_config", {"qk_layernorm": False}),
        ("pretrained_config", {"num_shared_layers": None}),
        ("build_config.plugin_config", {"use_paged_context_fmha": False}),
        ("pretrained_config", {"rotary_base": 1e4}),
    ):
        edit_config(folder, table, **change)
        values = json.loads((folder / "config.json").read_text())
        kept = {name: value for name, value in values["pretrained_config"].items() if value is not None}
        (folder / "config.json").write_text(json.dumps(values | {"pretrained_config": kept}))
        found.append(message())
    assert [row[1] for row in rows if len(row) == 2] == found
