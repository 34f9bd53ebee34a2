"""Buffers of a step: fixed addresses, aligned, in the memory that the engine requires."""

from __future__ import annotations

import gc
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from engine_runtime.lm.step import ExecutorLimits
from engine_runtime.tensorrt.llm.contract import CONTRACTS, Contract
from engine_runtime.tensorrt.llm.session import EngineInputs, EngineOutputs, Memory
from tests.doubles.tensorrt.memory import KnownMemory, look_at

LIMITS = ExecutorLimits(
    text_vocab=512,
    audio_vocab=160,
    num_layers=7,
    num_blocks=10,
    tokens_per_block=32,
    max_seq_len=200,
    max_num_tokens=64,
)


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.name)
def test_every_input_is_in_the_required_memory(contract: Contract) -> None:
    memory = KnownMemory()
    inputs = EngineInputs(contract, LIMITS, memory)
    bindings = {binding.name: binding for binding in inputs.bindings()}
    specs = {spec.name: spec for spec in contract.inputs(LIMITS)}
    assert bindings.keys() == specs.keys()
    for name, binding in bindings.items():
        size = torch.Size(binding.shape).numel() * specs[name].dtype.itemsize
        assert memory.fault(binding.address, size, specs[name].place) is None
        assert binding.address % 256 == 0
    for place in ("host", "device"):
        spans = sorted(
            (binding.address, torch.Size(binding.shape).numel() * specs[name].dtype.itemsize)
            for name, binding in bindings.items()
            if specs[name].place == place
        )
        for (start, size), (following, _) in pairwise(spans):
            assert start + size <= following


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.name)
def test_values_arrive_when_they_are_sent(contract: Contract) -> None:
    inputs = EngineInputs(contract, LIMITS, KnownMemory())
    offsets = torch.arange(14, dtype=torch.int32).view(1, 1, 2, 7)
    step = {
        "input_ids": torch.tensor([5, 6, 7], dtype=torch.int32),
        "kv_cache_block_offsets": offsets,
        "host_past_key_value_lengths": torch.tensor([9], dtype=torch.int32),
    }

    def seen(name: str) -> torch.Tensor:
        (binding,) = (binding for binding in inputs.bindings() if binding.name == name)
        return look_at(binding.address, binding.shape, torch.int32).clone()

    addresses = [binding.address for binding in inputs.bindings()]
    inputs.write(step)
    assert seen("host_past_key_value_lengths").tolist() == [9]
    assert seen("input_ids").tolist() == [0, 0, 0]
    inputs.send()
    assert seen("input_ids").tolist() == [5, 6, 7]
    wanted = offsets if contract.name == "1.x" else offsets[0]
    assert torch.equal(seen("kv_cache_block_offsets"), wanted)
    inputs.write(step | {"input_ids": torch.tensor([8], dtype=torch.int32)})
    inputs.set_past(256)
    inputs.send()
    assert seen("input_ids").tolist() == [8]
    assert seen("host_past_key_value_lengths").tolist() == [256]
    assert addresses == [binding.address for binding in inputs.bindings()]


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.name)
def test_a_step_of_fewer_sequences_lies_at_the_start_of_its_buffers(contract: Contract) -> None:
    inputs = EngineInputs(contract, replace(LIMITS, max_batch_size=4), KnownMemory())
    offsets = torch.arange(28, dtype=torch.int32).view(1, 2, 2, 7)
    step = {
        "input_ids": torch.tensor([5, 6, 7], dtype=torch.int32),
        "last_token_ids": torch.tensor([2, 3], dtype=torch.int32),
        "kv_cache_block_offsets": offsets,
        "cache_indirection": torch.ones((2, 1, 200), dtype=torch.int32),
    }
    inputs.write(step)
    inputs.send()
    bindings = {binding.name: binding for binding in inputs.bindings()}
    for name, value in step.items():
        wanted = value[0] if name in contract.without_pool_axis else value
        assert bindings[name].shape == wanted.shape
        if name == "cache_indirection":
            wanted = torch.zeros_like(wanted)  # only its shape is read
        assert torch.equal(look_at(bindings[name].address, bindings[name].shape, torch.int32), wanted)


def test_outputs_are_spoiled_fetched_and_kept() -> None:
    memory = KnownMemory()
    dtypes = {"logits": torch.float32, "audio_logits": torch.bfloat16}
    outputs = EngineOutputs({"logits": 5, "audio_logits": 3}, dtypes, memory, max_batch_size=3)
    text, audio = outputs.bindings(2)
    assert (text.shape, audio.shape) == ((2, 5), (2, 3))
    look_at(text.address, (2, 5), torch.float32).fill_(2.0)
    look_at(audio.address, (2, 3), torch.bfloat16).fill_(1.5)
    outputs.fetch(2)
    values = outputs.values(2)
    assert values["audio_logits"].dtype == torch.float32
    outputs.spoil(2)
    outputs.fetch(2)
    assert all(value.isnan().all() for value in outputs.values(2).values())
    assert values["logits"].tolist() == [[2.0] * 5] * 2
    assert values["audio_logits"].tolist() == [[1.5] * 3] * 2


def test_memory_goes_when_nobody_holds_it() -> None:
    memory = KnownMemory()
    inputs = EngineInputs(CONTRACTS[0], LIMITS, memory)
    (address,) = {b.address for b in inputs.bindings() if b.name == "input_ids"}
    assert memory.fault(address, 4, "device") is None
    del inputs
    gc.collect()
    assert memory.fault(address, 4, "device") == "points to nothing that lives"


def test_memory_is_zero() -> None:
    memory = Memory(torch.device("cpu"))
    for block in (memory.on_device(100), memory.on_host(100)):
        assert (block.dtype, block.shape) == (torch.uint8, (100,))
        assert not block.any()
