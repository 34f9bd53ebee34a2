"""Loads the codec's networks and wraps them in their streaming stages.

In: an open bundle, the options, the codec runtime of the device. Out: speech tokenizer, token2mel, vocoder.
Called once, on the thread that will use the engine.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast, get_args

import torch
from torch import nn

from engine_runtime.bundle.bundle import Bundle, VocoderSection
from engine_runtime.bundle.random_weights import VOICE_SECONDS, load_or_fill, random_voice
from engine_runtime.bundle.vocoder_file import with_vocoder
from engine_runtime.bundle.weights import LoadProgress, Progress, Uninitialized
from engine_runtime.codec.flow.static import bytes_per_code, least_codes
from engine_runtime.codec.flow.token2mel import Token2Mel
from engine_runtime.codec.runtime import VOCODER_BATCH_BYTES, CodecRuntime, most_replies
from engine_runtime.codec.speech_tokenizer.encoder_graph import use_onnxruntime
from engine_runtime.codec.speech_tokenizer.encoder_pool import stream_bytes
from engine_runtime.codec.speech_tokenizer.features import Normalization
from engine_runtime.codec.speech_tokenizer.speech_tokenizer import SpeechTokenizer
from engine_runtime.codec.vocoder.vocoder import Vocoder
from engine_runtime.cuda.graphs import GraphedCalls
from engine_runtime.errors import BundleError
from engine_runtime.hardware import usable_device
from engine_runtime.models.bigvgan import build_bigvgan
from engine_runtime.models.bigvgan_package import BigVGAN
from engine_runtime.models.flow import CausalFlow, FlowConfig
from engine_runtime.models.hift import HiFT, HiFTConfig
from engine_runtime.models.whisper_vq import WhisperVQ, WhisperVQConfig
from engine_runtime.options import EngineOptions
from engine_runtime.types import VoicePrompt


def chosen_codec(bundle: Bundle, options: EngineOptions) -> Bundle:
    """The bundle with the vocoder of the options, if they name one. Raises BundleError."""
    return bundle if options.vocoder is None else with_vocoder(bundle, options.vocoder)


def codec_networks(bundle: Bundle) -> dict[str, nn.Module]:
    """Speech encoder, flow and vocoder by name, on the meta device: names and shapes alone."""
    with torch.device("meta"), Uninitialized():
        return {
            "speech encoder": WhisperVQ(WhisperVQConfig.from_dict(bundle.speech_encoder.config)),
            "flow": CausalFlow(FlowConfig.from_dict(bundle.flow.config)),
            "vocoder": _vocoder_network(bundle.vocoder),
        }


def codec_bytes(bundle: Bundle, options: EngineOptions) -> int:
    """Bytes of the weights of speech encoder, flow and vocoder in their dtypes, computed from shapes, plus
    the smallest flow caches that fit the longest voice prompt, what a HiFT vocoder takes for several replies
    in one call, and the encoder's caches for the given number of conversations."""
    bundle = chosen_codec(bundle, options)
    networks = codec_networks(bundle)
    chosen: torch.dtype = getattr(torch, options.voice_dtype)
    weights: int = sum(
        codec_dtype(name, options).itemsize * tensor.numel()
        for name, network in networks.items()
        for tensor in network.state_dict().values()
    )
    voice_s = 0.0 if bundle.voice is None else bundle.voice.most_s
    if options.random_weights is not None:
        voice_s = VOICE_SECONDS
    section = bundle.flow
    prompt = round(voice_s * section.mel.sample_rate / bundle.samples_per_code)
    flow = FlowConfig.from_dict(section.config)
    per_code = bytes_per_code(flow, options.flow_steps or section.steps, section.cfg_rate, chosen)
    joins = isinstance(networks["vocoder"], HiFT) and most_replies(options) > 1
    caches = per_code * least_codes(prompt, flow.chunk_codes)
    streams = options.conversations or 0 if options.serves_several else 0
    encoder = WhisperVQConfig.from_dict(bundle.speech_encoder.config)
    return weights + caches + (VOCODER_BATCH_BYTES if joins else 0) + streams * stream_bytes(encoder)


def codec_dtype(network: str, options: EngineOptions) -> torch.dtype:
    """The dtype of one of the networks of `codec_networks`."""
    dtype: torch.dtype = getattr(torch, options.voice_dtype)
    return torch.float32 if network == "speech encoder" else dtype


def load_speech_encoder(
    bundle: Bundle, options: EngineOptions, progress: Progress | None = None
) -> SpeechTokenizer:
    """The speech encoder alone; raises as `load_stages` does."""
    loading = LoadProgress([bundle.speech_encoder.weights], progress)
    return load_speech_tokenizer(bundle, usable_device(options.device), options, loading)


def load_speech_tokenizer(
    bundle: Bundle, device: torch.device, options: EngineOptions, loading: LoadProgress
) -> SpeechTokenizer:
    """The speech encoder, in float32. Raises BundleError for mismatched parts."""
    section = bundle.speech_encoder
    with Uninitialized():
        model = WhisperVQ(WhisperVQConfig.from_dict(section.config))
    report = loading.next(section.weights)
    load_or_fill(model, section.weights, device, options, report, partial=section.weights_hold_more)
    known = get_args(Normalization)
    if section.normalization not in known:
        raise BundleError(
            "[speech_encoder] has normalization {normalization!r}, which is not one of {known}.",
            "Correct the bundle's manifest.",
            normalization=section.normalization,
            known=", ".join(known),
        )
    normalization = cast(Normalization, section.normalization)
    calls = GraphedCalls(device, enabled=options.graphs)
    tokenizer = SpeechTokenizer(
        model, section.sample_rate, normalization, device, calls=calls, prior=section.ceiling_prior
    )
    if device.type == "cpu" and options.kernels != "torch":
        use_onnxruntime(tokenizer, section.graph)
    eosp = bundle.lm.special_ids.eosp
    if tokenizer.codebook_size > eosp:
        raise BundleError(
            "The speech encoder of bundle {bundle} has {codebook_size} codes, but the language model's "
            "end of speech is {eosp}.",
            "Use parts of one model.",
            bundle=bundle.name,
            codebook_size=tokenizer.codebook_size,
            eosp=eosp,
        )
    return tokenizer


def load_token2mel(
    bundle: Bundle,
    device: torch.device,
    options: EngineOptions,
    runtime: CodecRuntime,
    prompt: VoicePrompt | None,
    loading: LoadProgress,
) -> Token2Mel:
    """The flow, in the dtype of the voice, with the voice prompt in its caches."""
    section = bundle.flow
    flow, random_prompt = load_flow(bundle, device, options, loading.next(section.weights))
    dtype: torch.dtype = getattr(torch, options.voice_dtype)
    return Token2Mel(
        flow,
        section.mel,
        steps=options.flow_steps or section.steps,
        cfg_rate=section.cfg_rate,
        schedule=options.flow_schedule or "cosine",
        packet_codes=section.packets,
        prompt=prompt or random_prompt,
        dtype=dtype,
        device=device,
        static_bytes=runtime.cache_bytes(),
        streams=most_replies(options),
        calls=runtime.calls,
        # No Triton kernels in float32: on an H200 a packet takes 225 ms with them and 66 ms with cuBLAS.
        triton=runtime.triton and dtype != torch.float32,
    )


def load_flow(
    bundle: Bundle, device: torch.device, options: EngineOptions, progress: Progress | None = None
) -> tuple[CausalFlow, VoicePrompt | None]:
    """The one-shot flow in float32, and a matching voice prompt if the weights are random."""
    with Uninitialized():
        flow = CausalFlow(FlowConfig.from_dict(bundle.flow.config))
    load_or_fill(flow, bundle.flow.weights, device, options, progress)
    seed = options.random_weights
    voice = None if seed is None else random_voice(flow.config, bundle.flow.mel.frame_rate, seed)
    return flow.eval(), voice


def load_vocoder(
    bundle: Bundle, device: torch.device, options: EngineOptions, runtime: CodecRuntime, loading: LoadProgress
) -> Vocoder:
    """The vocoder. Raises BundleError if its mel differs from the flow's. That of a file of its own has its
    weights also where the bundle's networks get random ones."""
    section = bundle.vocoder
    if options.vocoder is not None:
        options = replace(options, random_weights=None)
    with Uninitialized():
        network = _vocoder_network(section)
    report = loading.next(section.weights)
    is_hift = isinstance(network, HiFT)
    load_or_fill(network, section.weights, device, options, report, either_weight_norm_style=is_hift)
    vocoder = Vocoder(
        network,
        section.mel,
        left_context_frames=section.left_context_frames,
        right_context_frames=section.right_context_frames,
        dtype=getattr(torch, options.voice_dtype),
        device=device,
        graphed=runtime.graphed,
        triton=runtime.triton,
        keep_state=runtime.keep_state,
        streams=most_replies(options),
    )
    vocoder.require(bundle.flow.mel)
    return vocoder


def _vocoder_network(section: VocoderSection) -> HiFT | BigVGAN:
    if section.kind == "hift":
        return HiFT(HiFTConfig.from_dict(section.config))
    return build_bigvgan(section.config)
