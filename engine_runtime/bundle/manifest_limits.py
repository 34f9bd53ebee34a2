"""Limits of the numbers in a manifest that are no network's config, table by table.

In: nothing. Out: limits that `Table.hold` compares a table with; models/limits.py says how they are chosen.
"""

from __future__ import annotations

from engine_runtime.models.limits import CODES, FLOW_CONFIG, ID, MEL, RATE, Limits, Real, Whole, Wholes

LM: Limits = {
    "tokens_per_block": Whole(1, 1_024),
    "kv_blocks": Whole(1, 1 << 20),
    "context_rows": Whole(1, 1 << 20),
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
SAMPLING: Limits = {
    "temperature": Real(0.0, 100.0),
    "top_k": Whole(0, 1 << 22),
    "top_p": Real(1e-6, 1.0),
    "repetition_penalty": Real(1e-2, 100.0),
    "min_new": Whole(0, 1 << 20),
    "max_new": Whole(1, 1 << 20),
    "seed": Whole(0, (1 << 63) - 1),
}
SPEECH_ENCODER: Limits = {"sample_rate": RATE, "ceiling_prior": Real(-10.0, 10.0)}
FLOW: Limits = {
    "steps": FLOW_CONFIG["steps"],
    "cfg_rate": FLOW_CONFIG["cfg_rate"],
    "chunk_codes": CODES,
    "look_ahead_codes": FLOW_CONFIG["look_ahead_codes"],
    "first_chunk_codes": CODES,
    "packet_codes": Wholes(1, 1_000, count=64),
}
VOCODER: Limits = {
    "left_context_frames": Whole(0, 1_000),
    "right_context_frames": Whole(0, 1_000),
}
VOICE: Limits = {
    "sample_rate": RATE,
    "n_mels": MEL["n_mels"],
    "least_s": Real(0.0, 30.0),
    "most_s": Real(0.0, 30.0),
}
FILE: Limits = {"size": Whole(0, 1 << 50)}
