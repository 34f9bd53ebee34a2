"""Named tensors of a step: shape, dtype and value of each are checked."""

from __future__ import annotations

import pytest
import torch

from engine_runtime.errors import ExecutorError
from engine_runtime.lm.block_manager import Sequence
from engine_runtime.lm.paged_lm import PagedLM
from engine_runtime.models.moss_lm import MossLM
from engine_runtime.tensorrt.llm.step_check import check_step
from engine_runtime.tensorrt.llm.step_tensors import step_spec
from tests.factories.steps import step_tensors
from tests.factories.tiny_lm import load_tiny, make_paged

Tiny = tuple[MossLM, dict[str, torch.Tensor]]


@pytest.fixture(scope="module")
def tiny() -> Tiny:
    return load_tiny()


def good_step(paged: PagedLM) -> dict[str, torch.Tensor]:
    """Tensors of a valid decode step after 20 rows."""
    sequence = Sequence()
    paged.prefill(sequence, list(range(20)))
    return step_tensors(paged, sequence, [5])


def check(paged: PagedLM, tensors: dict[str, torch.Tensor]) -> None:
    limits = paged.executor.limits
    check_step(step_spec(limits), limits, tensors)


@pytest.mark.parametrize(
    "name", [spec.name for spec in step_spec(make_paged(load_tiny()[0]).executor.limits)]
)
def test_every_tensor_is_checked(tiny: Tiny, name: str) -> None:
    model, _ = tiny
    paged = make_paged(model)
    good = good_step(paged)
    check(paged, good)
    bad = [
        good | {name: good[name].to(torch.float32)},
        good | {name: good[name][None]},
        {key: value for key, value in good.items() if key != name},
    ]
    if name != "host_request_types":  # it says how many sequences the others are of
        bad.append(good | {name: torch.cat((good[name], good[name]), dim=-1)})
    for tensors in bad:
        with pytest.raises(ExecutorError, match=f"^{name}: "):
            check(paged, tensors)


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("host_request_types", [2], "host_request_types"),
        ("host_request_types", [1, 1], "last_token_ids"),
        ("host_request_types", [1] * 65, "host_request_types"),
        ("host_request_types", [], "host_request_types"),
        ("host_request_types", [0], "host_context_lengths"),
        ("host_past_key_value_lengths", [21], "position_ids"),
        ("host_past_key_value_lengths", [-2], "host_past_key_value_lengths"),
        ("host_past_key_value_lengths", [1024], "host_past_key_value_lengths"),
        ("input_ids", [-1], "input_ids"),
        ("position_ids", [19], "position_ids"),
        ("last_token_ids", [0], "last_token_ids"),
        ("sequence_length", [20], "sequence_length"),
        ("context_lengths", [19], "context_lengths"),
        ("host_kv_cache_pool_pointers", [[0, 0]], "host_kv_cache_pool_pointers"),
        ("host_kv_cache_pool_mapping", [[0, 0]] * 7, "host_kv_cache_pool_mapping"),
        ("host_max_attention_window_sizes", [20] * 7, "host_max_attention_window_sizes"),
        ("host_sink_token_length", [4], "host_sink_token_length"),
    ],
)
def test_values_that_do_not_fit_are_refused(tiny: Tiny, name: str, value: list[object], named: str) -> None:
    model, _ = tiny
    paged = make_paged(model)
    good = good_step(paged)
    with pytest.raises(ExecutorError, match=f"^{named}: "):
        check(paged, good | {name: torch.tensor(value, dtype=good[name].dtype)})


@pytest.mark.parametrize("change", ["outside", "negative", "v_like_k", "not_a_block", "twice"])
@pytest.mark.parametrize("name", ["kv_cache_block_offsets", "host_kv_cache_block_offsets"])
def test_offsets_that_would_overwrite_memory_are_refused(tiny: Tiny, name: str, change: str) -> None:
    model, _ = tiny
    paged = make_paged(model)
    good = good_step(paged)
    offsets = good[name].clone()
    stride = model.config.num_layers * 2
    if change == "outside":
        offsets[0, 0, :, 1] = torch.tensor([64 * stride, 64 * stride + 1])
    elif change == "negative":
        offsets[0, 0, :, 0] = torch.tensor([-stride, -stride + 1])
    elif change == "v_like_k":
        offsets[0, 0, 1] = offsets[0, 0, 0]
    elif change == "not_a_block":
        offsets += 1
    else:
        offsets[0, 0, :, 1] = offsets[0, 0, :, 0]
    with pytest.raises(ExecutorError, match=f"^{name}: "):
        check(paged, good | {name: offsets})
