"""Speech codes of whole signals against stored vectors, and the stream against whole signals."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from engine_runtime.codec.features import Normalisation, WhisperLogMel, WhisperLogMelStream
from engine_runtime.codec.speech_tokenizer import SpeechTokenizer, SpeechTokenizerStream
from engine_runtime.errors import AudioInputError
from engine_runtime.models.whisper_vq import WhisperVQ, WhisperVQConfig
from engine_runtime.types import Codes, Pcm

GOLDEN = Path(__file__).parents[2] / "data" / "golden"
RATE = 16000
CODE_SAMPLES = 1280
LOOK_AHEAD = 40
"""Samples after a code's own that its last STFT window reaches into."""
META = json.loads((GOLDEN / "encoder_tiny.json").read_text())
CASES = ("mult", "odd", "tiny", "long")
AGREEMENT_WITH_SEGMENT_MAX = 0.85


@pytest.fixture(scope="module")
def golden() -> dict[str, torch.Tensor]:
    return load_file(GOLDEN / "encoder_tiny.safetensors")


@pytest.fixture(scope="module")
def released(golden: dict[str, torch.Tensor]) -> SpeechTokenizer:
    return make_tokenizer(golden, "segment_max")


@pytest.fixture(scope="module")
def causal(golden: dict[str, torch.Tensor]) -> SpeechTokenizer:
    return make_tokenizer(golden, "running_max")


@pytest.fixture(scope="module")
def short_segments() -> SpeechTokenizer:
    """Segments of 0.96 s, so that a few seconds cross many of them."""
    torch.manual_seed(3)
    config = WhisperVQConfig(
        num_mel_bins=32, d_model=32, heads=4, ffn=64, layers=2, max_positions=48, codebook_size=64
    )
    return SpeechTokenizer(WhisperVQ(config), RATE, "running_max")


def make_tokenizer(golden: dict[str, torch.Tensor], normalisation: Normalisation) -> SpeechTokenizer:
    model = WhisperVQ(WhisperVQConfig.from_released(META["config"]))
    model.load_state_dict({key: value for key, value in golden.items() if key.startswith("encoder.")})
    return SpeechTokenizer(model, RATE, normalisation)


def cut_speech(golden: dict[str, torch.Tensor], case: str) -> Pcm:
    place = META["cases"][case]
    wave = golden["wave16k_int16"].numpy().astype(np.float32) / 32768.0
    return wave[place["offset"] : place["offset"] + place["samples"]]


def push_in_chunks(stream: SpeechTokenizerStream, pcm: Pcm, chunks: list[int]) -> Codes:
    """All codes of pcm pushed in these chunk sizes (repeated until it is used up), the tail included."""
    codes, start, turn = [], 0, 0
    while start < pcm.size:
        end = start + chunks[turn % len(chunks)]
        codes.append(stream.push(pcm[start:end]))
        start, turn = end, turn + 1
    return np.concatenate([*codes, stream.tail()])


@pytest.mark.parametrize("case", CASES)
def test_codes_of_whole_signals_are_those_stored(
    released: SpeechTokenizer, golden: dict[str, torch.Tensor], case: str
) -> None:
    codes = released.encode(cut_speech(golden, case))
    assert codes.dtype == np.int64
    np.testing.assert_array_equal(codes, golden[f"{case}.codes"].numpy())


def test_properties(released: SpeechTokenizer) -> None:
    assert released.sample_rate == RATE
    assert released.samples_per_code == CODE_SAMPLES
    assert released.segment_samples == 30 * RATE
    assert released.codebook_size == 128


@pytest.mark.parametrize("chunk", [160, 333, CODE_SAMPLES, 48001, 1_000_000])
def test_streamed_codes_equal_whole_signals_across_a_segment_boundary(
    causal: SpeechTokenizer, golden: dict[str, torch.Tensor], chunk: int
) -> None:
    pcm = cut_speech(golden, "long")
    np.testing.assert_array_equal(push_in_chunks(causal.stream(), pcm, [chunk]), causal.encode(pcm))


@settings(max_examples=40, deadline=None)
@given(
    start=st.integers(0, 500_000),
    samples=st.integers(0, 60_000),
    chunks=st.lists(st.integers(0, 9000), min_size=1, max_size=12).filter(any),
)
def test_streamed_codes_equal_whole_signals_for_any_chunks(
    causal: SpeechTokenizer,
    short_segments: SpeechTokenizer,
    golden: dict[str, torch.Tensor],
    start: int,
    samples: int,
    chunks: list[int],
) -> None:
    pcm = cut_speech(golden, "long")[start : start + samples]
    for tokenizer in (causal, short_segments):
        whole = tokenizer.encode(pcm)
        assert whole.size == math.ceil(pcm.size / CODE_SAMPLES)
        np.testing.assert_array_equal(push_in_chunks(tokenizer.stream(), pcm, chunks), whole)


def test_a_code_is_given_as_soon_as_its_samples_are_there(
    causal: SpeechTokenizer, golden: dict[str, torch.Tensor]
) -> None:
    pcm = cut_speech(golden, "odd")
    stream = causal.stream()
    assert stream.push(pcm[: CODE_SAMPLES + LOOK_AHEAD - 1]).size == 0
    assert stream.push(pcm[CODE_SAMPLES + LOOK_AHEAD - 1 : CODE_SAMPLES + LOOK_AHEAD]).size == 1
    assert stream.push(pcm[CODE_SAMPLES + LOOK_AHEAD : 9 * CODE_SAMPLES + LOOK_AHEAD]).size == 8


def test_the_end_of_a_segment_waits_for_nothing(short_segments: SpeechTokenizer) -> None:
    segment = short_segments.segment_samples
    pcm = np.random.default_rng(0).normal(0.0, 0.1, segment).astype(np.float32)
    stream = short_segments.stream()
    codes = stream.push(pcm)
    assert codes.size == segment // CODE_SAMPLES
    assert stream.tail().size == 0
    np.testing.assert_array_equal(codes, short_segments.encode(pcm))
    # positions, caches and maximum start anew
    np.testing.assert_array_equal(stream.push(pcm), codes)


def test_the_tail_changes_nothing(causal: SpeechTokenizer, golden: dict[str, torch.Tensor]) -> None:
    pcm = cut_speech(golden, "odd")
    disturbed, plain = causal.stream(), causal.stream()
    for start in range(0, pcm.size, 1000):
        piece = pcm[start : start + 1000]
        np.testing.assert_array_equal(disturbed.push(piece), plain.push(piece))
        first, second = disturbed.tail(), disturbed.tail()
        np.testing.assert_array_equal(first, second)
        covered = math.ceil(min(start + 1000, pcm.size) / CODE_SAMPLES)
        assert first.size == covered - max(0, (min(start + 1000, pcm.size) - LOOK_AHEAD) // CODE_SAMPLES)
    np.testing.assert_array_equal(disturbed.tail(), plain.tail())


def test_reset_forgets_the_turn_before(causal: SpeechTokenizer, golden: dict[str, torch.Tensor]) -> None:
    pcm = cut_speech(golden, "mult")
    stream = causal.stream()
    stream.push(cut_speech(golden, "long")[:100_000])
    stream.reset()
    np.testing.assert_array_equal(push_in_chunks(stream, pcm, [3000]), causal.encode(pcm))


def test_two_streams_do_not_share_caches(causal: SpeechTokenizer, golden: dict[str, torch.Tensor]) -> None:
    pcm, other = cut_speech(golden, "mult"), cut_speech(golden, "long")
    first, second, codes = causal.stream(), causal.stream(), []
    for start in range(0, pcm.size, 2000):
        codes.append(first.push(pcm[start : start + 2000]))
        second.push(other[start : start + 2000])
    np.testing.assert_array_equal(np.concatenate([*codes, first.tail()]), causal.encode(pcm))


def test_agreement_where_the_segment_maximum_is_not_known(
    released: SpeechTokenizer, golden: dict[str, torch.Tensor]
) -> None:
    agree = total = 0
    for case in CASES:
        pcm = cut_speech(golden, case)
        whole = released.encode(pcm)
        agree += int((push_in_chunks(released.stream(), pcm, [CODE_SAMPLES]) == whole).sum())
        total += whole.size
    assert AGREEMENT_WITH_SEGMENT_MAX < agree / total < 1.0, f"{agree} of {total}"


def test_streamed_frames_equal_the_features_of_the_whole(golden: dict[str, torch.Tensor]) -> None:
    features = WhisperLogMel(RATE, 128, "running_max")
    pcm = cut_speech(golden, "mult")
    stream = WhisperLogMelStream(features, step_frames=4)
    pieces = [stream.push(pcm[start : start + 777]) for start in range(0, pcm.size, 777)]
    streamed = torch.cat([*pieces, stream.tail()], dim=1)
    torch.testing.assert_close(streamed, features(torch.from_numpy(pcm)), atol=1e-6, rtol=0.0)


def test_steps_shorter_than_the_window_are_refused() -> None:
    with pytest.raises(ValueError, match="step_frames 1"):
        WhisperLogMelStream(WhisperLogMel(RATE, 128), step_frames=1)


def test_silence_gives_codes(causal: SpeechTokenizer) -> None:
    silence = np.zeros(3 * RATE, np.float32)
    codes = causal.encode(silence)
    assert codes.size == 38
    np.testing.assert_array_equal(push_in_chunks(causal.stream(), silence, [480]), codes)


def test_nothing_in_nothing_out(causal: SpeechTokenizer) -> None:
    empty = np.zeros(0, np.float32)
    stream = causal.stream()
    assert causal.encode(empty).size == stream.push(empty).size == stream.tail().size == 0


@pytest.mark.parametrize(
    ("pcm", "message"),
    [
        (np.zeros((2, 1600), np.float32), r"one channel.*\(2, 1600\)"),
        (np.float32(0.5).reshape(()), "one channel"),
        (np.zeros(1600, np.int16), "floating point.*int16"),
        (np.array([0.0, np.nan, 0.0], np.float32), "NaN or infinity"),
        (np.array([0.0, -np.inf], np.float32), "NaN or infinity"),
        (np.array([0.0, -32768.0], np.float32), "reach 32768, but full scale is 1.0"),
    ],
)
def test_refuses_what_is_not_speech_and_goes_on(
    causal: SpeechTokenizer, golden: dict[str, torch.Tensor], pcm: Pcm, message: str
) -> None:
    speech = cut_speech(golden, "mult")
    stream = causal.stream()
    before = stream.push(speech[:20_000])
    with pytest.raises(AudioInputError, match=message):
        causal.encode(pcm)
    with pytest.raises(AudioInputError, match=message):
        stream.push(pcm)
    after = push_in_chunks(stream, speech[20_000:], [4000])
    np.testing.assert_array_equal(np.concatenate((before, after)), causal.encode(speech))


def test_double_precision_samples_are_taken(causal: SpeechTokenizer, golden: dict[str, torch.Tensor]) -> None:
    speech = cut_speech(golden, "odd")
    np.testing.assert_array_equal(causal.encode(speech.astype(np.float64)), causal.encode(speech))  # type: ignore[arg-type]


def test_bf16_weights_give_nearly_the_same_codes(golden: dict[str, torch.Tensor]) -> None:
    full = make_tokenizer(golden, "running_max")
    model = WhisperVQ(WhisperVQConfig.from_released(META["config"]))
    model.load_state_dict(full.model.state_dict())
    half = SpeechTokenizer(model, RATE, "running_max", dtype=torch.bfloat16)
    pcm = cut_speech(golden, "mult")
    streamed = push_in_chunks(half.stream(), pcm, [5000])
    assert (streamed == full.encode(pcm)).mean() >= 0.9
