"""Fused weights: every tensor of the model is read once, and products equal those of its modules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from engine_runtime.executors.fused_weights import FusedNetwork, fuse
from engine_runtime.models.moss_lm import MossLM, RMSNorm
from engine_runtime.options import BlockFormats, WeightFormat
from tests.factories.tiny_lm import layers_of, load_tiny, make_llama

FORMATS = BlockFormats(trunk="int8", tails="fp8", heads="native")


class PackedWeight:
    """Keeps what it is made of."""

    def __init__(self, parts: Sequence[Tensor], weight_format: WeightFormat) -> None:
        self.weight, self.format = torch.cat(list(parts)), weight_format


@pytest.fixture(scope="module", params=["qwen3", "llama"])
def model(request: pytest.FixtureRequest) -> MossLM:
    return make_llama() if request.param == "llama" else load_tiny()[0]


@pytest.fixture
def read() -> Counter[str]:
    """How often each tensor was read."""
    return Counter()


@pytest.fixture
def network(model: MossLM, read: Counter[str]) -> FusedNetwork[PackedWeight]:
    tensors = model.state_dict()

    def source(name: str) -> Tensor:
        read[name] += 1
        return tensors[name]

    cpu = torch.device("cpu")
    return fuse(model.config, source, PackedWeight, formats=FORMATS, dtype=torch.float64, device=cpu)


def test_every_tensor_is_read_once(
    model: MossLM, network: FusedNetwork[PackedWeight], read: Counter[str]
) -> None:
    assert read == Counter(list(model.state_dict()))


def test_layers_follow_each_other_in_the_pool(network: FusedNetwork[PackedWeight]) -> None:
    config = network.config
    layers = (*network.trunk, *network.text.layers, *network.audio.layers)
    assert [layer.index for layer in layers] == list(range(config.num_layers))
    counts = (len(network.trunk), len(network.text.layers), len(network.audio.layers))
    assert counts == (config.shared_layers, config.text_layers, config.audio_layers)
    formats = {matrix.format for layer in network.trunk for matrix in layer.matrices}
    assert formats == {"int8"}
    assert {matrix.format for layer in network.text.layers for matrix in layer.matrices} == {"fp8"}
    assert {network.text.head.format, network.audio.head.format} == {"native"}


@torch.inference_mode()
def test_products_are_those_of_the_modules(model: MossLM, network: FusedNetwork[PackedWeight]) -> None:
    layer, fused = layers_of(model.model.text_block)[0], network.text.layers[0]
    x = torch.randn(model.config.hidden_size)
    attention, mlp = layer.self_attn, layer.mlp
    expected = torch.cat([attention.q_proj(x), attention.k_proj(x), attention.v_proj(x)])
    torch.testing.assert_close(fused.qkv.weight @ x, expected)
    torch.testing.assert_close(fused.gate_up.weight @ x, torch.cat([mlp.gate_proj(x), mlp.up_proj(x)]))
    for norm, module in (
        (fused.input_norm, layer.input_layernorm),
        (fused.q_norm, attention.q_norm),
        (fused.k_norm, attention.k_norm),
        (fused.post_norm, layer.post_attention_layernorm),
        (network.text.norm, model.model.text_norm),
        (network.audio.norm, model.model.audio_norm),
    ):
        if norm is None:
            assert not model.config.qk_norm
        else:
            assert isinstance(module, RMSNorm)
            assert torch.equal(norm, module.weight.double())


def test_merged_ids_index_one_table(model: MossLM, network: FusedNetwork[PackedWeight]) -> None:
    code, first_code = 5, model.config.text_vocab
    assert torch.equal(network.embedding[code], model.model.embed_tokens.weight[code].double())
    assert torch.equal(network.embedding[first_code + code], model.model.audio_embed.weight[code].double())
