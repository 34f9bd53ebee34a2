"""Stages: the networks of a bundle, loaded and wrapped in their streaming twins.

In: an open bundle. Out: everything a turn needs, none of it with the state of a turn. The language model, and
flow and vocoder, run in the dtypes chosen; the speech tokenizer stays in float32, since a distance that is
rounded picks another code. Called once, in the thread that will use the engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast, get_args

import torch

from engine_runtime.bundle import Bundle
from engine_runtime.codec.features import Normalisation
from engine_runtime.codec.lane import HostLane, NewLane
from engine_runtime.codec.runtime import CodecRuntime, codec_runtime
from engine_runtime.codec.speech_tokenizer import SpeechTokenizer
from engine_runtime.codec.token2mel import Token2Mel, VoicePrompt
from engine_runtime.codec.vocoder import Vocoder
from engine_runtime.errors import BundleError
from engine_runtime.executors.torch_executor import TorchExecutor
from engine_runtime.hardware import usable_device
from engine_runtime.lm.block_manager import BlockManager
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.lm.paged_lm import PagedLM
from engine_runtime.models.bigvgan import build_bigvgan
from engine_runtime.models.flow import CausalFlow, FlowConfig
from engine_runtime.models.hift import HiFT, HiFTConfig
from engine_runtime.models.moss_lm import MossLM, MossLMConfig
from engine_runtime.models.whisper_vq import WhisperVQ, WhisperVQConfig
from engine_runtime.options import EngineOptions
from engine_runtime.prompt import Prompt, TextTokenizer
from engine_runtime.voice_prompt import VoiceSource, make_voice_prompt
from engine_runtime.weights import LoadProgress, Progress, Uninitialised, load_weights


@dataclass(frozen=True, slots=True)
class Stages:
    """What the turns of all conversations share."""

    bundle: Bundle
    lm: PagedLM
    lm_config: MossLMConfig
    tokenizer: TextTokenizer
    prompt: Prompt
    speech_tokenizer: SpeechTokenizer
    token2mel: Token2Mel
    vocoder: Vocoder
    new_lane: NewLane = HostLane

    @property
    def max_codes(self) -> int:
        """Speech codes of the longest reply that the flow can say."""
        return (
            self.token2mel.config.max_frames // self.token2mel.frames_per_code - self.token2mel.prompt_codes
        )

    @property
    def samples_per_code(self) -> int:
        """Reply samples of one speech code."""
        return self.token2mel.frames_per_code * self.token2mel.mel.hop


def load_stages(
    bundle: Bundle,
    options: EngineOptions,
    *,
    voice: VoiceSource | None = None,
    progress: Progress | None = None,
) -> Stages:
    """Load every network; `voice` is what to speak with, if not with the bundle's own voice.

    Raises BundleError for weights that do not fit what the manifest describes, AcceleratorError for a device
    that is not there, AudioInputError for a recording that gives no voice.
    """
    device = usable_device(options.device)
    runtime = codec_runtime(device, bundle.flow, options)
    lm_config = MossLMConfig.from_dict(bundle.lm.config)
    tokenizer = TextTokenizer(bundle.text_tokenizer, bundle.lm.special_ids, lm_config.text_vocab)
    sections = (bundle.speech_encoder, bundle.lm, bundle.flow, bundle.vocoder)
    loading = LoadProgress([section.weights for section in sections], progress)
    # First, since a recording that is no use as a voice should be told before the large ones are read.
    speech_tokenizer = _load_speech_tokenizer(bundle, device, loading)
    prompt = None if voice is None else make_voice_prompt(voice, bundle, speech_tokenizer)
    return Stages(
        bundle=bundle,
        lm=_load_lm(bundle, lm_config, device, options, loading),
        lm_config=lm_config,
        tokenizer=tokenizer,
        prompt=Prompt(tokenizer, bundle.lm.special_ids, bundle.lm.prompt),
        speech_tokenizer=speech_tokenizer,
        token2mel=_load_token2mel(bundle, device, options, runtime, prompt, loading),
        vocoder=_load_vocoder(bundle, device, options, runtime, loading),
        new_lane=runtime.new_lane,
    )


def _load_lm(
    bundle: Bundle,
    config: MossLMConfig,
    device: torch.device,
    options: EngineOptions,
    loading: LoadProgress,
) -> PagedLM:
    section, dtype = bundle.lm, getattr(torch, options.dtype)
    kv_blocks = options.kv_blocks or section.kv_blocks
    with torch.device("meta"), Uninitialised():
        model = MossLM(config)
    load_weights(model, section.weights, dtype, device, progress=loading.next(section.weights))
    cache = KVCache(config, kv_blocks, section.tokens_per_block, dtype=dtype, device=device)
    executor = TorchExecutor(model.eval(), cache, max_seq_len=section.context_rows)
    return PagedLM(executor, cache, BlockManager(kv_blocks, section.tokens_per_block))


def _load_speech_tokenizer(bundle: Bundle, device: torch.device, loading: LoadProgress) -> SpeechTokenizer:
    section = bundle.speech_encoder
    with Uninitialised():
        model = WhisperVQ(WhisperVQConfig.from_dict(section.config))
    load_weights(
        model,
        section.weights,
        torch.float32,
        device,
        partial=section.weights_hold_more,
        progress=loading.next(section.weights),
    )
    known = get_args(Normalisation)
    if section.normalisation not in known:
        raise BundleError(
            f"[speech_encoder] has normalisation {section.normalisation!r}, which is none of "
            f"{', '.join(known)}. Correct the bundle's manifest."
        )
    normalisation = cast(Normalisation, section.normalisation)
    tokenizer = SpeechTokenizer(model, section.sample_rate, normalisation, device)
    eosp = bundle.lm.special_ids.eosp
    if tokenizer.codebook_size > eosp:
        raise BundleError(
            f"The speech encoder of bundle {bundle.name} has {tokenizer.codebook_size} codes, and the "
            f"language model's end of speech is {eosp}. Use parts of one model."
        )
    return tokenizer


def _load_token2mel(
    bundle: Bundle,
    device: torch.device,
    options: EngineOptions,
    runtime: CodecRuntime,
    prompt: VoicePrompt | None,
    loading: LoadProgress,
) -> Token2Mel:
    section = bundle.flow
    with Uninitialised():
        flow = CausalFlow(FlowConfig.from_dict(section.config))
    load_weights(flow, section.weights, torch.float32, device, progress=loading.next(section.weights))
    return Token2Mel(
        flow.eval(),
        section.mel,
        steps=options.flow_steps or section.steps,
        cfg_rate=section.cfg_rate,
        schedule=options.flow_schedule,
        packet_codes=section.packets,
        prompt=prompt,
        dtype=getattr(torch, options.codec_dtype),
        device=device,
        static_bytes=runtime.static_bytes,
        calls=runtime.calls,
    )


def _load_vocoder(
    bundle: Bundle, device: torch.device, options: EngineOptions, runtime: CodecRuntime, loading: LoadProgress
) -> Vocoder:
    section = bundle.vocoder
    is_hift = section.kind == "hift"
    with Uninitialised():
        network = HiFT(HiFTConfig.from_dict(section.config)) if is_hift else build_bigvgan(section.config)
    load_weights(
        network,
        section.weights,
        torch.float32,
        device,
        either_weight_norm_style=is_hift,
        progress=loading.next(section.weights),
    )
    vocoder = Vocoder(
        network,
        section.mel,
        left_context_frames=section.left_context_frames,
        right_context_frames=section.right_context_frames,
        dtype=getattr(torch, options.codec_dtype),
        device=device,
        recorded=runtime.recorded,
    )
    vocoder.require(bundle.flow.mel)
    return vocoder
