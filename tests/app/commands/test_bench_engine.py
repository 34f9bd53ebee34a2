from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from app.cli import main
from app.commands.bench_engine import list_variants
from engine_runtime.bench import ceilings, stages
from engine_runtime.bench.ceilings import Ceilings
from engine_runtime.bench.codec import CodecBench
from engine_runtime.engine import Engine
from engine_runtime.options import EngineOptions
from engine_runtime.table import Section
from tests.factories.engine_folder import EngineWorld

QUESTION = Path(__file__).resolve().parents[2] / "data" / "speech" / "question.wav"


@pytest.fixture
def words(random_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command, which measures only the language model."""
    nothing = Section("nothing", {"what": "left out of this test"})
    monkeypatch.setattr(ceilings, "measure_ceilings", lambda *_: Ceilings(2e10, 1e11, 1, 1, "float32"))
    monkeypatch.setattr(stages, "measure_conversation", lambda *_: nothing)
    for name in ("encoder", "flow", "vocoder"):
        monkeypatch.setattr(CodecBench, name, lambda *_: nothing)
    monkeypatch.setattr(Engine, "warm_up", lambda engine: None)
    return [
        *("bench", "--bundle", str(random_bundle), "--in", str(QUESTION), "--warm-up", "0", "--runs", "1"),
        *("--repeats", "2", "--backend", "trtllm", "--engine", str(tmp_path / "engine"), "--json"),
    ]


def test_what_is_measured(tmp_path: Path) -> None:
    torch_only, engine = EngineOptions(), EngineOptions(backend="trtllm", engine=tmp_path)
    assert list(list_variants(torch_only, None)) == ["native"]
    assert list(list_variants(torch_only, ["fp8", "int4", "fp8"])) == ["fp8", "int4"]
    full = EngineOptions(device="cuda", random_weights=0)
    assert list(list_variants(full, None)) == ["native", "fp8", "int8", "int4"]
    assert list_variants(engine, None) == {"trtllm": engine}
    both = list_variants(engine, ["native", "fp8"])
    assert list(both) == ["trtllm", "native", "fp8"]
    assert both["fp8"] == EngineOptions(weight_format="fp8")


@pytest.mark.slow
def test_an_engine_is_in_one_table_with_torch(
    engine_world: EngineWorld,
    random_bundle: Path,
    tmp_path: Path,
    words: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    engine_world.build(random_bundle, tmp_path / "engine")
    assert main([*words, "--formats", "native"]) == 0
    output = capsys.readouterr().out
    document = json.loads(output.splitlines()[-1])
    assert document["environment"]["backend"] == "trtllm"
    engine = document["networks"]["rows"][0]
    assert engine["tensors"] == 17 + 2
    assert engine["file_gb"] == (tmp_path / "engine" / "rank0.engine").stat().st_size / 1e9
    assert list(document["stages"]) == ["trtllm", "native"]
    rows = document["side_by_side"]["rows"]
    works = ["prefill 64", "prefill 512", "step 512"]
    assert [(row["variant"], row["work"]) for row in rows] == [
        (variant, work) for variant in ("trtllm", "native") for work in works
    ]
    for row in rows:
        assert row["valid"] == "yes"
        assert row["ms"] > 0
    assert "== language model, side by side" in output
    assert engine_world.trt.live_contexts == 0


@pytest.mark.slow
@pytest.mark.parametrize("failure", ["refuses", "still"])
def test_a_run_that_failed_has_no_time(
    engine_world: EngineWorld,
    random_bundle: Path,
    tmp_path: Path,
    words: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    failure: str,
) -> None:
    """From the first long prefill on, steps fail, or always return the same."""
    from tests.doubles.tensorrt import llm_engine
    from tests.doubles.tensorrt.gpt_attention import compute

    kept: dict[str, Any] = {}

    def failing(build: object, device: dict, host: dict, slots: torch.Tensor) -> dict:  # type: ignore[type-arg]
        result = compute(build, device, host, slots)  # type: ignore[arg-type]
        if int(device["sequence_length"]) < 500:
            return result
        if failure == "refuses":
            raise RuntimeError("CUDA error: misaligned address")
        return kept.setdefault("first", result)

    engine_world.build(random_bundle, tmp_path / "engine")
    monkeypatch.setattr(llm_engine, "compute", failing)
    assert main([*words, "--formats", "native"]) == 1
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    rows = {(row["variant"], row["work"]): row for row in document["side_by_side"]["rows"]}
    said = {"refuses": "misaligned address", "still": "do not depend on the last token"}[failure]
    for work in ("prefill 512", "step 512"):
        row = rows["trtllm", work]
        assert row["ms"] is None
        assert row["valid"].startswith("no: ")
    assert said in rows["trtllm", "prefill 512"]["valid"]
    assert rows["trtllm", "prefill 64"]["valid"] == "yes"
    assert all(row["valid"] == "yes" and row["ms"] for key, row in rows.items() if key[0] == "native")


@pytest.mark.slow
def test_an_engine_that_does_not_load_leaves_the_others_their_times(
    engine_world: EngineWorld,
    random_bundle: Path,
    tmp_path: Path,
    words: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    engine_world.build(random_bundle, tmp_path / "engine")
    engine_world.trt.refuses = "no kernel image is available"
    assert main([*words, "--formats", "native"]) == 1
    captured = capsys.readouterr()
    document = json.loads(captured.out.splitlines()[-1])
    rows = document["side_by_side"]["rows"]
    assert (rows[0]["variant"], rows[0]["work"]) == ("trtllm", "the rest")
    assert "no kernel image" in rows[0]["valid"]
    assert [row["valid"] for row in rows[1:]] == ["yes"] * 3
    assert "== trtllm not measured" in captured.out
    assert main(words) == 1
    assert "no kernel image" in capsys.readouterr().err


def test_a_device_that_is_not_there_is_reported_once(
    random_bundle: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    words = ["bench", "--bundle", str(random_bundle), "--in", str(QUESTION), "--formats", "native", "int8"]
    assert main([*words, "--device", "cuda"]) == 1
    captured = capsys.readouterr()
    assert captured.err.count("cuda is not available") == 1
    assert captured.out == ""
