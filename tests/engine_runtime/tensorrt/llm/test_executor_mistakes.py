"""Known mistakes in running such an engine, made deliberately: each is rejected or changes the logits.

They are those of a public attempt with TensorRT-LLM 0.13 on an RTX 4090, where each went unnoticed. If they
were not detected here, the comparison with the torch executor would prove nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine_runtime.errors import EngineError
from engine_runtime.lm.block_manager import BlockManager, Sequence
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.lm.paged_lm import PagedLM
from engine_runtime.models.moss_lm import MossLM
from engine_runtime.tensorrt.llm.executor import TrtllmExecutor
from engine_runtime.tensorrt.llm.session import EngineSession
from tests.factories.engine_lm import make_engine_paged
from tests.factories.engine_plans import plan_of
from tests.factories.tiny_lm import LOGIT_TOLERANCE, as_ids, load_tiny, make_paged

Tiny = tuple[MossLM, dict[str, Tensor]]
Bound = dict[str, Tensor]
PREFILL, SECOND, DECODE = "first prefill", "second prefill", "decode"


@pytest.fixture(scope="module")
def tiny() -> Tiny:
    return load_tiny()


def differences(paged: PagedLM, model: MossLM, cases: dict[str, Tensor]) -> dict[str, float]:
    """Largest distance to the torch executor's logits, audio and text, at each kind of step."""
    ids, plain = as_ids(cases["a.rows"], model), make_paged(model)
    mine, other, found = Sequence(), Sequence(), {}
    steps = [
        (PREFILL, lambda lm, sequence: lm.prefill(sequence, ids[:40])),
        (SECOND, lambda lm, sequence: lm.prefill(sequence, ids[40:56])),
        (DECODE, lambda lm, sequence: lm.decode(sequence, ids[56])),
    ]
    for name, run in steps:
        got, wanted = run(paged, mine), run(plain, other)
        pairs = ((got.text_logits, wanted.text_logits), (got.audio_logits, wanted.audio_logits))
        found[name] = max(float((a - b).abs().max()) for a, b in pairs)
    return found


def assert_right(found: dict[str, float], *names: str) -> None:
    for name in names:
        assert found[name] < LOGIT_TOLERANCE, found


def assert_wrong(found: dict[str, float], *names: str) -> None:
    for name in names:
        assert not found[name] < 10 * LOGIT_TOLERANCE, found


@pytest.mark.parametrize("contract", ["1.x", "0.13"])
def test_without_a_mistake_there_is_no_difference(tiny: Tiny, tmp_path: Path, contract: str) -> None:
    model, cases = tiny
    paged, _ = make_engine_paged(model, tmp_path, contract)
    assert_right(differences(paged, model, cases), PREFILL, SECOND, DECODE)


def test_both_tails_number_their_layers_alike(tiny: Tiny, tmp_path: Path) -> None:
    """With as many layers in its arrays as it numbers, such an engine is refused; with all of them its tails
    overwrite each other's keys, which only a comparison shows."""
    model, cases = tiny
    indices = [0, 1, 2, 3, 4, 3, 4]
    with pytest.raises(EngineError, match=r"host_max_attention_window_sizes: needs shape \[7\]"):
        make_engine_paged(model, tmp_path, layer_indices=indices)
    paged, _ = make_engine_paged(model, tmp_path, layer_indices=[0, 1, 2, 3, 6, 3, 6])
    assert_wrong(differences(paged, model, cases), DECODE)


def test_a_share_of_the_text_tail_in_the_audio_tail(tiny: Tiny, tmp_path: Path) -> None:
    model, cases = tiny
    paged, _ = make_engine_paged(model, tmp_path, linearised=1e-2)
    assert_wrong(differences(paged, model, cases), PREFILL, SECOND, DECODE)


def tampered(model: MossLM, folder: Path, tamper: Callable[[Bound, Bound], None], **build: Any) -> PagedLM:
    """An engine that is bound to other values than the executor wrote."""
    paged, trt = make_engine_paged(model, folder, **build)
    trt.tamper = tamper
    return paged


def _same_offsets(device: Bound, host: Bound) -> None:
    """K and V of a block at the block's number."""
    stride = 2 * 7
    device["kv_cache_block_offsets"].copy_(device["kv_cache_block_offsets"] // stride)


def _keys_for_values(device: Bound, host: Bound) -> None:
    device["kv_cache_block_offsets"][:, :, 1] = device["kv_cache_block_offsets"][:, :, 0]


def _zero_based(device: Bound, host: Bound) -> None:
    if device["input_ids"].numel() > 1:
        device["last_token_ids"] -= 1


def _always_context(device: Bound, host: Bound) -> None:
    host["host_request_types"].zero_()


def _stale_length(device: Bound, host: Bound) -> None:
    device["sequence_length"] -= 1


def _past_without_the_chunk(device: Bound, host: Bound) -> None:
    if int(host["host_request_types"]) == 0:
        host["host_past_key_value_lengths"] -= device["input_ids"].numel()


def _short_window(device: Bound, host: Bound) -> None:
    host["host_max_attention_window_sizes"].fill_(8)


def _one_layer_for_all(device: Bound, host: Bound) -> None:
    host["host_kv_cache_pool_mapping"].zero_()


def _graph_of_a_shorter_cache(device: Bound, host: Bound) -> None:
    if int(host["host_request_types"]) == 1:
        host["host_past_key_value_lengths"].fill_(20)


@pytest.mark.parametrize(
    ("tamper", "wrong"),
    [
        (_same_offsets, (PREFILL, SECOND, DECODE)),
        (_keys_for_values, (PREFILL, SECOND, DECODE)),
        (_zero_based, (PREFILL, SECOND)),
        (_always_context, (DECODE,)),
        (_stale_length, (PREFILL, SECOND, DECODE)),
        (_past_without_the_chunk, (SECOND,)),
        (_short_window, (PREFILL, SECOND, DECODE)),
        (_one_layer_for_all, (SECOND, DECODE)),
        (_graph_of_a_shorter_cache, (DECODE,)),
    ],
)
def test_wrong_values_yield_wrong_logits(
    tiny: Tiny, tmp_path: Path, tamper: Callable[[Bound, Bound], None], wrong: tuple[str, ...]
) -> None:
    model, cases = tiny
    assert_wrong(differences(tampered(model, tmp_path, tamper), model, cases), *wrong)


def test_positions_are_not_what_rotations_come_from(tiny: Tiny, tmp_path: Path) -> None:
    """The plugin takes them from the length; that is why this value alone would hide a wrong length."""
    model, cases = tiny

    def no_positions(device: Bound, host: Bound) -> None:
        device["position_ids"].zero_()

    paged = tampered(model, tmp_path, no_positions)
    assert_right(differences(paged, model, cases), PREFILL, SECOND, DECODE)


def test_a_prefill_that_does_not_read_the_cache(tiny: Tiny, tmp_path: Path) -> None:
    """Without paged-context attention the first prefill is right and says nothing of the cache."""
    model, cases = tiny
    paged, _ = make_engine_paged(model, tmp_path, paged_context_fmha=False)
    found = differences(paged, model, cases)
    assert_right(found, PREFILL)
    assert_wrong(found, SECOND)


def test_a_pool_of_another_layout(tiny: Tiny, tmp_path: Path) -> None:
    """[layers, blocks, ...], as of the other executors: as many bytes, and wrong where a block is copied."""
    model, cases = tiny
    ids = as_ids(cases["a.rows"], model)

    def after_a_fork(paged: PagedLM) -> Tensor:
        first = Sequence()
        paged.prefill(first, ids[:20])
        audio = paged.prefill(paged.blocks.fork(first), [3, 1, 4]).audio_logits
        assert audio is not None
        return audio

    wanted = after_a_fork(make_paged(model))
    good, trt = make_engine_paged(model, tmp_path)
    torch.testing.assert_close(after_a_fork(good), wanted, atol=LOGIT_TOLERANCE, rtol=0)
    blocks = good.cache.num_blocks
    wrong = KVCache(model.config, blocks, good.cache.tokens_per_block, keep_trunk=False)
    trt.memory.know(wrong.pool, "device")
    session = EngineSession(tmp_path / "rank0.engine", trt.library, trt.memory)
    executor = TrtllmExecutor(session, model.config, wrong, trt.memory, max_seq_len=1024, max_num_tokens=512)
    found = after_a_fork(PagedLM(executor, wrong, BlockManager(blocks, 16)))
    assert float((found - wanted).abs().max()) > 10 * LOGIT_TOLERANCE


def test_a_model_built_otherwise(tiny: Tiny, tmp_path: Path) -> None:
    """No norm of queries and keys, another rotation, one final norm for both tails."""
    for change in ("no_norms", "rotation", "final_norm"):
        model, cases = load_tiny()
        built = load_tiny()[0]
        with torch.no_grad():
            if change == "no_norms":
                for name, parameter in built.named_parameters():
                    if name.endswith(("q_norm.weight", "k_norm.weight")):
                        parameter.fill_(1.0)
            elif change == "rotation":
                object.__setattr__(built.config, "rope_theta", 1e4)
            else:
                built.model.audio_norm.weight.copy_(built.model.text_norm.weight)
        paged, _ = make_engine_paged(model, tmp_path, plan=plan_of(built))
        assert_wrong(differences(paged, model, cases), PREFILL, DECODE)


def test_an_engine_of_another_tensorrt(tiny: Tiny, tmp_path: Path) -> None:
    model, _ = tiny
    with pytest.raises(EngineError, match=r"TensorRT 10.14.1 cannot load .*expecting library version 10.4.0"):
        make_engine_paged(model, tmp_path, plan=plan_of(model, version="10.4.0"))
