"""Kernel configs: all valid for Triton, including the default one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from engine_runtime.executors.cuda.weights import build_network
from engine_runtime.options import BlockFormats
from tests.doubles.interpreted_triton import HAS_TRITON, needs_triton, patch_interpreter
from tests.factories.tiny_lm import load_tiny

pytestmark = needs_triton
patch_interpreter()
if HAS_TRITON:
    from engine_runtime.executors.cuda import autotune
    from engine_runtime.executors.cuda.autotune import candidates
    from engine_runtime.executors.cuda.triton_linear import ConfigKey, default_config


@pytest.mark.parametrize("weight_format", ["native", "fp8", "int8", "int4"])
@pytest.mark.parametrize("columns", [256, 704, 4096, 12288])
def test_candidates_are_different_and_start_with_the_rule(weight_format: str, columns: int) -> None:
    key = ConfigKey(weight_format, (1024, columns), is_gated=False)
    found = candidates(key)
    assert found[0] == default_config(key)
    assert len(set(found)) == len(found) > 1
    for config in found:
        assert config.warps & (config.warps - 1) == 0
        assert config.rows & (config.rows - 1) == 0


@pytest.mark.slow
def test_every_kind_of_matrix_gets_the_fastest_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = load_tiny()
    network = build_network(
        model.config,
        model.state_dict().__getitem__,
        formats=BlockFormats("int8"),
        dtype=torch.float32,
        device=torch.device("cpu"),
        max_seq_len=16,
    )
    times = iter(range(1000, 0, -1))  # every candidate is faster than the one before

    def time(work: Callable[[], None]) -> float:
        work()
        return next(times)

    monkeypatch.setattr(autotune, "_time", time)
    monkeypatch.setattr(autotune, "_MAX_MATRICES", 1)
    monkeypatch.setattr(autotune, "_CANDIDATES", autotune._CANDIDATES[-2:])
    with torch.inference_mode():
        found = autotune.autotuned_configs(network)
    kinds = {(matrix.format, matrix.shape) for matrix in network.matrices}
    assert {(key.format, key.shape) for key in found} == kinds
    assert all(config == candidates(key)[-1] for key, config in found.items())
