"""Tensor lists of engines: those of 1.x and 0.13 are accepted, others are rejected by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from engine_runtime.errors import EngineError
from engine_runtime.lm.step import ExecutorLimits
from engine_runtime.tensorrt.engine import EngineTensor
from engine_runtime.tensorrt.llm.contract import (
    CONTRACTS,
    capacity_of,
    check_tensors,
    choose_contract,
    profile_for,
)

# Written down from the library's documents and sources, not from our code: name -> axes.
BOTH = {
    "input_ids": 1,
    "position_ids": 1,
    "last_token_ids": 1,
    "sequence_length": 1,
    "context_lengths": 1,
    "host_context_lengths": 1,
    "host_past_key_value_lengths": 1,
    "host_request_types": 1,
    "host_max_attention_window_sizes": 1,
    "host_sink_token_length": 1,
    "cache_indirection": 3,
    "host_runtime_perf_knobs": 1,
}
OLD = BOTH | {
    "kv_cache_block_offsets": 3,
    "host_kv_cache_block_offsets": 3,
    "host_kv_cache_pool_pointers": 1,
}
NEW = BOTH | {
    "kv_cache_block_offsets": 4,
    "host_kv_cache_block_offsets": 4,
    "host_kv_cache_pool_pointers": 2,
    "host_kv_cache_pool_mapping": 2,
    "host_context_progress": 1,
}
WIDE = {"host_kv_cache_pool_pointers", "host_runtime_perf_knobs", "host_context_progress"}
LIMITS = ExecutorLimits(
    text_vocab=512,
    audio_vocab=160,
    num_layers=7,
    num_blocks=10,
    tokens_per_block=32,
    max_seq_len=1000,
    max_num_tokens=64,
)
WIDTHS = {"logits": 512, "audio_logits": 160}


def listed(ranks: dict[str, int]) -> list[EngineTensor]:
    """Inputs of any size, with the values that the library uses for them."""
    return [
        EngineTensor(name, True, torch.int64 if name in WIDE else torch.int32, (-1,) * rank)
        for name, rank in ranks.items()
    ]


def engine() -> dict[str, EngineTensor]:
    """An engine that fits LIMITS."""
    fixed = {
        "host_kv_cache_pool_pointers": (1, 2),
        "host_kv_cache_pool_mapping": (7, 2),
        "host_max_attention_window_sizes": (7,),
        "host_sink_token_length": (1,),
        "host_runtime_perf_knobs": (16,),
        "host_context_progress": (1,),
    }
    most = {
        "input_ids": (64,),
        "position_ids": (64,),
        "cache_indirection": (1, 1, 1024),
        "kv_cache_block_offsets": (1, 1, 2, 32),
        "host_kv_cache_block_offsets": (1, 1, 2, 32),
    }
    found = {}
    for tensor in listed(NEW):
        if tensor.name in fixed:
            found[tensor.name] = replace(tensor, shape=fixed[tensor.name])
        else:
            largest = most.get(tensor.name, (1,))
            least = tuple(2 if size == 2 else 1 for size in largest)
            found[tensor.name] = replace(tensor, ranges=((least, largest, largest),))
    for name, width in WIDTHS.items():
        found[name] = EngineTensor(name, False, torch.float32, (-1, width))
    return found


def check(tensors: dict[str, EngineTensor], limits: ExecutorLimits = LIMITS) -> None:
    check_tensors(list(tensors.values()), choose_contract(tensors.values()), limits, WIDTHS)


def test_the_lists_of_both_releases() -> None:
    assert (len(NEW), len(OLD)) == (17, 15)
    assert choose_contract(listed(NEW)).name == "1.x"
    assert choose_contract(listed(OLD)).name == "0.13"


def test_places_and_numbers_of_every_input() -> None:
    for contract, ranks in zip(CONTRACTS, (NEW, OLD), strict=True):
        for spec in contract.inputs(LIMITS):
            assert spec.place == ("host" if spec.name.startswith("host_") else "device")
            assert spec.dtype == (torch.int64 if spec.name in WIDE else torch.int32)
            assert len(spec.shape) == ranks[spec.name]


def test_a_step_loses_what_0_13_does_not_know() -> None:
    step = {name: torch.zeros((1,) * rank) for name, rank in NEW.items()}
    assert {name: value.dim() for name, value in CONTRACTS[0].adapt(step).items()} == NEW
    adapted = CONTRACTS[1].adapt(step)
    assert {name: value.dim() for name, value in adapted.items()} == OLD
    offsets = "kv_cache_block_offsets"
    assert adapted[offsets].data_ptr() == step[offsets].data_ptr()


@pytest.mark.parametrize(
    ("ranks", "named"),
    [
        (
            {name: rank for name, rank in NEW.items() if name != "host_context_progress"},
            "lacks host_c",
        ),
        (OLD | {"host_context_progress": 1}, "unlike 0.13 it requires host_context_progress"),
        (NEW | {"attention_mask": 2}, "requires attention_mask"),
        (NEW | {"input_ids": 2}, "takes input_ids with 2 axes"),
        (NEW | {"kv_cache_block_offsets": 3}, "takes kv_cache_block_offsets with 3 axes"),
        ({"input_ids": 1, "position_ids": 1}, "lacks cache_indirection"),
    ],
)
def test_other_lists_are_refused_by_name(ranks: dict[str, int], named: str) -> None:
    with pytest.raises(EngineError, match=named):
        choose_contract(listed(ranks))


def test_an_engine_that_fits() -> None:
    check(engine())
    capacity = capacity_of(engine().values())
    assert (capacity.num_tokens, capacity.seq_len, capacity.max_blocks) == (64, 1024, 32)
    assert capacity.batch_size == 1


@pytest.mark.parametrize(
    ("name", "change", "named"),
    [
        ("host_max_attention_window_sizes", {"shape": (6,)}, r"needs shape \[7\], .* takes \[6\]"),
        ("host_kv_cache_pool_mapping", {"shape": (9, 2)}, r"needs shape \[7, 2\]"),
        ("input_ids", {"dtype": torch.int64}, r"expected torch.int32, got torch.int64"),
        ("input_ids", {"ranges": (((1,), (1,), (32,)),)}, r"needs shape \[64\], .* takes \[1\] to \[32\]"),
        ("input_ids", {"ranges": (((2,), (2,), (64,)),)}, r"needs shape \[1\]"),
        (
            "cache_indirection",
            {"ranges": (((1, 1, 1), (1, 1, 1), (1, 1, 999)),)},
            r"needs shape \[1, 1, 1000\]",
        ),
        ("kv_cache_block_offsets", {"ranges": (((1, 1, 2, 1),) * 2 + ((1, 1, 2, 31),),)}, r"\[1, 1, 2, 32\]"),
        ("host_request_types", {"ranges": (((2,), (2,), (4,)),)}, r"needs shape \[1\], .* \[2\] to \[4\]"),
        ("logits", {"shape": (-1, 500)}, r"expected \[sequences, 512\], got \[-1, 500\]"),
        ("logits", {"shape": (-1, -1, 512)}, r"expected \[sequences, 512\]"),
        ("audio_logits", {"dtype": torch.int32}, "expected floating-point"),
        ("audio_logits", {"dtype": None}, "expected floating-point"),
        ("audio_logits", {"name": "audio"}, "the engine has no such output"),
        ("audio_logits", {"name": "hidden_states"}, "hidden_states: unexpected output"),
    ],
)
def test_what_does_not_fit_is_named(name: str, change: dict[str, Any], named: str) -> None:
    tensors = engine()
    tensors[name] = replace(tensors[name], **change)
    with pytest.raises(EngineError, match=rf"{name}: .*{named}|{named}"):
        check({tensor.name: tensor for tensor in tensors.values()})


def test_everything_that_does_not_fit_is_reported_at_once() -> None:
    with pytest.raises(EngineError) as caught:
        check(engine(), replace(LIMITS, num_layers=8, max_seq_len=2000))
    with pytest.raises(EngineError, match=r"sequence_length: needs shape \[2\], .* takes \[1\] to \[1\]"):
        check(engine(), replace(LIMITS, max_batch_size=2))
    for name in ("host_kv_cache_pool_mapping", "cache_indirection", "kv_cache_block_offsets"):
        assert f"{name}: needs shape" in str(caught.value)
    assert "moss-voice trt build" in str(caught.value)


def test_the_narrowest_profile_is_taken() -> None:
    tensors = engine()
    ranges = (((1,), (1,), (64,)), ((1,), (1,), (1,)), ((1,), (8,), (16,)))
    tensors["input_ids"] = replace(tensors["input_ids"], ranges=ranges)
    assert [profile_for(tensors.values(), rows) for rows in (1, 2, 16, 17, 64)] == [1, 2, 2, 0, 0]
    with pytest.raises(EngineError, match="65 tokens at once"):
        profile_for(tensors.values(), 65)
