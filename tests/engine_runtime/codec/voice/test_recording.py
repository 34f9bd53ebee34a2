from __future__ import annotations

import re
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
ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def bundle(released_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return assemble(find_released(*locate(released_folder)), tmp_path_factory.mktemp("bundle"))


def noise(seconds: float, level: float = 0.1) -> Pcm:
    return np.random.default_rng(0).normal(0, level, round(seconds * RATE)).astype(np.float32)


@pytest.mark.parametrize(("seconds", "used"), [(3.2, 3.2), (3.5, 3.2), (4.75, 4.4), (60.0, 6.0)])
def test_complete_chunks_of_the_flow_are_used(bundle: Bundle, seconds: float, used: float) -> None:
    pcm = noise(seconds)
    speech = cut_speech(VoiceSource(pcm, RATE), bundle)
    assert speech.size == round(used * RATE)
    np.testing.assert_array_equal(speech, pcm[: speech.size])


def test_silence_around_the_speech_does_not_count(bundle: Bundle) -> None:
    pcm = np.concatenate([noise(2.0, 1e-4), noise(3.4), noise(2.0, 1e-4)])
    speech = cut_speech(VoiceSource(pcm, RATE), bundle)
    assert speech.size == round(3.2 * RATE)
    np.testing.assert_array_equal(speech, pcm[2 * RATE : 2 * RATE + speech.size])


def test_unusable_recordings_are_rejected(bundle: Bundle, random_bundle: Path) -> None:
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


@pytest.mark.parametrize("file", ["README.md", "app/settings.py", "app/gui/settings/model_page.py"])
def test_the_limits_that_the_user_reads_are_those_of_the_code(file: str, bundle: Bundle) -> None:
    text = " ".join(re.sub(r'"\s*"', "", (ROOT / file).read_text(encoding="utf-8")).split())
    stated = re.search(r"at least ([\d.]+) s of speech, of which the first ([\d.]+) s are used", text)
    assert stated is not None
    least, most = float(stated[1]), float(stated[2])
    assert cut_speech(VoiceSource(noise(least), RATE), bundle).size == round(least * RATE)
    with pytest.raises(AudioInputError):
        cut_speech(VoiceSource(noise(least - 0.05), RATE), bundle)
    assert cut_speech(VoiceSource(noise(2 * most), RATE), bundle).size == round(most * RATE)
