from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine_runtime.bench.costs import LMCosts, formats_of
from engine_runtime.bundle.released.full_size import describe
from engine_runtime.bundle.weights import Uninitialized
from engine_runtime.lm.step import BOTH_TAILS, Tails
from engine_runtime.models.moss_lm import MossLM, MossLMConfig
from engine_runtime.options import BlockFormats, WeightFormat
from engine_runtime.tensorrt.checkpoint.format import CheckpointConfig, Quantization

AUDIO_ONLY = Tails(text=False, audio=True)


@pytest.fixture(scope="module")
def released() -> MossLMConfig:
    return MossLMConfig.from_dict(describe("moss-speech").lm.config)


def _costs(
    config: MossLMConfig, weight_format: WeightFormat = "native", tails: WeightFormat = "native"
) -> LMCosts:
    return LMCosts(config, BlockFormats(weight_format, tails), weight_bytes=2, kv_bytes=2)


def test_a_full_step_reads_every_weight_but_the_tables(released: MossLMConfig) -> None:
    with torch.device("meta"), Uninitialized():
        model = MossLM(released)
    tables = ("model.embed_tokens.weight", "model.audio_embed.weight")
    numbers = sum(t.numel() for name, t in model.state_dict().items() if name not in tables)
    one_row = released.hidden_size
    assert _costs(released).step_bytes(0, BOTH_TAILS) == 2 * (numbers + one_row)


def test_an_audio_step_leaves_the_text_tail_out(released: MossLMConfig) -> None:
    costs = _costs(released)
    assert costs.step_bytes(0, AUDIO_ONLY) == pytest.approx(14.03e9, rel=1e-3)
    assert costs.step_bytes(0, BOTH_TAILS) == pytest.approx(16.8e9, rel=1e-2)


def test_cached_rows_cost_their_keys_and_values(released: MossLMConfig) -> None:
    costs = _costs(released)
    per_row = costs.step_bytes(1, BOTH_TAILS) - costs.step_bytes(0, BOTH_TAILS)
    assert per_row == 163_840
    audio = costs.step_bytes(2048, AUDIO_ONLY) - costs.step_bytes(0, AUDIO_ONLY)
    assert audio == 2048 * 163_840 * 36 // 40


@pytest.mark.parametrize(("weight_format", "share"), [("fp8", 0.5), ("int8", 0.5), ("int4", 0.258)])
def test_a_format_shrinks_the_shared_layers(
    released: MossLMConfig, weight_format: WeightFormat, share: float
) -> None:
    native, small = _costs(released), _costs(released, weight_format)
    shared = 32 * 192_946_432 * 2
    saved = native.step_bytes(0, AUDIO_ONLY) - small.step_bytes(0, AUDIO_ONLY)
    assert saved == pytest.approx(shared * (1 - share), rel=2e-3)
    all_of_it = native.step_bytes(0, AUDIO_ONLY) - _costs(released, weight_format, weight_format).step_bytes(
        0, AUDIO_ONLY
    )
    assert all_of_it == pytest.approx(saved * 36 / 32, rel=1e-4)


@pytest.mark.parametrize(
    ("excluded", "wanted"),
    [
        (Quantization().exclude_modules, BlockFormats("fp8", "native", "native")),
        (("*lm_head", "*vocab_embedding"), BlockFormats("fp8", "fp8", "native")),
        (("*vocab_embedding",), BlockFormats("fp8", "fp8", "fp8")),
        (("*",), BlockFormats()),
    ],
)
def test_an_engine_has_the_formats_of_the_modules_that_are_not_left_out(
    released: MossLMConfig, excluded: tuple[str, ...], wanted: BlockFormats
) -> None:
    model = CheckpointConfig.of(released, "bfloat16", 8192)
    assert formats_of(model) == BlockFormats()
    assert formats_of(replace(model, quantization=Quantization("FP8", exclude_modules=excluded))) == wanted


def test_quantized_heads_are_read_as_such(released: MossLMConfig) -> None:
    heads = LMCosts(released, BlockFormats("fp8", "fp8", "fp8"), weight_bytes=2, kv_bytes=2)
    saved = _costs(released, "fp8", "fp8").step_bytes(0, AUDIO_ONLY) - heads.step_bytes(0, AUDIO_ONLY)
    assert saved == released.audio_vocab * (released.hidden_size - 4)


def test_operations_of_a_prefill(released: MossLMConfig) -> None:
    costs = _costs(released)
    matrices = 36 * (192_946_432 - 8448)
    attention = 36 * 4 * (512 * 513 // 2) * 4096
    assert costs.prefill_flops(512, AUDIO_ONLY) == 2 * 512 * matrices + attention + 2 * 16512 * 4096
    assert costs.prefill_flops(512, BOTH_TAILS) > costs.prefill_flops(512, AUDIO_ONLY)
