"""Steps of several streams in one call: the hidden states, caches and codes of each alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from engine_runtime.codec.speech_tokenizer.encoder_steps import step_batch
from engine_runtime.codec.speech_tokenizer.speech_tokenizer import EncodeWork, SpeechTokenizer
from engine_runtime.models.whisper_vq import EncoderState, WhisperVQ, WhisperVQConfig
from engine_runtime.scheduler import Scheduler
from engine_runtime.types import Codes, Pcm
from engine_runtime.work import Task

RATE, CODE = 16_000, 1_280


@pytest.fixture(scope="module")
def model() -> WhisperVQ:
    torch.manual_seed(3)
    config = WhisperVQConfig(
        num_mel_bins=32, d_model=32, heads=4, ffn=64, layers=2, max_positions=192, codebook_size=64
    )
    return WhisperVQ(config).eval()


def frames(model: WhisperVQ, codes: int, seed: int) -> torch.Tensor:
    shape = (1, model.config.num_mel_bins, codes * model.config.frames_per_code)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@torch.inference_mode()
def test_streams_of_different_lengths_in_one_call(model: WhisperVQ) -> None:
    starts: list[Callable[[], EncoderState]] = []
    for seed, codes in enumerate((0, 1, 7)):

        def start(seed: int = seed, codes: int = codes) -> EncoderState:
            state = model.initial_state()
            return model.step_hidden(frames(model, codes, seed), state)[1] if codes else state

        starts.append(start)
    batched, alone = [start() for start in starts], [start() for start in starts]
    for step in range(3):  # the caches are continued
        mels = [frames(model, 1 + step % 2, 10 * step + place) for place in range(3)]
        hidden, batched = step_batch(model, torch.cat(mels), batched)
        for place, mel in enumerate(mels):
            expected, alone[place] = model.step_hidden(mel, alone[place])
            torch.testing.assert_close(hidden[place : place + 1], expected, atol=1e-5, rtol=1e-4)
            mine, single = batched[place], alone[place]
            assert mine.length == single.length
            torch.testing.assert_close(mine.keys, single.keys, atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(mine.values, single.values, atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(mine.conv2, single.conv2, atol=1e-5, rtol=1e-4)


def test_a_segment_has_no_more_positions_than_the_model(model: WhisperVQ) -> None:
    state = model.initial_state()
    full = EncoderState(state.conv1, state.conv2, state.keys, state.values, model.config.max_positions)
    with pytest.raises(ValueError, match="192 positions, not 196"):
        step_batch(model, torch.cat([frames(model, 1, 0)] * 2), [state, full])


def speech(seed: int, seconds: float) -> Pcm:
    noise = np.random.default_rng(seed).standard_normal(int(seconds * RATE))
    return (0.2 * noise * np.sin(np.arange(noise.size) / 2000.0)).astype(np.float32)


@pytest.mark.slow
def test_streams_that_listen_at_once_have_the_codes_of_complete_signals(model: WhisperVQ) -> None:
    """Over the end of a segment (3.84 s), with tails in between, which change nothing."""
    tokenizer = SpeechTokenizer(model, RATE, "running_max")
    signals = [speech(seed, 4.5 - 0.4 * seed) for seed in range(3)]
    found: list[list[Codes]] = [[] for _ in signals]

    def listen(place: int) -> Task[None]:
        stream = tokenizer.stream()
        for start in range(0, len(signals[place]), CODE):
            found[place].append((yield from stream.push(signals[place][start : start + CODE])))
            yield from stream.tail()
        found[place].append((yield from stream.tail()))

    scheduler = Scheduler()
    for place in range(3):
        scheduler.start(listen(place), lambda: 0)
    while not scheduler.is_idle:
        scheduler.run_once()
    for signal, codes in zip(signals, found, strict=True):
        assert np.concatenate(codes).tolist() == tokenizer.encode(signal).tolist()
    assert ("encode", 3) in scheduler.times.summary()


def test_only_the_model_itself_takes_batches(model: WhisperVQ) -> None:
    tokenizer = SpeechTokenizer(model, RATE, "running_max")
    work = EncodeWork(tokenizer, frames(model, 1, 0)[0], model.initial_state())
    long = EncodeWork(tokenizer, frames(model, 9, 0)[0], model.initial_state())
    assert work.batch_key is not None
    assert long.batch_key is None
    assert work.fits([work] * 63)
    assert not work.fits([work] * 64)
    tokenizer.step = lambda mel, state: model.step_hidden(mel, state)
    assert work.batch_key is None
