"""The build command: output without the library, without arguments, and after a build."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.cli import main
from engine_runtime.errors import EngineError
from engine_runtime.tensorrt.llm import library
from tests.doubles.tensorrt.model_api import make_library
from tests.factories.trt_checkpoints import convert


@pytest.fixture(scope="module")
def checkpoint(random_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the random bundle of the tests."""
    return convert(random_bundle, tmp_path_factory.mktemp("model") / "checkpoint").directory


def test_without_the_library_it_says_how_to_get_it(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> library.Library:
        raise EngineError.from_problem(library.how_to_get())

    monkeypatch.setattr(library, "load_library", missing)
    assert main(["trt", "build", str(checkpoint), "--to", str(tmp_path / "engine")]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("moss-voice: TensorRT-LLM is not installed.")
    assert "section 1 of packaging/TENSORRT.md" in printed.err
    assert not list(tmp_path.iterdir())


def test_a_wrong_size_is_said_before_the_library_is_asked_for(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = str(tmp_path / "engine")
    assert main(["trt", "build", str(checkpoint), "--to", to, "--tokens-per-block", "48"]) == 1
    assert "tokens_per_block is 48. Specify a power of two" in capsys.readouterr().err


def test_a_timing_cache_that_cannot_be_written_is_said_before_the_build(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    for place, wrong in ((tmp_path, "is a folder"), (tmp_path / "file" / "timings", "is a file")):
        command = ["trt", "build", str(checkpoint), "--check", "--timing-cache", str(place)]
        assert main(command) == 1
        assert wrong in capsys.readouterr().err


def test_check_shows_what_would_be_built(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--max-num-tokens", "64", "--max-batch-size", "4"]
    assert main(["trt", "build", str(checkpoint), "--check", "--json", *sizes]) == 0
    lines = capsys.readouterr().out.splitlines()
    document = json.loads(lines[-1])
    assert (document["build"]["max_num_tokens"], document["build"]["max_batch_size"]) == (64, 4)
    assert document["memory"]["kv_bytes_of_a_batch"] == 4 * document["memory"]["kv_bytes_of_a_conversation"]
    assert document["plugins"]["use_paged_context_fmha"] is True
    assert any(line.split() == ["use_fp8_context_fmha", "False"] for line in lines)


@pytest.mark.slow
def test_the_report_of_a_build(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(library, "load_library", make_library)
    options = ["--no-fused-mlp", "--multiple-profiles", "--opt-num-tokens", "4", "--max-seq-len", "100"]
    options += ["--max-batch-size", "3"]
    timings = ["--timing-cache", str(tmp_path / "timings")]
    to = tmp_path / "engine"
    assert main(["trt", "build", str(checkpoint), "--to", str(to), *options, *timings, "--json"]) == 0
    printed = capsys.readouterr()
    assert "this takes minutes" in printed.err
    document = json.loads(printed.out.splitlines()[-1])
    assert document["engine"] == str(to)
    assert len(document["tensors"]) == 19
    assert (document["max_batch_size"], document["changed"]) == (3, [])
    assert "  batch       3 sequences a call, " in printed.out
    built = json.loads((to / "config.json").read_text())["build_config"]
    assert (built["max_seq_len"], built["opt_num_tokens"]) == (100, 4)
    assert (built["plugin_config"]["use_fused_mlp"], built["plugin_config"]["multiple_profiles"]) == (
        False,
        True,
    )
    assert (tmp_path / "timings").is_file()


@pytest.mark.parametrize("options", [[], ["--to", "x", "--check"]])
def test_either_a_folder_or_a_check_is_asked_for(checkpoint: Path, options: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["trt", "build", str(checkpoint), *options])
    assert caught.value.code == 2
