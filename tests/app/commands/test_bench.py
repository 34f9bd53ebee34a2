from __future__ import annotations

import json
import re
import shutil
import sys
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from app import paths
from app.cli import main
from engine_runtime import loading as stages
from engine_runtime.bench import ceilings, transformers_reference
from engine_runtime.bench.codec import CodecBench
from engine_runtime.bench.compare import TransformersComparison
from engine_runtime.bench.conversation import ENCODING_TITLE
from engine_runtime.bench.reference import free_bytes
from engine_runtime.bench.replies import DEFINITIONS
from engine_runtime.bench.teacher_forcing import Dialog
from engine_runtime.bench.transformers_reference import ComparisonError
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.engine import Engine
from engine_runtime.options import EngineOptions
from engine_runtime.table import Section

QUESTION = Path(__file__).resolve().parents[2] / "data" / "speech" / "question.wav"


@pytest.fixture(scope="module")
def random_bundle(random_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With shorter replies: each is made many times."""
    folder = shutil.copytree(random_bundle, tmp_path_factory.mktemp("bench") / "bundle")
    manifest = (folder / "bundle.toml").read_text(encoding="utf-8")
    shorter = re.sub(r"min_new = 14\nmax_new = 24", "min_new = 9\nmax_new = 10", manifest)
    assert shorter != manifest
    (folder / "bundle.toml").write_text(shorter, encoding="utf-8")
    return folder


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a machine can do at best is measured on little."""
    monkeypatch.setattr(ceilings, "CPU_COPY_BYTES", 1_000_000)
    monkeypatch.setattr(ceilings, "CPU_MATRIX", 64)


def _bench(bundle: Path, *words: str) -> int:
    options = ("--in", str(QUESTION), "--warm-up", "1", "--repeats", "2")
    return main(["bench", "--bundle", str(bundle), *options, *words])


ONLY_WITH_EXACT_ENCODING = {"exact_encode_ms", "changed_codes"}


@pytest.mark.slow
def test_every_figure_comes_with_its_definition_and_every_stage_with_its_table(
    random_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    markdown = tmp_path / "report.md"
    words = ("--runs", "2", "--formats", "native", "int8", "--compare", "recompute", "--json")
    more = ("--markdown", str(markdown), "--heads", "2", "--gpu-spec", "4090", "L4")
    assert _bench(random_bundle, *words, *more) == 0
    output = capsys.readouterr().out
    lines = output.splitlines()
    document = json.loads(lines[-1])
    _assert_every_stage(document, output)
    assert document["environment"]["bundle"] == "random"
    assert document["environment"]["speech_encoder"] == "torch (the bundle has no graph)"
    assert set(document["metrics"]) == set(DEFINITIONS) - ONLY_WITH_EXACT_ENCODING
    for name, summary in document["metrics"].items():
        assert any(line.startswith(f"# {name}") and DEFINITIONS[name] in line for line in lines)
        assert set(summary) == {"mean", "std", "min", "p50", "p95", "max", "runs"}
        assert summary["min"] <= summary["p50"] <= summary["p95"] <= summary["max"]
    assert document["metrics"]["ttfa_ms"]["runs"] == 2
    assert len(document["warm_up_ttfa_ms"]) == 1
    assert document["process"]["resident_mb"] > 100
    assert document["process"]["start_to_ready_s"] > 0
    runs = document["runs"]["rows"]
    assert [row["run"] for row in runs] == ["1", "2", "3", "mean", "std", "min", "max"]
    assert [row.get("kind") for row in runs[:3]] == ["warm-up", "measured", "measured"]
    assert document["warm_up_ttfa_ms"] == [runs[0]["ttfa_ms"]]
    *parts, total = document["shares"]["rows"]
    for column in ("ttfa_ms", "ttfa_share", "reply_ms", "reply_share"):
        assert sum(row[column] for row in parts) == pytest.approx(total[column])
    assert all(
        row["ttfa_ms"] > 0 for row in parts if row["stage"] in ("prefill", "decode", "sampling", "flow")
    )
    assert [row["result"] for row in document["targets"]["rows"]][-2:] == ["not measured"] * 2
    assert [row["head"] for row in document["heads"]["rows"]] == ["text", "audio"] * 2
    assert list(document["data_sheets"]) == ["RTX 4090", "L4"]
    _assert_what_was_loaded(document)
    _assert_in_markdown(markdown.read_text(encoding="utf-8"), document)


def _assert_what_was_loaded(document: dict[str, Any]) -> None:
    networks = {row["network"]: row for row in document["networks"]["rows"]}
    assert list(networks) == ["language model", "speech encoder", "flow", "vocoder"]
    assert sum(row["load_s"] for row in networks.values()) < document["process"]["load_s"]
    assert [row["memory"] for row in document["kv_budget"]["rows"]] == ["pool", "left"]
    assert " GB left = " in document["kv_budget"]["note"]
    phases = [row["phase"] for row in document["memory_course"]["rows"]]
    assert phases[:4] == ["before", "ceilings", "load", "replies"]
    assert phases[-1] == "int8: exact encoding"


def _assert_in_markdown(text: str, document: dict[str, Any]) -> None:
    assert text.startswith("# moss-voice bench\n\n- bundle: random\n")
    tables = [title for tables in document["stages"].values() for title in tables]
    for title in (
        "runs",
        "replies",
        "stages of a reply",
        "ceilings",
        "language model, side by side",
        "targets",
    ):
        assert text.count(f"\n### {title}\n") == 1
    assert all(f"\n### {title}\n" in text for title in tables)
    (row,) = (row for row in document["targets"]["rows"] if row["target"] == "rtf")
    assert f"| rtf | {row['measured']:.4g} | 0.7 | {row['result']} |" in text


@pytest.mark.slow
def test_a_missed_target_is_an_exit_status_only_if_asked_for(
    random_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    targets_given = ("--targets", "ttfa=0.001", "first_chunk=1e9", "rtf=1e9")
    words = ("--runs", "1", "--repeats", "1", *targets_given, "--json")
    for check, status in ((), 0), (("--check",), 1):
        assert _bench(random_bundle, *words, *check) == status
        targets = json.loads(capsys.readouterr().out.splitlines()[-1])["targets"]["rows"]
        assert [row["result"] for row in targets] == ["failed", "passed", "passed", "not measured"]
        assert targets[0]["limit"] == 0.001


def test_what_cannot_be_written_or_is_no_target_is_refused_before_loading(
    random_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _bench(random_bundle, "--markdown", str(tmp_path / "none" / "report.md")) == 1
    assert "there is no folder" in capsys.readouterr().err
    assert _bench(random_bundle, "--targets", "ttfa") == 1
    assert "'ttfa' is not a target" in capsys.readouterr().err


@pytest.mark.slow
def test_a_conversation_in_real_time_counts_what_was_late(
    random_bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(paths, "sample_questions", lambda: [QUESTION])
    assert _bench(random_bundle, "--runs", "1", "--realtime-minutes", "0.02", "--json") == 0
    output = capsys.readouterr().out
    realtime = json.loads(output.splitlines()[-1])["realtime"]
    assert realtime["turns"] == 1
    assert realtime["underruns"] >= 0
    assert realtime["voice_to_voice_ms"]["min"] > 500
    assert realtime["playback_hold_ms"]["min"] >= 0
    assert sum(realtime["playback_hold_reasons"].values()) == 1
    assert "conversation in real time" in output
    assert "playback_hold_ms" in output


@pytest.mark.slow
def test_other_work_beside_the_measurement_is_in_the_header(
    random_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--runs", "1", "--repeats", "1", "--busy", "1", "--json")
    assert _bench(random_bundle, *words) == 0
    lines = capsys.readouterr().out.splitlines()
    environment = json.loads(lines[-1])["environment"]
    assert environment["busy_processes"] == 1
    assert environment["torch_threads"] >= environment["torch_threads_now"] >= 1
    assert "# busy_processes: 1" in lines
    assert any(line.startswith("# thread_waiting: ") for line in lines)


@pytest.mark.slow
def test_an_unusable_question(
    random_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "q.wav").write_bytes(b"")
    assert main(["bench", "--bundle", str(random_bundle), "--in", str(tmp_path / "q.wav")]) == 1
    assert "is empty" in capsys.readouterr().err


def _assert_every_stage(document: dict[str, Any], output: str) -> None:
    assert document["ceilings"]["copy_bytes_per_s"] > 1e8
    assert list(document["stages"]) == ["native", "int8"]
    for tables in document["stages"].values():
        assert len(tables) == 8
        # Streamed codes of this bundle are exact: there is nothing to compare, and the note says so.
        assert [title for title, table in tables.items() if not table["rows"]] == [ENCODING_TITLE]
        assert "changes nothing" in tables[ENCODING_TITLE]["note"]
    assert len(document["comparisons"]["recompute"]["rows"]) == 6
    assert "stored in full" in output
    assert "device memory does not apply on a CPU" in output


@pytest.mark.slow
def test_a_model_that_is_not_here_is_measured_with_random_weights(
    random_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("bundle.toml", "tokenizer.json"):
        (tmp_path / name).write_bytes((random_bundle / name).read_bytes())
    words = ("--runs", "2", "--random-weights", "0", "--reply-codes", "20", "--json")
    assert _bench(tmp_path, *words) == 0
    output = capsys.readouterr().out
    document = json.loads(output.splitlines()[-1])
    assert document["environment"]["question_s"] == 5
    assert document["environment"]["reply_codes"] == 20
    assert "the output is meaningless" in output
    assert "voice prompt of 50 codes" in output


@pytest.mark.slow
def test_a_model_that_is_not_here_needs_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _bench(tmp_path / "moss-speech") == 1
    assert "no bundle folder" in capsys.readouterr().err


@pytest.mark.slow
def test_a_comparison_that_cannot_be_made_is_refused_before_loading(
    random_bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setattr("engine_runtime.engine.load_stages", lambda *_, **__: pytest.fail("loaded"))
    words = ("--runs", "1", "--repeats", "1", "--compare", "transformers", "--compare", "recompute", "--json")
    assert _bench(random_bundle, *words) == 1
    captured = capsys.readouterr()
    assert list(json.loads(captured.out)) == ["error", "problem"]
    assert "moss-voice[compare]" in captured.err


@pytest.mark.slow
def test_a_comparison_that_fails_loses_nothing(
    random_bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def disagree(*_: object) -> None:
        raise ComparisonError("Both sides differ.", "No times are reported.")

    monkeypatch.setattr(transformers_reference, "require_transformers", lambda: None)
    monkeypatch.setattr(TransformersComparison, "record", disagree)
    words = ("--runs", "1", "--repeats", "1", "--compare", "transformers", "--compare", "recompute", "--json")
    assert _bench(random_bundle, *words) == 1
    comparisons = json.loads(capsys.readouterr().out.splitlines()[-1])["comparisons"]
    assert "differ" in comparisons["transformers"]["error"]
    assert len(comparisons["recompute"]["rows"]) == 6


@pytest.mark.slow
def test_the_other_side_of_a_comparison_begins_when_the_engine_is_gone(
    random_bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parts: list[weakref.ref[object]] = []

    def record(engine: Engine, lm: object, repeats: int, asked: Sequence[Dialog]) -> SimpleNamespace:
        assert len(asked) > 11
        stages = engine.stages
        engine.__dict__["itself"] = engine  # a reference cycle, as captured graphs form them
        parts.extend(map(weakref.ref, (engine, stages.lm.executor, stages.token2mel, stages.vocoder)))
        return SimpleNamespace(finish=finish)

    def finish() -> list[Section]:
        free_bytes(torch.device("cpu"))
        assert [part() for part in parts] == [None] * 4
        return [Section("agreement", {"a": "b"}, [{"a": 1}]), Section("times", {"c": "d"}, [{"c": 2}])]

    monkeypatch.setattr(transformers_reference, "require_transformers", lambda: None)
    monkeypatch.setattr(TransformersComparison, "record", record)
    words = ("--runs", "1", "--repeats", "1", "--compare", "transformers", "--json")
    assert _bench(random_bundle, *words) == 0
    compared = json.loads(capsys.readouterr().out.splitlines()[-1])["comparisons"]["transformers"]
    assert compared["rows"] == [{"c": 2}]
    assert compared["tables"]["agreement"]["rows"] == [{"a": 1}]


@pytest.mark.slow
def test_a_format_that_does_not_fit_loses_nothing(
    random_bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def short_of(weight_format: str) -> Callable[..., Any]:
        load = stages.load_stages

        def loading(bundle: Bundle, options: EngineOptions, **others: Any) -> stages.Stages:
            if options.weight_format == weight_format:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ...")
            return load(bundle, options, **others)

        return loading

    monkeypatch.setattr("engine_runtime.engine.load_stages", short_of("int8"))
    words = ("--runs", "1", "--repeats", "1", "--formats", "native", "int8", "int4", "--json")
    assert _bench(random_bundle, *words) == 1
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["stages"]
    assert len(found["native"]) == len(found["int4"]) == 8
    assert list(found["int8"]) == ["error"]
    assert "too little memory with --weights int8" in found["int8"]["error"]


@pytest.mark.slow
def test_a_stage_that_does_not_fit_is_reported_beside_what_did(
    random_bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def flow(_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ...")

    monkeypatch.setattr(CodecBench, "flow", flow)
    assert _bench(random_bundle, "--runs", "1", "--repeats", "1", "--json") == 1
    tables = json.loads(capsys.readouterr().out.splitlines()[-1])["stages"]["native"]
    assert not tables["flow"]["rows"]
    assert tables["question to reply"]["rows"]
    assert tables["error"].startswith("flow not measured: ")
    assert "Tried to allocate 2.00 GiB" in tables["error"]


@pytest.mark.slow
def test_endurance_is_measured_when_asked_for(
    random_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _bench(random_bundle, "--runs", "1", "--endurance-minutes", "0.001", "--json") == 0
    output = capsys.readouterr().out
    rows = json.loads(output.splitlines()[-1])["endurance"]["rows"]
    assert [row["blocks_used"] for row in rows] == [0] * len(rows)
    assert rows[-1]["turns"] >= 10
    assert "== endurance" in output
