from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from engine_runtime.bench import ceilings
from engine_runtime.bench.measuring import BenchError

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "CPU_COPY_BYTES", 1_000_000)
    monkeypatch.setattr(ceilings, "CPU_MATRIX", 64)


def test_both_rates_are_measured() -> None:
    found = ceilings.measure_ceilings(CPU, repeats=3)
    assert 1e8 < found.copy_bytes_per_s < 1e13
    assert 1e6 < found.matrix_flops_per_s < 1e14
    first, second = found.section().rows
    assert first["rate"] == found.copy_bytes_per_s / 1e9
    assert second["size"] == 64
    assert second["dtype"] == "float32"


def test_read_and_written_bytes_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def times(run: Callable[[], object], device: torch.device, repeats: int, warm_up: int) -> list[float]:
        run()
        return [2.0, 1.0, 9.0]

    monkeypatch.setattr(ceilings, "times_ms", times)
    found = ceilings.measure_ceilings(CPU, repeats=3)
    assert found.copy_bytes_per_s == pytest.approx(2 * 1_000_000 / 2e-3)
    assert found.matrix_flops_per_s == pytest.approx(2 * 64**3 / 2e-3)


def test_a_wrong_product_yields_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "times_ms", lambda run, device, repeats, warm_up: [1.0])
    with pytest.raises(BenchError, match="copy"):
        ceilings.measure_ceilings(CPU)
    with pytest.raises(BenchError, match="product"):
        ceilings._product_s(CPU, 64, torch.float32, 1)
