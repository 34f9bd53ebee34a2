"""The estimator's Triton kernels, run by Triton's interpreter, against the plain operations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Unpack

import numpy as np
import pytest
import torch

from engine_runtime.bundle.random_weights import random_voice
from engine_runtime.codec.flow.static import StaticFlow, bytes_per_code
from engine_runtime.codec.flow.token2mel import Token2Mel, arrays_of
from engine_runtime.cuda.graphs import GraphedCalls
from engine_runtime.models.flow import CausalFlow, FlowConfig
from engine_runtime.types import VoicePrompt
from tests.doubles.interpreted_triton import HAS_TRITON, needs_triton, patch_interpreter
from tests.engine_runtime.codec.flow.test_token2mel import SPEC, TOLERANCE, codes_of
from tests.factories.tiny_flow import FlowOptions

pytestmark = needs_triton
patch_interpreter()
if HAS_TRITON:
    from engine_runtime.codec.flow import triton_blocks, triton_estimator
    from engine_runtime.codec.flow.triton_blocks import LAUNCHES

KERNELS = [f"{name}_rows" for name in ("attend", "conv", "inner", "linear_add", "project", "skip", "step")]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(scope="module")
def flow() -> CausalFlow:
    """No width is a power of two. The norms are as after training: neither ones nor zeros."""
    torch.manual_seed(0)
    config = FlowConfig(vocab_size=160, encoder_dim=24, encoder_heads=2, encoder_ffn=16, encoder_blocks=1,
                        encoder_up_blocks=1, channels=24, n_blocks=1, mid_blocks=1, heads=3, head_dim=12,
                        max_frames=400)  # fmt: skip
    network = CausalFlow(config)
    for name, value in network.named_parameters():
        if value.dim() == 1:
            torch.nn.init.normal_(value, mean=float("norm" in name or "block.2.weight" in name), std=0.3)
    return network.eval().to(DEVICE)


@pytest.fixture
def large_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter's time goes by the number of programs."""
    for kind, launch in LAUNCHES.items():
        monkeypatch.setitem(LAUNCHES, kind, replace(launch, rows=64, columns=128, block=512))


def stages(flow: CausalFlow, **options: Unpack[FlowOptions]) -> tuple[Token2Mel, Token2Mel]:
    """With plain operations and with kernels."""
    settings: FlowOptions = {"steps": 1, "static_bytes": 1 << 30, "device": DEVICE}
    settings.update(options)
    plain, fast = (Token2Mel(flow, SPEC, **settings | {"triton": triton}) for triton in (False, True))
    return plain, fast


@pytest.mark.slow
@pytest.mark.usefixtures("large_tiles")
@pytest.mark.parametrize(("cfg_rate", "steps"), [(0.0, 1), (0.7, 2)])
def test_packets_equal_the_plain_ones(flow: CausalFlow, cfg_rate: float, steps: int) -> None:
    reference = random_voice(flow.config, SPEC.frame_rate, 3)
    voice = VoicePrompt(reference.codes[:7], reference.mel[:, :28], reference.xvector)
    plain, fast = stages(flow, prompt=voice, packet_codes=(5, 10), cfg_rate=cfg_rate, steps=steps)
    given = codes_of(9)
    assert np.abs(fast.convert(given) - plain.convert(given)).max() <= TOLERANCE


@pytest.mark.slow
def test_small_chunks_and_a_full_ring(flow: CausalFlow, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of 10 codes: the third packet writes over the first."""
    for kind, launch in LAUNCHES.items():
        monkeypatch.setitem(LAUNCHES, kind, replace(launch, columns=32, block=32))
    monkeypatch.setattr(triton_blocks, "_MAX_PRELOADED_BYTES", 0)
    room = bytes_per_code(flow.config, 1, flow.config.cfg_rate, torch.float32)
    plain, fast = stages(flow, static_bytes=10 * room)
    given = codes_of(15)
    assert np.abs(fast.convert(given) - plain.convert(given)).max() <= TOLERANCE


@pytest.mark.slow
@pytest.mark.usefixtures("large_tiles")
def test_half_precision_is_as_near_to_float32_as_the_plain_operations(flow: CausalFlow) -> None:
    given = codes_of(5)
    reference = stages(flow)[0].convert(given)
    plain, fast = (stage.convert(given) for stage in stages(flow, dtype=torch.float16))
    assert np.abs(fast - reference).mean() <= 1.1 * np.abs(plain - reference).mean() + 1e-4


def test_launches_of_an_euler_step(flow: CausalFlow, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five a transformer block, three a residual block, three convolutions and the step itself."""
    made = []

    class Counted:
        def __init__(self, name: str) -> None:
            self.name = name

        def __getitem__(self, grid: tuple[int, int]) -> Any:
            return lambda *given, **constants: made.append(self.name)

    for module in (triton_blocks, triton_estimator):
        for name in KERNELS:
            monkeypatch.setattr(module, name, Counted(name), raising=False)
    stream = stages(flow, steps=3)[1].stream()
    made.clear()
    arrays_of(stream.push(codes_of(8)))
    config = flow.config
    levels = config.mid_blocks + 2
    step = 5 * levels * config.n_blocks + 3 * levels + 3 + 1
    assert len(made) == 5 * (config.encoder_blocks + config.encoder_up_blocks) + 3 * step


@pytest.mark.cuda
@pytest.mark.skipif(DEVICE == "cpu", reason="no CUDA device")
def test_kernels_launched_early_compute_the_same(flow: CausalFlow, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for uses_pdl in (True, False):
        if not uses_pdl:
            monkeypatch.setattr(triton_blocks, "pdl_launch_args", lambda device: {"USES_PDL": False})
        stage = Token2Mel(
            flow,
            SPEC,
            steps=10,
            static_bytes=1 << 30,
            device=DEVICE,
            dtype=torch.float16,
            calls=GraphedCalls(DEVICE),
            triton=True,
            packet_codes=(5, 5, 10, 25),
        )
        made.append([stage.convert(codes_of(45)) for _ in range(4)])
    assert all(np.array_equal(mel, made[1][0]) for mel in (*made[0], *made[1]))


@pytest.mark.cuda
@pytest.mark.skipif(DEVICE == "cpu", reason="no CUDA device")
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-3), (torch.float16, 0.1)])
def test_captured_kernels_equal_plain_operations(
    flow: CausalFlow, dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # as the codec's runtime sets it
    calls = GraphedCalls(DEVICE)
    options: FlowOptions = {
        "prompt": random_voice(flow.config, SPEC.frame_rate, 3),
        "packet_codes": (5, 5, 10, 25),
        "dtype": dtype,
    }
    plain = stages(flow, **options)[0]
    fast = stages(flow, **options | {"calls": calls})[1]
    assert isinstance(fast.backend, StaticFlow)
    given = codes_of(45)
    wanted = plain.convert(given)
    for _ in range(2):
        np.testing.assert_allclose(fast.convert(given), wanted, rtol=0, atol=tolerance)
    assert calls.num_captured > 0
