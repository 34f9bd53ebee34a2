"""The encoder beside other work: the codes of a tokenizer that waits for each call."""

from __future__ import annotations

import weakref
from contextlib import AbstractContextManager, nullcontext
from typing import cast

import numpy as np
import pytest
import torch

from engine_runtime.codec.speech_tokenizer.encoder_streams import EncoderStreams, PendingValues
from engine_runtime.codec.speech_tokenizer.speech_tokenizer import SpeechTokenizer
from engine_runtime.errors import ExecutorError
from engine_runtime.models.whisper_vq import WhisperVQ, WhisperVQConfig
from engine_runtime.scheduler import Scheduler
from engine_runtime.types import Codes
from engine_runtime.work import Task, run_alone


class NoStreams:
    """In place of CUDA streams. Notes the contexts."""

    def __init__(self) -> None:
        self.used: list[str] = []

    def features(self) -> AbstractContextManager[object]:
        self.used.append("features")
        return nullcontext()

    def encoder(self) -> AbstractContextManager[object]:
        self.used.append("encoder")
        return nullcontext()


def tokenizer_of(seed: int = 3) -> SpeechTokenizer:
    torch.manual_seed(seed)
    config = WhisperVQConfig(
        num_mel_bins=32, d_model=32, heads=4, ffn=64, layers=2, max_positions=192, codebook_size=64
    )
    return SpeechTokenizer(WhisperVQ(config), 16_000)


def pushed(tokenizer: SpeechTokenizer, count: int) -> tuple[list[list[int]], Scheduler]:
    """Codes of several streams that are pushed at once, in blocks, some of them of many codes."""
    scheduler, streams = Scheduler(), [tokenizer.stream() for _ in range(count)]

    def push(number: int) -> Task[None]:
        pcm = np.random.default_rng(number).normal(0.0, 0.1, 24_000).astype(np.float32)
        for block in (pcm[:1_300], pcm[1_300:2_600], pcm[2_600:16_000], pcm[16_000:]):
            yield from streams[number].push(block)
        ends[number] = yield from streams[number].tail()

    ends: list[Codes] = [np.zeros(0, np.int64)] * count
    for number in range(count):
        scheduler.start(push(number), lambda: 0)
    while not scheduler.is_idle:
        scheduler.run_once()
    return [[*stream.codes, *end.tolist()] for stream, end in zip(streams, ends, strict=True)], scheduler


@pytest.mark.parametrize("has_pool", [False, True])
def test_codes_that_arrive_later_are_the_same(has_pool: bool) -> None:
    plain, beside = tokenizer_of(), tokenizer_of()
    if has_pool:
        beside.use_pool(3, 4)
    streams = NoStreams()
    beside.streams = cast(EncoderStreams, streams)
    codes, scheduler = pushed(beside, 3)
    assert codes == pushed(plain, 3)[0]
    assert all(len(one) == 19 for one in codes)
    assert {"features", "encoder"} == set(streams.used)
    stages = {(stage, size) for stage, size in scheduler.times.summary()}
    assert {("features", 3), ("encode", 3), ("arrival", 3)} <= stages, (
        "what arrives together goes on together"
    )


def test_streams_of_a_pool_with_different_numbers_of_codes_share_a_call() -> None:
    plain, pooled = tokenizer_of(), tokenizer_of()
    pooled.use_pool(2, 2)
    pcm = np.random.default_rng(7).normal(0.0, 0.1, 4_000).astype(np.float32)
    blocks = [pcm[:1_400], pcm]  # one code and three
    scheduler, streams = Scheduler(), [pooled.stream() for _ in blocks]
    for stream, block in zip(streams, blocks, strict=True):
        scheduler.start(stream.push(block), lambda: 0)
    while not scheduler.is_idle:
        scheduler.run_once()
    expected = [plain.stream() for _ in blocks]
    assert [len(run_alone(stream.push(block))) for stream, block in zip(expected, blocks, strict=True)] == [
        1,
        3,
    ]
    assert [stream.codes for stream in streams] == [stream.codes for stream in expected]
    assert ("encode", 2) in scheduler.times.summary()


def test_codes_that_are_not_finite_are_refused_on_arrival() -> None:
    tokenizer = tokenizer_of()
    tokenizer.streams = cast(EncoderStreams, NoStreams())
    with torch.no_grad():
        tokenizer.model.encoder.codebook.weight[:] = torch.nan
    with pytest.raises(ExecutorError, match="not finite"):
        run_alone(tokenizer.stream().push(np.ones(8_000, np.float32)))


def test_pending_codes_keep_what_the_call_reads() -> None:
    mel = torch.ones(2)
    kept = weakref.ref(mel)
    pending = PendingValues(torch.tensor([[1], [2]]), [mel])
    del mel
    assert pending.is_here
    assert pending.value().tolist() == [[1], [2]]
    assert kept() is not None
    del pending
    assert kept() is None
