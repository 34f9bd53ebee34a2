"""The chunked flow against the one-shot flow and against stored vectors."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine_runtime.codec.flow.token2mel import Token2Mel, Token2MelStream, arrays_of
from engine_runtime.errors import BundleError, ContextLengthError, MossVoiceError
from engine_runtime.models.flow import CausalFlow
from engine_runtime.types import Codes, Mel, MelSpec, VoicePrompt
from tests.factories.tiny_flow import make_flow
from tests.tools.examples import examples

SPEC = MelSpec(sample_rate=24000, n_mels=80, n_fft=1920, hop=480, win=1920, fmin=0.0, fmax=8000.0)
TOLERANCE = 1e-4
"""fp32 against fp32, log-mels up to 9."""


@pytest.fixture(scope="module")
def stored() -> tuple[CausalFlow, dict[str, torch.Tensor]]:
    return make_flow()


@pytest.fixture(scope="module")
def stage(stored: tuple[CausalFlow, dict[str, torch.Tensor]]) -> Token2Mel:
    """Without a prompt, two steps: for what does not depend on the voice."""
    return Token2Mel(stored[0], SPEC, steps=2)


def prompt_of(cases: dict[str, torch.Tensor], count: int) -> VoicePrompt:
    xvector = cases["in.xvector"].numpy()
    if count == 0:
        return VoicePrompt(np.zeros(0, np.int64), np.zeros((80, 0), np.float32), xvector)
    codes, mel = cases[f"in.P{count}.prompt_token"], cases[f"in.P{count}.prompt_feat"]
    return VoicePrompt(codes.numpy().astype(np.int64), mel.T.numpy(), xvector)


def run(stream: Token2MelStream, codes: Codes, sizes: Iterator[int]) -> list[Mel]:
    """Push codes in chunks of these sizes, then finish."""
    packets, start = [], 0
    while start < len(codes):
        end = start + next(sizes)
        packets += arrays_of(stream.push(codes[start:end]))
        start = end
    return packets + arrays_of(stream.finish())


def always(size: int) -> Iterator[int]:
    while True:
        yield size


def one_shot(flow: CausalFlow, codes: Codes, steps: int = 2) -> Mel:
    return flow.inference(torch.from_numpy(codes)[None], n_steps=steps)[0].numpy()


def codes_of(count: int, seed: int = 0) -> Codes:
    return np.random.default_rng(seed).integers(0, 160, count)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prompt", "frames", "first"),
    [(0, [20, 20, 20, 20, 12], 8), (10, [20, 20, 20, 20, 12], 8), (7, [32, 20, 20, 20], 11)],
)
def test_packets_equal_the_stored_mel(
    stored: tuple[CausalFlow, dict[str, torch.Tensor]], prompt: int, frames: list[int], first: int
) -> None:
    flow, cases = stored
    codes = cases["in.token"].numpy().astype(np.int64)
    stream = Token2Mel(flow, SPEC, steps=10, prompt=prompt_of(cases, prompt)).stream()
    assert arrays_of(stream.push(codes[: first - 1])) == []  # one code short of the first packet
    packets = arrays_of(stream.push(codes[first - 1 : first])) + run(stream, codes[first:], always(1))
    assert [packet.shape[1] for packet in packets] == frames
    mel = np.concatenate(packets, axis=1)
    for name, want in cases.items():
        if name.startswith(f"mel.P{prompt}.") and ".steps10.stream." in name:
            aligned = name.endswith("final") or (want.shape[1] // 4 + prompt) % 5 == 0
            count = want.shape[1] if aligned else want.shape[1] // 20 * 20
            if aligned or prompt % 5 == 0:
                assert np.abs(mel[:, :count] - want.numpy()[:, :count]).max(initial=0.0) <= 3e-4, name


@pytest.mark.slow
@examples(12)
@given(count=st.integers(0, 40), sizes=st.lists(st.integers(1, 17), min_size=40, max_size=40))
def test_any_chunking_equals_one_shot(
    stored: tuple[CausalFlow, dict[str, torch.Tensor]], stage: Token2Mel, count: int, sizes: list[int]
) -> None:
    codes = codes_of(count, seed=count)
    packets = run(stage.stream(), codes, iter(sizes))
    assert sum(packet.shape[1] for packet in packets) == 4 * count
    if count:
        assert np.abs(np.concatenate(packets, axis=1) - one_shot(stored[0], codes)).max() <= TOLERANCE
    assert all(packet.shape[1] == 20 for packet in packets[:-1])


@pytest.mark.slow
def test_long_reply_grows_the_caches(
    stored: tuple[CausalFlow, dict[str, torch.Tensor]], stage: Token2Mel
) -> None:
    codes = codes_of(150)  # 600 frames: more than the first capacity of either cache
    packets = run(stage.stream(), codes, always(5))
    assert np.abs(np.concatenate(packets, axis=1) - one_shot(stored[0], codes)).max() <= TOLERANCE


@pytest.mark.slow
def test_interleaved_streams_and_reset_do_not_mix(stored: tuple[CausalFlow, dict[str, torch.Tensor]]) -> None:
    flow, cases = stored
    stage = Token2Mel(flow, SPEC, steps=2, prompt=prompt_of(cases, 10))
    first, second = codes_of(23, 1), codes_of(23, 2)
    alone = [np.concatenate(run(stage.stream(), codes, always(4)), axis=1) for codes in (first, second)]
    one, two = stage.stream(), stage.stream()
    parts: tuple[list[Mel], list[Mel]] = ([], [])
    for start in range(0, 23, 3):
        parts[0].extend(arrays_of(one.push(first[start : start + 3])))
        parts[1].extend(arrays_of(two.push(second[start : start + 3])))
    for index, stream in enumerate((one, two)):
        mel = np.concatenate(parts[index] + arrays_of(stream.finish()), axis=1)
        np.testing.assert_allclose(mel, alone[index], atol=TOLERANCE)
    one.reset()
    np.testing.assert_allclose(np.concatenate(run(one, second, always(4)), axis=1), alone[1], atol=TOLERANCE)


def test_steps_of_a_stream(stored: tuple[CausalFlow, dict[str, torch.Tensor]], stage: Token2Mel) -> None:
    codes = codes_of(12)
    assert np.abs(stage.convert(codes, n_steps=5) - one_shot(stored[0], codes, 5)).max() <= TOLERANCE
    assert np.abs(stage.convert(codes) - stage.convert(codes, n_steps=5)).max() > 0.01


def test_without_guidance(stored: tuple[CausalFlow, dict[str, torch.Tensor]]) -> None:
    codes = codes_of(12)
    mel = Token2Mel(stored[0], SPEC, steps=2, cfg_rate=0.0).convert(codes)
    want = stored[0].inference(torch.from_numpy(codes)[None], n_steps=2, cfg_rate=0.0)[0].numpy()
    assert np.abs(mel - want).max() <= TOLERANCE


def test_larger_first_packet(stored: tuple[CausalFlow, dict[str, torch.Tensor]]) -> None:
    stage = Token2Mel(stored[0], SPEC, steps=1, packet_codes=(10, 5))
    assert [mel.shape[1] for mel in run(stage.stream(), codes_of(23), always(1))] == [40, 20, 20, 12]


@pytest.mark.slow
def test_bounded_past_is_exact_until_it_is_full(stored: tuple[CausalFlow, dict[str, torch.Tensor]]) -> None:
    flow, codes = stored[0], codes_of(60)
    reference = one_shot(flow, codes)
    bounded = Token2Mel(flow, SPEC, steps=2, left_codes=20)
    mel = bounded.convert(codes)
    assert (
        np.abs(mel[:, :100] - reference[:, :100]).max() <= TOLERANCE
    )  # 20 codes of past and the chunk itself
    assert np.isfinite(mel).all()
    assert np.abs(mel[:, 100:] - reference[:, 100:]).max() > TOLERANCE
    # earlier frames have no effect any more
    stream = bounded.stream()
    run(stream, codes, always(5))
    assert stream._state.estimator.cache.length <= 80 + 20


def test_bfloat16_stays_close(stored: tuple[CausalFlow, dict[str, torch.Tensor]]) -> None:
    codes = codes_of(20)
    mel = Token2Mel(stored[0], SPEC, steps=4, dtype=torch.bfloat16).convert(codes)
    assert mel.dtype == np.float32
    assert np.abs(mel - one_shot(stored[0], codes, 4)).mean() < 0.05  # standard deviation of the mel: 1.9


def test_nothing_in_nothing_out(stage: Token2Mel) -> None:
    stream = stage.stream()
    assert arrays_of(stream.push(np.zeros(0, np.int64))) == []
    assert arrays_of(stream.finish()) == []
    assert stage.convert(np.zeros(0, np.int64)).shape == (80, 0)


def test_bad_input_is_refused(stored: tuple[CausalFlow, dict[str, torch.Tensor]], stage: Token2Mel) -> None:
    flow, cases = stored
    with pytest.raises(BundleError, match=r"code 160 .*0\.\.159"):
        arrays_of(stage.stream().push(np.array([3, 160])))
    with pytest.raises(BundleError, match="80 mel bands"):
        Token2Mel(flow, MelSpec(24000, 100, 1920, 480, 1920, 0.0, 8000.0))
    prompt = prompt_of(cases, 10)
    with pytest.raises(BundleError, match="10 codes"):
        Token2Mel(flow, SPEC, prompt=VoicePrompt(prompt.codes, prompt.mel[:, :-1]))
    stream = stage.stream()
    arrays_of(stream.finish())
    with pytest.raises(MossVoiceError, match="finished"):
        arrays_of(stream.push(np.array([1])))
    short, _ = make_flow(max_frames=100)
    with pytest.raises(ContextLengthError, match="120 mel frames"):
        run(Token2Mel(short, SPEC, steps=1).stream(), codes_of(30), always(5))
