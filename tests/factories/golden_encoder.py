"""A bundle with the stored speech encoder of the released shape, and its speech as recordings of 3 s.

    python -m tests.factories.golden_encoder DIR
    moss-voice verify DIR/bundle --encoder --wavs DIR/wavs

The weights of the encoder are random but known, and its normalization is the released one; all other networks
are those of tests/factories/bundle.py.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import safetensors.torch
import soundfile
import torch

from engine_runtime.models.whisper_vq import WhisperVQConfig
from tests.factories.bundle import (
    describe_bundle,
    make_networks,
    save_network,
    write_manifest,
    write_tokenizer,
)

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
RATE = 16000
WINDOW_S = 3


def make_golden_bundle(directory: Path) -> Path:
    """Write the bundle into `directory` and return it."""
    directory.mkdir(parents=True, exist_ok=True)
    config = WhisperVQConfig.from_released(json.loads((GOLDEN / "encoder_tiny.json").read_text())["config"])
    manifest = describe_bundle(write_tokenizer(directory / "tokenizer.json"), config.codebook_size)
    manifest["speech_encoder"] |= {"normalization": "segment_max", "config": dict(vars(config))}
    torch.manual_seed(0)
    networks = make_networks(manifest)
    stored = safetensors.torch.load_file(GOLDEN / "encoder_tiny.safetensors")
    keys = networks["speech_encoder"].state_dict()
    networks["speech_encoder"].load_state_dict({key: stored[key] for key in keys})
    for name, network in networks.items():
        save_network(network, directory / f"{name}.safetensors", half=name != "speech_encoder")
    write_manifest(directory, manifest)
    return directory


def write_recordings(directory: Path) -> Path:
    """Write the stored speech, cut, into `directory` and return it."""
    directory.mkdir(parents=True, exist_ok=True)
    wave = safetensors.torch.load_file(GOLDEN / "encoder_tiny.safetensors")["wave16k_int16"].numpy()
    for number, start in enumerate(range(0, wave.size - WINDOW_S * RATE, WINDOW_S * RATE)):
        part = wave[start : start + WINDOW_S * RATE]
        soundfile.write(directory / f"{number:02}.wav", part, RATE, subtype="PCM_16")
    return directory


if __name__ == "__main__":
    target = Path(sys.argv[1])
    make_golden_bundle(target / "bundle")
    write_recordings(target / "wavs")
