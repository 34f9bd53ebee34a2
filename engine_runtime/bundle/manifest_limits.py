"""Limits of the numbers in a manifest, per table, except those in the configs of networks.

In: nothing. Out: limits for `Table.hold`, chosen as described in models/limits.py.
"""

from __future__ import annotations

from engine_runtime.models.limits import CODES, FLOW_CONFIG, ID, MEL, RATE, Integer, Integers, Limits, Real

LM: Limits = {
    "tokens_per_block": Integer(1, 1_024),
    "kv_blocks": Integer(1, 1 << 20),
    "context_tokens": Integer(1, 1 << 20),
}
SPECIAL_IDS: Limits = dict.fromkeys(
    (
        "endoftext",
        "im_start",
        "im_end",
        "sosp",
        "modality_pad",
        "eosp",
        "audio_pad",
        "audio_forbidden_from",
        "empty",
    ),
    ID,
)
DECLINING: Limits = {
    "least_probability": Real(0.0, 1.0),
    "codes": Integers(0, ID.most, count=1_000),
    "subtitles": Integers(0, ID.most, count=1_000),
}
SAMPLING: Limits = {
    "temperature": Real(0.0, 100.0),
    "top_k": Integer(0, 1 << 22),
    "top_p": Real(1e-6, 1.0),
    "repetition_penalty": Real(1e-2, 100.0),
    "min_new": Integer(0, 1 << 20),
    "max_new": Integer(1, 1 << 20),
    "seed": Integer(0, (1 << 63) - 1),
}
SPEECH_ENCODER: Limits = {"sample_rate": RATE, "ceiling_prior": Real(-10.0, 10.0)}
FLOW: Limits = {
    "steps": FLOW_CONFIG["steps"],
    "cfg_rate": FLOW_CONFIG["cfg_rate"],
    "chunk_codes": CODES,
    "look_ahead_codes": FLOW_CONFIG["look_ahead_codes"],
    "first_chunk_codes": CODES,
    "packet_codes": Integers(1, 1_000, count=64),
}
VOCODER: Limits = {
    "left_context_frames": Integer(0, 1_000),
    "right_context_frames": Integer(0, 1_000),
}
VOICE: Limits = {
    "sample_rate": RATE,
    "n_mels": MEL["n_mels"],
    "least_s": Real(0.0, 30.0),
    "most_s": Real(0.0, 30.0),
}
FILE: Limits = {"size": Integer(0, 1 << 50)}
