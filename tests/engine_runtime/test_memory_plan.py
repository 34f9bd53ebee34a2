"""The memory plan: what a model takes on each device, in agreement with the check before loading."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine_runtime import memory_plan
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.bundle.released.full_size import describe
from engine_runtime.codec.loading import codec_bytes
from engine_runtime.cuda.gpu_memory import demand_of
from engine_runtime.executors.cuda import loading
from engine_runtime.hardware import AcceleratorError
from engine_runtime.memory_plan import FormatNeed, fitting_conversations, plan_devices
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("total_gb", "context_tokens", "changes", "expected"),
    [
        (85, 8_704, {}, 22),
        (85, 1_024, {}, 92),
        (150, 1_024, {}, 128),
        (24, 8_704, {}, None),
        (48, 1_024, {"weight_format": "fp8", "kv_dtype": "fp8"}, 45),
        (85, 8_704, {"max_batch_size": 1}, None),
        (85, 8_704, {"captures_batches": False}, None),
        (85, 8_704, {"device": "cpu"}, None),
    ],
)
def test_as_many_conversations_as_fit(
    total_gb: int,
    context_tokens: int,
    changes: dict[str, Any],
    expected: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    total = total_gb * 10**9
    monkeypatch.setattr(memory_plan, "usable_device", torch.device)
    monkeypatch.setattr(memory_plan, "bound", lambda device, limit: total - 10**9)
    monkeypatch.setattr(memory_plan, "memory_of", lambda device: (total - 10**9, total))
    monkeypatch.setattr(loading, "uses_triton", lambda kernels, device: True)
    monkeypatch.setattr(loading, "has_fp8_matmul", lambda device, dtype: True)
    bundle = describe("moss-speech")
    bundle = replace(bundle, lm=replace(bundle.lm, context_tokens=context_tokens))
    options = EngineOptions(device="cuda", max_batch_size=64, captures_batches=True, random_weights=0)
    options = replace(options, **changes)
    found = fitting_conversations(bundle, options)
    assert found == expected
    if found is None:
        return

    # The check before loading passes.
    blocks = -(-context_tokens // bundle.lm.tokens_per_block)
    config = MossLMConfig.from_dict(bundle.lm.config)
    chosen = replace(options, conversations=found, kv_blocks=found * blocks)
    monkeypatch.setattr(loading, "bound", lambda device, limit: total - 10**9)
    loading.check_memory(bundle.lm, config, torch.device("cuda"), chosen, codec_bytes(bundle, chosen))
