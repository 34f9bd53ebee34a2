"""The plain language model against stored vectors, and its names and shapes at full size."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F

from engine_runtime.errors import BundleError
from engine_runtime.models.moss_lm import Attention, MossLM, MossLMConfig, rotary_tables
from tests.factories.tiny_lm import GOLDEN, LOGIT_TOLERANCE, load_meta, load_tiny, make_llama


@pytest.fixture(scope="module")
def tiny() -> tuple[MossLM, dict[str, torch.Tensor]]:
    return load_tiny()


@pytest.mark.parametrize("case", ["a", "c"])
@torch.inference_mode()
def test_logits_of_both_heads_at_every_position(
    tiny: tuple[MossLM, dict[str, torch.Tensor]], case: str
) -> None:
    model, cases = tiny
    text, audio = model(cases[f"{case}.rows"][None])
    torch.testing.assert_close(text[0], cases[f"{case}.text_logits"], atol=LOGIT_TOLERANCE, rtol=0)
    torch.testing.assert_close(audio[0], cases[f"{case}.audio_logits"], atol=LOGIT_TOLERANCE, rtol=0)


@torch.inference_mode()
def test_trunk_and_tail_outputs(tiny: tuple[MossLM, dict[str, torch.Tensor]]) -> None:
    model, cases = tiny
    trunk = model.trunk(cases["a.rows"][None])
    torch.testing.assert_close(trunk[0], cases["a.shared_out"], atol=1e-4, rtol=0)
    torch.testing.assert_close(
        model.text_tail(trunk)[0], cases["a.text_hidden"], atol=LOGIT_TOLERANCE, rtol=0
    )
    torch.testing.assert_close(
        model.audio_tail(trunk)[0], cases["a.audio_hidden"], atol=LOGIT_TOLERANCE, rtol=0
    )


@torch.inference_mode()
def test_the_unread_channel_has_no_effect(tiny: tuple[MossLM, dict[str, torch.Tensor]]) -> None:
    model, cases = tiny
    rows = cases["a.rows"].clone()
    is_text = rows[:, 0] != model.config.modality_pad
    assert 0 < int(is_text.sum()) < len(rows)
    rows[is_text, 1] = (rows[is_text, 1] + 7) % model.config.audio_vocab
    plain, changed = model(cases["a.rows"][None]), model(rows[None])
    assert torch.equal(plain[0], changed[0])
    assert torch.equal(plain[1], changed[1])


@torch.inference_mode()
def test_a_padded_batch_equals_single_sequences(tiny: tuple[MossLM, dict[str, torch.Tensor]]) -> None:
    model, cases = tiny
    long, short = cases["a.rows"][:60], cases["a.rows"][30:65]
    batch = torch.stack((long, torch.cat((long[:25] * 0, short))))
    mask = torch.zeros(2, 60, dtype=torch.bool)
    mask[1, :25] = True
    text, audio = model(batch, key_padding_mask=mask)
    for index, rows, start in ((0, long, 0), (1, short, 25)):
        alone = model(rows[None])
        torch.testing.assert_close(text[index, start:], alone[0][0], atol=LOGIT_TOLERANCE, rtol=0)
        torch.testing.assert_close(audio[index, start:], alone[1][0], atol=LOGIT_TOLERANCE, rtol=0)


@pytest.mark.slow
def test_trains_under_bfloat16_autocast(tiny: tuple[MossLM, dict[str, torch.Tensor]]) -> None:
    _, cases = tiny
    model = MossLM(MossLMConfig(32, 64, 4, 2, 8, 2, 1, 1, 512, 160, 503))
    model.reset_parameters()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    rows = cases["a.rows"][None].long()
    losses = []
    for _ in range(12):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            text, audio = model(rows)
        loss = torch.nn.functional.cross_entropy(text[0, :-1].float(), rows[0, 1:, 0])
        loss = loss + torch.nn.functional.cross_entropy(audio[0, :-1].float(), rows[0, 1:, 1])
        optimizer.zero_grad()
        loss.backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.5


def test_names_and_shapes_at_full_size() -> None:
    inventory = json.loads((GOLDEN / "inventory_lm.json").read_text())
    config = MossLMConfig(4096, 12288, 32, 8, 128, 32, 4, 4, 151680, 16512, 151667)
    with torch.device("meta"):
        model = MossLM(config)
    shapes = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    assert shapes == inventory["tensors"]
    assert len(shapes) == inventory["count"]
    assert sum(parameter.numel() for parameter in model.parameters()) == inventory["parameters"]


@torch.inference_mode()
def test_without_norms_of_queries_and_keys_attention_is_that_of_llama() -> None:
    config = make_llama().config
    attention = Attention(config)
    assert {name for name, _ in attention.named_parameters()} == {
        f"{part}_proj.weight" for part in ("q", "k", "v", "o")
    }
    x, heads, dim = torch.randn(7, config.hidden_size), config.num_attention_heads, config.head_dim
    cos, sin = rotary_tables(config, torch.arange(7))
    projected = {name: F.linear(x, getattr(attention, f"{name}_proj").weight) for name in "qkv"}
    attended = []
    for head in range(heads):
        of_group = head * config.num_key_value_heads // heads
        q, k, v = (
            projected[name][:, index * dim : (index + 1) * dim]
            for name, index in (("q", head), ("k", of_group), ("v", of_group))
        )
        # A pair of one frequency lies half a head apart; RoPE turns it by the position.
        q, k = (
            torch.view_as_real(torch.complex(*part.chunk(2, 1)) * torch.complex(cos, sin)[:, : dim // 2])
            for part in (q, k)
        )
        scores = torch.einsum("idc,jdc->ij", q, k) / dim**0.5
        scores = scores.masked_fill(torch.ones(7, 7).triu(1).bool(), -torch.inf)
        attended.append(scores.softmax(-1) @ v)
    wanted = attention.o_proj(torch.cat(attended, dim=-1))
    torch.testing.assert_close(attention(x[None], cos, sin, None)[0], wanted, atol=1e-5, rtol=1e-5)


def test_a_bad_manifest_table_is_refused_by_key() -> None:
    good = load_meta()["config"] | {"modality_pad": 503}
    with pytest.raises(BundleError, match="hiden_size"):
        MossLMConfig.from_dict(good | {"hiden_size": 3})
    with pytest.raises(BundleError, match="head_dim"):
        MossLMConfig.from_dict({key: value for key, value in good.items() if key != "head_dim"})
    with pytest.raises(BundleError, match="modality_pad"):
        MossLMConfig.from_dict(good | {"modality_pad": 512})
    assert MossLMConfig.from_dict(good).qk_norm
    assert not MossLMConfig.from_dict(good | {"qk_norm": False}).qk_norm
    with pytest.raises(BundleError, match="has qk_norm = 0, which must be true or false"):
        MossLMConfig.from_dict(good | {"qk_norm": 0})
