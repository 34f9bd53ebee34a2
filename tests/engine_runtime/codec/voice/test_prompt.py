from __future__ import annotations

import logging
import shutil
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from engine_runtime.bundle.bundle import Bundle
from engine_runtime.bundle.released.assembly import assemble
from engine_runtime.bundle.released.layout import find_released, locate
from engine_runtime.codec.resample import resample
from engine_runtime.codec.speech_tokenizer.features import CodecMel
from engine_runtime.codec.speech_tokenizer.speech_tokenizer import SpeechTokenizer
from engine_runtime.codec.voice.prompt import make_voice_prompt
from engine_runtime.codec.voice.recording import VoiceSource
from engine_runtime.codec.voice.speaker_encoder import SpeakerEncoder
from engine_runtime.engine import Engine
from engine_runtime.errors import AudioInputError, BundleError
from engine_runtime.types import Modality, Pcm, ReplyDone
from engine_runtime.work import run_alone
from tests.factories.onnx_bytes import mean_and_project


@pytest.fixture(scope="module")
def bundle(released_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return assemble(find_released(*locate(released_folder)), tmp_path_factory.mktemp("bundle"))


@pytest.fixture(scope="module")
def engine(bundle: Bundle) -> Engine:
    return Engine.load(bundle)


@pytest.fixture(scope="module")
def tokenizer(engine: Engine) -> SpeechTokenizer:
    return engine.stages.speech_tokenizer


def _speech(seconds: float, rate: int, seed: int = 0) -> Pcm:
    """Noise with the ups and downs of syllables; never silent for long."""
    time = np.arange(round(seconds * rate)) / rate
    noise = np.random.default_rng(seed).normal(0, 0.1, time.size)
    return (noise * (1.2 + np.sin(2 * np.pi * 4 * time))).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seconds", "rate", "codes"),
    [(3.3, 16000, 40), (4.5, 44100, 55), (6.0, 24000, 75), (19.0, 48000, 75), (3.2, 16000, 40)],
)
def test_it_is_cut_to_complete_chunks(
    bundle: Bundle, tokenizer: SpeechTokenizer, seconds: float, rate: int, codes: int
) -> None:
    prompt = make_voice_prompt(VoiceSource(_speech(seconds, rate), rate), bundle, tokenizer)
    assert prompt.codes.shape == (codes,)
    assert codes % bundle.flow.chunk_codes == 0
    assert prompt.mel.shape == (80, codes * 4)
    assert prompt.xvector is not None
    assert prompt.xvector.shape == (bundle.flow.config["xvector_dim"],)


def test_codes_mel_and_xvector_are_those_of_the_same_part(bundle: Bundle, tokenizer: SpeechTokenizer) -> None:
    """At the rates of the stages themselves nothing is resampled, so each can be computed apart."""
    rate = bundle.flow.mel.sample_rate
    speech = _speech(4.0, rate)
    prompt = make_voice_prompt(VoiceSource(speech, rate), bundle, tokenizer)
    assert np.array_equal(prompt.codes, tokenizer.encode(resample(speech, rate, 16000)))
    np.testing.assert_array_equal(prompt.mel, CodecMel(bundle.flow.mel)(torch.from_numpy(speech)).numpy())
    assert bundle.voice is not None
    speaker = SpeakerEncoder(bundle.voice.speaker_encoder, 16000, 80)
    assert prompt.xvector is not None
    assert np.abs(prompt.xvector).max() > 0.01
    np.testing.assert_array_equal(prompt.xvector, speaker.xvector(resample(speech, rate, 16000)))


def test_silence_at_both_ends_is_left_out(bundle: Bundle, tokenizer: SpeechTokenizer) -> None:
    speech = _speech(4.0, 16000)
    silence = np.zeros(16000, np.float32)
    plain = make_voice_prompt(VoiceSource(speech, 16000), bundle, tokenizer)
    padded = make_voice_prompt(
        VoiceSource(np.concatenate([silence, speech, silence]), 16000), bundle, tokenizer
    )
    assert np.array_equal(plain.codes, padded.codes)
    np.testing.assert_array_equal(plain.mel, padded.mel)


@pytest.mark.parametrize(
    ("pcm", "expected"),
    [
        (_speech(2.0, 16000), r"holds 2\.0 s of speech, and at least 3\.2 s are needed"),
        (np.zeros(80000, np.float32), "is silent"),
        (np.zeros(0, np.float32), "is silent"),
        (np.full(80000, np.nan, np.float32), "NaN"),
    ],
)
def test_a_recording_that_is_no_use(
    bundle: Bundle, tokenizer: SpeechTokenizer, pcm: Pcm, expected: str
) -> None:
    with pytest.raises(AudioInputError, match=expected):
        make_voice_prompt(VoiceSource(pcm, 16000), bundle, tokenizer)


def test_a_bundle_without_speaker_encoder(random_bundle: Path, tokenizer: SpeechTokenizer) -> None:
    with pytest.raises(BundleError, match="has no speaker encoder"):
        make_voice_prompt(VoiceSource(_speech(4.0, 16000), 16000), Bundle.open(random_bundle), tokenizer)


def test_it_is_made_once(
    bundle: Bundle, tokenizer: SpeechTokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = VoiceSource(_speech(4.0, 16000), 16000, tmp_path / "voices")
    first = make_voice_prompt(source, bundle, tokenizer)
    made = len(list((tmp_path / "voices").iterdir()))

    def fail(*_: object) -> None:
        raise AssertionError("encoded again")

    with monkeypatch.context() as patch:
        patch.setattr(tokenizer, "encode", fail)
        again = make_voice_prompt(source, bundle, tokenizer)
    assert np.array_equal(first.codes, again.codes)
    np.testing.assert_array_equal(first.mel, again.mel)
    np.testing.assert_array_equal(first.xvector, again.xvector)
    other = VoiceSource(_speech(4.0, 16000, seed=1), 16000, tmp_path / "voices")
    make_voice_prompt(other, bundle, tokenizer)
    assert (made, len(list((tmp_path / "voices").iterdir()))) == (1, 2)
    assert {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "voices").iterdir()} == {0o600}
    assert stat.S_IMODE((tmp_path / "voices").stat().st_mode) == 0o700


@pytest.mark.slow
def test_another_speaker_encoder_recomputes_it(
    released_folder: Path, tmp_path: Path, tokenizer: SpeechTokenizer
) -> None:
    copy = Path(shutil.copytree(released_folder, tmp_path / "released"))
    source = VoiceSource(_speech(4.0, 16000), 16000, tmp_path / "voices")
    make_voice_prompt(source, assemble(find_released(*locate(copy)), tmp_path / "a"), tokenizer)
    onnx = copy / "MOSS-Speech-Codec" / "flow" / "campplus.onnx"
    onnx.write_bytes(mean_and_project(np.ones((80, 16), np.float32)))
    make_voice_prompt(source, assemble(find_released(*locate(copy)), tmp_path / "b"), tokenizer)
    assert len(list((tmp_path / "voices").iterdir())) == 2


def test_a_damaged_cached_file_is_recomputed(
    bundle: Bundle, tokenizer: SpeechTokenizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = VoiceSource(_speech(4.0, 16000), 16000, tmp_path)
    first = make_voice_prompt(source, bundle, tokenizer)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:100])
    with caplog.at_level(logging.WARNING):
        again = make_voice_prompt(source, bundle, tokenizer)
    assert np.array_equal(first.codes, again.codes)
    assert "computed again" in caplog.text
    assert file.stat().st_size > 100


def test_a_folder_that_cannot_be_written_is_no_error(
    bundle: Bundle, tokenizer: SpeechTokenizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    source = VoiceSource(_speech(4.0, 16000), 16000, tmp_path / "file" / "voices")
    with caplog.at_level(logging.WARNING):
        assert make_voice_prompt(source, bundle, tokenizer).codes.size == 50
    assert "cannot be cached" in caplog.text


@pytest.mark.slow
def test_a_reply_is_spoken_in_the_voice(bundle: Bundle, engine: Engine) -> None:
    def answer(engine: Engine) -> ReplyDone:
        turn = run_alone(engine.open_turn(engine.new_conversation(), turn_id=1))
        run_alone(turn.push(_speech(1.0, engine.input_sample_rate)))
        params = replace(bundle.lm.sampling_speech, max_new=12, seed=3)
        done = list(run_alone(turn.commit(Modality.SPEECH, params)))[-1]
        assert isinstance(done, ReplyDone)
        return done

    voiced = Engine.load(bundle, voice=VoiceSource(_speech(4.0, 16000), 16000))
    assert voiced.stages.token2mel.prompt_codes == 50
    assert voiced.stages.max_codes == engine.stages.max_codes - 50
    codes = np.array(answer(voiced).codes)
    assert answer(voiced).audio_samples == codes.size * bundle.samples_per_code
    plain, own = engine.stages.token2mel.convert(codes), voiced.stages.token2mel.convert(codes)
    assert plain.shape == own.shape
    assert np.abs(plain - own).max() > 0.1
