"""The flow on static buffers against the one with dynamic caches, and its dtypes."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Unpack

import numpy as np
import pytest
import torch

from engine_runtime.bundle.random_weights import random_voice
from engine_runtime.codec.flow.estimator import EstimatorState, EstimatorSteps
from engine_runtime.codec.flow.ring_cache import RingCache
from engine_runtime.codec.flow.static import StaticFlow, bytes_per_code
from engine_runtime.codec.flow.token2mel import Token2Mel, arrays_of
from engine_runtime.cuda.graphs import GraphedCalls
from engine_runtime.errors import BundleError, FlowCacheError
from engine_runtime.models.flow import CausalFlow
from engine_runtime.types import Mel
from engine_runtime.work import run_alone
from tests.doubles.graphs import EmulatedCalls
from tests.engine_runtime.codec.flow.test_token2mel import (
    SPEC,
    TOLERANCE,
    always,
    codes_of,
    one_shot,
    prompt_of,
    run,
)
from tests.factories.tiny_flow import FlowOptions, make_flow

AMPLE = 1 << 30
POLICIES = [(5,), (5, 5, 10, 25), (7, 13), (10, 5)]
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture(scope="module")
def stored() -> tuple[CausalFlow, dict[str, torch.Tensor]]:
    return make_flow(max_frames=1200)


def static(flow: CausalFlow, **options: Unpack[FlowOptions]) -> Token2Mel:
    settings: FlowOptions = {"steps": 2, "static_bytes": AMPLE}
    return Token2Mel(flow, SPEC, **settings | options)


def path_of(stage: Token2Mel) -> StaticFlow:
    assert isinstance(stage.backend, StaticFlow)
    return stage.backend


class NotedCalls(GraphedCalls):
    """Notes the keys of its calls."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self.keys: list[tuple[object, int, int, int]] = []
        """Of each: the flow, the slot, the shape of the packet, the bucket."""

    def run(
        self,
        key: Any,
        function: Callable[..., Any],
        *inputs: torch.Tensor,
        changes: Sequence[torch.Tensor] = (),
        kind: Hashable = None,
    ) -> Any:
        self.keys.append(key)
        return super().run(key, function, *inputs, changes=changes, kind=kind)

    @property
    def slots(self) -> set[int]:
        return {slot for _, slot, _, _ in self.keys}


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("count", [1, 4, 23, 40, 97])
def test_any_policy_equals_the_one_shot_flow(
    stored: tuple[CausalFlow, dict[str, torch.Tensor]], policy: tuple[int, ...], count: int
) -> None:
    codes = codes_of(count)
    want = one_shot(stored[0], codes)
    fixed, dynamic = (
        static(stored[0], packet_codes=policy),
        Token2Mel(stored[0], SPEC, steps=2, packet_codes=policy),
    )
    packets = run(fixed.stream(), codes, always(1))
    assert np.abs(np.concatenate(packets, axis=1) - want).max() <= TOLERANCE
    references = run(dynamic.stream(), codes, always(1))
    assert np.abs(np.concatenate(references, axis=1) - want).max() <= TOLERANCE
    # the last packet may be larger if the rest is computed in one call
    shared = min(len(packets), len(references)) - 1
    assert [mel.shape for mel in packets[:shared]] == [mel.shape for mel in references[:shared]]


@pytest.mark.slow
@pytest.mark.parametrize("prompt", [7, 10])
def test_prompt_and_the_next_reply(stored: tuple[CausalFlow, dict[str, torch.Tensor]], prompt: int) -> None:
    flow, cases = stored
    voice = prompt_of(cases, prompt)
    fixed = static(flow, prompt=voice, packet_codes=(5, 5, 10))
    dynamic = Token2Mel(flow, SPEC, steps=2, prompt=voice)
    first, second = codes_of(31, 1), codes_of(44, 2)
    stream = fixed.stream()
    for codes in (first, second, first):
        stream.reset()
        mel = np.concatenate(run(stream, codes, always(3)), axis=1)
        assert np.abs(mel - dynamic.convert(codes)).max() <= TOLERANCE


def test_streams_side_by_side_have_their_own_buffers(
    stored: tuple[CausalFlow, dict[str, torch.Tensor]],
) -> None:
    calls = NotedCalls()
    fixed = static(stored[0], calls=calls)
    first, second = codes_of(23, 1), codes_of(23, 2)
    one, two = fixed.stream(), fixed.stream()
    parts: tuple[list[Mel], list[Mel]] = ([], [])
    for start in range(0, 23, 4):
        parts[0].extend(arrays_of(one.push(first[start : start + 4])))
        parts[1].extend(arrays_of(two.push(second[start : start + 4])))
    for index, (stream, codes) in enumerate(((one, first), (two, second))):
        mel = np.concatenate(parts[index] + arrays_of(stream.finish()), axis=1)
        assert np.abs(mel - one_shot(stored[0], codes)).max() <= TOLERANCE
    assert calls.slots == {0, 1}
    del one, two, stream
    calls.keys.clear()
    for stream in [fixed.stream(), fixed.stream()]:
        arrays_of(stream.push(first))
    assert calls.slots == {0, 1}, "they were released"


@pytest.mark.slow
@pytest.mark.parametrize("counts", [(23, 40, 31, 17, 60), (64, 330, 300)])
def test_streams_that_share_slots_are_not_disturbed(
    stored: tuple[CausalFlow, dict[str, torch.Tensor]], counts: tuple[int, ...]
) -> None:
    """More streams than slots, packets in turns, also of replies that are longer than the caches."""
    flow, cases = stored
    calls = NotedCalls()
    fixed = static(
        flow,
        prompt=prompt_of(cases, 10),
        packet_codes=(5, 5, 10),
        static_bytes=100 * _bytes_per_code(flow),
        calls=calls,
    )
    spoken = [codes_of(min(count, 280), seed) for seed, count in enumerate(counts)]
    alone = [fixed.convert(codes) for codes in spoken]
    streams = [fixed.stream() for _ in spoken]
    assert path_of(fixed).prepared_slots == 1
    parts: list[list[np.ndarray]] = [[] for _ in spoken]
    for start in range(0, max(map(len, spoken)), 7):
        for stream, codes, found in zip(streams, spoken, parts, strict=True):
            found += arrays_of(stream.push(codes[start : start + 7]))
    for stream, found, expected in zip(streams, parts, alone, strict=True):
        mel = np.concatenate([*found, *arrays_of(stream.finish())], axis=1)
        np.testing.assert_allclose(mel, expected, atol=1e-4)
    del stream, streams
    np.testing.assert_allclose(fixed.convert(spoken[0]), alone[0], atol=1e-4)
    assert calls.slots == {0}


@pytest.mark.slow
def test_all_streams_share_one_budget(stored: tuple[CausalFlow, dict[str, torch.Tensor]]) -> None:
    """Of a budget for two streams and a half, the third shares a slot; one with other steps is refused
    before it begins; the others are not disturbed, and their buffers serve again."""
    flow, cases = stored
    voice, codes, size = prompt_of(cases, 10), codes_of(23), _bytes_per_code(flow)
    fixed = static(flow, prompt=voice, static_bytes=800 * size)
    path = path_of(fixed)
    assert path.cache_codes == 305  # what the longest reply takes
    want = Token2Mel(flow, SPEC, steps=2, prompt=voice).convert(codes)
    streams = [fixed.stream(), fixed.stream()]
    packets = [arrays_of(stream.push(codes)) for stream in streams]
    with pytest.raises(FlowCacheError, match=r"active replies \(2\) leave"):
        fixed.stream(3)
    assert path.pool.held == 610 * size <= path.pool.budget
    for stream, parts in zip(streams, packets, strict=True):
        mel = np.concatenate([*parts, *arrays_of(stream.finish())], axis=1)
        assert np.abs(mel - want).max() <= TOLERANCE
    del stream, streams
    assert np.abs(fixed.convert(codes) - want).max() <= TOLERANCE
    assert path.pool.held == 610 * size


def test_the_budget_is_divided_where_both_halves_are_ample(
    stored: tuple[CausalFlow, dict[str, torch.Tensor]],
) -> None:
    flow, cases = stored
    voice, size = prompt_of(cases, 10), _bytes_per_code(flow)
    for codes, slots, each in ((531, 1, 305), (532, 2, 266), (609, 2, 304), (700, 2, 305), (200, 1, 200)):
        path = path_of(static(flow, prompt=voice, static_bytes=codes * size))
        assert (path.prepared_slots, path.cache_codes) == (slots, each)
        assert path.pool.held == slots * each * size


@pytest.mark.slow
def test_other_numbers_of_steps_take_the_room_of_idle_slots(
    stored: tuple[CausalFlow, dict[str, torch.Tensor]],
) -> None:
    flow, cases = stored
    calls, voice, codes = EmulatedCalls(), prompt_of(cases, 10), codes_of(12)
    fixed = static(flow, prompt=voice, static_bytes=700 * _bytes_per_code(flow), calls=calls)
    before = fixed.convert(codes)
    for steps in (3, 1, 2):
        want = Token2Mel(flow, SPEC, steps=2, prompt=voice).convert(codes, steps)
        assert np.abs(fixed.convert(codes, steps) - want).max() <= TOLERANCE
        assert path_of(fixed).pool.held <= path_of(fixed).pool.budget
    np.testing.assert_array_equal(fixed.convert(codes), before)


@pytest.mark.slow
def test_the_second_of_two_replies_records_nothing(
    stored: tuple[CausalFlow, dict[str, torch.Tensor]],
) -> None:
    calls, codes = EmulatedCalls(), codes_of(40)
    fixed = static(stored[0], prompt=prompt_of(stored[1], 10), packet_codes=(5, 10), calls=calls)
    want = fixed.convert(codes)
    fixed.warm_up()
    made = calls.num_captured
    streams = [fixed.stream(), fixed.stream()]
    parts = [arrays_of(stream.push(codes[:20])) for stream in streams]
    parts = [
        [*done, *arrays_of(stream.push(codes[20:]))] for done, stream in zip(parts, streams, strict=True)
    ]
    for done, stream in zip(parts, streams, strict=True):
        np.testing.assert_array_equal(np.concatenate([*done, *arrays_of(stream.finish())], axis=1), want)
    assert calls.num_captured == made


@pytest.mark.slow
def test_beyond_the_cache_prompt_and_recent_past_are_kept(
    stored: tuple[CausalFlow, dict[str, torch.Tensor]],
) -> None:
    flow, cases = stored
    voice, codes = prompt_of(cases, 10), codes_of(90)
    reference = Token2Mel(flow, SPEC, steps=2, prompt=voice).convert(codes)
    small = static(flow, prompt=voice, packet_codes=(5, 10), static_bytes=40 * _bytes_per_code(flow))
    assert path_of(small).cache_codes == 40
    mel = small.convert(codes)
    # 10 codes of prompt and 25 of reply; the packet of 10 after them writes over the oldest
    assert np.abs(mel[:, :100] - reference[:, :100]).max() <= TOLERANCE
    assert np.isfinite(mel).all()
    assert np.abs(mel[:, 100:] - reference[:, 100:]).max() > TOLERANCE
    again = small.convert(codes[:20])
    assert np.abs(again - reference[:, :80])[:, :60].max() <= TOLERANCE  # the prompt was not written over


@pytest.mark.slow
def test_short_memory_makes_packets_smaller_before_it_refuses_a_voice(
    stored: tuple[CausalFlow, dict[str, torch.Tensor]],
) -> None:
    flow, cases = stored
    voice, codes = prompt_of(cases, 10), codes_of(20)
    wanted = static(flow, prompt=voice, packet_codes=(5, 10, 25)).convert(codes)
    for cache_codes, shapes in ((60, [5, 10, 25]), (59, [5, 10]), (30, [5, 10]), (29, [5]), (20, [5])):
        small = static(
            flow, prompt=voice, packet_codes=(5, 10, 25), static_bytes=cache_codes * _bytes_per_code(flow)
        )
        assert path_of(small).shapes == shapes
        held = min(cache_codes - 10 - shapes[-1], 20) * 4
        assert np.abs(small.convert(codes) - wanted)[:, :held].max() <= TOLERANCE
    with pytest.raises(BundleError, match="at least 20 codes, and there is memory for 19"):
        static(flow, prompt=voice, packet_codes=(5, 10, 25), static_bytes=19 * _bytes_per_code(flow))


def _bytes_per_code(flow: CausalFlow) -> int:
    return bytes_per_code(flow.config, 2, flow.config.cfg_rate, torch.float32)


def test_bytes_per_code_is_what_a_code_takes(stored: tuple[CausalFlow, dict[str, torch.Tensor]]) -> None:
    path = path_of(static(stored[0]))
    slots = [state.slot for state in (path.start(2), path.start(2))]
    assert {slot.index for slot in slots} == {0, 1}
    for slot in slots:
        held = 0
        for cache in (slot.encoder.codes, slot.encoder.frames, slot.estimator.cache):
            assert isinstance(cache, RingCache)
            held += cache.nbytes
        assert held == path.cache_codes * _bytes_per_code(stored[0])
    assert path.pool.held == 2 * held


def test_a_cache_too_small_for_the_prompt_is_refused(
    stored: tuple[CausalFlow, dict[str, torch.Tensor]],
) -> None:
    with pytest.raises(BundleError, match=r"voice prompt of 10 codes needs .* at least 20 codes"):
        static(stored[0], prompt=prompt_of(stored[1], 10), static_bytes=19 * _bytes_per_code(stored[0]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "mean", "most"), [(torch.float16, 0.01, 0.15), (torch.bfloat16, 0.05, 0.8)]
)
def test_number_formats_against_float32(
    stored: tuple[CausalFlow, dict[str, torch.Tensor]], dtype: torch.dtype, mean: float, most: float
) -> None:
    codes = codes_of(40)
    error = np.abs(static(stored[0], steps=10, dtype=dtype).convert(codes) - one_shot(stored[0], codes, 10))
    assert error.mean() < mean  # standard deviation of the mel: 1.9
    assert error.max() < most


@pytest.mark.slow
def test_every_packet_goes_through_the_given_calls(
    stored: tuple[CausalFlow, dict[str, torch.Tensor]],
) -> None:
    calls = NotedCalls()
    stage = static(stored[0], packet_codes=(5, 5, 10, 25), calls=calls)
    run(stage.stream(), codes_of(97), always(1))
    assert [shape for _, _, shape, _ in calls.keys] == [5, 5, 10, 25, 25, 25, 5]
    assert [bucket for *_, bucket in calls.keys] == [64, 64, 64, 64, 128, 128, 128]
    calls.keys.clear()
    stage.warm_up()
    path = path_of(stage)
    assert path.prepared_slots == 2
    assert len(set(calls.keys)) == len(calls.keys) == 2 * len(path.shapes) * len(path.buckets())


@pytest.mark.slow
def test_captured_graphs_of_two_voices_do_not_mix(stored: tuple[CausalFlow, dict[str, torch.Tensor]]) -> None:
    calls, codes = EmulatedCalls(), codes_of(40)
    prompts = [random_voice(stored[0].config, SPEC.frame_rate, seed) for seed in (0, 1)]
    options: FlowOptions = {"packet_codes": (5, 10)}
    captured = [static(stored[0], **options | {"prompt": prompt, "calls": calls}) for prompt in prompts]
    for _ in range(2):
        for prompt, stage in zip(prompts, captured, strict=True):
            want = static(stored[0], **options | {"prompt": prompt}).convert(codes)
            np.testing.assert_allclose(stage.convert(codes), want, rtol=0, atol=TOLERANCE)
    assert calls.num_captured > 4


@pytest.mark.slow
def test_warm_up_leaves_no_trace(stored: tuple[CausalFlow, dict[str, torch.Tensor]]) -> None:
    fixed = static(stored[0], prompt=prompt_of(stored[1], 10), packet_codes=(5, 10))
    codes = codes_of(30)
    before = fixed.convert(codes)
    fixed.warm_up()
    np.testing.assert_array_equal(fixed.convert(codes), before)


@pytest.mark.cuda
@needs_cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_graphs_equal_eager(stored: tuple[CausalFlow, dict[str, torch.Tensor]], dtype: torch.dtype) -> None:
    voice, codes = prompt_of(stored[1], 10), codes_of(120)
    options: FlowOptions = {
        "prompt": voice,
        "packet_codes": (5, 5, 10, 25),
        "dtype": dtype,
        "device": "cuda",
    }
    flow = make_flow(max_frames=1200)[0].cuda()
    eager = static(flow, **options).convert(codes)
    calls = GraphedCalls("cuda")
    captured = static(flow, **options | {"calls": calls})
    captured.warm_up()
    made = calls.num_captured
    for _ in range(2):
        np.testing.assert_allclose(
            captured.convert(codes), eager, atol=2e-3 if dtype == torch.float32 else 0.1
        )
    assert calls.num_captured == made > 0  # a reply captures nothing


@pytest.mark.cuda
@needs_cuda
def test_a_second_reply_takes_no_memory_and_no_capture(
    stored: tuple[CausalFlow, dict[str, torch.Tensor]],
) -> None:
    codes, flow, calls = codes_of(60), make_flow(max_frames=1200)[0].cuda(), GraphedCalls("cuda")
    fixed = static(
        flow,
        prompt=prompt_of(stored[1], 10),
        packet_codes=(5, 10),
        device="cuda",
        calls=calls,
        static_bytes=700 * _bytes_per_code(flow),
    )
    fixed.warm_up()
    want, made = fixed.convert(codes), calls.num_captured
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    streams = [fixed.stream(), fixed.stream()]
    assert torch.cuda.memory_allocated() - held < 1 << 20
    with pytest.raises(FlowCacheError):
        fixed.stream(3)
    parts = [arrays_of(stream.push(codes)) for stream in streams]
    for done, stream in zip(parts, streams, strict=True):
        np.testing.assert_allclose(
            np.concatenate([*done, *arrays_of(stream.finish())], axis=1), want, atol=2e-3
        )
    assert calls.num_captured == made
    del stream, streams
    other = fixed.convert(codes, 3)  # the room of an idle slot, whose captured graphs are forgotten
    assert np.isfinite(other).all()
    np.testing.assert_allclose(fixed.convert(codes), want, atol=2e-3)


def test_other_flow_steps_equal_a_stage_of_that_many(
    stored: tuple[CausalFlow, dict[str, torch.Tensor]],
) -> None:
    """Bit for bit, also where the budget holds less of a reply than it is long: it is divided anew."""
    flow, cases = stored
    options: FlowOptions = {
        "prompt": prompt_of(cases, 10),
        "packet_codes": (5, 10),
        "static_bytes": 120 * _bytes_per_code(flow),
    }
    fixed, codes = static(flow, **options), codes_of(97)
    for steps in (4, 1, 2):
        fixed.use_steps(steps)
        want = static(flow, **options | {"steps": steps})
        assert path_of(fixed).cache_codes == path_of(want).cache_codes
        np.testing.assert_array_equal(fixed.convert(codes), want.convert(codes))


def test_flow_steps_do_not_change_during_a_reply(
    stored: tuple[CausalFlow, dict[str, torch.Tensor]],
) -> None:
    fixed, codes = static(stored[0]), codes_of(23)
    stream = fixed.stream()
    packets = arrays_of(stream.push(codes))
    with pytest.raises(FlowCacheError, match=r"cannot change during a reply\. Wait until it has ended\."):
        fixed.use_steps(3)
    mel = np.concatenate(packets + arrays_of(stream.finish()), axis=1)
    assert np.abs(mel - one_shot(stored[0], codes)).max() <= TOLERANCE
    del stream
    fixed.use_steps(3)
    assert np.abs(fixed.convert(codes) - one_shot(stored[0], codes, 3)).max() <= TOLERANCE


def test_graphs_and_buffers_of_other_flow_steps_are_freed(
    stored: tuple[CausalFlow, dict[str, torch.Tensor]],
) -> None:
    calls = EmulatedCalls()
    fixed = static(stored[0], calls=calls, prompt=prompt_of(stored[1], 10))
    fixed.warm_up()
    captured = calls.num_captured
    buffer = weakref.ref(path_of(fixed).start(2).slot.estimator.cache)
    before = set(calls.keys)
    gc.disable()  # an engine's objects are frozen, so that no collection would free them
    try:
        fixed.use_steps(3)
        assert buffer() is None
    finally:
        gc.enable()
    fixed.warm_up()
    assert calls.num_captured == captured
    assert not before & set(calls.keys)
    want = static(stored[0], steps=3, prompt=prompt_of(stored[1], 10))
    assert np.abs(fixed.convert(codes_of(40)) - want.convert(codes_of(40))).max() <= TOLERANCE


def test_a_change_of_the_flow_steps_captures_what_a_reply_begins_with(
    stored: tuple[CausalFlow, dict[str, torch.Tensor]],
) -> None:
    calls = EmulatedCalls()
    options: FlowOptions = {"prompt": prompt_of(stored[1], 10), "packet_codes": (5, 10)}
    fixed = static(stored[0], **options | {"calls": calls})
    fixed.warm_up()
    every = calls.num_captured
    fixed.use_steps(3)
    at_once = calls.num_captured
    assert at_once == path_of(fixed).prepared_slots * len(path_of(fixed).shapes) < every
    stream = fixed.stream()
    first = run_alone(stream.push(codes_of(5 + stored[0].config.look_ahead_codes)))
    assert (len(first), calls.num_captured) == (1, at_once)  # the first packet waits for no capture
    del stream
    want = static(stored[0], **options | {"steps": 3}).convert(codes_of(97))
    assert np.abs(fixed.convert(codes_of(97)) - want).max() <= TOLERANCE
    assert at_once < calls.num_captured < every


def test_flow_steps_that_do_not_fit_change_nothing(
    stored: tuple[CausalFlow, dict[str, torch.Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    flow, codes = stored[0], codes_of(23)
    fixed = static(flow, static_bytes=40 * _bytes_per_code(flow))
    want = fixed.convert(codes)
    with pytest.raises(FlowCacheError, match=r"too small for 100 flow steps\. Choose fewer"):
        fixed.use_steps(100)
    make = EstimatorSteps.new_state

    def out_of_memory(
        estimator: EstimatorSteps, steps: int, cache: RingCache | None = None
    ) -> EstimatorState:
        if steps == 3:
            raise torch.OutOfMemoryError
        return make(estimator, steps, cache)

    monkeypatch.setattr(EstimatorSteps, "new_state", out_of_memory)
    with pytest.raises(FlowCacheError, match="too little free memory for 3 flow steps"):
        fixed.use_steps(3)
    assert fixed.steps == 2
    np.testing.assert_array_equal(fixed.convert(codes), want)
