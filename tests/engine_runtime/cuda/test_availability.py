"""Kernels that cannot run are replaced by plain torch, with one log message, unless requested explicitly."""

from __future__ import annotations

import logging

import pytest
import torch

from engine_runtime.cuda import availability
from engine_runtime.hardware import AcceleratorError
from tests.doubles.interpreted_triton import needs_triton, patch_interpreter

CPU = torch.device("cpu")


def test_plain_torch_is_taken_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(availability, "why_no_triton", lambda device: pytest.fail("not asked"))
    assert not availability.uses_triton("torch", CPU)


def test_without_triton_the_plain_way_is_taken_and_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(availability.importlib.util, "find_spec", lambda name: None)
    with caplog.at_level(logging.WARNING):
        assert not availability.uses_triton("auto", CPU)
    assert [record.message for record in caplog.records] == [
        "The Triton kernels cannot run here (Triton is not installed). "
        "Using slower operations in plain torch."
    ]
    with pytest.raises(AcceleratorError, match="Use --kernels torch"):
        availability.uses_triton("triton", CPU)


@needs_triton
def test_a_compiler_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    patch_interpreter()
    from engine_runtime.cuda.kernels import prefill_elementwise as rows

    class Broken:
        def __getitem__(self, grid: object) -> object:
            raise RuntimeError("Failed to find C compiler.\nPlease specify via CC environment variable.")

    monkeypatch.setattr(rows, "norm_rows", Broken())
    assert availability.why_no_triton(CPU) == "Failed to find C compiler"


@needs_triton
@pytest.mark.skipif(torch.cuda.is_available(), reason="here the kernels are compiled for the GPU")
def test_a_kernel_that_runs_is_enough() -> None:
    patch_interpreter()
    assert availability.why_no_triton(CPU) is None
    assert availability.uses_triton("auto", CPU)
