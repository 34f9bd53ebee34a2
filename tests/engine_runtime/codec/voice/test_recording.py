from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from engine_runtime.bundle.bundle import Bundle
from engine_runtime.bundle.released.assembly import assemble
from engine_runtime.bundle.released.layout import find_released, locate
from engine_runtime.codec.voice.recording import VoiceSource, cut_speech
from engine_runtime.errors import AudioInputError, BundleError
from engine_runtime.types import Pcm

RATE = 16000


@pytest.fixture(scope="module")
def bundle(released_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return assemble(find_released(*locate(released_folder)), tmp_path_factory.mktemp("bundle"))


def noise(seconds: float, level: float = 0.1) -> Pcm:
    return np.random.default_rng(0).normal(0, level, round(seconds * RATE)).astype(np.float32)


@pytest.mark.parametrize(("seconds", "used"), [(3.2, 3.2), (3.5, 3.2), (4.75, 4.4), (60.0, 6.0)])
def test_whole_chunks_of_the_flow_are_used(bundle: Bundle, seconds: float, used: float) -> None:
    pcm = noise(seconds)
    speech = cut_speech(VoiceSource(pcm, RATE), bundle)
    assert speech.size == round(used * RATE)
    np.testing.assert_array_equal(speech, pcm[: speech.size])


def test_silence_around_the_speech_does_not_count(bundle: Bundle) -> None:
    pcm = np.concatenate([noise(2.0, 1e-4), noise(3.4), noise(2.0, 1e-4)])
    speech = cut_speech(VoiceSource(pcm, RATE), bundle)
    assert speech.size == round(3.2 * RATE)
    np.testing.assert_array_equal(speech, pcm[2 * RATE : 2 * RATE + speech.size])


def test_what_is_no_use_is_told(bundle: Bundle, random_bundle: Path) -> None:
    with pytest.raises(AudioInputError, match=r"holds 3\.0 s of speech, and at least 3\.2 s are needed"):
        cut_speech(VoiceSource(noise(3.0), RATE), bundle)
    with pytest.raises(AudioInputError, match="is silent"):
        cut_speech(VoiceSource(noise(9.0, 1e-4), RATE), bundle)
    with pytest.raises(BundleError, match="has no speaker encoder"):
        cut_speech(VoiceSource(noise(4.0), RATE), Bundle.open(random_bundle))


def test_a_choice_is_checked_without_torch() -> None:
    code = "import sys, engine_runtime.codec.voice.recording; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
