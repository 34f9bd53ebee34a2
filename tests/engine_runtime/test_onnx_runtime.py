"""The wrapper of onnxruntime: options, errors, no telemetry."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from engine_runtime import NO_TELEMETRY
from engine_runtime.errors import MossVoiceError
from engine_runtime.onnx_runtime import OnnxModelError, create_session, find_model, with_output
from tests.factories.onnx_bytes import mean_and_project

# onnxruntime sends nothing if these are set; a test that left them set would prove nothing.
_QUIET_BY_CHANCE = {*NO_TELEMETRY, "CI", "TF_BUILD", "GITHUB_ACTIONS", "ORT_RUNNING_UNIT_TESTS"}


@pytest.fixture
def model() -> Path:
    package = find_spec("silero_vad")
    assert package is not None
    assert package.submodule_search_locations is not None
    (folder,) = package.submodule_search_locations
    return Path(folder) / "data" / "silero_vad.onnx"


def test_a_session_has_the_options_it_was_given(model: Path) -> None:
    session = create_session(
        model.read_bytes(), purpose="test", threads=3, config={"session.intra_op.allow_spinning": "0"}
    )
    options = session.get_session_options()
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (3, 1)
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert create_session(model, purpose="test").get_session_options().intra_op_num_threads == 1


def test_products_of_int8_do_not_overflow_on_older_processors(model: Path) -> None:
    """tests/app/dialog/test_smart_turn.py has the effect, where the processor has no VNNI."""
    options = create_session(model, purpose="test").get_session_options()
    assert options.get_session_config_entry("session.x64quantprecision") == "1"


def test_a_tensor_within_the_graph_becomes_an_output() -> None:
    weight = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    session = create_session(with_output(mean_and_project(weight), "mean"), purpose="test")
    vector, mean = session.run(None, {"features": np.array([[[1.0, -2.0], [3.0, 4.0]]], np.float32)})
    np.testing.assert_array_equal(mean, [[2.0, 3.0]])
    np.testing.assert_allclose(vector, mean @ weight)


def test_an_output_needs_a_tensor_of_its_name() -> None:
    model = mean_and_project(np.ones((2, 3), np.float32))
    with pytest.raises(OnnxModelError, match="elsewhere"):
        create_session(with_output(model, "elsewhere"), purpose="test")
    with pytest.raises(ValueError, match="127 bytes"):
        with_output(model, "x" * 200)


def test_a_model_that_cannot_be_loaded(tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"not a network")
    with pytest.raises(OnnxModelError):
        create_session(tmp_path / "broken.onnx", purpose="test")
    with pytest.raises(OnnxModelError):
        create_session(b"", purpose="test")


def test_a_network_computes_in_as_many_threads_as_it_is_given(model: Path) -> None:
    """One by default: others would spin after each call, beside the engine."""
    default, several = create_session(model, purpose="test"), create_session(model, purpose="test", threads=3)
    options = [session.get_session_options() for session in (default, several)]
    assert [given.intra_op_num_threads for given in options] == [1, 3]
    assert [given.inter_op_num_threads for given in options] == [1, 1]


def test_a_missing_library_is_named_with_its_purpose(monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MossVoiceError, match=r"needed to hear\. Run: python3 .*packaging/bootstrap\.py run"):
        create_session(model, purpose="hear")


@pytest.mark.slow
def test_a_session_leaves_no_trace_of_telemetry(tmp_path: Path, model: Path) -> None:
    """The library otherwise stores a device id and events below the home folder as soon as it is loaded."""
    environment = {name: value for name, value in os.environ.items() if name not in _QUIET_BY_CHANCE}
    environment |= {"HOME": str(tmp_path), "ORT_DISABLE_TELEMETRY": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("XDG_CACHE_HOME", None)
    code = (
        "import sys; from pathlib import Path; from engine_runtime.onnx_runtime import create_session;"
        "create_session(Path(sys.argv[1]), purpose='test')"
    )
    subprocess.run([sys.executable, "-c", code, str(model)], env=environment, check=True, timeout=120)
    assert not list(tmp_path.rglob("*"))


def test_a_file_of_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "somepackage" / "data").mkdir(parents=True)
    (tmp_path / "somepackage" / "__init__.py").write_text("raise RuntimeError('imported')")
    model = tmp_path / "somepackage" / "data" / "model.onnx"
    model.write_bytes(b"weights")
    monkeypatch.syspath_prepend(tmp_path)
    assert find_model("somepackage", "data/model.onnx") == model
    assert find_model("somepackage", "data/other.onnx") is None
    assert find_model("nosuchpackage", "data/model.onnx") is None


def test_the_packages_are_not_imported() -> None:
    code = (
        "import sys\n"
        "from engine_runtime.onnx_runtime import find_model\n"
        "assert find_model('silero_vad', 'data/silero_vad.onnx')\n"
        "find_model('pipecat', 'audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx')\n"
        "print(sorted({'torch', 'silero_vad', 'pipecat'} & set(sys.modules)))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
