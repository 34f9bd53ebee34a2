"""The speech encoder in captured steps: the codes of complete signals, for any chunks and several streams."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine_runtime.codec.speech_tokenizer import encoder_steps
from engine_runtime.codec.speech_tokenizer.encoder_steps import MOST_CODES, GraphedEncoder
from engine_runtime.codec.speech_tokenizer.features import Normalization
from engine_runtime.codec.speech_tokenizer.speech_tokenizer import SpeechTokenizer
from engine_runtime.cuda.graphs import GraphedCalls
from engine_runtime.models.whisper_vq import WhisperVQ, WhisperVQConfig
from engine_runtime.types import Codes, Pcm
from engine_runtime.work import run_alone
from tests.doubles.graphs import EmulatedCalls

RATE, CODE = 16000, 1280


def make_tokenizer(
    device: str, calls: GraphedCalls | None = None, normalization: Normalization = "running_max"
) -> SpeechTokenizer:
    """With segments of 3.84 s, of which a capture for short ones covers the first 1.28 s."""
    torch.manual_seed(3)
    config = WhisperVQConfig(
        num_mel_bins=32, d_model=32, heads=4, ffn=64, layers=2, max_positions=192, codebook_size=64
    )
    return SpeechTokenizer(WhisperVQ(config), RATE, normalization, device, calls=calls)


def speech(seed: int, seconds: float) -> Pcm:
    noise = np.random.default_rng(seed).standard_normal(int(seconds * RATE))
    return (0.2 * noise * np.sin(np.arange(noise.size) / 2000.0)).astype(np.float32)


def pushed(tokenizer: SpeechTokenizer, signals: list[Pcm], sizes: list[int]) -> list[Codes]:
    """Codes of concurrent signals, each in its own stream, with tails in between."""
    streams = [tokenizer.stream() for _ in signals]
    codes: list[list[Codes]] = [[] for _ in signals]
    start, turn = 0, 0
    while start < max(signal.size for signal in signals):
        size = sizes[turn % len(sizes)]
        for stream, signal, found in zip(streams, signals, codes, strict=True):
            found.append(run_alone(stream.push(signal[start : start + size])))
            run_alone(stream.tail())  # changes nothing
        start, turn = start + size, turn + 1
    return [
        np.concatenate([*found, run_alone(stream.tail())])
        for found, stream in zip(codes, streams, strict=True)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [[CODE], [700, 3000, 50], [4 * CODE, 5 * CODE, 41], [30 * CODE]])
def test_codes_are_those_of_complete_signals(sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_steps, "SHORT", 64)
    calls = EmulatedCalls()
    tokenizer = make_tokenizer("cpu", calls)
    signals = [speech(1, 5.0), speech(2, 4.3)]
    wanted = [tokenizer.encode(signal) for signal in signals]
    for got, codes in zip(pushed(tokenizer, signals, sizes), wanted, strict=True):
        assert got.tolist() == codes.tolist()
    steps = [key for key in calls.keys if isinstance(key, tuple) and key[0] == "step"]
    assert 0 < len(steps) <= 4  # two lengths of two streams
    assert calls.num_captured <= 4 + 1 + 8
    assert len(set(wanted[0].tolist())) > 5


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [[CODE], [700, 3000, 50], [30 * CODE]])
def test_revised_codes_are_those_of_the_reference(sizes: list[int]) -> None:
    plain, graphed = make_tokenizer("cpu", None, "segment_max"), EmulatedCalls()
    streams = [make_tokenizer("cpu", graphed, "segment_max").stream(), plain.stream()]
    signals = [np.concatenate((np.zeros(5000, np.float32), gain * speech(1, 5.0))) for gain in (0.02, 1.0)]
    priors = (None, -1.0, 3.0)  # none of them part of a key
    for signal in signals:
        for prior in priors:
            wanted = plain.encode_streamed(signal, prior).tolist()
            for stream in streams:
                stream.reset(prior)
                start = 0
                while start < signal.size:
                    size = sizes[len(stream.codes) % len(sizes)]
                    run_alone(stream.push(signal[start : start + size]))
                    start += size
                assert [*stream.codes, *run_alone(stream.tail())] == wanted
    mels = [key for key in graphed.keys if isinstance(key, tuple) and key[0] == "mel"]
    assert len(set(mels)) == len(mels) <= 9


def test_many_codes_at_once_are_not_captured() -> None:
    tokenizer, calls = make_tokenizer("cpu"), EmulatedCalls()
    step, frames = GraphedEncoder(tokenizer.model, calls), tokenizer.model.config.frames_per_code
    with torch.inference_mode():
        mel = torch.randn(1, 32, (MOST_CODES + 1) * frames)
        state = tokenizer.model.initial_state()
        hidden, after = step(mel, state)
        assert (calls.num_captured, after.length) == (0, (MOST_CODES + 1) * 4)
        some, _ = step(mel[:, :, : MOST_CODES * frames], state)
    assert calls.num_captured == 1
    torch.testing.assert_close(some, hidden[:, :MOST_CODES], atol=1e-5, rtol=1e-5)


def test_a_segment_that_is_full_is_refused_as_without_captured_graphs() -> None:
    tokenizer = make_tokenizer("cpu")
    step, state = GraphedEncoder(tokenizer.model, EmulatedCalls()), tokenizer.model.initial_state()
    with torch.inference_mode():
        _, state = step(torch.randn(1, 32, 384), state)
        with pytest.raises(ValueError, match="up to 0"):
            step(torch.randn(1, 32, 8), state)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_codes_on_a_gpu_are_those_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_steps, "SHORT", 64)
    signals = [speech(1, 5.0), speech(2, 4.3)]
    wanted = [make_tokenizer("cpu").encode(signal) for signal in signals]
    calls = GraphedCalls("cuda")
    tokenizer = make_tokenizer("cuda", calls)
    for sizes in ([CODE], [700, 3000, 50]):
        for got, codes in zip(pushed(tokenizer, signals, sizes), wanted, strict=True):
            assert np.mean(got == codes) > 0.97  # a code boundary may be within rounding
    assert calls.num_captured > 8
