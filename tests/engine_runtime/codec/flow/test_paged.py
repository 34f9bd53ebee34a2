"""Equal packets of several streams in one call, by Triton's interpreter, against static buffers of each."""

from __future__ import annotations

import gc
from typing import Unpack, cast

import numpy as np
import pytest
import torch

from engine_runtime.bundle.random_weights import random_voice
from engine_runtime.codec.flow.token2mel import Token2Mel, Token2MelStream, arrays_of
from engine_runtime.errors import BundleError, FlowCacheError
from engine_runtime.models.flow import CausalFlow
from engine_runtime.scheduler import Scheduler
from engine_runtime.types import VoicePrompt
from engine_runtime.work import Task
from tests.doubles.graphs import FirstFunctions
from tests.doubles.interpreted_triton import HAS_TRITON, needs_triton, patch_interpreter
from tests.engine_runtime.codec.flow.test_token2mel import SPEC, TOLERANCE, codes_of
from tests.engine_runtime.codec.flow.test_triton_estimator import flow, large_tiles  # noqa: F401
from tests.factories.tiny_flow import FlowOptions

pytestmark = [needs_triton, pytest.mark.usefixtures("large_tiles")]
patch_interpreter()
if HAS_TRITON:
    from engine_runtime.codec.flow.paged import PagedFlow
    from engine_runtime.codec.flow.static import bytes_per_code


@pytest.fixture(scope="module")
def voice(flow: CausalFlow) -> VoicePrompt:  # noqa: F811
    reference = random_voice(flow.config, SPEC.frame_rate, 3)
    return VoicePrompt(reference.codes[:9], reference.mel[:, :36], reference.xvector)


def stage_of(
    flow: CausalFlow,  # noqa: F811
    voice: VoicePrompt | None,
    **options: Unpack[FlowOptions],
) -> Token2Mel:
    settings: FlowOptions = {
        "steps": 1,
        "static_bytes": 1 << 26,
        "triton": True,
        "streams": 3,
        "packet_codes": (5, 10),
        "prompt": voice,
    }
    return Token2Mel(flow, SPEC, **settings | options)


def paged_of(stage: Token2Mel) -> PagedFlow:
    assert isinstance(stage.backend, PagedFlow)
    return stage.backend


def budget_of(flow: CausalFlow, pages: int) -> int:  # noqa: F811
    config = flow.config
    return pages * config.chunk_codes * bytes_per_code(config, 1, config.cfg_rate, torch.float32)


def speak(stream: Token2MelStream, codes: np.ndarray, made: list[np.ndarray]) -> Task[None]:
    """Push the codes in three parts."""
    for part in np.array_split(codes, 3):
        made += [mel.numpy() for mel in (yield from stream.push(part))]
    made += [mel.numpy() for mel in (yield from stream.finish())]


def held(stage: Token2Mel, replies: list[np.ndarray]) -> tuple[list[np.ndarray], list[int]]:
    """Mel of replies that are spoken at once, and the number of streams of each call."""
    scheduler, made = Scheduler(), [list[np.ndarray]() for _ in replies]
    streams = [stage.stream() for _ in replies]
    for stream, codes, own in zip(streams, replies, made, strict=True):
        scheduler.start(speak(stream, codes, own), lambda: 0)
    while not scheduler.is_idle:
        scheduler.run_once()
    sizes = [size for (_, size), time in scheduler.times.summary().items() for _ in range(time.calls)]
    return [np.concatenate(own, axis=1) for own in made], sizes


@pytest.mark.slow
def test_replies_at_once_equal_each_alone(flow: CausalFlow, voice: VoicePrompt) -> None:  # noqa: F811
    plain = stage_of(flow, voice, triton=False)
    replies = [codes_of(count, count) for count in (18, 11, 7)]
    made, sizes = held(stage_of(flow, voice), replies)
    assert max(sizes) == 3
    for mel, codes in zip(made, replies, strict=True):
        assert np.abs(mel - plain.convert(codes)).max() <= TOLERANCE


@pytest.mark.slow
def test_a_captured_packet_serves_other_streams(flow: CausalFlow, voice: VoicePrompt) -> None:  # noqa: F811
    plain = stage_of(flow, voice, triton=False, packet_codes=(5,))
    calls = FirstFunctions()
    stage = stage_of(flow, voice, packet_codes=(5,), calls=calls)
    captured = len(calls.kept)
    for seed in (1, 2):
        replies = [codes_of(8, seed), codes_of(8, 10 + seed)]
        for mel, codes in zip(held(stage, replies)[0], replies, strict=True):
            assert np.abs(mel - plain.convert(codes)).max() <= TOLERANCE
    assert len(calls.kept) == captured + 1


@pytest.mark.slow
def test_a_full_ring_and_pages_copied_aside(flow: CausalFlow) -> None:  # noqa: F811
    """Streams of at most 4 pages of 9: each alone writes over its past, and three take turns."""
    plain = stage_of(flow, None, triton=False, static_bytes=budget_of(flow, 4), packet_codes=(5,))
    stage = stage_of(flow, None, static_bytes=budget_of(flow, 9), packet_codes=(5,))
    assert paged_of(stage).stream_pages == 4
    replies = [codes_of(count, count) for count in (24, 23, 22)]
    streams, made = [stage.stream() for _ in replies], [list[np.ndarray]() for _ in replies]
    for start in range(0, 24, 6):
        for stream, codes, own in zip(streams, replies, made, strict=True):
            own += arrays_of(stream.push(codes[start : start + 6]))
    for stream, codes, own in zip(streams, replies, made, strict=True):
        mel = np.concatenate([*own, *arrays_of(stream.finish())], axis=1)
        assert np.abs(mel - plain.convert(codes)).max() <= TOLERANCE


def test_streams_that_share_caches_keep_their_flow_steps(flow: CausalFlow) -> None:  # noqa: F811
    stage = stage_of(flow, None, streams=2)
    stage.use_steps(stage.steps)
    with pytest.raises(FlowCacheError, match=f"runs {stage.steps} flow steps, not 9. Set --flow-steps."):
        stage.check_steps(9)
    with pytest.raises(FlowCacheError, match="several conversations"):
        stage.use_steps(9)


@pytest.mark.slow
def test_pages_and_slots_are_free_again_once_a_reply_was_collected(flow: CausalFlow) -> None:  # noqa: F811
    stage = stage_of(flow, None, streams=2)
    path = paged_of(stage)
    before = path.pool.num_free
    assert stage.cached_codes == before * flow.config.chunk_codes
    streams = [stage.stream(), stage.stream()]
    arrays_of(streams[0].push(codes_of(8)))
    assert path.pool.num_free == before - 1
    assert stage.most_streams == 2
    with pytest.raises(FlowCacheError, match="2 replies at once"):
        stage.stream()
    del streams
    gc.collect()
    assert path.pool.num_free == before
    stage.stream()


class End:
    """In place of the event at the end of a call."""

    def __init__(self, is_over: bool) -> None:
        self.is_over = is_over

    def query(self) -> bool:
        """As `torch.cuda.Event.query`."""
        return self.is_over


def test_one_call_may_wait_for_another(flow: CausalFlow, voice: VoicePrompt) -> None:  # noqa: F811
    paged = paged_of(stage_of(flow, voice))
    more = []
    for is_over in (True, False, False):
        paged._launched.append(cast(torch.cuda.Event, End(is_over)))
        more.append(paged.takes_more)
    assert more == [True, True, False]


def test_what_does_not_fit_is_refused(flow: CausalFlow, voice: VoicePrompt) -> None:  # noqa: F811
    with pytest.raises(BundleError, match="memory for 5"):
        stage_of(flow, voice, static_bytes=budget_of(flow, 5))
    with pytest.raises(FlowCacheError, match="runs 1 flow steps, not 2"):
        stage_of(flow, None).stream(2)
