"""The speech encoder as an exported graph: a stream has the same codes."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.torch import load_file

from engine_runtime.codec.onnx_graph import OnnxRunner
from engine_runtime.codec.speech_tokenizer.encoder_graph import EngineSpeechEncoder, speech_encoder_graph
from engine_runtime.codec.speech_tokenizer.speech_tokenizer import SpeechTokenizer
from engine_runtime.work import run_alone
from tests.engine_runtime.codec.speech_tokenizer.test_speech_tokenizer import (
    GOLDEN,
    RATE,
    cut_speech,
    make_tokenizer,
    push_in_chunks,
)
from tests.factories.graphs import Exported, difference_on_onnx

pytestmark = pytest.mark.slow


@pytest.fixture
def on_onnx(exported: Exported) -> SpeechTokenizer:
    tokenizer = make_tokenizer(load_file(GOLDEN / "encoder_tiny.safetensors"), "running_max")
    graph = speech_encoder_graph(tokenizer.model)
    file = exported("encoder_tiny", graph)
    assert difference_on_onnx(graph, file) <= 1e-5
    tokenizer.step = EngineSpeechEncoder(tokenizer.model, OnnxRunner(graph, file))
    return tokenizer


@pytest.mark.parametrize("case", ["odd", "long"])
def test_stored_speech_has_the_codes_of_torch(on_onnx: SpeechTokenizer, case: str) -> None:
    pcm = cut_speech(load_file(GOLDEN / "encoder_tiny.safetensors"), case)
    want = on_onnx.encode(pcm)  # torch, the complete signal at once
    assert np.array_equal(push_in_chunks(on_onnx.stream(), pcm, [3000, 20000]), want)


def test_a_tail_leaves_the_stream_as_it_was(on_onnx: SpeechTokenizer) -> None:
    pcm = np.random.default_rng(0).normal(scale=0.1, size=2 * RATE).astype(np.float32)
    stream = on_onnx.stream()
    first = run_alone(stream.push(pcm[:RATE]))
    tail, again = (run_alone(stream.tail()) for _ in range(2))
    assert np.array_equal(tail, again)
    rest = run_alone(stream.push(pcm[RATE:]))
    assert np.array_equal(np.concatenate([first, rest, run_alone(stream.tail())]), on_onnx.encode(pcm))
