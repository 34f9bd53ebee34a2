"""A tiny checkpoint with random weights in exactly the layout of the released repositories.

fnlp/MOSS-Speech: config.json, tokenizer.json, bf16 shards with their index. fnlp/MOSS-Speech-Codec: config,
preprocessor_config, model.safetensors with more than the encoder, and flow/ with torch checkpoints, one with
`epoch` and `step`, the other with old-style weight norm, and an ONNX speaker encoder.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import nn

from tests.factories.bundle import CODEBOOK, write_tokenizer
from tests.factories.onnx_bytes import mean_and_project

XVECTOR = 16


def make_released(directory: Path, seed: int = 0) -> Path:
    """Write both repositories below `directory` and return it."""
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    try:
        _write_lm(directory / "MOSS-Speech")
        _write_codec(directory / "MOSS-Speech-Codec")
    finally:
        torch.random.set_rng_state(state)
    return directory


def _write_lm(folder: Path) -> None:
    from engine_runtime.models.moss_lm import MossLM, MossLMConfig

    folder.mkdir(parents=True)
    tokenizer = write_tokenizer(folder / "tokenizer.json")
    config: dict[str, Any] = {
        "architectures": ["MossSpeechForCausalLM"],
        "model_type": "moss_speech",
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_hidden_layers": 3,
        "num_shared_layers": 2,
        "num_modality_layers": 1,
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000,
        "rope_scaling": None,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "vocab_size": tokenizer.get_vocab_size(),
        "audio_vocab_size": CODEBOOK + 16,
        "modality_pad_token_id": tokenizer.token_to_id("<think>"),
        "sosp_token_id": tokenizer.token_to_id("<|object_ref_start|>"),
        "eosp_token_id": CODEBOOK,
        "audio_pad_token_id": 5,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    model = MossLM(
        MossLMConfig(
            hidden_size=64,
            intermediate_size=128,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            shared_layers=2,
            text_layers=1,
            audio_layers=1,
            text_vocab=config["vocab_size"],
            audio_vocab=config["audio_vocab_size"],
            modality_pad=config["modality_pad_token_id"],
        )
    )
    _write_shards({name: tensor.bfloat16() for name, tensor in model.state_dict().items()}, folder, 3)


def _write_shards(tensors: dict[str, torch.Tensor], folder: Path, count: int) -> None:
    names = sorted(tensors)
    places: dict[str, str] = {}
    for index in range(count):
        file = f"model-{index + 1:05d}-of-{count:05d}.safetensors"
        part = {name: tensors[name].contiguous() for name in names[index::count]}
        safetensors.torch.save_file(part, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(part, file)
    size = sum(tensor.nbytes for tensor in tensors.values())
    content = {"metadata": {"total_size": size}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(content), encoding="utf-8")


def _write_codec(folder: Path) -> None:
    from engine_runtime.models.flow import CausalFlow, FlowConfig
    from engine_runtime.models.hift import HiFT, HiFTConfig
    from engine_runtime.models.whisper_vq import WhisperVQ, WhisperVQConfig

    (folder / "flow").mkdir(parents=True)
    config = {
        "model_type": "whisper",
        "d_model": 64,
        "encoder_attention_heads": 4,
        "encoder_causal_attention": True,
        "encoder_causal_convolution": True,
        "encoder_ffn_dim": 96,
        "encoder_layers": 4,
        "max_source_positions": 1500,
        "num_mel_bins": 80,
        "pooling_kernel_size": 4,
        "pooling_position": 2,
        "pooling_type": "avg",
        "quantize_encoder_only": True,
        "quantize_position": 2,
        "quantize_vocab_size": CODEBOOK,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    features = {"feature_size": 80, "hop_length": 160, "n_fft": 400, "sampling_rate": 16000}
    (folder / "preprocessor_config.json").write_text(json.dumps(features), encoding="utf-8")
    encoder = WhisperVQ(
        WhisperVQConfig(
            num_mel_bins=80, d_model=64, heads=4, ffn=96, layers=2, max_positions=1500, codebook_size=CODEBOOK
        )
    )
    rest = {
        "encoder.ema_count": torch.zeros(CODEBOOK),
        "encoder.layers.2.fc1.weight": torch.zeros(96, 64),
        "decoder.embed_tokens.weight": torch.zeros(10, 64),
    }
    safetensors.torch.save_file({**encoder.state_dict(), **rest}, folder / "model.safetensors")
    flow = CausalFlow(
        FlowConfig(
            vocab_size=CODEBOOK + 16,
            xvector_dim=XVECTOR,
            encoder_dim=32,
            encoder_heads=2,
            encoder_ffn=64,
            encoder_blocks=1,
            encoder_up_blocks=1,
            channels=32,
            n_blocks=1,
            mid_blocks=1,
            heads=1,
        )
    )
    torch.save({**flow.state_dict(), "epoch": 7, "step": 12000}, folder / "flow" / "flow-chunk-5.pt")
    hift = HiFT(HiFTConfig(base_channels=32, f0_channels=16))
    torch.save(_old_weight_norm(hift), folder / "flow" / "hift.pt")
    weight = np.random.default_rng(0).normal(size=(80, XVECTOR)).astype(np.float32)
    (folder / "flow" / "campplus.onnx").write_bytes(mean_and_project(weight))


def _old_weight_norm(module: nn.Module) -> dict[str, torch.Tensor]:
    """The weights under the names of torch.nn.utils.weight_norm."""
    return {
        name.replace("parametrizations.weight.original0", "weight_g").replace(
            "parametrizations.weight.original1", "weight_v"
        ): tensor
        for name, tensor in module.state_dict().items()
    }
