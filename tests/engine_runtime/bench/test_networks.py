from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine_runtime.bench.networks import budget_in_words, kv_budget_section, networks_section
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.bundle.weights import stored_tensors
from engine_runtime.engine import Engine


@pytest.fixture(scope="module")
def engine(random_bundle: Path) -> Iterator[Engine]:
    engine = Engine.load(Bundle.open(random_bundle))
    yield engine
    engine.close()


@pytest.mark.slow
def test_each_network_has_its_load_time_tensors_and_size(engine: Engine) -> None:
    rows = {row["network"]: row for row in networks_section(engine.stages).rows}
    bundle = engine.bundle
    assert list(rows) == ["language model", "speech encoder", "flow", "vocoder"]
    for name, section in (("language model", bundle.lm), ("flow", bundle.flow), ("vocoder", bundle.vocoder)):
        assert rows[name]["tensors"] == len(stored_tensors(section.weights))
        assert rows[name]["file_gb"] == sum(file.stat().st_size for file in section.weights) / 1e9
    for row in rows.values():
        assert row["load_s"] is not None
        assert float(row["load_s"]) > 0
        assert row["gbytes"] == pytest.approx(4 * int(row["parameters"] or 0) / 1e9)


@pytest.mark.slow
def test_files_that_are_not_there_have_no_size(engine: Engine) -> None:
    bundle = engine.bundle
    gone = replace(bundle, lm=replace(bundle.lm, weights=(bundle.path / "gone.safetensors",)))
    row = networks_section(replace(engine.stages, bundle=gone)).rows[0]
    assert row["file_gb"] is None
    assert row["tensors"]


def test_the_budget_is_what_is_left_in_positions_and_minutes(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = engine.stages.lm.cache
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Memory", (), {"available": 3 * cache.bytes}))
    section = kv_budget_section(engine.stages)
    pool, left = section.rows
    positions = cache.num_blocks * cache.tokens_per_block
    assert pool["positions"] == positions
    assert pool["gbytes"] == (cache.pool.nbytes + cache.trunk.nbytes) / 1e9
    assert left["positions"] == 3 * positions
    seconds = engine.bundle.samples_per_code / engine.output_sample_rate
    assert left["minutes"] == pytest.approx(3 * positions * seconds / 60)


def test_the_budget_in_words() -> None:
    # 40 layers x 2 x 8 heads x 128 in bf16, and the trunk's output: the released model.
    per_position = 40 * 2 * 8 * 128 * 2 + 4096 * torch.bfloat16.itemsize
    assert budget_in_words(2.1e9, per_position, 0.08) == "2.1 GB left = 12,207 positions = 16 min of speech"
    assert budget_in_words(-1e9, per_position, 0.08) == "-1.0 GB left = 0 positions = 0 min of speech"
