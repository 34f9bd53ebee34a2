"""Speech codes of complete signals against stored vectors, and streams against complete signals."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from engine_runtime.codec.speech_tokenizer.features import FIRST_REVISION, Normalization, WhisperLogMel
from engine_runtime.codec.speech_tokenizer.log_mel_stream import WhisperLogMelStream
from engine_runtime.codec.speech_tokenizer.speech_tokenizer import SpeechTokenizer, SpeechTokenizerStream
from engine_runtime.errors import AudioInputError, ExecutorError
from engine_runtime.models.whisper_vq import WhisperVQ, WhisperVQConfig
from engine_runtime.types import Codes, Pcm
from engine_runtime.work import run_alone
from tests.tools.examples import examples

GOLDEN = Path(__file__).parents[3] / "data" / "golden"
RATE = 16000
CODE_SAMPLES = 1280
LOOK_AHEAD = 40
"""Samples after a code's own that its last STFT window reaches into."""
META = json.loads((GOLDEN / "encoder_tiny.json").read_text())
CASES = ("mult", "odd", "tiny", "long")
WINDOW_S = 3
LEAST_AGREEMENT = 0.95
AGREEMENT_OF_A_BARE_RUNNING_MAXIMUM = 0.65
"""At most: with digital silence before the speech. What a stream without prior and revision comes to."""


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


@pytest.fixture(scope="module")
def revised_segments() -> SpeechTokenizer:
    """Segments of 1.92 s, of which a stream does not know the maximum."""
    torch.manual_seed(3)
    config = WhisperVQConfig(
        num_mel_bins=32, d_model=32, heads=4, ffn=64, layers=2, max_positions=96, codebook_size=64
    )
    return SpeechTokenizer(WhisperVQ(config), RATE, "segment_max")


def make_tokenizer(
    golden: dict[str, torch.Tensor], normalization: Normalization, prior: float | None = None
) -> SpeechTokenizer:
    model = WhisperVQ(WhisperVQConfig.from_released(META["config"]))
    model.load_state_dict({key: value for key, value in golden.items() if key.startswith("encoder.")})
    return SpeechTokenizer(model, RATE, normalization, prior=prior)


def cut_speech(golden: dict[str, torch.Tensor], case: str) -> Pcm:
    place = META["cases"][case]
    wave = golden["wave16k_int16"].numpy().astype(np.float32) / 32768.0
    return wave[place["offset"] : place["offset"] + place["samples"]]


def push_in_chunks(stream: SpeechTokenizerStream, pcm: Pcm, chunks: list[int]) -> Codes:
    """All codes of pcm pushed in these chunk sizes (repeated until it is used up), the tail included."""
    codes, start, turn = [], 0, 0
    while start < pcm.size:
        end = start + chunks[turn % len(chunks)]
        codes.append(run_alone(stream.push(pcm[start:end])))
        start, turn = end, turn + 1
    return np.concatenate([*codes, run_alone(stream.tail())])


@pytest.mark.parametrize("case", CASES)
def test_codes_of_complete_signals_are_those_stored(
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


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [160, 333, CODE_SAMPLES, 48001, 1_000_000])
def test_streamed_codes_equal_complete_signals_across_a_segment_boundary(
    causal: SpeechTokenizer, golden: dict[str, torch.Tensor], chunk: int
) -> None:
    pcm = cut_speech(golden, "long")
    np.testing.assert_array_equal(push_in_chunks(causal.stream(), pcm, [chunk]), causal.encode(pcm))


@examples(20)
@given(
    start=st.integers(0, 500_000),
    samples=st.integers(0, 60_000),
    chunks=st.lists(st.integers(0, 9000), min_size=1, max_size=12).filter(any),
)
@pytest.mark.slow
def test_streamed_codes_equal_complete_signals_for_any_chunks(
    causal: SpeechTokenizer,
    short_segments: SpeechTokenizer,
    golden: dict[str, torch.Tensor],
    start: int,
    samples: int,
    chunks: list[int],
) -> None:
    pcm = cut_speech(golden, "long")[start : start + samples]
    for tokenizer in (causal, short_segments):
        reference = tokenizer.encode(pcm)
        assert reference.size == math.ceil(pcm.size / CODE_SAMPLES)
        np.testing.assert_array_equal(push_in_chunks(tokenizer.stream(), pcm, chunks), reference)


def test_a_code_is_given_as_soon_as_its_samples_are_there(
    causal: SpeechTokenizer, golden: dict[str, torch.Tensor]
) -> None:
    pcm = cut_speech(golden, "odd")
    stream = causal.stream()
    assert run_alone(stream.push(pcm[: CODE_SAMPLES + LOOK_AHEAD - 1])).size == 0
    assert run_alone(stream.push(pcm[CODE_SAMPLES + LOOK_AHEAD - 1 : CODE_SAMPLES + LOOK_AHEAD])).size == 1
    assert run_alone(stream.push(pcm[CODE_SAMPLES + LOOK_AHEAD : 9 * CODE_SAMPLES + LOOK_AHEAD])).size == 8


def test_the_end_of_a_segment_waits_for_nothing(short_segments: SpeechTokenizer) -> None:
    segment = short_segments.segment_samples
    pcm = np.random.default_rng(0).normal(0.0, 0.1, segment).astype(np.float32)
    stream = short_segments.stream()
    codes = run_alone(stream.push(pcm))
    assert codes.size == segment // CODE_SAMPLES
    assert run_alone(stream.tail()).size == 0
    np.testing.assert_array_equal(codes, short_segments.encode(pcm))
    # positions, caches and maximum are reset
    np.testing.assert_array_equal(run_alone(stream.push(pcm)), codes)


def test_the_tail_changes_nothing(causal: SpeechTokenizer, golden: dict[str, torch.Tensor]) -> None:
    pcm = cut_speech(golden, "odd")
    disturbed, plain = causal.stream(), causal.stream()
    for start in range(0, pcm.size, 1000):
        part = pcm[start : start + 1000]
        np.testing.assert_array_equal(run_alone(disturbed.push(part)), run_alone(plain.push(part)))
        first, second = run_alone(disturbed.tail()), run_alone(disturbed.tail())
        np.testing.assert_array_equal(first, second)
        covered = math.ceil(min(start + 1000, pcm.size) / CODE_SAMPLES)
        assert first.size == covered - max(0, (min(start + 1000, pcm.size) - LOOK_AHEAD) // CODE_SAMPLES)
    np.testing.assert_array_equal(run_alone(disturbed.tail()), run_alone(plain.tail()))


def test_reset_forgets_the_turn_before(causal: SpeechTokenizer, golden: dict[str, torch.Tensor]) -> None:
    pcm = cut_speech(golden, "mult")
    stream = causal.stream()
    run_alone(stream.push(cut_speech(golden, "long")[:100_000]))
    stream.reset()
    np.testing.assert_array_equal(push_in_chunks(stream, pcm, [3000]), causal.encode(pcm))


def test_two_streams_do_not_share_caches(causal: SpeechTokenizer, golden: dict[str, torch.Tensor]) -> None:
    pcm, other = cut_speech(golden, "mult"), cut_speech(golden, "long")
    first, second, codes = causal.stream(), causal.stream(), []
    for start in range(0, pcm.size, 2000):
        codes.append(run_alone(first.push(pcm[start : start + 2000])))
        run_alone(second.push(other[start : start + 2000]))
    np.testing.assert_array_equal(np.concatenate([*codes, run_alone(first.tail())]), causal.encode(pcm))


def led_in(golden: dict[str, torch.Tensor], lead_in: str, gain_db: float) -> list[Pcm]:
    """Windows of speech with 0.4 s of something quiet before each."""
    generator, samples = np.random.default_rng(0), 2 * RATE // 5
    quiet = {
        "none": np.zeros(0),
        "zeros": np.zeros(samples),
        "dither": generator.integers(-1, 2, samples) / 32768,
        "noise": generator.normal(0.0, 1e-3, samples),
    }[lead_in]
    speech = cut_speech(golden, "long") * 10 ** (gain_db / 20)
    starts = range(0, 6 * WINDOW_S * RATE, WINDOW_S * RATE)
    windows = [np.concatenate((quiet, speech[start : start + WINDOW_S * RATE])) for start in starts]
    return [window.astype(np.float32) for window in windows]


def codes_of_stream(stream: SpeechTokenizerStream, pcm: Pcm, chunks: list[int], prior: float | None) -> Codes:
    """All codes as they are in the end."""
    stream.reset(prior)
    push_in_chunks(stream, pcm, chunks)
    return np.array([*stream.codes, *run_alone(stream.tail())])


@pytest.mark.parametrize("gain_db", [0.0, -20.0])
@pytest.mark.parametrize("lead_in", ["none", "zeros", "dither", "noise"])
@pytest.mark.slow
def test_what_is_quiet_before_the_speech_changes_few_codes(
    released: SpeechTokenizer, golden: dict[str, torch.Tensor], lead_in: str, gain_db: float
) -> None:
    stream, same = released.stream(), []
    for pcm in led_in(golden, lead_in, gain_db):
        same += (codes_of_stream(stream, pcm, [CODE_SAMPLES], None) == released.encode(pcm)).tolist()
    assert np.mean(same) >= LEAST_AGREEMENT


def test_a_maximum_that_starts_at_minus_infinity_does_not_agree(
    released: SpeechTokenizer, causal: SpeechTokenizer, golden: dict[str, torch.Tensor]
) -> None:
    same = [causal.encode(pcm) == released.encode(pcm) for pcm in led_in(golden, "zeros", 0.0)]
    assert np.mean(same) < AGREEMENT_OF_A_BARE_RUNNING_MAXIMUM


@pytest.mark.parametrize("prior", [None, -1.0, 1.2, 4.0])
@pytest.mark.parametrize("chunks", [[333], [CODE_SAMPLES], [50_000], [700, 9000, 41]])
def test_a_stream_ends_up_with_the_codes_of_the_reference(
    released: SpeechTokenizer, golden: dict[str, torch.Tensor], chunks: list[int], prior: float | None
) -> None:
    stream = released.stream()
    pcm = led_in(golden, "zeros", -10.0)[4]
    wanted = released.encode_streamed(pcm, prior)
    assert codes_of_stream(stream, pcm, chunks, prior).tolist() == wanted.tolist()
    assert stream.maximum == pytest.approx(0.42, abs=0.01)


def test_the_first_codes_depend_on_the_prior(
    released: SpeechTokenizer, golden: dict[str, torch.Tensor]
) -> None:
    start = led_in(golden, "zeros", 0.0)[4][: FIRST_REVISION * CODE_SAMPLES]
    features = released.features
    log_power = features.log_power(features.mirror(torch.from_numpy(start), start=True, end=True))
    reference = released.encode(start).tolist()
    assert released.encode_streamed(start, float(log_power.max())).tolist() == reference
    assert released.encode_streamed(start, 4.0).tolist() != reference


@examples(15)
@given(
    start=st.integers(0, 500_000),
    samples=st.integers(0, 60_000),
    chunks=st.lists(st.integers(0, 9000), min_size=1, max_size=12).filter(any),
    prior=st.none() | st.floats(-6.0, 6.0),
)
def test_revised_codes_are_those_of_the_reference_for_any_chunks(
    revised_segments: SpeechTokenizer,
    golden: dict[str, torch.Tensor],
    start: int,
    samples: int,
    chunks: list[int],
    prior: float | None,
) -> None:
    pcm = cut_speech(golden, "long")[start : start + samples]
    found = codes_of_stream(revised_segments.stream(), pcm, chunks, prior)
    assert found.tolist() == revised_segments.encode_streamed(pcm, prior).tolist()


def test_a_segment_starts_from_the_maximum_of_the_one_before(revised_segments: SpeechTokenizer) -> None:
    noise = np.random.default_rng(1).normal(0.0, 0.2, 3 * revised_segments.segment_samples)
    pcm = noise.astype(np.float32)
    first = pcm[: revised_segments.segment_samples]
    stream = revised_segments.stream()
    run_alone(stream.push(first))
    loud = stream.maximum
    assert loud is not None
    assert loud > -1.0
    rest = pcm[revised_segments.segment_samples :]
    both = codes_of_stream(stream, pcm, [5000], None)
    apart = codes_of_stream(stream, rest, [5000], loud)
    assert both.tolist() == [*revised_segments.encode_streamed(first), *apart]


def test_a_stream_forgets_how_loud_it_was(released: SpeechTokenizer, golden: dict[str, torch.Tensor]) -> None:
    stream, start = released.stream(), led_in(golden, "zeros", 0.0)[0][:20_000]
    fresh = codes_of_stream(stream, start, [CODE_SAMPLES], None)
    codes_of_stream(stream, np.clip(start * 50, -1, 1), [CODE_SAMPLES], None)
    stream.reset()
    assert (stream.codes, stream.maximum) == ([], None)
    assert codes_of_stream(stream, start, [CODE_SAMPLES], None).tolist() == fresh.tolist()


def test_a_running_maximum_is_not_revised_and_takes_no_estimate(
    golden: dict[str, torch.Tensor],
) -> None:
    tokenizer = make_tokenizer(golden, "running_max", prior=0.5)
    pcm = led_in(golden, "zeros", -20.0)[0]
    stream = tokenizer.stream()
    stream.reset(3.0)
    pushed = push_in_chunks(stream, pcm, [777])
    assert pushed.tolist() == tokenizer.encode(pcm).tolist() == tokenizer.encode_streamed(pcm).tolist()
    assert pushed.tolist() != make_tokenizer(golden, "running_max").encode(pcm).tolist()


def test_streamed_frames_equal_the_one_shot_features(golden: dict[str, torch.Tensor]) -> None:
    features = WhisperLogMel(RATE, 128, "running_max")
    pcm = cut_speech(golden, "mult")
    stream = WhisperLogMelStream(features, step_frames=4)
    parts = [run_alone(stream.push(pcm[start : start + 777])) for start in range(0, pcm.size, 777)]
    streamed = torch.cat([*parts, run_alone(stream.tail())], dim=1)
    torch.testing.assert_close(streamed, features(torch.from_numpy(pcm)), atol=1e-6, rtol=0.0)


def test_steps_shorter_than_the_window_are_refused() -> None:
    with pytest.raises(ValueError, match="step_frames 1"):
        WhisperLogMelStream(WhisperLogMel(RATE, 128), step_frames=1)


def test_silence_yields_codes(causal: SpeechTokenizer) -> None:
    silence = np.zeros(3 * RATE, np.float32)
    codes = causal.encode(silence)
    assert codes.size == 38
    np.testing.assert_array_equal(push_in_chunks(causal.stream(), silence, [480]), codes)


def test_nothing_in_nothing_out(causal: SpeechTokenizer) -> None:
    empty = np.zeros(0, np.float32)
    stream = causal.stream()
    assert (
        causal.encode(empty).size == run_alone(stream.push(empty)).size == run_alone(stream.tail()).size == 0
    )


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
def test_refuses_what_is_not_speech_and_continues(
    causal: SpeechTokenizer, golden: dict[str, torch.Tensor], pcm: Pcm, message: str
) -> None:
    speech = cut_speech(golden, "mult")
    stream = causal.stream()
    before = run_alone(stream.push(speech[:20_000]))
    with pytest.raises(AudioInputError, match=message):
        causal.encode(pcm)
    with pytest.raises(AudioInputError, match=message):
        run_alone(stream.push(pcm))
    after = push_in_chunks(stream, speech[20_000:], [4000])
    np.testing.assert_array_equal(np.concatenate((before, after)), causal.encode(speech))


def test_double_precision_samples_are_taken(causal: SpeechTokenizer, golden: dict[str, torch.Tensor]) -> None:
    speech = cut_speech(golden, "odd")
    np.testing.assert_array_equal(causal.encode(speech.astype(np.float64)), causal.encode(speech))


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize(
    "name", ["encoder.conv1.weight", "encoder.layers.0.fc1.bias", "encoder.codebook.weight"]
)
@pytest.mark.slow
def test_values_that_are_not_finite_yield_no_codes(
    golden: dict[str, torch.Tensor], name: str, value: float
) -> None:
    damaged = {key: tensor.clone() for key, tensor in golden.items()}
    damaged[name].view(-1)[0] = value
    tokenizer = make_tokenizer(damaged, "running_max")
    pcm = cut_speech(golden, "odd")
    with pytest.raises(ExecutorError, match="not finite"):
        tokenizer.encode(pcm)
    with pytest.raises(ExecutorError, match="not finite"):
        push_in_chunks(tokenizer.stream(), pcm, [CODE_SAMPLES])


@pytest.mark.slow
def test_bf16_weights_yield_nearly_the_same_codes(golden: dict[str, torch.Tensor]) -> None:
    full = make_tokenizer(golden, "running_max")
    model = WhisperVQ(WhisperVQConfig.from_released(META["config"]))
    model.load_state_dict(full.model.state_dict())
    half = SpeechTokenizer(model, RATE, "running_max", dtype=torch.bfloat16)
    pcm = cut_speech(golden, "mult")
    streamed = push_in_chunks(half.stream(), pcm, [5000])
    assert (streamed == full.encode(pcm)).mean() >= 0.9
