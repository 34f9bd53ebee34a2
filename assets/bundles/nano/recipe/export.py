"""Last stage of the recipe: trained weights -> the bundle.

    python export.py OUT BUNDLE

Writes the speech encoder's graph, and bundle.toml with sizes and hashes, beside the weights. Every number of
the manifest comes from the training scripts. With a bundle as OUT and BUNDLE it writes both anew in place.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import text
from conversations import AUDIO_PAD, EOSP, LONG
from speech_codes import ENCODER, MEL, RATE
from tokenizers import Tokenizer
from train_flow import CONFIG as FLOW_CONFIG
from train_lm import config as lm_config
from train_vocoder import CONFIG as VOCODER_CONFIG
from train_vocoder import FLOW_CFG, FLOW_STEPS

from engine_runtime.bundle.bundle import Bundle, hash_file
from engine_runtime.bundle.manifest import stated
from engine_runtime.codec.onnx_graph import export_without_weights
from engine_runtime.codec.speech_tokenizer.encoder_graph import speech_encoder_graph
from engine_runtime.models.bigvgan import receptive_field
from engine_runtime.models.whisper_vq import WhisperVQ

TRAINED = (
    "speech_encoder.safetensors",
    "lm.safetensors",
    "flow.safetensors",
    "vocoder.safetensors",
    "tokenizer.json",
)
GRAPH = "speech_encoder.onnx"
LIMIT_BYTES = 45_000_000
DETECTS_TURN_END = True
"""Whether the language model was trained to reply nothing to an unfinished question and to a backchannel."""
DESCRIPTION = (
    "A small model of MOSS-Speech's architecture for closed-domain English conversation, "
    "trained on synthetic speech"
)

CARD = {
    "languages": ["en"],
    "examples": [
        "What can you do?",
        "What is three plus four?",
        "What is three times four?",
        "Which is bigger, seven or nine?",
        "What day comes after Monday?",
        "What is the capital of France?",
        "How do you spell green?",
        "Repeat after me: yellow bicycle.",
    ],
    "summary": {
        "en": "A small demonstration model. It greets you, adds and subtracts up to twenty, multiplies up to "
        "ten, compares and counts, knows days, months, opposites, capitals and colours, spells short words, "
        "and repeats. To everything else it says that it does not know.",
        "zh": "小型演示模型。会问候、做二十以内的加减法和十以内的乘法、比较大小、数数、拼写短词、复述，"
        "知道星期、月份、反义词、首都和颜色；其他问题一律回答不知道。",
    },
}


def manifest(tokenizer: Tokenizer) -> dict[str, Any]:
    """The manifest without its file table."""
    return {
        "bundle": {
            "format": 1, "name": "nano", "licence": "Apache-2.0",
            "description": DESCRIPTION,
        },
        "card": CARD,
        "lm": _lm(tokenizer),
        "text_tokenizer": {"file": "tokenizer.json"},
        "speech_encoder": {
            "weights": "speech_encoder.safetensors", "graph": GRAPH, "sample_rate": RATE,
            "normalization": "running_max", "config": stated(ENCODER),
        },
        "flow": _flow(),
        "vocoder": _vocoder(),
    }  # fmt: skip


def _lm(tokenizer: Tokenizer) -> dict[str, Any]:
    config = stated(lm_config(tokenizer))
    config.pop("modality_pad", None)  # one of the special ids
    names = ("endoftext", "im_start", "im_end", "sosp", "modality_pad", "empty")
    ids = {name: tokenizer.token_to_id(token) for name, token in zip(names, text.SPECIAL, strict=True)}
    return {
        "weights": "lm.safetensors", "tokens_per_block": 16, "kv_blocks": 256, "context_tokens": LONG + 64,
        "subtitles": True, "detects_turn_end": DETECTS_TURN_END, "config": config,
        "special_ids": {**ids, "eosp": EOSP, "audio_pad": AUDIO_PAD, "audio_forbidden_from": EOSP + 1},
        "prompt": {"system_speech": text.SYSTEM_SPEECH, "system_text": text.SYSTEM_TEXT},
        "sampling": {"speech": {"do_sample": False, "max_new": 160, "min_new": 0 if DETECTS_TURN_END else 2},
                     "text": {"do_sample": False, "max_new": 60}},
    }  # fmt: skip


def _flow() -> dict[str, Any]:
    config = stated(FLOW_CONFIG) | {"upsample": FLOW_CONFIG.upsample}  # which has to be stated
    for key in ("steps", "cfg_rate", "chunk_codes", "look_ahead_codes"):  # stand beside the config
        config.pop(key, None)
    return {
        "weights": "flow.safetensors", "steps": FLOW_STEPS, "cfg_rate": FLOW_CFG,
        "chunk_codes": FLOW_CONFIG.chunk_codes, "look_ahead_codes": FLOW_CONFIG.look_ahead_codes,
        "first_chunk_codes": FLOW_CONFIG.chunk_codes, "config": config, "mel": stated(MEL),
    }  # fmt: skip


def _vocoder() -> dict[str, Any]:
    left, right = receptive_field(VOCODER_CONFIG)
    return {
        "kind": "bigvgan", "weights": "vocoder.safetensors", "left_context_frames": left,
        "right_context_frames": right, "config": VOCODER_CONFIG, "mel": stated(MEL),
    }  # fmt: skip


def files(bundle: Path) -> dict[str, dict[str, Any]]:
    """Sizes and hashes of the bundle's files."""
    return {
        name: {"size": (bundle / name).stat().st_size, "sha256": hash_file(bundle / name)}
        for name in (*TRAINED, GRAPH)
    }


def to_toml(content: dict[str, Any], path: str = "") -> str:
    """TOML of nested tables with plain values."""
    lines = [f"[{path}]"] if path else []
    lines += [f"{key} = {json.dumps(value)}" for key, value in content.items() if not isinstance(value, dict)]
    for key, value in content.items():
        if isinstance(value, dict):
            name = key if key.isidentifier() else json.dumps(key)
            inline = path == "files"
            table = ", ".join(f"{k} = {json.dumps(v)}" for k, v in value.items())
            below = ["", to_toml(value, f"{path}.{name}" if path else name)]
            lines += [f"{name} = {{ {table} }}"] if inline else below
    return "\n".join(lines)


def main() -> None:
    """Copy, describe, and read back."""
    trained, bundle = Path(sys.argv[1]), Path(sys.argv[2])
    bundle.mkdir(parents=True, exist_ok=True)
    if trained.resolve() != bundle.resolve():
        for name in TRAINED:
            shutil.copyfile(trained / name, bundle / name)
    export_without_weights(speech_encoder_graph(WhisperVQ(ENCODER)), bundle / GRAPH)
    content = manifest(Tokenizer.from_file(str(bundle / "tokenizer.json")))
    content["files"] = files(bundle)
    (bundle / "bundle.toml").write_text(to_toml(content) + "\n", encoding="utf-8")
    total = sum(file.stat().st_size for file in bundle.iterdir() if file.is_file())
    print(Bundle.open(bundle).name, f"{total / 1e6:.1f} MB")
    if total > LIMIT_BYTES:
        raise SystemExit(f"the bundle is larger than {LIMIT_BYTES / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
