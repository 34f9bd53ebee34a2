"""Building with TensorRT-LLM itself, if it is installed and there is a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine_runtime.errors import EngineError
from engine_runtime.tensorrt.llm.build import BuildOptions, build_engine, plan_build
from engine_runtime.tensorrt.llm.engine_directory import EngineDirectory
from engine_runtime.tensorrt.llm.library import Library, load_library
from tests.factories.tiny_checkpoint import convert_tiny

pytestmark = pytest.mark.cuda


@pytest.fixture(scope="module")
def real_library() -> Library:
    try:
        return load_library()
    except EngineError as error:
        pytest.skip(str(error))


def test_the_tiny_model_becomes_an_engine(tmp_path: Path, real_library: Library) -> None:
    checkpoint = convert_tiny(tmp_path, "bfloat16")
    options = BuildOptions(max_seq_len=512, max_num_tokens=128)
    report = build_engine(plan_build(checkpoint, options), tmp_path / "engine", options, real_library)
    assert report.engine == EngineDirectory.open(tmp_path / "engine")
    assert report.engine.contract == "1.x"
    assert report.engine.model.num_hidden_layers == 7
    assert [tensor.name for tensor in report.tensors if not tensor.is_input] == ["logits", "audio_logits"]
    assert report.plan_bytes > report.weights_bytes / 4
    assert report.changed == ()
