"""The codec's engines: kept in a folder, built once, used by the stages."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from engine_runtime.bundle.bundle import Bundle
from engine_runtime.codec.flow.token2mel import Token2Mel
from engine_runtime.codec.graph import Axis, Graph, GraphTensor
from engine_runtime.codec.speech_tokenizer.speech_tokenizer import SpeechTokenizer
from engine_runtime.codec.vocoder.vocoder import Vocoder
from engine_runtime.errors import EngineError, Problem
from engine_runtime.loading import load_stages
from engine_runtime.options import EngineOptions
from engine_runtime.tensorrt.codec import engines
from engine_runtime.tensorrt.codec.engines import (
    Codec,
    EngineReport,
    EngineStore,
    build_engines,
    engine_key,
    is_on_engines,
    use_engines,
    weights_of,
)
from engine_runtime.tensorrt.library import RuntimeLibrary
from engine_runtime.work import run_alone
from tests.doubles.tensorrt.codec_engine import Faults, double_library
from tests.engine_runtime.codec.flow.test_token2mel import codes_of
from tests.engine_runtime.tensorrt.codec.conftest import PACKETS
from tests.factories.graphs import Exported, difference_on_onnx, scaled_sum
from tests.factories.tiny_flow import make_flow

PLAN = b"a plan"


REPORT = EngineReport(
    "scaled_sum", "double", "8.9", 0.0, 1.0, 2.0, len(PLAN), hashlib.sha256(PLAN).hexdigest()
)


def test_an_engine_is_found_again(tmp_path: Path) -> None:
    store = EngineStore(tmp_path / "engines")
    assert store.load("key") is None
    store.save("key", PLAN, REPORT)
    assert EngineStore(tmp_path / "engines").load("key") == (PLAN, REPORT)
    assert store.load_compiled("key") is None
    store.save_compiled("key", b"kernels")
    assert store.load_compiled("key") == b"kernels"
    assert sorted(file.name for file in (tmp_path / "engines").iterdir()) == [
        "key.jit",
        "key.json",
        "key.plan",
    ]


@pytest.mark.parametrize(
    ("name", "content"), [("key.plan", b"a pla"), ("key.json", b"{"), ("key.json", b"{}")]
)
def test_a_damaged_engine_is_rebuilt(tmp_path: Path, name: str, content: bytes) -> None:
    store = EngineStore(tmp_path)
    store.save("key", PLAN, REPORT)
    (tmp_path / name).write_bytes(content)
    assert store.load("key") is None


@pytest.mark.parametrize("content", [b"", b"kernels", b"\0" * 40])
def test_damaged_kernels_are_compiled_again(tmp_path: Path, content: bytes) -> None:
    store = EngineStore(tmp_path / "engines")
    store.save_compiled("key", b"kernels")
    assert (tmp_path / "engines").stat().st_mode & 0o077 == 0
    (tmp_path / "engines" / "key.jit").write_bytes(content)
    assert store.load_compiled("key") is None


def test_a_folder_that_cannot_be_written_is_no_reason_to_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    store = EngineStore(tmp_path / "file")
    store.save("key", PLAN, REPORT)
    assert "cannot be cached" in caplog.text
    nothing = EngineStore(None)
    nothing.save("key", PLAN, REPORT)
    nothing.save_compiled("key", PLAN)
    assert (nothing.load("key"), nothing.load_compiled("key")) == (None, None)


def test_the_key_knows_all_that_matters() -> None:
    graph, library = scaled_sum(), double_library()
    key = engine_key(graph, "weights", library, "8.9")
    assert key.startswith("scaled_sum-")
    assert key == engine_key(scaled_sum(factor=3.0), "weights", library, "8.9")  # covered by the weights
    wider = dataclasses.replace(
        graph, inputs=(GraphTensor("x", (1, Axis("frames", 2, 4, 9), 4)), graph.inputs[1])
    )
    others = {
        engine_key(graph, "other", library, "8.9"),
        engine_key(graph, "weights", library, "12.0"),
        engine_key(graph, "weights", double_library(is_rtx=False), "8.9"),
        engine_key(wider, "weights", library, "8.9"),
    }
    assert len(others | {key}) == 5


NAMES = {"estimator": "flow_tiny", "speech_encoder": "encoder_tiny", "vocoder": "hift_tiny"}


@pytest.fixture
def codec(flow: Token2Mel, hift_vocoder: Vocoder, tokenizer: SpeechTokenizer) -> Codec:
    return Codec(flow, hift_vocoder, tokenizer, tuple(4 * codes for codes in PACKETS), "tiny")


@pytest.fixture(autouse=True)
def exports(monkeypatch: pytest.MonkeyPatch, exported: Exported) -> list[str]:
    """The stored networks are exported once for all tests; here it is noted when one is wanted. The double
    runs on the CPU, which is given the compute capability of a GPU."""
    done = []

    def export(graph: Graph, file: Path) -> None:
        done.append(graph.name)
        shutil.copy(exported(NAMES[graph.name], graph), file)

    monkeypatch.setattr(engines, "export_onnx", export)
    monkeypatch.setattr(engines, "compute_capability", lambda device: "8.9")
    return done


def reply(codec: Codec) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes of speech, and the voice of other codes."""
    speech = np.random.default_rng(1).normal(scale=0.1, size=9000).astype(np.float32)
    stream = codec.speech_tokenizer.stream()
    codes = np.concatenate([run_alone(stream.push(speech)), run_alone(stream.tail())])
    mel = codec.token2mel.convert(codes_of(33))
    vocoder = codec.vocoder.stream()
    pcm = [vocoder.push(mel[:, first : first + 20]) for first in range(0, mel.shape[1], 20)]
    return codes, mel, np.concatenate([*pcm, vocoder.finish()])


@pytest.mark.slow
def test_replies_are_those_of_torch(codec: Codec, tmp_path: Path, exports: list[str]) -> None:
    want_codes, want_mel, want_pcm = reply(codec)
    store, faults = EngineStore(tmp_path), Faults()
    engines.run_on_engines(codec, store, double_library(faults), torch.device("cpu"))
    assert is_on_engines(codec)
    codes, mel, pcm = reply(codec)
    assert np.array_equal(codes, want_codes)
    assert np.abs(mel - want_mel).max() <= 1e-4
    assert np.abs(pcm - want_pcm).max() <= 1e-3  # the phase is a cumulative sum over the mel frames
    assert exports == ["estimator", "speech_encoder", "vocoder"]
    assert len(list(tmp_path.glob("*.jit"))) == 3


@pytest.mark.slow
def test_the_second_start_builds_nothing(codec: Codec, tmp_path: Path, exports: list[str]) -> None:
    store = EngineStore(tmp_path)
    first = [report for _, _, report in build_engines(codec, store, double_library(), "8.9")]
    exports.clear()
    second = [report for _, _, report in build_engines(codec, store, double_library(), "8.9")]
    assert first == second
    assert exports == []
    assert all(report.difference is not None and report.difference < 1e-5 for report in first)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["build", "deserialize", "context", "execute", "wrong numbers"])
def test_what_fails_leaves_the_codec_in_torch(
    codec: Codec, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(engines, "runtime_library", lambda: double_library(Faults({fault})))
    before = (codec.vocoder.network, codec.speech_tokenizer.step)
    note = use_engines(codec, None, torch.device("cuda", 0)) if fault == "build" else _tried(codec)
    line = str(note)
    assert line.startswith("The codec runs in torch: ")
    assert "\n" not in line
    assert not is_on_engines(codec)
    assert (codec.vocoder.network, codec.speech_tokenizer.step) == before


def _tried(codec: Codec) -> Problem:
    """`use_engines` on the device of the double."""
    with pytest.MonkeyPatch.context() as patch:
        run = engines.run_on_engines

        def on_the_host(
            codec: Codec, store: EngineStore, library: RuntimeLibrary, device: torch.device
        ) -> None:
            run(codec, store, library, torch.device("cpu"))

        patch.setattr(engines, "run_on_engines", on_the_host)
        return use_engines(codec, None, torch.device("cuda", 0))


def test_without_a_library_or_a_gpu_it_says_why(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing() -> None:
        raise EngineError("TensorRT for RTX is not installed.", "Install it.")

    monkeypatch.setattr(engines, "runtime_library", nothing)
    assert str(use_engines(codec, None, torch.device("cpu"))) == (
        "The codec runs in torch: TensorRT needs an NVIDIA GPU (--device cuda)."
    )
    line = str(use_engines(codec, None, torch.device("cuda", 0)))
    assert line == "The codec runs in torch: TensorRT for RTX is not installed. Install it."


def test_the_user_is_notified_when_it_stays_in_torch(random_bundle: Path) -> None:
    stages = load_stages(Bundle.open(random_bundle), EngineOptions(trt_codec=True))
    (note,) = map(str, stages.notes)
    assert note == "The codec runs in torch: TensorRT needs an NVIDIA GPU (--device cuda)."
    assert load_stages(Bundle.open(random_bundle), EngineOptions()).notes == ()


def test_the_weights_decide(random_bundle: Path, nano_bundle: Path, tmp_path: Path) -> None:
    tiny, nano = Bundle.open(random_bundle), Bundle.open(nano_bundle)
    seen = {weights_of(tiny, None), weights_of(nano, None), weights_of(nano, 0), weights_of(nano, 1)}
    for content in (b"one", b"other"):  # in place of the bundle's own vocoder
        (file := tmp_path / "vocoder.safetensors").write_bytes(content)
        seen.add(weights_of(replace(nano, vocoder=replace(nano.vocoder, weights=(file,))), None))
    assert len(seen) == 6
    assert weights_of(nano, None) == weights_of(Bundle.open(nano_bundle), None)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_graphs_of_a_codec_on_a_gpu(exported: Exported, tmp_path: Path) -> None:
    """Weights on the device are exported as they are; the state of a stream stays on the device."""
    from engine_runtime.codec.onnx_graph import export_onnx
    from engine_runtime.tensorrt.codec.graphs import EngineEstimator, estimator_graph
    from tests.engine_runtime.codec.flow.test_token2mel import SPEC

    stage = Token2Mel(
        make_flow(1200)[0], SPEC, steps=2, packet_codes=PACKETS, device="cuda", static_bytes=1 << 30
    )
    graph = estimator_graph(stage.estimator, list(PACKETS))
    assert graph.device.type == "cuda"
    export_onnx(graph, tmp_path / "estimator.onnx")
    assert difference_on_onnx(graph, tmp_path / "estimator.onnx") <= 1e-3
    want = stage.convert(codes_of(33))
    stage.estimator.engine = EngineEstimator(stage.estimator, graph.module)
    assert np.abs(stage.convert(codes_of(33)) - want).max() <= 1e-3
