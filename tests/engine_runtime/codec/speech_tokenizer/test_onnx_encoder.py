"""The encoder of the nano bundle on onnxruntime: the same codes as torch, and the fallback to torch."""

from __future__ import annotations

import logging
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from app.audio.wav import read_wav
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.codec.loading import load_speech_encoder
from engine_runtime.codec.onnx_graph import OnnxRunner
from engine_runtime.codec.speech_tokenizer.encoder_graph import MOST_CODES
from engine_runtime.codec.speech_tokenizer.speech_tokenizer import SpeechTokenizer
from engine_runtime.options import EngineOptions
from engine_runtime.types import Codes, Pcm
from engine_runtime.work import run_alone
from tests.engine_runtime.codec.speech_tokenizer.test_speech_tokenizer import push_in_chunks
from tests.factories.bundle import write_manifest

pytestmark = pytest.mark.slow

TOLERANCE = 1e-4
"""Share of the largest hidden state by which both may differ."""


def load(bundle: Path, **options: Any) -> SpeechTokenizer:
    return load_speech_encoder(Bundle.open(bundle), EngineOptions(**options))


@pytest.fixture(scope="module")
def in_torch(nano_bundle: Path) -> SpeechTokenizer:
    tokenizer = load(nano_bundle, kernels="torch")
    assert tokenizer.backend == "torch"
    return tokenizer


@pytest.fixture(scope="module")
def on_onnx(nano_bundle: Path) -> SpeechTokenizer:
    tokenizer = load(nano_bundle)
    assert tokenizer.backend.startswith("onnxruntime 1.")
    return tokenizer


@pytest.fixture
def nano_copy(nano_bundle: Path, tmp_path: Path) -> Path:
    """The bundle without what only people read."""
    folder = tmp_path / "nano"
    return Path(shutil.copytree(nano_bundle, folder, ignore=shutil.ignore_patterns("recipe", "*.md")))


def streamed(tokenizer: SpeechTokenizer, pcm: Pcm, sizes: list[int]) -> Codes:
    return push_in_chunks(tokenizer.stream(), pcm, sizes)


def test_every_sample_has_the_codes_of_torch(
    in_torch: SpeechTokenizer, on_onnx: SpeechTokenizer, repository: Path
) -> None:
    files = sorted((repository / "assets" / "samples").glob("*.wav"))
    assert len(files) > 5
    for file in files:
        pcm, rate = read_wav(file)
        assert rate == on_onnx.sample_rate
        codes = streamed(on_onnx, pcm, [rate // 50])
        assert np.array_equal(codes, streamed(in_torch, pcm, [rate // 50])), file.name
        assert np.array_equal(codes, on_onnx.encode(pcm)), file.name


@pytest.mark.parametrize("seed", range(6))
def test_random_streams_in_random_chunks_have_the_codes_of_torch(
    in_torch: SpeechTokenizer, on_onnx: SpeechTokenizer, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    # the first one is longer than a segment
    seconds = (
        1.2 * on_onnx.segment_samples / on_onnx.sample_rate if seed == 0 else generator.uniform(0.1, 5.0)
    )
    pcm = make_noise(generator, round(seconds * on_onnx.sample_rate))
    sizes = generator.integers(1, 6000, size=20).tolist()
    codes = streamed(on_onnx, pcm, sizes)
    assert np.array_equal(codes, streamed(in_torch, pcm, sizes))
    assert np.array_equal(codes, on_onnx.encode(pcm))


def make_noise(generator: np.random.Generator, samples: int) -> Pcm:
    """Noise that swells and fades several times a second, so that codes change."""
    envelope = np.interp(np.arange(samples), np.arange(0, samples + 2000, 2000), _levels(generator, samples))
    return (generator.normal(size=samples) * envelope).astype(np.float32)


def _levels(generator: np.random.Generator, samples: int) -> np.ndarray:
    return 10 ** generator.uniform(-4.0, -0.7, size=len(np.arange(0, samples + 2000, 2000)))


def test_hidden_states_and_caches_are_those_of_torch(on_onnx: SpeechTokenizer) -> None:
    model = on_onnx.model
    generator = torch.Generator().manual_seed(0)
    states = [model.initial_state(), model.initial_state()]
    with torch.inference_mode():
        for codes in (1, 2, MOST_CODES, 1, 40, 1, 1):  # the past fills more than one bucket
            mel = torch.randn(
                1, model.config.num_mel_bins, codes * model.config.frames_per_code, generator=generator
            )
            got, states[0] = on_onnx.step(mel, states[0])
            want, states[1] = model.step_hidden(mel, states[1])
            assert float((got - want).abs().max() / want.abs().max()) < TOLERANCE
        for name in ("conv1", "conv2", "keys", "values"):
            torch.testing.assert_close(getattr(states[0], name), getattr(states[1], name), atol=1e-3, rtol=0)


def test_many_codes_at_once_stay_in_torch(nano_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = load(nano_bundle)
    calls: list[int] = []
    run = OnnxRunner.__call__

    def noting(runner: OnnxRunner, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        calls.append(inputs[0].shape[2])
        return run(runner, *inputs)

    monkeypatch.setattr(OnnxRunner, "__call__", noting)
    stream = tokenizer.stream()
    frames, samples = tokenizer.model.config.frames_per_code, tokenizer.samples_per_code
    run_alone(stream.push(np.zeros(samples * (MOST_CODES + 2), np.float32)))
    assert calls == []
    run_alone(stream.push(np.zeros(samples * MOST_CODES, np.float32)))
    assert calls == [MOST_CODES * frames]


def test_it_has_no_threads_of_its_own(nano_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(nano_bundle)  # what the libraries start once
    before = psutil.Process().num_threads()
    tokenizers = [load(nano_bundle) for _ in range(3)]
    for tokenizer in tokenizers:
        run_alone(tokenizer.stream().push(np.zeros(16_000, np.float32)))
    assert psutil.Process().num_threads() == before


def test_a_bundle_without_a_graph_runs_in_torch(
    random_bundle: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        assert load(random_bundle).backend == "torch (the bundle has no graph)"
    assert [record.message for record in caplog.records] == [
        "The speech encoder runs in torch: the bundle has no graph for onnxruntime."
    ]


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:1000])


def fill_with_rubbish(file: Path) -> None:
    file.write_bytes(b"rubbish" * 1000)


def compute_something_else(file: Path) -> None:
    add, subtract = b"\x22\x03Add", b"\x22\x03Sub"  # a node's field 4, its operator
    content = file.read_bytes()
    assert add in content
    file.write_bytes(content.replace(add, subtract, 1))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (cut, "protobuf parsing failed"),
        (fill_with_rubbish, "protobuf parsing failed"),
        (compute_something_else, "output hidden differs from torch's"),
    ],
)
def test_a_damaged_graph_leaves_it_in_torch(
    nano_copy: Path,
    in_torch: SpeechTokenizer,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[Path], None],
    reason: str,
) -> None:
    damage(nano_copy / "speech_encoder.onnx")
    _update_hashes(nano_copy)
    tokenizer = load(nano_copy)
    assert tokenizer.backend.startswith("torch (speech_encoder.onnx cannot be used: ")
    assert reason in tokenizer.backend
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert reason in record.message
    pcm = make_noise(np.random.default_rng(0), 16_000)
    assert np.array_equal(streamed(tokenizer, pcm, [500]), streamed(in_torch, pcm, [500]))


def test_the_graph_of_another_architecture_leaves_it_in_torch(
    random_bundle: Path, nano_bundle: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = Path(shutil.copytree(random_bundle, tmp_path / "bundle"))
    shutil.copy(nano_bundle / "speech_encoder.onnx", folder / "other.onnx")
    _update_hashes(folder, graph="other.onnx")
    assert load(folder).backend.startswith("torch (other.onnx cannot be used: ")
    (record,) = caplog.records
    assert "do not match" in record.message


def test_a_graph_that_went_away_leaves_it_in_torch(nano_copy: Path) -> None:
    bundle = Bundle.open(nano_copy)
    (nano_copy / "speech_encoder.onnx").unlink()
    backend = load_speech_encoder(bundle, EngineOptions()).backend
    assert backend.startswith("torch (speech_encoder.onnx cannot be used: ")
    assert "No such file" in backend


def test_random_weights_run_on_onnxruntime_as_well(nano_bundle: Path) -> None:
    tokenizer = load(nano_bundle, random_weights=5)
    assert tokenizer.backend.startswith("onnxruntime")
    pcm = make_noise(np.random.default_rng(1), 32_000)
    assert np.array_equal(streamed(tokenizer, pcm, [1280]), tokenizer.encode(pcm))


def _update_hashes(folder: Path, graph: str | None = None) -> None:
    manifest = tomllib.loads((folder / "bundle.toml").read_text(encoding="utf-8"))
    if graph is not None:
        manifest["speech_encoder"]["graph"] = graph
    write_manifest(folder, manifest)
