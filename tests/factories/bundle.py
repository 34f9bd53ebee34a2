"""A complete bundle of tiny networks with random weights: real formats, real hashes, real tokenizer.

Its speech is noise, but it is complete, so that loading, streaming, cancelling and measuring can be tested
without the trained bundle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn

from engine_runtime.bundle.bundle import hash_file
from engine_runtime.bundle.manifest import to_toml

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<think>",
    "<|empty|>",
)
CODEBOOK = 64
MEL = {
    "sample_rate": 24000,
    "n_mels": 80,
    "n_fft": 1920,
    "hop": 480,
    "win": 1920,
    "fmin": 0.0,
    "fmax": 8000.0,
}
SENTENCES = (
    "You are a helpful voice assistant. Answer the user's questions with spoken responses.",
    "You are a helpful assistant. Answer the user's questions with text.",
    "What is two plus three? Two plus three is five. And plus two? That makes seven.",
    "user assistant system what day comes after monday the capital of france is paris",
)


def make_random_bundle(
    directory: Path,
    seed: int = 0,
    *,
    added_tokens: Sequence[str] = (),
    change: Callable[[dict[str, Any]], None] = lambda manifest: None,
) -> Path:
    """Write the bundle into `directory` (made if need be) and return it. Its tokenizer has the added tokens,
    too; `change` may change the manifest before the networks are made."""
    directory.mkdir(parents=True, exist_ok=True)
    generator_state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    try:
        manifest = describe_bundle(write_tokenizer(directory / "tokenizer.json", added_tokens))
        change(manifest)
        for name, module in make_networks(manifest).items():
            save_network(module, directory / f"{name}.safetensors")
    finally:
        torch.random.set_rng_state(generator_state)
    write_manifest(directory, manifest)
    return directory


def write_manifest(directory: Path, manifest: dict[str, Any]) -> None:
    """Write bundle.toml with fresh sizes and hashes of everything else in the folder."""
    files = sorted(file for file in directory.iterdir() if file.name != "bundle.toml")
    entries = {file.name: {"size": file.stat().st_size, "sha256": hash_file(file)} for file in files}
    (directory / "bundle.toml").write_text(to_toml(manifest | {"files": entries}), encoding="utf-8")


def write_tokenizer(file: Path, added_tokens: Sequence[str] = ()) -> Tokenizer:
    """A byte-level tokenizer of 384 ids with the special tokens of the model and other added ones."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=384,
        special_tokens=[*SPECIAL_TOKENS, *added_tokens],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.save(str(file))
    return tokenizer


def describe_bundle(tokenizer: Tokenizer, codebook: int = CODEBOOK) -> dict[str, Any]:
    """bundle.toml without its files, for as many speech codes."""
    endoftext, im_start, im_end, sosp, modality_pad, empty = map(tokenizer.token_to_id, SPECIAL_TOKENS)
    speech = {"do_sample": True, "temperature": 0.9, "top_k": 20, "min_new": 14, "max_new": 24, "seed": 7}
    text = {"do_sample": True, "temperature": 0.9, "top_k": 20, "max_new": 24, "seed": 7}
    return {
        "bundle": {
            "format": 1,
            "name": "random",
            "description": "Tiny random networks for tests",
            "licence": "Apache-2.0",
        },
        "lm": {
            "weights": "lm.safetensors",
            "tokens_per_block": 16,
            "kv_blocks": 128,
            "context_tokens": 1024,
            "subtitles": False,
            "config": {
                "hidden_size": 64,
                "intermediate_size": 128,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "head_dim": 16,
                "shared_layers": 2,
                "text_layers": 1,
                "audio_layers": 1,
                "text_vocab": tokenizer.get_vocab_size(),
                "audio_vocab": codebook + 16,
            },
            "special_ids": {
                "endoftext": endoftext,
                "im_start": im_start,
                "im_end": im_end,
                "sosp": sosp,
                "modality_pad": modality_pad,
                "empty": empty,
                "eosp": codebook,
                "audio_pad": 5,
                "audio_forbidden_from": codebook + 1,
            },
            "prompt": {
                "system_speech": SENTENCES[0],
                "system_text": SENTENCES[1],
                "user_role": "user",
                "assistant_role": "assistant",
            },
            "sampling": {"speech": speech, "text": text},
        },
        "text_tokenizer": {"file": "tokenizer.json"},
        "speech_encoder": {
            "weights": "speech_encoder.safetensors",
            "sample_rate": 16000,
            "normalization": "running_max",
            "config": {
                "num_mel_bins": 80,
                "d_model": 64,
                "heads": 4,
                "ffn": 96,
                "layers": 2,
                "max_positions": 1500,
                "codebook_size": codebook,
                "pool": 4,
            },
        },
        "flow": {
            "weights": "flow.safetensors",
            "steps": 2,
            "cfg_rate": 0.7,
            "chunk_codes": 5,
            "look_ahead_codes": 3,
            "first_chunk_codes": 5,
            "config": FLOW_CONFIG | {"vocab_size": codebook},
            "mel": dict(MEL),
        },
        "vocoder": {
            "kind": "bigvgan",
            "weights": "vocoder.safetensors",
            "left_context_frames": 8,
            "right_context_frames": 8,
            "config": dict(BIGVGAN_CONFIG),
            "mel": dict(MEL),
        },
    }


FLOW_CONFIG: dict[str, Any] = {
    "vocab_size": CODEBOOK,
    "n_mels": 80,
    "xvector_dim": 16,
    "encoder_dim": 32,
    "encoder_heads": 2,
    "encoder_ffn": 64,
    "encoder_blocks": 1,
    "encoder_up_blocks": 1,
    "upsample": 4,
    "channels": 32,
    "n_blocks": 1,
    "mid_blocks": 1,
    "heads": 2,
    "head_dim": 16,
    "max_frames": 3000,
}

BIGVGAN_CONFIG: dict[str, Any] = {
    "resblock": "1",
    "upsample_rates": [5, 4, 4, 3, 2],
    "upsample_kernel_sizes": [11, 8, 8, 7, 4],
    "upsample_initial_channel": 32,
    "resblock_kernel_sizes": [3],
    "resblock_dilation_sizes": [[1, 1, 1]],
    "use_tanh_at_final": False,
    "use_bias_at_final": False,
    "activation": "snakebeta",
    "snake_logscale": True,
    "num_mels": 80,
    "n_fft": 1920,
    "hop_size": 480,
    "win_size": 1920,
    "sampling_rate": 24000,
    "fmin": 0,
    "fmax": 8000,
}


def make_networks(manifest: dict[str, Any]) -> dict[str, nn.Module]:
    """Networks of random weights by the name of their file."""
    from engine_runtime.models.bigvgan import build_bigvgan
    from engine_runtime.models.flow import CausalFlow, FlowConfig
    from engine_runtime.models.moss_lm import MossLM, MossLMConfig
    from engine_runtime.models.whisper_vq import WhisperVQ, WhisperVQConfig

    modality_pad = manifest["lm"]["special_ids"]["modality_pad"]
    return {
        "lm": MossLM(MossLMConfig.from_dict(manifest["lm"]["config"] | {"modality_pad": modality_pad})),
        "speech_encoder": WhisperVQ(WhisperVQConfig.from_dict(manifest["speech_encoder"]["config"])),
        "flow": CausalFlow(FlowConfig.from_dict(manifest["flow"]["config"])),
        "vocoder": build_bigvgan(manifest["vocoder"]["config"]),
    }


def save_network(module: nn.Module, file: Path, *, half: bool = True) -> None:
    """Write its weights, rounded to half precision or as they are."""
    tensors = {
        name: (tensor.half() if half and tensor.is_floating_point() else tensor).contiguous()
        for name, tensor in module.state_dict().items()
    }
    safetensors.torch.save_file(tensors, file)
