"""What the numbers of a manifest may be: the least and the most of every key, table by table.

In: nothing. Out: limits that `Table.hold` and `check_config` compare a table with. They lie well beyond any
model that this program could run: a slip of the hand or a damaged file becomes an error that names the key,
before anything is built or computed whose size follows from that number. No torch here, like all that reads a
manifest.
"""

from __future__ import annotations

from .manifest import Limits, Real, Whole, Wholes

_CODES = Whole(1, 1_000)
_RATE = Whole(8_000, 192_000)
_VOCABULARY = Whole(1, 1 << 22)
_ID = Whole(0, (1 << 22) - 1)
_LAYERS = Whole(1, 512)
_KERNELS = Wholes(1, 256, count=16)
_DILATIONS = Wholes(1, 256, count=16, depth=2)

LM: Limits = {
    "tokens_per_block": Whole(1, 1_024),
    "kv_blocks": Whole(1, 1 << 20),
    "context_rows": Whole(1, 1 << 20),
}
LM_CONFIG: Limits = {
    "hidden_size": Whole(1, 65_536),
    "intermediate_size": Whole(1, 262_144),
    "num_attention_heads": Whole(1, 1_024),
    "num_key_value_heads": Whole(1, 1_024),
    "head_dim": Whole(2, 1_024),
    "shared_layers": _LAYERS,
    "text_layers": _LAYERS,
    "audio_layers": _LAYERS,
    "text_vocab": _VOCABULARY,
    "audio_vocab": _VOCABULARY,
    "modality_pad": _ID,
    "rope_theta": Real(1.0, 1e12),
    "rms_norm_eps": Real(0.0, 1.0),
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
    _ID,
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
SPEECH_ENCODER: Limits = {"sample_rate": _RATE, "ceiling_prior": Real(-10.0, 10.0)}
SPEECH_ENCODER_CONFIG: Limits = {
    "num_mel_bins": Whole(1, 512),
    "d_model": Whole(2, 16_384),
    "heads": Whole(1, 256),
    "ffn": Whole(1, 65_536),
    "layers": Whole(1, 256),
    "max_positions": Whole(1, 16_384),
    "codebook_size": Whole(1, 1 << 20),
    "pool": Whole(1, 64),
}
FLOW: Limits = {
    "steps": Whole(1, 1_000),
    "cfg_rate": Real(0.0, 100.0),
    "chunk_codes": _CODES,
    "look_ahead_codes": Whole(0, 100),
    "first_chunk_codes": _CODES,
    "packet_codes": Wholes(1, 1_000, count=64),
}
FLOW_CONFIG: Limits = {
    "vocab_size": Whole(1, 1 << 20),
    "n_mels": Whole(1, 512),
    "xvector_dim": Whole(1, 8_192),
    "encoder_dim": Whole(2, 8_192),
    "encoder_heads": Whole(1, 256),
    "encoder_ffn": Whole(1, 65_536),
    "encoder_blocks": Whole(0, 128),
    "encoder_up_blocks": Whole(0, 128),
    "encoder_dropout": Real(0.0, 1.0),
    "upsample": Whole(1, 64),
    "look_ahead_codes": FLOW["look_ahead_codes"],
    "chunk_codes": _CODES,
    "channels": Whole(1, 8_192),
    "n_blocks": Whole(1, 64),
    "mid_blocks": Whole(0, 128),
    "heads": Whole(1, 256),
    "head_dim": Whole(1, 1_024),
    "sigma_min": Real(0.0, 1.0),
    "train_cfg_rate": Real(0.0, 1.0),
    "cfg_rate": FLOW["cfg_rate"],
    "steps": FLOW["steps"],
    "max_frames": Whole(1, 200_000),
}
MEL: Limits = {
    "sample_rate": _RATE,
    "n_mels": Whole(1, 512),
    "n_fft": Whole(2, 65_536),
    "hop": Whole(1, 8_192),
    "win": Whole(2, 65_536),
    "fmin": Real(0.0, 96_000.0),
    "fmax": Real(0.0, 96_000.0),
}
VOCODER: Limits = {
    "left_context_frames": Whole(0, 1_000),
    "right_context_frames": Whole(0, 1_000),
}
HIFT_CONFIG: Limits = {
    "in_channels": MEL["n_mels"],
    "base_channels": Whole(1, 8_192),
    "nb_harmonics": Whole(0, 64),
    "sampling_rate": _RATE,
    "nsf_alpha": Real(0.0, 10.0),
    "nsf_sigma": Real(0.0, 10.0),
    "nsf_voiced_threshold": Real(0.0, 10_000.0),
    "upsample_rates": Wholes(1, 64, count=16),
    "upsample_kernel_sizes": _KERNELS,
    "n_fft": Whole(2, 4_096),
    "hop_len": Whole(1, 1_024),
    "resblock_kernel_sizes": _KERNELS,
    "resblock_dilation_sizes": _DILATIONS,
    "source_resblock_kernel_sizes": _KERNELS,
    "source_resblock_dilation_sizes": _DILATIONS,
    "lrelu_slope": Real(0.0, 1.0),
    "audio_limit": Real(1e-3, 1.0),
    "f0_channels": Whole(1, 8_192),
}
BIGVGAN_CONFIG: Limits = {
    "upsample_rates": Wholes(1, 64, count=16),
    "upsample_kernel_sizes": _KERNELS,
    "upsample_initial_channel": Whole(1, 16_384),
    "resblock_kernel_sizes": _KERNELS,
    "resblock_dilation_sizes": _DILATIONS,
    "num_mels": MEL["n_mels"],
    "n_fft": MEL["n_fft"],
    "hop_size": MEL["hop"],
    "win_size": MEL["win"],
    "sampling_rate": _RATE,
}
VOICE: Limits = {
    "sample_rate": _RATE,
    "n_mels": MEL["n_mels"],
    "least_s": Real(0.0, 30.0),
    "most_s": Real(0.0, 30.0),
}
FILE: Limits = {"size": Whole(0, 1 << 50)}
