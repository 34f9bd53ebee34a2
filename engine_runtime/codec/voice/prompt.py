"""Voice prompt: the flow's conditioning on a recording chosen by the user.

In: mono PCM at any rate. Out: its codes, its mel and its x-vector, truncated to complete chunks of the flow
so that the first chunk of a reply starts at a chunk boundary. Silence before and after the speech is removed.
Computed once per recording and bundle, and cached in a folder under a hash of everything it depends on. Runs
when an engine is loaded, in its thread.

The rates are those of the released codec: codes from the recording at the speech encoder's rate, mel at the
flow's, x-vector from the latter, resampled again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
import torch
from numpy.typing import NDArray

from engine_runtime.bundle.bundle import Bundle, VoiceSection
from engine_runtime.codec.resample import resample
from engine_runtime.codec.speech_tokenizer.features import CodecMel
from engine_runtime.codec.speech_tokenizer.speech_tokenizer import SpeechTokenizer
from engine_runtime.codec.speech_tokenizer.spoken_pcm import check_pcm
from engine_runtime.codec.voice.recording import VoiceSource, cut_speech, voice_section
from engine_runtime.codec.voice.speaker_encoder import SpeakerEncoder
from engine_runtime.errors import BundleError
from engine_runtime.types import Pcm, VoicePrompt

_log = logging.getLogger(__name__)
_VERSION = 1
"""Version of the computation of a prompt; a change invalidates cached prompts."""


def make_voice_prompt(source: VoiceSource, bundle: Bundle, tokenizer: SpeechTokenizer) -> VoicePrompt:
    """The prompt of a recording, from the cache if it is there.

    Raises BundleError for a bundle without a speaker encoder, AudioInputError for a recording that is silent
    or too short.
    """
    section = voice_section(bundle)
    speech = cut_speech(replace(source, pcm=check_pcm(source.pcm)), bundle)
    kept = None if source.cache is None else source.cache / f"{_key(source, bundle, section)}.safetensors"
    if kept is not None and (prompt := _read(kept)) is not None:
        return prompt
    prompt = _make(speech, source.sample_rate, bundle, section, tokenizer)
    if kept is not None:
        _keep(prompt, kept)
    return prompt


def _make(
    speech: Pcm, rate: int, bundle: Bundle, section: VoiceSection, tokenizer: SpeechTokenizer
) -> VoicePrompt:
    mel = bundle.flow.mel
    heard = resample(speech, rate, tokenizer.sample_rate)
    count = round(heard.size / tokenizer.samples_per_code)
    codes = tokenizer.encode(_exactly(heard, count * tokenizer.samples_per_code))
    said = _exactly(resample(speech, rate, mel.sample_rate), count * bundle.samples_per_code)
    with torch.inference_mode():
        frames = CodecMel(mel)(torch.from_numpy(said)).numpy()
    speaker = SpeakerEncoder(section.speaker_encoder, section.sample_rate, section.n_mels)
    xvector = speaker.xvector(resample(said, mel.sample_rate, section.sample_rate))
    wanted = bundle.flow.config.get("xvector_dim", xvector.size)
    if xvector.size != wanted:
        raise BundleError(
            "{speaker_encoder} returns x-vectors of {size} values, but the flow takes {wanted}.",
            "Use the parts of one model.",
            speaker_encoder=section.speaker_encoder,
            size=xvector.size,
            wanted=wanted,
        )
    return VoicePrompt(codes, frames, xvector)


def _exactly(pcm: Pcm, size: int) -> Pcm:
    """Trim or pad to `size`: rounding of rates may leave a sample too many or too few."""
    return np.pad(pcm, (0, max(0, size - pcm.size)))[:size]


def _key(source: VoiceSource, bundle: Bundle, section: VoiceSection) -> str:
    """Hash of all inputs of the prompt."""

    def hashes(files: tuple[Path, ...]) -> list[str]:
        return [bundle.files[file.relative_to(bundle.path).as_posix()].sha256 for file in files]

    encoder = bundle.speech_encoder
    about = {
        "version": _VERSION,
        "sample_rate": source.sample_rate,
        "encoder": [
            hashes(encoder.weights),
            encoder.config,
            encoder.normalization,
            encoder.ceiling_prior,
            encoder.sample_rate,
        ],
        "speaker": [*hashes((section.speaker_encoder,)), section.sample_rate, section.n_mels],
        "seconds": [section.least_s, section.most_s],
        "chunk_codes": bundle.flow.chunk_codes,
        "frames": [bundle.flow.config["upsample"], asdict(bundle.flow.mel)],
    }
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    digest.update(np.ascontiguousarray(source.pcm, dtype=np.float32).tobytes())
    return digest.hexdigest()


def _read(file: Path) -> VoicePrompt | None:
    """The cached prompt, or None; an unusable file is recomputed."""
    try:
        kept = safetensors.numpy.load_file(file)
        return VoicePrompt(kept["codes"], kept["mel"], kept["xvector"])
    except FileNotFoundError:
        return None
    except (OSError, KeyError, safetensors.SafetensorError) as error:
        _log.warning("the cached voice %s cannot be used and is computed again: %s", file, error)
        return None


def _keep(prompt: VoicePrompt, file: Path) -> None:
    """Write the file atomically, for its owner only: a voice is recognized by it. If the disk is full, the
    prompt is computed again the next time."""
    assert prompt.xvector is not None
    unfinished = file.with_suffix(f".{os.getpid()}")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        tensors: dict[str, NDArray[Any]] = {
            "codes": prompt.codes,
            "mel": np.ascontiguousarray(prompt.mel),
            "xvector": prompt.xvector,
        }
        content = safetensors.numpy.save(tensors)
        with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as stream:
            stream.write(content)
        unfinished.replace(file)
    except (OSError, safetensors.SafetensorError) as error:
        _log.warning("the voice cannot be cached in %s: %s", file.parent, error)
