"""Equal chunks of several HiFT streams in one call: which of them join, and that each reply stays its own."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from engine_runtime.codec.execution_stream import HostExecution, StreamWork
from engine_runtime.codec.vocoder.hift_stream import ChunkWork, DrawNoise, HiFTStream
from engine_runtime.codec.vocoder.stream import GraphedFrames, VocoderStream
from engine_runtime.codec.vocoder.vocoder import Vocoder
from engine_runtime.cuda.graphs import GraphedCalls
from engine_runtime.errors import ExecutorError
from engine_runtime.models.hift import HiFT
from engine_runtime.scheduler import Scheduler
from engine_runtime.types import Mel, Pcm
from engine_runtime.work import Task, Work
from tests.doubles.graphs import EmulatedCalls
from tests.engine_runtime.codec.vocoder.test_hift_stream import SPEC, KnownNetwork, hift, run

PACKETS = (12, 20)
TOLERANCE = 1e-3
"""Convolutions of several replies sum in another order, and the phases add up what that makes of the
fundamental. The waves reach 0.5."""


@pytest.fixture(scope="module")
def network() -> HiFT:
    return hift()[0]


def stage_of(network: HiFT, streams: int = 4, calls: GraphedCalls | None = None) -> Vocoder:
    graphed = None if calls is None else GraphedFrames(calls, frozenset(PACKETS))
    return Vocoder(network, SPEC, seed=3, streams=streams, graphed=graphed)


def mel_of(frames: int, seed: int) -> Mel:
    return np.random.default_rng(seed).normal(-5.0, 2.0, (80, frames)).astype(np.float32)


def speak(stream: VocoderStream, mel: Mel, given: list[Pcm]) -> Task[None]:
    """The chunks of a reply as `ReplyVoice` runs them: 12 frames, then 20 each."""
    execution = HostExecution(lambda: 0)
    for chunk in np.split(mel, range(12, mel.shape[1], 20), axis=1):
        copy, _ = yield StreamWork(stream.push_work(torch.from_numpy(chunk)), execution, is_fetched=True)
        given.append(copy.value())
    copy, _ = yield StreamWork(stream.finish_work(), execution, is_fetched=True)
    given.append(copy.value())


def spoken(stage: Vocoder, mels: list[Mel]) -> tuple[list[Pcm], list[int]]:
    """Samples of replies that are spoken at once, and the number of streams of each call."""
    scheduler, given = Scheduler(), [list[Pcm]() for _ in mels]
    for mel, own in zip(mels, given, strict=True):
        scheduler.start(speak(stage.stream(), mel, own), lambda: 0)
    while not scheduler.is_idle:
        scheduler.run_once()
    sizes = [size for (_, size), time in scheduler.times.summary().items() for _ in range(time.calls)]
    return [np.concatenate(own) for own in given], sizes


def alone(network: HiFT, mel: Mel) -> Pcm:
    """Samples of a reply without others, in the chunks of `speak`."""
    return run(stage_of(network, 1).stream(), mel, [12, *[20] * 20])


def noisy_stream(seed: int) -> HiFTStream:
    network = KnownNetwork()

    def start() -> DrawNoise:
        generator = torch.Generator().manual_seed(seed)
        return lambda frames: torch.randn((1, frames * 480, 9), generator=generator)

    return HiFTStream(network, 8, start, lambda mel: None, torch.zeros(0), most_streams=4)


@pytest.mark.slow
def test_replies_at_once_equal_each_alone(network: HiFT) -> None:
    mels = [mel_of(frames, frames) for frames in (72, 52, 12, 61, 72)]
    given, sizes = spoken(stage_of(network, 8), mels)
    assert max(sizes) == 5
    for pcm, mel in zip(given, mels, strict=True):
        np.testing.assert_allclose(pcm, alone(network, mel), rtol=0, atol=TOLERANCE)


def test_each_goes_on_where_its_own_last_call_ended() -> None:
    """Replies with other fundamentals, levels and noise, with a network that rounds the last bit only."""
    streams, partners = ([noisy_stream(seed) for seed in range(3)] for _ in range(2))
    mels = [np.zeros((80, 72), np.float32) for _ in streams]
    for seed, mel in enumerate(mels):
        mel[0], mel[1] = 150.0 + 40.0 * seed + np.arange(72), 0.1 * seed
    for start, end in ((0, 12), (12, 32), (32, 52), (52, 72)):
        chunks = [torch.from_numpy(mel[:, start:end]) for mel in mels]
        joined = streams[0].push_together(list(zip(streams, chunks, strict=True)))
        for pcm, stream, chunk in zip(joined, partners, chunks, strict=True):
            torch.testing.assert_close(pcm, stream.push_tensor(chunk), rtol=0, atol=5e-7)
    for stream, other in zip(streams, partners, strict=True):
        np.testing.assert_allclose(stream.finish(), other.finish(), rtol=0, atol=5e-7)


@pytest.mark.slow
def test_a_captured_call_serves_other_streams_and_their_next_chunks(network: HiFT) -> None:
    """Warm-up captures every size of call; what a stream keeps outlives the next replay for others."""
    calls = EmulatedCalls()
    stage = stage_of(network, 4, calls)
    stage.warm_up([12, 20, 20])
    captured = calls.num_captured
    assert captured == 3 * 2, "4, 2 and 1 streams, with a first chunk and a later one"
    for count in (3, 2):
        mels = [mel_of(52, seed) for seed in range(count)]
        given, sizes = spoken(stage, mels)
        assert max(sizes) == count
        for pcm, mel in zip(given, mels, strict=True):
            np.testing.assert_allclose(pcm, alone(network, mel), rtol=0, atol=TOLERANCE)
    assert calls.num_captured == captured


@pytest.mark.slow
def test_no_capture_during_a_conversation(network: HiFT) -> None:
    """A last chunk of another size, and one without a warm-up, run alone."""
    calls = EmulatedCalls()
    stage = stage_of(network, 4, calls)
    assert set(spoken(stage, [mel_of(32, 1), mel_of(32, 2)])[1]) == {1}
    stage.warm_up([12, 20])
    captured = calls.num_captured
    given, sizes = spoken(stage, [mel_of(39, 1), mel_of(39, 2)])
    assert sizes.count(2) == 2, "the packets, but not the 7 frames after them"
    assert calls.num_captured == captured
    np.testing.assert_allclose(given[1], alone(network, mel_of(39, 2)), rtol=0, atol=TOLERANCE)


@pytest.mark.slow
def test_only_equal_chunks_of_one_vocoder_join(network: HiFT) -> None:
    stage = stage_of(network)
    first, later, other = stage.stream(), stage.stream(), stage_of(hift()[0]).stream()
    later.push(mel_of(20, 1))

    def work(stream: VocoderStream, frames: int) -> Work[torch.Tensor]:
        return stream.push_work(torch.zeros(80, frames))

    key = work(first, 20).batch_key
    assert key is not None
    assert key == work(stage.stream(), 20).batch_key
    assert key not in {work(later, 20).batch_key, work(later, 12).batch_key, work(first, 12).batch_key}
    assert key != work(other, 20).batch_key
    assert work(first, 8).batch_key is None, "all of it is held back"


def test_the_number_of_streams_is_limited(network: HiFT) -> None:
    for streams, most in ((1, 1), (3, 4), (192, 16)):
        stage = stage_of(network, streams)
        assert stage.most_streams == most
        work = stage.stream().push_work(torch.zeros(80, 20))
        assert isinstance(work, ChunkWork)
        assert work.fits([work] * (most - 1))
        assert not work.fits([work] * most)


@pytest.mark.slow
def test_a_chunk_that_fails_fails_alone(network: HiFT) -> None:
    mels, errors = [mel_of(32, seed) for seed in range(3)], list[str]()
    mels[1][5, 20] = np.nan

    def careful(mel: Mel, given: list[Pcm]) -> Task[None]:
        try:
            yield from speak(stage.stream(), mel, given)
        except ExecutorError as error:
            errors.append(str(error))

    stage, scheduler = stage_of(network), Scheduler()
    given = [list[Pcm]() for _ in mels]
    for mel, own in zip(mels, given, strict=True):
        scheduler.start(careful(mel, own), lambda: 0)
    while not scheduler.is_idle:
        scheduler.run_once()
    assert len(errors) == 1
    assert "frame 8 of 20" in errors[0]
    for place in (0, 2):
        np.testing.assert_allclose(
            np.concatenate(given[place]), alone(network, mels[place]), rtol=0, atol=TOLERANCE
        )


@pytest.mark.slow
def test_who_is_due_first_is_not_delayed_by_other_chunks(network: HiFT) -> None:
    """Three wait for a first chunk, one for a later one, which is due before theirs."""
    stage, now = stage_of(network), 0
    scheduler = Scheduler(clock_ns=lambda: now)
    order: list[str] = []

    def one(name: str, stream: VocoderStream) -> Task[None]:
        yield stream.push_work(torch.from_numpy(mel_of(20, 1)))
        order.append(name)

    later = stage.stream()
    later.push(mel_of(20, 1))
    for name, stream, due in (
        ("a", stage.stream(), 30), ("b", stage.stream(), 20), ("later", later, 10), ("c", stage.stream(), 40),
    ):  # fmt: skip
        scheduler.start(one(name, stream), partial(int, due))
    scheduler.run_once()
    assert order == ["later"]
    scheduler.run_once()
    assert order == ["later", "b", "a", "c"]
    assert {size: time.calls for (_, size), time in scheduler.times.summary().items()} == {1: 1, 3: 1}


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_captured_calls_on_cuda() -> None:
    calls, mels = GraphedCalls("cuda"), [mel_of(59, seed) for seed in range(3)]
    graphed = GraphedFrames(calls, frozenset(PACKETS))
    stage = Vocoder(hift()[0], SPEC, seed=3, device="cuda", streams=4, graphed=graphed)
    stage.warm_up([12, 20, 20])
    captured = calls.num_captured
    assert captured == 6
    given, sizes = spoken(stage, mels)
    assert max(sizes) == 3
    assert calls.num_captured == captured
    for pcm, mel in zip(given, mels, strict=True):
        want = run(stage.stream(), mel, [12, *[20] * 20])
        np.testing.assert_allclose(pcm, want, rtol=0, atol=TOLERANCE)
