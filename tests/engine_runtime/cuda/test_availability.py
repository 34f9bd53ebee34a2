"""Kernels that cannot run are replaced by plain torch, with one log message, unless requested explicitly."""

from __future__ import annotations

import importlib.util
import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine_runtime import engine as engine_module
from engine_runtime import loading
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.cuda import availability
from engine_runtime.engine import Engine
from engine_runtime.hardware import AcceleratorError
from engine_runtime.installation import COMPILER_REMEDY
from engine_runtime.options import EngineOptions, WeightFormat
from tests.doubles.interpreted_triton import needs_triton, patch_interpreter

CPU = torch.device("cpu")


def test_plain_torch_is_taken_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(availability, "why_no_triton", lambda device: pytest.fail("not asked"))
    assert not availability.uses_triton("torch", CPU)


def test_without_triton_the_plain_way_is_taken_and_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with caplog.at_level(logging.WARNING):
        assert not availability.uses_triton("auto", CPU)
    assert [record.message for record in caplog.records] == [
        "The Triton kernels cannot run here (Triton is not installed). "
        "Using slower operations in plain torch."
    ]
    with pytest.raises(AcceleratorError, match="Use --kernels torch"):
        availability.uses_triton("triton", CPU)


@pytest.fixture
def _gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device of CUDA, without a GPU."""
    monkeypatch.setattr(availability, "usable_device", torch.device)


@needs_triton
def test_without_a_compiler_no_kernel_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that starts from Triton's cache says nothing of the others."""
    monkeypatch.setattr(availability, "has_launcher", lambda: False)
    assert availability.why_no_triton(torch.device("cuda")) == availability.NO_COMPILER
    assert availability.triton_remedy(availability.NO_COMPILER) == COMPILER_REMEDY


@pytest.mark.usefixtures("_gpu")
@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        (
            availability.NO_COMPILER,
            "Install them (sudo apt-get install gcc libc6-dev python3-dev), or choose native",
        ),
        ("Triton is not installed", "Choose native weights (--weights native); --kernels torch runs"),
    ],
)
@pytest.mark.parametrize("weights", ["fp8", "int8", "int4"])
def test_quantized_weights_without_triton_are_refused_with_the_remedy(
    weights: WeightFormat, reason: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(availability, "why_no_triton", lambda device: reason)
    with pytest.raises(AcceleratorError) as refused:
        availability.check_formats(EngineOptions(device="cuda", weight_format=weights))
    assert refused.value.what_is_wrong == (
        f"Weights in {weights} need the Triton kernels, which cannot run here: {reason}."
    )
    assert refused.value.what_to_do.startswith(remedy)


@pytest.mark.usefixtures("_gpu")
@pytest.mark.parametrize(
    "options",
    [
        EngineOptions(device="cuda"),
        EngineOptions(device="cuda", weight_format="fp8", kernels="torch"),
        EngineOptions(device="cpu", weight_format="int8"),
        EngineOptions(device="cuda", weight_format="fp8", backend="trtllm", engine=Path("engine")),
    ],
)
def test_what_is_fast_without_triton_or_asked_for_is_not_refused(
    options: EngineOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(availability, "why_no_triton", lambda device: "it is broken")
    availability.check_formats(options)


@pytest.mark.usefixtures("_gpu")
def test_keys_and_values_in_fp8_need_e4m3_in_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    options = EngineOptions(device="cuda", kv_dtype="fp8")
    monkeypatch.setattr(availability, "why_no_triton", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    with pytest.raises(AcceleratorError, match=r"compute capability 8\.9 or later\. Choose --kv native"):
        availability.check_formats(options)
    availability.check_formats(replace(options, kernels="torch"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    availability.check_formats(options)


def test_an_engine_names_its_kernels_on_a_gpu_alone(
    random_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Engine.load(Bundle.open(random_bundle)) as engine:
        assert engine.stages.kernel_paths == {}
        monkeypatch.setattr(loading, "usable_device", torch.device)
        monkeypatch.setattr(loading, "why_plain_torch", lambda choice, device: "no compiler")
        stages = replace(engine.stages, options=EngineOptions(device="cuda"))
        assert stages.kernel_paths == {
            "kernels": "plain torch (no compiler)",
            "decode_step": "plain torch (a quantized checkpoint)",
        }


def test_a_gpu_that_is_slow_for_want_of_kernels_is_noted(
    random_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, reasons = torch.device("cuda"), [availability.NO_COMPILER, None]
    monkeypatch.setattr(availability, "why_no_triton", lambda device: reasons[0])
    noted = availability.slow_note("auto", gpu)
    assert noted is not None
    assert str(noted).endswith(f"{availability.NO_COMPILER}. {COMPILER_REMEDY}")
    assert availability.slow_note("torch", gpu) is None  # asked for
    assert availability.slow_note("auto", CPU) is None
    monkeypatch.setattr(loading, "slow_note", lambda choice, device: noted)
    with Engine.load(Bundle.open(random_bundle)) as engine:
        assert engine.stages.notes == (noted,)
    reasons.pop(0)
    assert availability.slow_note("auto", gpu) is None


@pytest.mark.usefixtures("_gpu")
def test_where_triton_runs_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(availability, "why_no_triton", lambda device: None)
    availability.check_formats(EngineOptions(device="cuda", weight_format="fp8"))


def test_an_engine_is_refused_before_it_is_loaded(
    random_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(options: EngineOptions) -> None:
        raise AcceleratorError(
            "{weight_format} is refused.", "Choose another.", weight_format=options.weight_format
        )

    monkeypatch.setattr(engine_module, "check_formats", refuse)
    monkeypatch.setattr(engine_module, "load_stages", lambda *_, **__: pytest.fail("loaded"))
    with pytest.raises(AcceleratorError, match="int8 is refused"):
        Engine.load(Bundle.open(random_bundle), EngineOptions(weight_format="int8"))


@pytest.mark.parametrize(
    ("capability", "named"),
    [((9, 0), "persistent decode kernel"), ((8, 9), "Triton kernels (the persistent and batched kernels")],
)
def test_the_kernels_of_a_gpu_are_named(
    capability: tuple[int, int], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert availability.describe_kernels(torch.device("cuda")).startswith(named)


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
