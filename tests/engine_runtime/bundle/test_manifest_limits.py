"""Every number of a manifest has a limit, and existing bundles are within them."""

from __future__ import annotations

import typing
from dataclasses import fields
from pathlib import Path

import pytest

from engine_runtime.bundle import manifest_limits as limits
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.bundle.released.full_size import describe
from engine_runtime.bundle.sections import (
    FileEntry,
    FlowSection,
    LMSection,
    SpecialIds,
    SpeechEncoderSection,
    VocoderSection,
    VoiceSection,
)
from engine_runtime.errors import BundleError
from engine_runtime.models import limits as config_limits
from engine_runtime.models.bigvgan import check_config
from engine_runtime.models.flow import FlowConfig
from engine_runtime.models.hift import HiFTConfig
from engine_runtime.models.limits import Limits, Switch
from engine_runtime.models.moss_lm import MossLMConfig
from engine_runtime.models.whisper_vq import WhisperVQConfig
from engine_runtime.types import MelSpec, SamplingParams
from tests.factories.bundle import BIGVGAN_CONFIG

TABLES = [
    (LMSection, limits.LM),
    (MossLMConfig, config_limits.LM_CONFIG),
    (SpecialIds, limits.SPECIAL_IDS),
    (SamplingParams, limits.SAMPLING),
    (SpeechEncoderSection, limits.SPEECH_ENCODER),
    (WhisperVQConfig, config_limits.SPEECH_ENCODER_CONFIG),
    (FlowSection, limits.FLOW),
    (FlowConfig, config_limits.FLOW_CONFIG),
    (MelSpec, config_limits.MEL),
    (VocoderSection, limits.VOCODER),
    (HiFTConfig, config_limits.HIFT_CONFIG),
    (VoiceSection, limits.VOICE),
    (FileEntry, limits.FILE),
]


@pytest.mark.parametrize(("kind", "table"), TABLES, ids=lambda value: getattr(value, "__name__", ""))
def test_every_number_has_a_limit(kind: type, table: Limits) -> None:
    hints = typing.get_type_hints(kind)
    numbers = {field.name for field in fields(kind) if _holds_numbers(hints[field.name])}
    assert {key for key, limit in table.items() if not isinstance(limit, Switch)} == numbers


def _holds_numbers(hint: object) -> bool:
    if hint is bool:
        return False
    return hint in (int, float) or any(map(_holds_numbers, typing.get_args(hint)[:1]))


@pytest.mark.parametrize(
    ("read", "key"),
    [
        (MossLMConfig.from_dict, "audio_layers"),
        (WhisperVQConfig.from_dict, "layers"),
        (FlowConfig.from_dict, "max_frames"),
        (HiFTConfig.from_dict, "base_channels"),
        (check_config, "upsample_initial_channel"),
    ],
)
def test_networks_refuse_what_the_manifest_may_not_say(
    random_bundle: Path, read: typing.Callable[[dict[str, object]], object], key: str
) -> None:
    bundle = Bundle.open(random_bundle)
    configs: list[dict[str, object]] = [
        bundle.lm.config,
        bundle.speech_encoder.config,
        bundle.flow.config,
        {"base_channels": 512},
        BIGVGAN_CONFIG,
    ]
    config = next(config for config in configs if key in config)
    read(config)
    values: list[object] = [10**18, 0, -1, "many", True, None, [3], {}]
    for value in values:
        with pytest.raises(BundleError, match=rf"\.config\] has {key} = .*which must be"):
            read(config | {key: value})


def test_the_released_model_is_within_the_limits(nano_bundle: Path) -> None:
    assert describe("moss-speech").lm.config["hidden_size"] == 4096
    assert Bundle.open(nano_bundle).name == "nano"
