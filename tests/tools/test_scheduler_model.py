"""The model of a GPU: one user is served as fast as the calls take, and load shows."""

from __future__ import annotations

import pytest

from tests.tools.scheduler_model import ModelGPU, burst, hold


def test_streams_go_on_while_the_host_waits_and_slow_each_other_down() -> None:
    gpu = ModelGPU()
    packet, codes = gpu.launch("flow", 1.0), gpu.launch("encode", 4.0)
    gpu.wait(1_200_000)
    assert not packet.is_done
    assert gpu.pending("flow") == 1
    assert gpu.pending("vocoder") == 0
    gpu.wait(100_000)
    assert packet.is_done
    gpu.step(10_000_000)
    assert codes.is_done
    assert 11_300_000 < gpu.now_ns() < 14_300_000, "the step was slower as long as the encoder worked"


def test_a_step_goes_on_while_the_host_works() -> None:
    gpu = ModelGPU()
    gpu.launch_step(3_000_000)
    gpu.wait(2_000_000)
    gpu.wait_for_step()
    assert gpu.now_ns() == 3_000_000
    gpu.launch_step(1_000_000)
    gpu.launch_step(2_000_000)
    gpu.wait_for_step(num_left=1)
    assert gpu.now_ns() == 4_000_000, "not for the one after it"
    gpu.wait_for_step()
    assert gpu.now_ns() == 6_000_000


@pytest.mark.slow
def test_load_makes_users_wait() -> None:
    few, many = hold(1, 30.0), hold(160, 6.0)
    (first, *_) = few.replies
    # two calls of the encoder, nine forwards, a packet of five codes, the vocoder
    assert 55 < first.ttfa_ms < 90
    assert not any(reply.gaps_ms for reply in few.replies)
    assert len(first.codes) == first.wanted_codes
    assert max(reply.ttfa_ms for reply in many.replies) > 2 * first.ttfa_ms
    assert {size for (stage, size) in many.calls if stage == "step"} > {1, 2, 4}


@pytest.mark.slow
def test_replies_at_once_have_no_gaps_though_the_flow_cannot_hold_all() -> None:
    """On a GPU of 80 GB: 3,200 codes, and pages for 1,840."""
    ample, short = burst(32, 100, 1_000), burst(32, 100, 368)
    assert (ample.moves, short.moves > 0) == (0, True)
    assert not ample.gaps
    assert not short.gaps
    assert short.moves < 368, "most pages stay"
    assert max(short.first) < 0.3
