"""Known mistakes in packing several sequences, made deliberately: each is rejected or changes the logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine_runtime.errors import ExecutorError
from engine_runtime.lm.block_manager import Sequence
from engine_runtime.lm.paged_lm import PagedLM, StepRequest
from engine_runtime.models.moss_lm import MossLM
from engine_runtime.tensorrt.llm import executor, step_tensors
from engine_runtime.tensorrt.llm.step_check import SequenceLengths
from engine_runtime.tensorrt.llm.step_tensors import StepInputBuilder
from tests.factories.engine_lm import executor_of, make_engine_paged
from tests.factories.steps import next_row
from tests.factories.tiny_lm import LOGIT_TOLERANCE, load_tiny, make_paged

Bound = dict[str, Tensor]
MIXED, DECODE = "prefill beside decode", "decode"
LENGTHS = (50, 45, 60)
NEW = ([5], list(range(30)), [6], list(range(40, 52)))
"""Rows of a mixed step: the first three sequences are in the cache, the last is new. Two have 4 blocks."""


@pytest.fixture(scope="module")
def model() -> MossLM:
    return load_tiny()[0]


def requests_of(sequences: list[Sequence], rows: tuple[list[int], ...]) -> list[StepRequest]:
    return [
        StepRequest(sequence, ids, is_prefill=len(ids) > 1)
        for sequence, ids in zip(sequences, rows, strict=True)
    ]


def prefilled(paged: PagedLM) -> list[Sequence]:
    sequences = [Sequence() for _ in NEW]
    for sequence, length in zip(sequences, LENGTHS, strict=False):
        paged.prefill(sequence, [7 * row % 500 for row in range(length)])
    return sequences


def distance(got: Tensor | None, wanted: Tensor | None) -> float:
    assert got is not None
    assert wanted is not None
    return float((got - wanted).abs().max())


def differences(
    model: MossLM, folder: Path, tamper: Callable[[Bound, Bound], None], contract: str = "1.x"
) -> dict[str, float]:
    """Largest distance to the torch executor's logits in a mixed step, and in a decode step after it."""
    paged, trt = make_engine_paged(model, folder, contract, max_batch_size=4)
    plain = make_paged(model)
    mine, other = prefilled(paged), prefilled(plain)
    found = {}
    for name, rows in ((MIXED, NEW), (DECODE, ([8], [9], [10], [11]))):
        wanted = plain.step(requests_of(other, rows))
        trt.tamper = tamper
        got = paged.step(requests_of(mine, rows))
        trt.tamper = None
        pairs = [(a.text_logits, b.text_logits) for a, b in zip(got, wanted, strict=True)]
        pairs += [(a.audio_logits, b.audio_logits) for a, b in zip(got, wanted, strict=True)]
        found[name] = max(distance(a, b) for a, b in pairs)
    return found


@pytest.mark.parametrize("contract", ["1.x", "0.13"])
def test_without_a_mistake_there_is_no_difference(model: MossLM, tmp_path: Path, contract: str) -> None:
    found = differences(model, tmp_path, lambda device, host: None, contract)
    assert max(found.values()) < LOGIT_TOLERANCE


def _ids_in_another_order(device: Bound, host: Bound) -> None:
    device["input_ids"].copy_(device["input_ids"].flip(0))


def _tables_in_another_order(device: Bound, host: Bound) -> None:
    pair = _of_four_blocks(device)
    device["kv_cache_block_offsets"][:, pair] = device["kv_cache_block_offsets"][:, pair.flip(0)]


def _last_rows_not_counted_through(device: Bound, host: Bound) -> None:
    last = device["last_token_ids"]
    last[1:] -= last[:-1].clone()


def _last_rows_from_zero(device: Bound, host: Bound) -> None:
    device["last_token_ids"][1:] -= 1


def _lengths_in_another_order(device: Bound, host: Bound) -> None:
    pair = _of_four_blocks(device)
    device["sequence_length"][pair] = device["sequence_length"][pair.flip(0)]


def _of_four_blocks(device: Bound) -> Tensor:
    (pair,) = torch.where(-(-device["sequence_length"] // 16) == 4)
    assert len(pair) == 2
    return pair


def _offsets_in_another_order(device: Bound, host: Bound) -> None:
    _flip_contexts(host["host_context_lengths"], host)


def _queries_in_another_order(device: Bound, host: Bound) -> None:
    _flip_contexts(device["context_lengths"], host)


def _flip_contexts(lengths: Tensor, host: Bound) -> None:
    count = int((host["host_request_types"] == 0).sum())
    lengths[:count] = lengths[:count].flip(0)


def _grid_of_the_shortest(device: Bound, host: Bound) -> None:
    past, types = host["host_past_key_value_lengths"], host["host_request_types"]
    for kind in types.unique():
        past[types == kind] = past[types == kind].min()


@pytest.mark.parametrize(
    ("tamper", "wrong"),
    [
        (_ids_in_another_order, (MIXED, DECODE)),
        (_tables_in_another_order, (MIXED, DECODE)),
        (_last_rows_not_counted_through, (MIXED, DECODE)),
        (_last_rows_from_zero, (MIXED, DECODE)),
        (_lengths_in_another_order, (MIXED, DECODE)),
        (_offsets_in_another_order, (MIXED,)),
        (_queries_in_another_order, (MIXED,)),
        (_grid_of_the_shortest, (MIXED, DECODE)),
    ],
)
def test_wrong_values_yield_wrong_logits(
    model: MossLM, tmp_path: Path, tamper: Callable[[Bound, Bound], None], wrong: tuple[str, ...]
) -> None:
    found = differences(model, tmp_path, tamper)
    for name in wrong:
        assert not found[name] < 10 * LOGIT_TOLERANCE, found


def _one_table(device: Bound, host: Bound) -> None:
    device["kv_cache_block_offsets"][:, 1:] = device["kv_cache_block_offsets"][:, :1]


def _length_of_the_longest(device: Bound, host: Bound) -> None:
    """Entries of a table after the last block are those of block 0."""
    device["sequence_length"].fill_(device["sequence_length"].max())


@pytest.mark.parametrize("tamper", [_one_table, _length_of_the_longest])
def test_blocks_that_two_sequences_write(
    model: MossLM, tmp_path: Path, tamper: Callable[[Bound, Bound], None]
) -> None:
    """The result depends on which of them is first."""
    with pytest.raises(AssertionError, match="share a written block"):
        differences(model, tmp_path, tamper)


@contextmanager
def unchecked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The engine alone decides."""

    def lengths(spec: object, limits: object, tensors: Bound, memory: object) -> tuple[SequenceLengths, ...]:
        count = len(tensors["host_request_types"])
        rows = len(tensors["input_ids"])
        return (SequenceLengths(0, rows - count + 1), *[SequenceLengths(0, 1)] * (count - 1))

    with monkeypatch.context() as patch:
        patch.setattr(executor, "check_step", lengths)
        yield


def test_generation_before_context(model: MossLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rejected before the engine sees it, and the plugin itself would reject it."""
    paged, trt = make_engine_paged(model, tmp_path, max_batch_size=4)
    sequences = prefilled(paged)
    monkeypatch.setattr(executor, "packing_order", lambda sequences: range(len(sequences)))
    enqueued = trt.num_enqueues
    with pytest.raises(ExecutorError, match="context requests must come before generation requests"):
        paged.step(requests_of(sequences, NEW))
    assert trt.num_enqueues == enqueued
    with unchecked(monkeypatch), pytest.raises(ExecutorError, match="kGENERATION"):
        paged.step(requests_of(sequences, NEW))


def test_two_rows_of_one_generation_request(
    model: MossLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paged, _ = make_engine_paged(model, tmp_path, max_batch_size=4)
    tensors = mixed_tensors(paged)
    types = tensors["host_request_types"].clone()
    types[1] = 1  # twelve rows of a prefill that pass for a decode step
    with pytest.raises(ExecutorError, match=r"^host_context_lengths: "):
        executor_of(paged).run(tensors | {"host_request_types": types})
    with unchecked(monkeypatch), pytest.raises(ExecutorError, match=r"14 tokens|speculative decoding"):
        executor_of(paged).run(tensors | {"host_request_types": types})


def mixed_tensors(paged: PagedLM) -> Bound:
    """A good mixed step: two prefills, two decode rows."""
    sequences = prefilled(paged)
    rows = [next_row(paged, sequence, ids) for sequence, ids in zip(sequences, NEW, strict=True)]
    order = step_tensors.packing_order(rows)
    return StepInputBuilder(paged.executor.limits, paged.cache).fill([rows[index] for index in order])


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("host_request_types", lambda value: value.flip(0)),
        ("host_context_lengths", lambda value: value.flip(0)),
        ("host_past_key_value_lengths", lambda value: value.flip(0)),
        ("last_token_ids", lambda value: value - 1),
        ("last_token_ids", lambda value: torch.tensor([30, 12, 1, 1], dtype=torch.int32)),
        ("sequence_length", lambda value: value.flip(0)),
        ("context_lengths", lambda value: value.flip(0)),
        ("position_ids", lambda value: value.flip(0)),
        ("kv_cache_block_offsets", lambda value: value[:, :1].repeat(1, 4, 1, 1)),
        ("host_kv_cache_block_offsets", lambda value: value[:, :1].repeat(1, 4, 1, 1)),
        ("sequence_length", lambda value: value[:3]),
        ("kv_cache_block_offsets", lambda value: value[:, :3]),
        ("cache_indirection", lambda value: value[:3]),
    ],
)
def test_the_executor_does_not_let_them_through(
    model: MossLM, tmp_path: Path, name: str, change: Callable[[Tensor], Tensor]
) -> None:
    paged, trt = make_engine_paged(model, tmp_path, max_batch_size=4)
    good = mixed_tensors(paged)
    enqueued = trt.num_enqueues
    with pytest.raises(ExecutorError, match=r"^(\w+): "):
        executor_of(paged).run(good | {name: change(good[name]).contiguous()})
    assert trt.num_enqueues == enqueued
    logits = executor_of(paged).run(good)["logits"]
    assert logits.shape == (4, model.config.text_vocab)


def test_a_changed_table_is_checked_again(model: MossLM, tmp_path: Path) -> None:
    """A step after one with the same tables is not; so a change of their values must be noticed."""
    paged, _ = make_engine_paged(model, tmp_path, max_batch_size=4)
    tensors = mixed_tensors(paged)
    executor_of(paged).run(tensors)
    offsets = tensors["kv_cache_block_offsets"]
    with torch.inference_mode():
        offsets[0, 3] = offsets[0, 2]
    with pytest.raises(ExecutorError, match=r"block_offsets: a sequence would write to a block"):
        executor_of(paged).run(tensors)


def test_sizes_of_one_name_have_to_agree(
    model: MossLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorRT itself compares the dimensions of the tensors that have one entry per sequence."""
    paged, _ = make_engine_paged(model, tmp_path, max_batch_size=4)
    good = mixed_tensors(paged)
    with unchecked(monkeypatch), pytest.raises(ExecutorError, match="batch_size_beam_width"):
        executor_of(paged).run(good | {"sequence_length": good["sequence_length"][:3]})
