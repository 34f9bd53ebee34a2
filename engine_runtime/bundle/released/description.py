"""Describes the released checkpoints in the format of bundle.toml.

In: the configs of the checkpoints and the shapes of their tensors. Out: the sections of a manifest. Values
that no file contains (chunks, prompts, sampling, the mel) are named constants here, with their source. An
unsupported config raises a BundleError.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine_runtime.bundle.manifest import Manifest, Table, stated
from engine_runtime.bundle.sections import PromptTexts
from engine_runtime.errors import BundleError
from engine_runtime.types import MelSpec, SamplingParams

Shapes = Mapping[str, tuple[int, ...]]

# The chat layout, as in get_system_prompt_default and the processor of the released code.
PROMPT = PromptTexts(
    system_speech="You are a helpful voice assistant. Answer the user's questions with spoken responses.",
    system_text="You are a helpful assistant. Answer the user's questions with text.",
)
TEXT_TOKENS = {
    "endoftext": "<|endoftext|>",
    "im_start": "<|im_start|>",
    "im_end": "<|im_end|>",
    "sosp": "<|object_ref_start|>",
}
AUDIO_PAD = 512
"""The processor's filler of the audio channel in text rows. The config need not name it."""

# The two official sets. Speech takes that of the model card, because its repetition penalty of 1.0 leaves
# sounds alone that last longer than a code; but with the demo's limit, 40 s, as a reply without an end has
# been seen. Text takes the set of the demo.
SPEECH_SAMPLING = SamplingParams(
    do_sample=True, temperature=0.7, top_p=0.95, top_k=20, repetition_penalty=1.0, min_new=10, max_new=500
)
TEXT_SAMPLING = SamplingParams(
    do_sample=True, temperature=0.6, top_p=0.95, top_k=20, repetition_penalty=1.1, max_new=500
)

TOKENS_PER_BLOCK = 32
CONTEXT_TOKENS = 8192
"""Below the 10,240 rows of the fine-tuning; rows of the KV pool, as no more than one conversation is held."""

# The codec: constructor arguments in the released code, and values of its config.yaml.
CODEC_MEL = MelSpec(sample_rate=24000, n_mels=80, n_fft=1920, hop=480, win=1920, fmin=0.0, fmax=8000.0)
FLOW_STEPS = 10
FLOW_CFG_RATE = 0.7
FLOW_CHUNK_CODES = 5
FLOW_PACKET_CODES = [5, 5, 10, 25]
"""A small first packet for low latency, then fewer and larger ones; complete chunks, so that the mel does not
depend on the packet size."""
FLOW_HEAD_DIM = 64
FLOW_MAX_FRAMES = 15000
SPEAKER_SAMPLE_RATE = 16000
SPEAKER_MELS = 80
VOICE_LEAST_S = 3.0
VOICE_MOST_S = 6.0
"""The prompt is computed once, when the engine starts, but its keys are attended to in every chunk."""


def describe_lm(
    config: Mapping[str, Any], source: Path, token_ids: Mapping[str, int | None]
) -> dict[str, Any]:
    """[lm] without its weights, from config.json and the ids of TEXT_TOKENS in the tokenizer."""
    table = Table(config, "", Manifest(config, str(source)))
    shared, tail = table.integer("num_shared_layers"), table.integer("num_modality_layers")
    _refuse(table, {"rope_scaling": None, "attention_bias": False, "tie_word_embeddings": False})
    _refuse(table, {"hidden_act": "silu", "num_hidden_layers": shared + tail, "use_sliding_window": False})
    ids = {name: token_ids.get(token) for name, token in TEXT_TOKENS.items()}
    if absent := [TEXT_TOKENS[name] for name, value in ids.items() if value is None]:
        raise BundleError(
            "The tokenizer next to {source} lacks {absent}.",
            "Download it again.",
            source=source,
            absent=", ".join(absent),
        )
    if ids["sosp"] != table.integer("sosp_token_id"):
        raise table.error(
            f"has sosp_token_id = {table.integer('sosp_token_id')}, but the tokenizer gives {ids['sosp']} to "
            f"{TEXT_TOKENS['sosp']}; take both from one model"
        )
    eosp = table.integer("eosp_token_id")
    return {
        "tokens_per_block": TOKENS_PER_BLOCK,
        "kv_blocks": CONTEXT_TOKENS // TOKENS_PER_BLOCK,
        "context_tokens": min(CONTEXT_TOKENS, table.integer("max_position_embeddings")),
        "config": {
            "hidden_size": table.integer("hidden_size"),
            "intermediate_size": table.integer("intermediate_size"),
            "num_attention_heads": table.integer("num_attention_heads"),
            "num_key_value_heads": table.integer("num_key_value_heads"),
            "head_dim": table.integer("head_dim"),
            "shared_layers": shared,
            "text_layers": tail,
            "audio_layers": tail,
            "text_vocab": table.integer("vocab_size"),
            "audio_vocab": table.integer("audio_vocab_size"),
            "rope_theta": table.value("rope_theta", float),
            "rms_norm_eps": table.value("rms_norm_eps", float),
        },
        "special_ids": {
            **ids,
            "modality_pad": table.integer("modality_pad_token_id"),
            "eosp": eosp,
            "audio_pad": config.get("audio_pad_token_id", AUDIO_PAD),
            "audio_forbidden_from": eosp + 1,
        },
        "prompt": stated(PROMPT),
        "sampling": {"speech": stated(SPEECH_SAMPLING), "text": stated(TEXT_SAMPLING)},
    }


def describe_speech_encoder(
    config: Mapping[str, Any], source: Path, preprocessor: Mapping[str, Any], preprocessor_source: Path
) -> dict[str, Any]:
    """[speech_encoder] without its weights, from the codec's config.json and preprocessor_config.json."""
    table = Table(config, "", Manifest(config, str(source)))
    features = Table(preprocessor, "", Manifest(preprocessor, str(preprocessor_source)))
    layers = table.integer("quantize_position")
    causal = {"encoder_causal_attention": True, "encoder_causal_convolution": True}
    # Unless a config states otherwise, the encoder of Whisper is not causal.
    _refuse(table, {**causal, "pooling_type": "avg", "pooling_position": layers}, absent_is_fine=False)
    rate = features.integer("sampling_rate")
    # Parameters of this program's features, in samples: 25 ms windows every 10 ms.
    _refuse(features, {"n_fft": rate // 40, "hop_length": rate // 100})
    return {
        "sample_rate": rate,
        "normalization": "segment_max",
        "weights_hold_more": True,
        "config": {
            "num_mel_bins": table.integer("num_mel_bins"),
            "d_model": table.integer("d_model"),
            "heads": table.integer("encoder_attention_heads"),
            "ffn": table.integer("encoder_ffn_dim"),
            "layers": layers,
            "max_positions": table.integer("max_source_positions"),
            "codebook_size": table.integer("quantize_vocab_size"),
            "pool": table.integer("pooling_kernel_size"),
        },
    }


def describe_flow(shapes: Shapes, source: Path) -> dict[str, Any]:
    """[flow] without its weights, from the shapes of its tensors."""
    find = _Finder(shapes, source)
    vocab, encoder_dim = find("input_embedding.weight", 2)
    n_mels, xvector_dim = find("spk_embed_affine_layer.weight", 2)
    inner, channels = find("decoder.estimator.mid_blocks.0.1.0.attn1.to_q.weight", 2)
    look_ahead = find("encoder.pre_lookahead_layer.conv1.weight", 3)[-1] - 1
    return {
        "steps": FLOW_STEPS,
        "cfg_rate": FLOW_CFG_RATE,
        "chunk_codes": FLOW_CHUNK_CODES,
        "look_ahead_codes": look_ahead,
        "first_chunk_codes": FLOW_CHUNK_CODES,
        "packet_codes": FLOW_PACKET_CODES,
        "config": {
            "vocab_size": vocab,
            "n_mels": n_mels,
            "xvector_dim": xvector_dim,
            "encoder_dim": encoder_dim,
            "encoder_heads": find("encoder.encoders.0.self_attn.pos_bias_u", 2)[0],
            "encoder_ffn": find("encoder.encoders.0.feed_forward.w_1.weight", 2)[0],
            "encoder_blocks": find.count("encoder.encoders."),
            "encoder_up_blocks": find.count("encoder.up_encoders."),
            "upsample": (find("encoder.up_layer.conv.weight", 3)[-1] - 1) // 2,
            "channels": channels,
            "n_blocks": find.count("decoder.estimator.mid_blocks.0.1."),
            "mid_blocks": find.count("decoder.estimator.mid_blocks."),
            "heads": inner // FLOW_HEAD_DIM,
            "head_dim": FLOW_HEAD_DIM,
            "max_frames": FLOW_MAX_FRAMES,
        },
        "mel": stated(CODEC_MEL),
    }


def describe_vocoder(shapes: Shapes, source: Path) -> dict[str, Any]:
    """[vocoder] without its weights, from the shapes of its tensors; the rates are those of every HiFT."""
    from engine_runtime.models.hift import HIFT_OVERLAP_FRAMES, HiFTConfig

    find = _Finder(shapes, source)
    base = find("conv_pre.bias", 1)[0]
    config = HiFTConfig(
        sampling_rate=CODEC_MEL.sample_rate,
        in_channels=CODEC_MEL.n_mels,
        base_channels=base,
        nb_harmonics=find("m_source.l_linear.weight", 2)[1] - 1,
        f0_channels=find("f0_predictor.condnet.0.bias", 1)[0],
    )
    return {
        "kind": "hift",
        "left_context_frames": HIFT_OVERLAP_FRAMES,
        "right_context_frames": HIFT_OVERLAP_FRAMES,
        "config": stated(config),
        "mel": stated(CODEC_MEL),
    }


def describe_voice() -> dict[str, Any]:
    """[voice] without the name of its network."""
    return {
        "sample_rate": SPEAKER_SAMPLE_RATE,
        "n_mels": SPEAKER_MELS,
        "least_s": VOICE_LEAST_S,
        "most_s": VOICE_MOST_S,
    }


def describe_card() -> dict[str, Any]:
    """[card]."""
    return {
        "languages": ["zh", "en"],
        "examples": ["你好，请介绍一下你自己。", "Tell me a short story about the sea."],
        "summary": {
            "en": "Open conversation in Chinese and English.",
            "zh": "可用中文和英语自由对话。",
        },
    }


class _Finder:
    """Shapes of one checkpoint by name; BundleError names missing tensors."""

    def __init__(self, shapes: Shapes, source: Path) -> None:
        self._shapes, self._source = shapes, source

    def __call__(self, name: str, axes: int) -> tuple[int, ...]:
        shape = self._shapes.get(name)
        if shape is None or len(shape) != axes:
            found = "is missing" if shape is None else f"is {list(shape)}"
            raise BundleError(
                "{source} is not the released codec: {name} {found}.",
                "Download it again, or give another folder.",
                source=self._source,
                name=name,
                found=found,
            )
        return shape

    def count(self, prefix: str) -> int:
        """Number of blocks numbered after `prefix`."""
        pattern = re.compile(re.escape(prefix) + r"(\d+)\.")
        return len({match.group(1) for name in self._shapes if (match := pattern.match(name))})


def _refuse(table: Table, known: Mapping[str, Any], *, absent_is_fine: bool = True) -> None:
    """Raise BundleError if a config is not supported by this program."""
    for key, value in known.items():
        if table.content.get(key, value if absent_is_fine else None) != value:
            raise table.error(
                f"has {key} = {table.content.get(key)!r}, but this program supports {value!r} only; "
                "it is another model than the released MOSS-Speech"
            )
