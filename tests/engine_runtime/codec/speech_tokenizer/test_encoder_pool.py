"""Streams with caches in common buffers: the codes and caches of single steps, with plain operations and with
the kernels."""

from __future__ import annotations

import gc

import pytest
import torch

from engine_runtime.codec.speech_tokenizer.encoder_pool import EncoderPool
from engine_runtime.codec.speech_tokenizer.speech_tokenizer import SpeechTokenizer
from engine_runtime.cuda.graphs import GraphedCalls
from engine_runtime.models.whisper_vq import EncoderState, WhisperVQ, WhisperVQConfig
from engine_runtime.work import run_alone
from tests.doubles.interpreted_triton import needs_triton, patch_interpreter

patch_interpreter()

TRITON = pytest.param(True, marks=[needs_triton, pytest.mark.slow])
"""In place of the plain operations."""


def assert_equal(cached: torch.Tensor, expected: torch.Tensor, *, triton: bool = False) -> None:
    """Keys or values in float32, or with the kernels: from products of bf16 parts."""
    tolerance = 1e-4 if triton else 1e-5
    torch.testing.assert_close(cached, expected, atol=tolerance, rtol=10 * tolerance)


@pytest.fixture(scope="module")
def model() -> WhisperVQ:
    torch.manual_seed(3)
    config = WhisperVQConfig(
        num_mel_bins=32, d_model=32, heads=4, ffn=64, layers=2, max_positions=320, codebook_size=64
    )
    return WhisperVQ(config).eval()


class Owner:
    """Holds a state."""

    def __init__(self, pool: EncoderPool) -> None:
        state = pool.state(self)
        assert state is not None
        self.state: EncoderState = state


def pool_of(model: WhisperVQ, slots: int = 3, *, triton: bool = False) -> EncoderPool:
    return EncoderPool(model, slots, GraphedCalls("cpu"), triton=triton)


def frames(model: WhisperVQ, codes: int, seed: int) -> torch.Tensor:
    shape = (1, model.config.num_mel_bins, codes * model.config.frames_per_code)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("triton", [False, TRITON])
@torch.inference_mode()
def test_streams_of_different_lengths_equal_single_steps(model: WhisperVQ, triton: bool) -> None:
    pool = pool_of(model, triton=triton)
    owners = [Owner(pool) for _ in range(3)]
    pooled, alone = [owner.state for owner in owners], [model.initial_state() for _ in owners]
    for place, before in enumerate((0, 1, 70)):  # the last one beyond the shortest capture
        if before:
            mel = frames(model, before, 100 + place)
            _, pooled[place] = model.step_hidden(mel, pooled[place])
            _, alone[place] = model.step_hidden(mel, alone[place])
    for step in range(3):
        # equally many codes, then 1, 2 and 3 of them
        mels = [frames(model, 1 + place * (step % 2), 10 * step + place) for place in range(3)]
        codes, pooled = pool.step([mel[0] for mel in mels], pooled)
        for place, mel in enumerate(mels):
            hidden, alone[place] = model.step_hidden(mel, alone[place])
            assert torch.equal(codes[place], model.quantize(hidden)[0])
            mine, single = pooled[place], alone[place]
            assert mine.length == single.length
            for cached, expected in ((mine.keys, single.keys), (mine.values, single.values)):
                # behind them are those of padding
                cached, expected = cached[..., : mine.length, :], expected[..., : mine.length, :]
                assert_equal(cached, expected, triton=triton)
            torch.testing.assert_close(mine.conv1, single.conv1)
            torch.testing.assert_close(mine.conv2, single.conv2, atol=1e-5, rtol=1e-4)


@torch.inference_mode()
def test_the_end_of_a_segment_has_no_room_for_padding(model: WhisperVQ) -> None:
    pool = pool_of(model)
    pooled, alone = [Owner(pool).state for _ in range(2)], [model.initial_state() for _ in range(2)]
    _, pooled[0] = model.step_hidden(frames(model, 77, 0), pooled[0])
    _, alone[0] = model.step_hidden(frames(model, 77, 0), alone[0])
    mels = [frames(model, 3, 1), frames(model, 2, 2)]  # the first one ends with the segment
    codes, following = pool.step([mel[0] for mel in mels], pooled)
    for place, mel in enumerate(mels):
        hidden, state = model.step_hidden(mel, alone[place])
        assert torch.equal(codes[place], model.quantize(hidden)[0])
        assert following[place].length == state.length


def test_a_slot_is_free_again_once_its_stream_was_collected(model: WhisperVQ) -> None:
    pool = pool_of(model, slots=1)
    owner = Owner(pool)
    assert pool.state(object.__new__(Owner)) is None
    del owner
    gc.collect()
    assert Owner(pool).state.slot == 0


def test_a_warm_up_leaves_the_streams_as_they_are(model: WhisperVQ) -> None:
    pool = pool_of(model)
    owner = Owner(pool)
    pool.warm_up(4)
    assert not owner.state.keys.any()


@torch.inference_mode()
def test_a_segment_has_no_more_positions_than_the_model(model: WhisperVQ) -> None:
    pool = pool_of(model)
    owner = Owner(pool)
    _, full = model.step_hidden(frames(model, 80, 0), owner.state)
    with pytest.raises(ValueError, match="320 positions, not 324"):
        pool.step([frames(model, 1, 1)[0]], [full])


def test_a_tokenizer_with_a_pool_gives_the_same_codes(model: WhisperVQ) -> None:
    tokenizer, plain = SpeechTokenizer(model, 16_000), SpeechTokenizer(model, 16_000)
    tokenizer.use_pool(1, 1)
    pcm = (0.1 * torch.randn(16_000, generator=torch.Generator().manual_seed(5))).numpy()
    found = []
    for one in (tokenizer, plain):
        streams = [one.stream(), one.stream()]  # the pool has a slot for one of them
        for stream in streams:
            for start in range(0, len(pcm), 1_300):
                run_alone(stream.push(pcm[start : start + 1_300]))
        found.append([[*stream.codes, *run_alone(stream.tail()).tolist()] for stream in streams])
    assert found[0] == found[1]
    assert len(found[0][0]) == 13


@torch.inference_mode()
def test_many_codes_in_one_padded_call_equal_a_single_step(model: WhisperVQ) -> None:
    pool = pool_of(model, slots=1)
    pooled, alone = Owner(pool).state, model.initial_state()
    for seed, count in enumerate((11, 1, 20)):
        mel = frames(model, count, seed)
        found = pool.step_many(mel, pooled)
        assert found is not None
        codes, pooled = found
        hidden, alone = model.step_hidden(mel, alone)
        assert torch.equal(codes, model.quantize(hidden))
        assert pooled.length == alone.length
        torch.testing.assert_close(pooled.conv1, alone.conv1)
        torch.testing.assert_close(pooled.conv2, alone.conv2, atol=1e-5, rtol=1e-4)
        end = alone.length
        assert_equal(pooled.keys[:, :, :, :end], alone.keys[:, :, :, :end])
    assert pool.step_many(frames(model, 40, 9), pooled) is None, "padded to 64 codes it does not fit"
