"""Memory requirements are computed from shapes, and reported if there is too little memory."""

from __future__ import annotations

import re
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from engine_runtime.bundle.bundle import Bundle
from engine_runtime.bundle.released.full_size import describe
from engine_runtime.codec.flow.static import bytes_per_code
from engine_runtime.codec.loading import codec_bytes
from engine_runtime.codec.runtime import VOCODER_BATCH_BYTES, CodecRuntime
from engine_runtime.cuda.gpu_memory import (
    _RESERVE,
    Demand,
    bound,
    demand_of,
    explain_out_of_memory,
    memory_of,
    require,
)
from engine_runtime.cuda.graphs import GraphedCalls
from engine_runtime.executors.cuda.weights import build_network
from engine_runtime.hardware import AcceleratorError
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.models.flow import FlowConfig
from engine_runtime.models.moss_lm import MossLMConfig
from engine_runtime.options import EngineOptions, WeightFormat
from engine_runtime.quantization import FP8
from tests.factories.tiny_lm import RELEASED, load_tiny

FULL = Demand(RELEASED, native_bytes=2, kv_bytes=2, kv_rows=8192, codec_bytes=2_000_000_000)


@pytest.mark.parametrize("rounds_tails", [False, True])
@pytest.mark.parametrize("weight_format", ["native", "fp8", "int8", "int4"])
def test_the_need_is_what_a_network_then_takes(weight_format: WeightFormat, rounds_tails: bool) -> None:
    model, _ = load_tiny()
    network = build_network(
        model.config,
        model.state_dict().__getitem__,
        formats=EngineOptions(weight_format=weight_format, rounds_tails=rounds_tails).formats,
        dtype=torch.bfloat16,
        device=torch.device("cpu"),
        max_seq_len=64,
    )
    cache = KVCache(model.config, 10, 16, dtype=torch.bfloat16, kv_dtype=FP8)
    embedding = network.embedding.numel() * 2
    taken = network.step_bytes(text=True, audio=True) + embedding + cache.bytes
    scratch = network.largest_dense(multiplies_fp8=False) * 2
    demand = Demand(
        model.config, native_bytes=2, kv_bytes=1, kv_rows=160, codec_bytes=0, rounds_tails=rounds_tails
    )
    # Norms are not included in the estimate.
    assert demand.bytes(weight_format) == pytest.approx(taken + scratch + _RESERVE, abs=100)
    scratch = network.largest_dense(multiplies_fp8=True) * 2
    demand = replace(demand, multiplies_fp8=True)
    assert demand.bytes(weight_format) == pytest.approx(taken + scratch + _RESERVE, abs=100)


def test_the_released_model_in_the_sizes_that_are_promised() -> None:
    assert FULL.bytes("native") < 24e9
    smaller = replace(FULL, kv_bytes=1, rounds_tails=True, multiplies_fp8=True)
    assert smaller.bytes("fp8") < 16e9
    assert FULL.bytes("int4") < FULL.bytes("int8") <= FULL.bytes("fp8") < FULL.bytes("native")


@pytest.mark.slow
def test_longer_prefill_calls_take_more(nano_bundle: Path) -> None:
    bundle = Bundle.open(nano_bundle)
    config = MossLMConfig.from_dict(bundle.lm.config)

    def need(tokens: int | None) -> int:
        options = EngineOptions(prefill_tokens=tokens)
        return demand_of(bundle.lm, config, options, codec_bytes=0).bytes("native")

    assert need(64) == need(None) == need(512)
    per_token = need(513) - need(512)
    assert per_token > 2 * config.intermediate_size * 4
    assert need(2048) - need(512) == 1536 * per_token


@pytest.mark.slow
@pytest.mark.parametrize(
    ("codec_dtype", "half"), [(None, 4), ("float32", 4), ("float16", 2), ("bfloat16", 2)]
)
def test_the_codec_counts_in_the_numbers_it_runs_in(nano_bundle: Path, codec_dtype: Any, half: int) -> None:
    bundle = Bundle.open(nano_bundle)
    encoder, flow, vocoder = (
        sum(tensor.numel() for file in section.weights for tensor in load_file(file).values())
        for section in (bundle.speech_encoder, bundle.flow, bundle.vocoder)
    )
    config = FlowConfig.from_dict(bundle.flow.config)
    for steps in (None, 9):  # its caches hold two chunks at least; this bundle has no voice prompt
        code = bytes_per_code(config, steps or bundle.flow.steps, bundle.flow.cfg_rate, torch.float32)
        options = EngineOptions(codec_dtype=codec_dtype, flow_steps=steps)
        weights = 4 * encoder + half * (flow + vocoder)
        assert codec_bytes(bundle, options) == weights + 2 * config.chunk_codes * code * half // 4


@pytest.mark.slow
def test_the_codec_counts_without_its_files() -> None:
    """With caches for a voice of 4 s (50 codes) and two chunks, at 9.2 MB a code in halves."""
    bundle = describe("moss-speech")
    assert not any(file.exists() for file in (*bundle.flow.weights, *bundle.vocoder.weights))
    assert codec_bytes(bundle, EngineOptions(random_weights=0)) == pytest.approx(1.94e9 + 1.11e9, rel=0.01)
    half = EngineOptions(random_weights=0, codec_dtype="float16")
    assert codec_bytes(bundle, half) == pytest.approx(1.66e9 + 0.55e9, rel=0.01)
    several = codec_bytes(bundle, replace(half, max_batch_size=8))
    assert several == codec_bytes(bundle, half) + VOCODER_BATCH_BYTES
    assert codec_bytes(bundle, replace(half, max_batch_size=8, trt_codec=True)) < several


def test_too_little_memory_names_what_would_fit() -> None:
    require(FULL, "native", int(24e9))
    with pytest.raises(AcceleratorError, match=r"native needs 2\d\.\d GB. Use --weights fp8\. ") as error:
        require(FULL, "native", int(18e9))
    for weight_format in ("native", "fp8", "int8", "int4"):
        assert f"{weight_format} 1" in str(error.value) or f"{weight_format} 2" in str(error.value)
        small = (
            f"{weight_format} --kv fp8" if weight_format == "native" else f"{weight_format} --tails --kv fp8"
        )
        assert f"{small} " in str(error.value)
    with pytest.raises(AcceleratorError, match=r"Use --weights fp8 --tails --kv fp8\. "):
        require(FULL, "fp8", int(15e9))  # before another format
    with pytest.raises(AcceleratorError, match=r"Use --weights native --kv fp8\. "):
        require(FULL, "native", FULL.bytes("native") - 1)
    smallest = replace(FULL, rounds_tails=True, kv_bytes=1)
    with pytest.raises(AcceleratorError, match=r"Use --weights int4\. ") as error:
        require(smallest, "fp8", int(14e9))
    assert "--tails" not in str(error.value)  # it is what was asked for
    with pytest.raises(AcceleratorError, match="None of them fits"):
        require(FULL, "int4", int(4e9))


@pytest.mark.parametrize("codec_bytes", [2_000_000_000, 2_040_000_000, 2_080_000_000])
def test_the_reported_size_is_sufficient(codec_bytes: int) -> None:
    demand = replace(FULL, codec_bytes=codec_bytes)
    with pytest.raises(AcceleratorError) as error:
        require(demand, "native", int(1e9))
    told = re.search(r"native needs (\S+) GB", str(error.value))
    assert told is not None
    require(demand, "native", int(float(told[1]) * 1e9))


@pytest.mark.slow
def test_the_reported_sizes_are_sufficient() -> None:
    """The smallest bounds, in GB, in which an H200 held the released shape, to within 0.2 GB."""
    bundle = describe("moss-speech")
    config = MossLMConfig.from_dict(bundle.lm.config)
    found: dict[tuple[WeightFormat, bool], float] = {
        ("native", False): 22.9,
        ("fp8", False): 16.6,
        ("int4", False): 14.0,
        ("fp8", True): 14.5,
        ("int4", True): 11.2,
    }
    for (weight_format, is_small), least in found.items():
        options = EngineOptions(
            device="cuda",
            weight_format=weight_format,
            rounds_tails=is_small,
            kv_dtype="fp8" if is_small else "native",
            random_weights=0,
        )
        codec = codec_bytes(bundle, options)
        demand = demand_of(bundle.lm, config, options, codec, multiplies_fp8=True)
        assert least < demand.bytes(weight_format) / 1e9 < least + 0.6


class _Held:
    """Stands for tensors."""


@pytest.mark.slow
def test_what_torch_finds_too_little_for_is_reported_and_let_go() -> None:
    held: list[weakref.ref[_Held]] = []

    def run() -> int:
        tensors = _Held()
        held.append(weakref.ref(tensors))
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has ...")

    section = describe("moss-speech").lm
    with pytest.raises(AcceleratorError) as error:
        explain_out_of_memory(run, section, EngineOptions(device="cuda"))
    assert "--weights native (CUDA out of memory. Tried to allocate 2.50 GiB). " in str(error.value)
    assert "fp8 6.0 GB, int8 6.0 GB, int4 9.0 GB" in str(error.value)
    assert held[0]() is None
    assert "--tails" not in str(error.value)
    int4 = EngineOptions(device="cuda", weight_format="int4")
    with pytest.raises(AcceleratorError, match=r"No weight format is smaller.* --tails saves 2\.3 GB"):
        explain_out_of_memory(run, section, int4)
    with pytest.raises(AcceleratorError, match=r"or free memory\.$"):
        explain_out_of_memory(run, section, replace(int4, rounds_tails=True))
    engine = EngineOptions(device="cuda", backend="trtllm", engine=Path("engine"))
    with pytest.raises(AcceleratorError, match=r"for this engine \(CUDA out of .*trt quantize"):
        explain_out_of_memory(run, section, engine)
    assert explain_out_of_memory(lambda: 7, section, EngineOptions()) == 7


@pytest.mark.slow
def test_too_little_memory_of_the_computer_is_explained() -> None:
    section = describe("moss-speech").lm
    with pytest.raises(AcceleratorError, match=r"too little memory for the model with 7 KV blocks\. Close"):
        explain_out_of_memory(lambda: torch.empty(1 << 60), section, EngineOptions(kv_blocks=7))

    def fail() -> None:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        explain_out_of_memory(fail, section, EngineOptions())


@pytest.mark.slow
def test_what_an_earlier_engine_left_goes_before_memory_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Left:
        def __init__(self) -> None:
            self.itself = self

    emptied: list[bool] = []
    earlier = Left()
    held = weakref.ref(earlier)
    del earlier
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(held() is None))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (int(20e9), int(80e9)))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share, index: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert bound(torch.device("cuda"), None) == int(20e9)
    assert bound(torch.device("cuda"), 16.0) == int(16e9)
    assert emptied == [True, True]


def test_the_flow_takes_no_more_than_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    free, total, used = 100e9, 140e9, 22e9
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (int(free), int(total)))
    shares = {0: 24e9 / total}  # by number: torch takes no plain "cuda" here
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda index: shares[index])
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: int(used))
    assert memory_of(torch.device("cuda")) == (pytest.approx(2e9), pytest.approx(24e9))
    runtime = CodecRuntime(calls=GraphedCalls("cuda", enabled=False))
    assert runtime.cache_bytes() == pytest.approx(1.6e9, rel=1e-6)  # beside 22 GB, with something left over
    used = 10e9
    assert runtime.cache_bytes() == pytest.approx(2.4e9, rel=1e-6)  # a tenth
    used = 23.9e9
    assert runtime.cache_bytes() == 0
    assert CodecRuntime().cache_bytes() is None
