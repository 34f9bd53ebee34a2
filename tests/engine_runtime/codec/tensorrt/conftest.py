"""Exported files of the stored tiny networks, made once for all processes of a run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from safetensors.torch import load_file
from torch import Tensor, nn

from engine_runtime.codec.flow.token2mel import Token2Mel
from engine_runtime.codec.speech_tokenizer.speech_tokenizer import SpeechTokenizer
from engine_runtime.codec.tensorrt.export import export_onnx
from engine_runtime.codec.tensorrt.graph import Axis, Graph, GraphTensor
from engine_runtime.codec.vocoder.vocoder import Vocoder
from tests.engine_runtime.codec.flow.test_token2mel import SPEC
from tests.engine_runtime.codec.speech_tokenizer.test_speech_tokenizer import GOLDEN, make_tokenizer
from tests.engine_runtime.codec.vocoder.test_hift_stream import hift
from tests.engine_runtime.codec.vocoder.test_vocoder import stored_bigvgan
from tests.factories.tiny_flow import make_flow

Exported = Callable[[str, Graph], Path]
PACKETS = (5, 10)


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """The file of a graph, exported once for each name of a network."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "onnx"
    folder.mkdir(exist_ok=True)

    def export(name: str, graph: Graph) -> Path:
        file = folder / f"{name}.onnx"
        with FileLock(f"{file}.lock"):
            if not file.is_file():
                export_onnx(graph, file)
        return file

    return export


@pytest.fixture
def flow() -> Token2Mel:
    """The stored flow with guidance on buffers of a fixed size, two Euler steps."""
    return Token2Mel(make_flow(1200)[0], SPEC, steps=2, packet_codes=PACKETS, static_bytes=1 << 30)


@pytest.fixture
def tokenizer() -> SpeechTokenizer:
    return make_tokenizer(load_file(GOLDEN / "encoder_tiny.safetensors"), "running_max")


@pytest.fixture
def bigvgan() -> Vocoder:
    return stored_bigvgan()[0]


@pytest.fixture
def hift_vocoder() -> Vocoder:
    return Vocoder(hift()[0], SPEC)


class ScaledSum(nn.Module):
    """A small network with a cache: what is new, scaled, plus the sum of the past."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor([factor]), requires_grad=False)

    def forward(self, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        return self.factor * x + past.sum(dim=0), torch.cat((past, x[0]))


def scaled_sum(factor: float = 2.0) -> Graph:
    frames, past = Axis("frames", 2, 4, 8), Axis("past", 1, 4, 16)
    return Graph(
        "scaled_sum",
        ScaledSum(factor),
        (GraphTensor("x", (1, frames, 4)), GraphTensor("past", (past, 4))),
        (GraphTensor("y", (1, frames, 4)), GraphTensor("kept", (past + frames, 4))),
    )
