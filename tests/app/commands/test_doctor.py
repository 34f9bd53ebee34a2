from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from app import paths
from app.cli import main
from app.commands import doctor
from app.commands.doctor import Finding
from app.dialog import smart_turn
from engine_runtime import hardware
from engine_runtime.codec.onnx_graph import OnnxRunner
from engine_runtime.tensorrt.llm import library
from engine_runtime.tensorrt.llm.library import Clash

pytestmark = pytest.mark.slow  # a program of its own tries the display


@pytest.fixture(autouse=True)
def _quick_report(random_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a small bundle, without a look at what other programs do."""
    monkeypatch.setenv("MOSS_VOICE_BUNDLE", str(random_bundle))
    monkeypatch.setattr(hardware, "load_of_others", lambda window_s: 0.0)


def test_it_finds_what_the_tests_themselves_need(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    found = {finding["what"]: finding for finding in report["findings"]}
    assert report["missing"] == 0
    assert found["bigvgan"]["detail"] == metadata.version("bigvgan")
    assert found["bundle"]["status"] == "ok"
    assert "offscreen" in found["display"]["detail"]
    assert {"Python", "torch", "GPU"} <= found.keys()
    torch_findings = [finding for finding in report["findings"] if finding["what"] == "torch"]
    assert [finding["detail"] for finding in torch_findings] == [hardware.torch_build()]


def test_it_says_what_runs_the_speech_encoder(
    nano_bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "ok      encoder            torch (the bundle has no graph)" in out
    assert "ok      end of turn        not detected by the bundle" in out
    assert {line[26] for line in out.splitlines() if line.startswith(("ok", "note"))} == {" "}  # one column
    monkeypatch.setenv("MOSS_VOICE_BUNDLE", str(nano_bundle))
    assert main(["doctor"]) == 0
    version = metadata.version("onnxruntime")
    assert f"ok      encoder            onnxruntime {version}" in capsys.readouterr().out
    monkeypatch.setattr(OnnxRunner, "__call__", lambda runner, *inputs: [2 * value for value in inputs])
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "note    encoder            torch (speech_encoder.onnx cannot be used: " in text
    assert "update onnxruntime" in text


def test_every_note_says_what_to_do_or_why_it_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    assert "Everything required is installed." in capsys.readouterr().out


def test_a_missing_library_is_named_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = metadata.version

    def version(name: str) -> str:
        if name == "soxr":
            raise metadata.PackageNotFoundError(name)
        return known(name)

    monkeypatch.setattr(metadata, "version", version)
    assert main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert "MISSING soxr" in text
    assert "packaging/bootstrap.py run" in text


def test_without_echo_cancellation_there_is_a_note(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = metadata.version

    def version(name: str) -> str:
        if name == "pywebrtc-audio":
            raise metadata.PackageNotFoundError(name)
        return known(name)

    monkeypatch.setattr(metadata, "version", version)
    main(["doctor"])
    text = capsys.readouterr().out
    assert "MISSING pywebrtc-audio" not in text
    assert "use headphones" in next(line for line in text.splitlines() if "pywebrtc-audio" in line)


def test_without_smart_turn_there_is_a_note(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor"]) == 0
    assert "v3.2 of pipecat-ai" in capsys.readouterr().out
    monkeypatch.setattr(smart_turn, "find_model", lambda package, file: None)
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "note    Smart Turn" in text
    assert "packaging/bootstrap.py run" in text


def test_a_missing_bundle_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MOSS_VOICE_BUNDLE", str(tmp_path / "nowhere"))
    assert main(["doctor"]) == 1
    assert f"no bundle folder at {tmp_path / 'nowhere'}" in capsys.readouterr().out


def test_a_check_that_breaks_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> NoReturn:
        raise RuntimeError("cannot look")

    monkeypatch.setitem(sys.modules, "sounddevice", SimpleNamespace(get_portaudio_version=broken))
    findings = list(doctor.examine())
    assert any(finding.what == "sound" and "cannot look" in finding.detail for finding in findings)
    assert any(finding.what == "torch" for finding in findings)


def test_no_display_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("QT_QPA_PLATFORM", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    finding = next(finding for finding in doctor.examine() if finding.what == "display")
    assert finding.status == "note"
    assert "DISPLAY" in finding.what_to_do


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("DISPLAY", "nowhere:99", "could not connect to display nowhere:99"),
        ("QT_QPA_PLATFORM", "cinema", 'Could not find the Qt platform plugin "cinema"'),
    ],
)
def test_a_display_that_cannot_be_used_is_a_note(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, reason: str
) -> None:
    for name in ("QT_QPA_PLATFORM", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, value)
    finding = next(finding for finding in doctor.examine() if finding.what == "display")
    assert finding.status == "note"
    assert finding.detail.startswith(value)
    assert reason in finding.detail
    assert "Check DISPLAY and QT_QPA_PLATFORM" in finding.what_to_do


def test_a_display_that_does_not_answer_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(command: list[str], **options: Any) -> None:
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(subprocess, "run", hang)
    finding = next(finding for finding in doctor.examine() if finding.what == "display")
    assert finding.status == "note"
    assert "did not answer" in finding.detail


def test_fetched_bundles_are_listed(random_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fetched = paths.user_bundles_dir() / "fetched"
    fetched.parent.mkdir(parents=True)
    fetched.symlink_to(random_bundle)
    main(["doctor", "--json"])
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert any(str(fetched) in finding["detail"] for finding in findings if finding["what"] == "bundle")


def _tensorrt_llm_findings(monkeypatch: pytest.MonkeyPatch, version: str | None) -> list[Finding]:
    found = [Clash("numpy", "2.4.6", "<2"), Clash("openai", None, "any version")]
    monkeypatch.setattr(library, "clashes", lambda: found)
    monkeypatch.setattr(library, "installed_version", lambda package: version)
    monkeypatch.setattr(hardware, "torch_cuda", lambda: "12.8")
    return [finding for finding in doctor.examine() if finding.what == "TensorRT-LLM"]


def test_what_tensorrt_llm_would_clash_with_is_one_note(monkeypatch: pytest.MonkeyPatch) -> None:
    (finding,) = _tensorrt_llm_findings(monkeypatch, None)
    assert finding.status == "note"
    assert "numpy 2.4.6 (wants <2), openai missing (wants any version)" in finding.detail
    assert "torch for 12.8 (wants CUDA 13)" in finding.detail


def test_what_an_installed_tensorrt_llm_clashes_with_is_named_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, *others = _tensorrt_llm_findings(monkeypatch, "1.2.1")
    assert (first.status, first.detail) == ("ok", "1.2.1")
    assert [finding.detail for finding in others][:2] == [
        "1.2.1 clashes with numpy 2.4.6 (wants <2)",
        "1.2.1 clashes with openai missing (wants any version)",
    ]
    assert all("TENSORRT.md" in finding.what_to_do for finding in others)


def test_the_report_is_written_beside_what_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "report.txt"
    assert main(["doctor", "--report", str(file)]) == 0
    printed = capsys.readouterr().out
    assert f"The report is in {file}" in printed
    assert printed.splitlines()[0] in file.read_text(encoding="utf-8")
    assert main(["doctor", "--report", str(tmp_path / "nowhere" / "report.txt")]) == 1
    assert "no folder" in capsys.readouterr().err


@pytest.mark.parametrize(("load", "is_noted"), [(0.2, False), (1.6, True)])
def test_threads_and_load_of_the_processor(
    load: float, is_noted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = hardware.environment() | {"cores": 2}
    monkeypatch.setattr(hardware, "environment", lambda: found)
    monkeypatch.setattr(hardware, "load_of_others", lambda seconds: load)
    findings = {finding.what: finding for finding in doctor.examine()}
    assert "2 cores" in findings["processor"].detail
    assert str(found["thread_waiting"]) in findings["threads"].detail
    assert ("load" in findings) == is_noted
    if is_noted:
        assert "1.6 of 2 cores" in findings["load"].detail
        assert findings["load"].status == "note"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--report", "r.txt", "--about", "nowhere"], "There is no folder nowhere"),
        (["--about", "."], "--about needs --report"),
        (["--report", "no/r.txt"], "no folder"),
        (["--report", "."], "a folder has that name"),
    ],
)
def test_a_report_that_would_lack_something_is_refused_at_once(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor, "examine", lambda: pytest.fail("examined for nothing"))
    assert main(["doctor", *words]) == 1
    assert said in capsys.readouterr().err
    assert not (tmp_path / "r.txt").exists()
