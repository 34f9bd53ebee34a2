"""At full size, from what the released configs say, the networks have every key and shape of the release."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine_runtime.bundle.manifest import stated
from engine_runtime.bundle.released.assembly import build_on_meta
from engine_runtime.bundle.released.description import (
    PROMPT,
    SPEECH_SAMPLING,
    TEXT_TOKENS,
    describe_flow,
    describe_lm,
    describe_speech_encoder,
    describe_vocoder,
)
from engine_runtime.errors import BundleError
from engine_runtime.types import SamplingParams

GOLDEN = Path(__file__).parents[3] / "data" / "golden"
HERE = Path("config.json")
TOKEN_IDS = dict(zip(TEXT_TOKENS.values(), (151643, 151644, 151645, 151646), strict=True))
LM_CONFIG: dict[str, Any] = {
    "model_type": "moss_speech",
    "attention_bias": False,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_hidden_layers": 36,
    "num_shared_layers": 32,
    "num_modality_layers": 4,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "tie_word_embeddings": False,
    "vocab_size": 151680,
    "audio_vocab_size": 16512,
    "modality_pad_token_id": 151667,
    "sosp_token_id": 151646,
    "eosp_token_id": 16384,
}
CODEC_CONFIG: dict[str, Any] = {
    "d_model": 1280,
    "encoder_attention_heads": 20,
    "encoder_causal_attention": True,
    "encoder_causal_convolution": True,
    "encoder_ffn_dim": 5120,
    "encoder_layers": 32,
    "max_source_positions": 1500,
    "num_mel_bins": 128,
    "pooling_kernel_size": 4,
    "pooling_position": 16,
    "pooling_type": "avg",
    "quantize_position": 16,
    "quantize_vocab_size": 16384,
}
PREPROCESSOR = {"feature_size": 128, "hop_length": 160, "n_fft": 400, "sampling_rate": 16000}


def _inventory(name: str, key: str) -> dict[str, tuple[int, ...]]:
    content = json.loads((GOLDEN / f"inventory_{name}.json").read_text(encoding="utf-8"))
    return {tensor: tuple(shape) for tensor, shape in content[key].items()}


def _full_size() -> dict[str, Any]:
    return {
        "lm": describe_lm(LM_CONFIG, HERE, TOKEN_IDS),
        "speech_encoder": describe_speech_encoder(CODEC_CONFIG, HERE, PREPROCESSOR, HERE),
        "flow": describe_flow(_inventory("flow", "tensors"), HERE),
        "vocoder": describe_vocoder(_inventory("hift", "tensors"), HERE),
    }


@pytest.mark.slow
def test_every_network_has_the_names_and_shapes_of_the_release() -> None:
    wanted = [("lm", "tensors"), ("encoder", "needed"), ("flow", "tensors"), ("hift", "tensors")]
    for network, (name, key) in zip(build_on_meta(_full_size()), wanted, strict=True):
        shapes = {tensor: tuple(value.shape) for tensor, value in network.state_dict().items()}
        assert shapes == _inventory(name, key)
        assert all(tensor.is_meta for tensor in network.state_dict().values())


def test_numbers_of_the_release() -> None:
    lm, flow = _full_size()["lm"], _full_size()["flow"]
    assert lm["config"]["rope_theta"] == 1e6
    assert lm["special_ids"] == {
        "endoftext": 151643,
        "im_start": 151644,
        "im_end": 151645,
        "sosp": 151646,
        "modality_pad": 151667,
        "eosp": 16384,
        "audio_pad": 512,
        "audio_forbidden_from": 16385,
    }
    assert lm["kv_blocks"] * lm["tokens_per_block"] == lm["context_tokens"] == 8192
    assert lm["prompt"]["system_speech"].endswith("with spoken responses.")
    speech, text = (SamplingParams(**lm["sampling"][part]) for part in ("speech", "text"))
    assert (speech.temperature, speech.repetition_penalty, speech.min_new) == (0.7, 1.0, 10)
    assert (text.temperature, text.repetition_penalty, text.min_new) == (0.6, 1.1, 0)
    assert (flow["steps"], flow["cfg_rate"], flow["look_ahead_codes"]) == (10, 0.7, 3)
    assert (flow["config"]["heads"], flow["config"]["upsample"]) == (8, 4)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("rope_scaling", {"rope_type": "yarn"}, "rope_scaling"),
        ("num_hidden_layers", 40, "num_hidden_layers = 40, but this program supports 36 only"),
        ("tie_word_embeddings", True, "tie_word_embeddings"),
        ("sosp_token_id", 7, "the tokenizer gives 151646"),
        ("rope_theta", None, "rope_theta"),
    ],
)
def test_another_language_model_is_refused(key: str, value: object, expected: str) -> None:
    with pytest.raises(BundleError) as caught:
        describe_lm(LM_CONFIG | {key: value}, HERE, TOKEN_IDS)
    assert expected in str(caught.value)


def test_a_missing_key_is_named() -> None:
    config = {key: value for key, value in LM_CONFIG.items() if key != "audio_vocab_size"}
    with pytest.raises(BundleError, match="audio_vocab_size"):
        describe_lm(config, HERE, TOKEN_IDS)
    with pytest.raises(BundleError, match=r"lacks <\|im_end\|>"):
        describe_lm(LM_CONFIG, HERE, TOKEN_IDS | {"<|im_end|>": None})


@pytest.mark.parametrize(
    "change", [{"encoder_causal_attention": False}, {"pooling_type": "max"}, {"pooling_position": 8}]
)
def test_another_speech_encoder_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(BundleError, match=f"has {next(iter(change))} = "):
        describe_speech_encoder(CODEC_CONFIG | change, HERE, PREPROCESSOR, HERE)
    silent = {key: value for key, value in CODEC_CONFIG.items() if key not in change}
    with pytest.raises(BundleError, match="None"):
        describe_speech_encoder(silent, HERE, PREPROCESSOR, HERE)


def test_a_checkpoint_of_another_flow_is_refused() -> None:
    shapes = _inventory("flow", "tensors")
    del shapes["encoder.up_layer.conv.weight"]
    with pytest.raises(BundleError, match=r"encoder\.up_layer\.conv\.weight is missing"):
        describe_flow(shapes, Path("flow.pt"))
    with pytest.raises(BundleError, match="not the released codec"):
        describe_vocoder({"conv_pre.bias": (3, 3)}, Path("hift.pt"))


def test_a_manifest_states_only_what_differs_from_the_defaults() -> None:
    sampling = stated(SPEECH_SAMPLING)
    assert sampling["top_k"] == 20
    assert "repetition_penalty" not in sampling
    assert "seed" not in sampling
    assert replace(SamplingParams(), **sampling) == SPEECH_SAMPLING
    assert set(stated(PROMPT)) == {"system_speech", "system_text"}
