"""The memory plan: what a model takes on each device, in agreement with the check before loading."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from engine_runtime.bundle.bundle import Bundle
from engine_runtime.bundle.released.full_size import describe
from engine_runtime.codec.loading import codec_bytes
from engine_runtime.cuda.gpu_memory import demand_of
from engine_runtime.executors.cuda import loading
from engine_runtime.hardware import AcceleratorError
from engine_runtime.memory_plan import FormatNeed, plan_devices
from engine_runtime.models.moss_lm import MossLMConfig
from engine_runtime.options import EngineOptions


@pytest.mark.slow
def test_the_processor_takes_float32(random_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    bundle = Bundle.open(random_bundle, verify="none")
    (plan,) = plan_devices(bundle)
    config, options = MossLMConfig.from_dict(bundle.lm.config), EngineOptions()
    demand = demand_of(bundle.lm, config, options, codec_bytes(bundle, options))
    need = replace(demand, reserve=0).bytes("native")
    assert plan.name == "cpu"
    (native,) = plan.needs
    assert native == FormatNeed("native", False, need + 600_000_000), "no reserve of a GPU"


@pytest.mark.slow
def test_a_gpu_offers_each_format_with_and_without_compressed_tails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (22 * 10**9, 24 * 10**9))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    monkeypatch.setattr(loading, "uses_triton", lambda kernels, device: True)
    monkeypatch.setattr(loading, "has_fp8_matmul", lambda device, dtype: True)
    bundle = describe("moss-speech")
    _, gpu = plan_devices(bundle)
    assert (gpu.name, gpu.description) == ("cuda:0", "a GPU")
    assert (gpu.free_bytes, gpu.total_bytes) == (22 * 10**9, 24 * 10**9)
    needs = {(need.weights, need.saves_memory): need.bytes for need in gpu.needs}
    assert len(needs) == 8
    plain = [needs[form, False] for form in ("native", "fp8", "int4")]
    assert plain == sorted(plain, reverse=True)
    assert all(needs[form, True] < needs[form, False] for form in ("native", "fp8", "int8", "int4"))

    # The check before loading refuses exactly what does not fit.
    config = MossLMConfig.from_dict(bundle.lm.config)
    chosen = EngineOptions(device="cuda:0", weight_format="fp8", rounds_tails=True, kv_dtype="fp8")
    state = SimpleNamespace(available=needs["fp8", True])
    monkeypatch.setattr(loading, "bound", lambda device, limit: state.available)
    words = (bundle.lm, config, torch.device("cuda:0"), chosen, codec_bytes(bundle, chosen))
    loading.check_memory(*words)
    state.available -= 1
    with pytest.raises(AcceleratorError, match="--weights fp8 needs"):
        loading.check_memory(*words)
