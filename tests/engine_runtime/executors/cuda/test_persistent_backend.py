"""The persistent backend without a GPU: tiling, errors, and arguments of its kernel."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from engine_runtime.executors.cuda import persistent_backend
from engine_runtime.executors.cuda.decode_backend import DecodeOutputs, StepShape
from engine_runtime.executors.cuda.inputs import StepInputs
from engine_runtime.executors.cuda.persistent_backend import (
    PersistentBackend,
    _balanced_grid,
    unsupported_reason,
)
from engine_runtime.executors.cuda.sampler import DeviceSampler
from engine_runtime.executors.cuda.weights import Network, build_network
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.models.moss_lm import MossLM, MossLMConfig
from engine_runtime.options import BlockFormats, WeightFormat
from tests.factories.tiny_lm import load_tiny

CPU = torch.device("cpu")
CONFIG = MossLMConfig(
    hidden_size=2048,
    intermediate_size=2048,
    num_attention_heads=16,
    num_key_value_heads=4,
    head_dim=128,
    shared_layers=1,
    text_layers=1,
    audio_layers=1,
    text_vocab=64,
    audio_vocab=128,
    modality_pad=63,
)
RELEASED = [(384, 4096), (256, 4096), (1536, 4096), (256, 12288)] * 36 + [(1032, 4096)]


@pytest.mark.parametrize(("most", "blocks"), [(132, 129), (128, 128), (148, 148), (100, 96)])
def test_tiles_are_spread_evenly(most: int, blocks: int) -> None:
    assert _balanced_grid(most, RELEASED) == blocks


def test_no_block_goes_without_a_tile() -> None:
    assert _balanced_grid(132, [(384, 2048), (16, 2048)]) == 16
    assert _balanced_grid(132, [(1, 1024)]) == 1


def test_a_cpu_is_refused() -> None:
    model, _ = load_tiny()
    network = build_network(
        model.config,
        model.state_dict().__getitem__,
        formats=BlockFormats(),
        dtype=torch.float32,
        device=torch.device("cpu"),
        max_seq_len=64,
    )
    cache = KVCache(model.config, 4, 16, dtype=torch.float32, device=torch.device("cpu"))
    assert "9.0" in str(unsupported_reason(network, cache))


def random_network(config: MossLMConfig, formats: BlockFormats | None = None) -> Network:
    return build_network(
        config,
        MossLM(config).state_dict().__getitem__,
        formats=formats or BlockFormats(),
        dtype=torch.bfloat16,
        device=CPU,
        max_seq_len=64,
    )


def cache_on_gpu(tokens_per_block: int) -> Any:
    pool = SimpleNamespace(device=torch.device("cuda"))
    return SimpleNamespace(pool=pool, tokens_per_block=tokens_per_block)


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch reports of an H200."""
    properties = SimpleNamespace(multi_processor_count=132, shared_memory_per_block_optin=227 << 10)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(
    ("changes", "formats", "tokens_per_block", "reason"),
    [
        ({}, BlockFormats("int4", "int4"), 16, None),
        ({}, BlockFormats("int4", "int8"), 16, "a single weight format"),
        ({}, BlockFormats(heads="fp8"), 16, "unquantized heads"),
        ({}, BlockFormats(), 24, "KV blocks of a multiple of 16"),
        ({"num_key_value_heads": 8}, BlockFormats(), 16, "four for each K/V head"),
        ({"qk_norm": False}, BlockFormats(), 16, "normalized queries and keys (qk_norm)"),
        ({"text_vocab": 72}, BlockFormats(), 16, "cannot tile a matrix of 72 x 2048"),
        ({"text_vocab": 48, "modality_pad": 0}, BlockFormats(), 16, "a tile of each matrix"),
    ],
)
@pytest.mark.slow
def test_sizes_that_the_kernel_cannot_run(
    changes: dict[str, Any], formats: BlockFormats, tokens_per_block: int, reason: str | None
) -> None:
    network = random_network(replace(CONFIG, **changes), formats)
    found = unsupported_reason(network, cache_on_gpu(tokens_per_block))
    assert found is None if reason is None else reason in str(found)


@pytest.mark.usefixtures("hopper")
@pytest.mark.slow
def test_too_little_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(persistent_backend, "shared_memory_limit", lambda device: 99 << 10)
    assert "shared memory" in str(unsupported_reason(random_network(CONFIG), cache_on_gpu(16)))


class FakeKernel:
    """Takes the place of the compiled kernel; keeps what it is launched with."""

    def __init__(
        self, source: str, headers: Mapping[str, str], name: str, shared_bytes: int, device: torch.device
    ) -> None:
        parameters = re.search(rf"{name}\((.*?)\) {{", source, re.DOTALL)
        assert parameters is not None
        self.parameters = [word.strip() for word in parameters[1].split(",")]
        self.layout, self.shared_bytes = headers["layout.cuh"], shared_bytes
        self.launches: list[tuple[int, int, Sequence[Tensor | int]]] = []

    def launch(
        self, blocks: int, threads: int, arguments: Sequence[Tensor | int], *, is_cooperative: bool
    ) -> None:
        assert is_cooperative  # its blocks wait for each other
        self.launches.append((blocks, threads, arguments))

    def constant(self, name: str) -> int:
        """A value of layout.cuh."""
        return int(dict(re.findall(r"#define (\w+) (\d+)", self.layout))[name])


@pytest.mark.parametrize("weight_format", ["native", "int4"])
@pytest.mark.usefixtures("hopper")
@pytest.mark.slow
def test_the_kernel_gets_what_it_declares(
    weight_format: WeightFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(persistent_backend, "CompiledKernel", FakeKernel)
    with torch.inference_mode():
        network = random_network(CONFIG, BlockFormats(weight_format))
        cache = KVCache(CONFIG, 4, 16, dtype=torch.bfloat16, device=CPU)
        inputs, outputs = StepInputs(4, CPU), DecodeOutputs.of(CONFIG, cache)
        sampler = DeviceSampler(CONFIG.text_vocab, CONFIG.audio_vocab, inputs, CPU)
        backend = PersistentBackend(network, cache, inputs, outputs, sampler)
        backend.run(StepShape(0, text=True, audio=False))
        backend.run(StepShape(0, text=True, audio=True))
    kernel = backend._kernel
    assert isinstance(kernel, FakeKernel)
    (blocks, threads, arguments), (_, _, others) = kernel.launches
    assert blocks == 4  # tiles of the smallest matrix, the head of 64 text ids
    assert threads == kernel.constant("BLOCK_THREADS")
    assert kernel.shared_bytes >= kernel.constant("AT_RING") + 6 * kernel.constant("STAGE_BYTES")
    assert len(arguments) == len(kernel.parameters)
    given = dict(zip((word.split()[-1].lstrip("*") for word in kernel.parameters), arguments, strict=True))
    for word, argument in zip(kernel.parameters, arguments, strict=True):
        assert isinstance(argument, Tensor) == ("*" in word), word
    ops, counters, splits = given["ops"], given["counters"], given["split_sums"]
    later = others[0]
    assert isinstance(ops, Tensor)
    assert isinstance(later, Tensor)
    assert isinstance(counters, Tensor)
    assert isinstance(splits, Tensor)
    assert given["num_records"] == len(ops) == 5 * 2 + 1 + 1
    assert len(later) == 5 * 3 + 2 + 1
    assert counters.tolist().index(1) == kernel.constant("LAUNCH_COUNTER")
    assert len(counters) > kernel.constant("FINISHED_COUNTER")
    assert splits.nbytes == kernel.constant("SPLIT_STATS_AT") + 16 * 16 * kernel.constant("KV_SPLITS")
