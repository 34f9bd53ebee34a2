"""One Euler step of the flow as an exported graph, against torch and in complete replies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from engine_runtime.codec.flow.static import bytes_per_code
from engine_runtime.codec.flow.token2mel import Token2Mel
from engine_runtime.codec.onnx_graph import OnnxRunner
from engine_runtime.errors import ExecutorError
from engine_runtime.tensorrt.codec.graphs import EngineEstimator, estimator_graph
from tests.engine_runtime.codec.flow.test_token2mel import (
    SPEC,
    TOLERANCE,
    always,
    codes_of,
    one_shot,
    prompt_of,
    run,
)
from tests.engine_runtime.tensorrt.codec.conftest import PACKETS
from tests.factories.graphs import Exported, difference_on_onnx
from tests.factories.tiny_flow import make_flow

pytestmark = pytest.mark.slow


def with_engine(stage: Token2Mel, exported: Exported) -> Token2Mel:
    graph = estimator_graph(stage.estimator, list(PACKETS))
    runner = OnnxRunner(graph, exported("flow_tiny", graph))
    stage.estimator.engine = EngineEstimator(stage.estimator, runner)
    return stage


def test_the_graph_is_the_estimator(flow: Token2Mel, exported: Exported) -> None:
    graph = estimator_graph(flow.estimator, list(PACKETS))
    assert difference_on_onnx(graph, exported("flow_tiny", graph)) <= 1e-5
    # the module that is exported is the code that streams: the velocity of the first packet is the same
    state = flow.backend.start(2).slot.estimator
    x, convolved, skipped, *_ = graph.examples("usual")
    state.cache.place(torch.tensor(0), torch.tensor(x.shape[1]), x.shape[1], 40)
    inputs = (
        x,
        convolved,
        skipped,
        torch.stack([table[1] for table in state.schedule.times]),
        state.cache.mask_over_past_and_new(),
        state.cache.past(flow.estimator.blocks, flow.estimator.blocks),
        *state.rows[1],
    )
    velocity, new, *rows = OnnxRunner(graph, exported("flow_tiny", graph))(*inputs)
    with torch.inference_mode():
        want = flow.estimator.velocity(state, 1, x, convolved, skipped)
    kept = state.cache.past(flow.estimator.blocks, flow.estimator.blocks)[:, :, :, :, : x.shape[1]]
    torch.testing.assert_close(velocity, want, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(new, kept, atol=1e-5, rtol=1e-4)
    for value, wanted in zip(rows, state.rows[1], strict=True):
        torch.testing.assert_close(value, wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("count", [4, 23, 97])
def test_replies_equal_the_one_shot_flow(flow: Token2Mel, exported: Exported, count: int) -> None:
    stream, codes = with_engine(flow, exported).stream(), codes_of(count)
    mel = np.concatenate(run(stream, codes, always(3)), axis=1)
    assert np.abs(mel - one_shot(make_flow(1200)[0], codes)).max() <= TOLERANCE


def test_an_engine_of_one_step_runs_any_number_of_them(exported: Exported) -> None:
    """The voice prompt is computed in torch, as when the stage was loaded: an engine takes packets."""
    network, cases = make_flow(1200)
    options: dict[str, Any] = {"packet_codes": PACKETS, "prompt": prompt_of(cases, 10)}
    options["static_bytes"] = 1 << 30
    codes = codes_of(31)
    stage = with_engine(Token2Mel(network, SPEC, steps=2, **options), exported)
    engine = stage.estimator.engine
    for steps in (3, 1):
        stage.use_steps(steps)
        assert stage.estimator.engine is engine
        want = with_engine(Token2Mel(network, SPEC, steps=steps, **options), exported).convert(codes)
        np.testing.assert_array_equal(stage.convert(codes), want)
        plain = Token2Mel(network, SPEC, steps=steps, **options)
        assert np.abs(want - plain.convert(codes)).max() <= TOLERANCE


def test_replies_longer_than_the_cache_and_a_voice_prompt(exported: Exported) -> None:
    """The ring writes over what is oldest: the slots that the new frames will take must not be seen."""
    network, cases = make_flow(1200)
    codes = codes_of(97)

    def stage() -> Token2Mel:
        return Token2Mel(
            network, SPEC, steps=2, packet_codes=PACKETS, prompt=prompt_of(cases, 10), static_bytes=0
        )

    def with_cache(codes_of_cache: int) -> Token2Mel:
        size = codes_of_cache * bytes_per_code(network.config, 2, network.config.cfg_rate, torch.float32)
        return Token2Mel(
            network, SPEC, steps=2, packet_codes=PACKETS, prompt=prompt_of(cases, 10), static_bytes=size
        )

    plain = Token2Mel(network, SPEC, steps=2, packet_codes=PACKETS, prompt=prompt_of(cases, 10))
    want = np.concatenate(run(with_cache(40).stream(), codes, always(4)), axis=1)
    got = np.concatenate(run(with_engine(with_cache(40), exported).stream(), codes, always(4)), axis=1)
    reference = np.concatenate(run(plain.stream(), codes, always(4)), axis=1)
    assert np.abs(got - want).max() <= TOLERANCE
    assert np.abs(want - reference).max() > 10 * TOLERANCE  # the ring did write over the past


def test_caches_that_grow_are_refused(exported: Exported) -> None:
    dynamic = with_engine(Token2Mel(make_flow(1200)[0], SPEC, steps=2), exported)
    with pytest.raises(ExecutorError, match="static caches"):
        dynamic.convert(codes_of(10))
