"""Exported files of the stored tiny networks, made once for all processes of a run."""

from __future__ import annotations

import pytest
from safetensors.torch import load_file

from engine_runtime.codec.flow.token2mel import Token2Mel
from engine_runtime.codec.speech_tokenizer.speech_tokenizer import SpeechTokenizer
from engine_runtime.codec.vocoder.vocoder import Vocoder
from tests.engine_runtime.codec.flow.test_token2mel import SPEC
from tests.engine_runtime.codec.speech_tokenizer.test_speech_tokenizer import GOLDEN, make_tokenizer
from tests.engine_runtime.codec.vocoder.test_hift_stream import hift
from tests.engine_runtime.codec.vocoder.test_vocoder import stored_bigvgan
from tests.factories.tiny_flow import make_flow

PACKETS = (5, 10)


@pytest.fixture
def flow() -> Token2Mel:
    """The stored flow with guidance on buffers of a fixed size, two Euler steps."""
    return Token2Mel(make_flow(1200)[0], SPEC, steps=2, packet_codes=PACKETS, static_bytes=1 << 30)


@pytest.fixture
def tokenizer() -> SpeechTokenizer:
    return make_tokenizer(load_file(GOLDEN / "encoder_tiny.safetensors"), "running_max")


@pytest.fixture
def bigvgan() -> Vocoder:
    return Vocoder(stored_bigvgan()[0], SPEC)


@pytest.fixture
def hift_vocoder() -> Vocoder:
    return Vocoder(hift()[0], SPEC)
