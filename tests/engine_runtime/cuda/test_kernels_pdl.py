"""Programmatic dependent launch is used only where GPU and driver support it."""

from __future__ import annotations

import pytest
import torch

from tests.doubles.interpreted_triton import HAS_TRITON, needs_triton

pytestmark = needs_triton
if HAS_TRITON:
    from engine_runtime.cuda.kernels import pdl as module
    from engine_runtime.cuda.kernels.pdl import pdl_launch_args


@pytest.mark.parametrize(
    ("capability", "driver", "uses_pdl"),
    [((9, 0), 12030, True), ((12, 0), 13000, True), ((8, 9), 13000, False), ((9, 0), 12020, False)],
)
def test_gpu_and_driver_decide(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], driver: int, uses_pdl: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(module, "_driver_version", lambda: driver)
    given = pdl_launch_args(torch.device("cuda"))
    assert given["USES_PDL"] == uses_pdl
    assert given.get("launch_pdl", False) == uses_pdl


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a driver")
def test_without_a_driver_it_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert pdl_launch_args(torch.device("cuda")) == {"USES_PDL": False}


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_driver_reports_its_version() -> None:
    assert 11000 < module._driver_version() < 100_000


def test_a_cpu_launches_one_after_the_other() -> None:
    assert pdl_launch_args(torch.device("cpu")) == {"USES_PDL": False}
