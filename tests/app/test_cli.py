from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from app import cli, paths
from app.audio.echo_cancellation import AudioProcessing
from app.cli import build_parser, main
from app.commands import inspect
from app.commands.shared_options import start_settings
from app.commands.window import find_display
from app.session.session_settings import SessionSettings
from engine_runtime.errors import BundleError
from engine_runtime.options import EngineOptions


@pytest.fixture(autouse=True)
def _no_logging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "set_up_logging", lambda file, verbose: None)


def _run_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> int:
    def fail(arguments: argparse.Namespace) -> int:
        raise error

    monkeypatch.setattr(inspect, "run", fail)
    return main(["inspect"])


_TRT_STEPS = ("convert", "quantize", "build", "inspect", "verify", "codec")
_COMMANDS = (
    *([name] for name in ("talk", "demo", "bench", "verify", "inspect", "fetch", "voices", "trt", "doctor")),
    *(["trt", step] for step in _TRT_STEPS),
)


@pytest.mark.parametrize("command", [[], *_COMMANDS])
def test_every_command_explains_itself(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*command, "--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert "usage: moss-voice" in text
    description = text.split("\n\n")[1]
    assert description.endswith((".", "?")), description


@pytest.mark.parametrize("words", [["nonsense"], ["talk", "--reply", "smoke"], ["bench", "--runs", "0"]])
def test_wrong_usage_is_status_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "error:" in line
    assert line.endswith("--help`.")


@pytest.mark.parametrize("words", ["verify --flow-steps=--", "talk --text=--", "--bundle=-- talk --text x"])
def test_two_dashes_are_no_value(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words.split())
    assert caught.value.code == 2
    assert ": -- is no value" in capsys.readouterr().err


def test_what_follows_two_dashes_is_no_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--", "--none=--"]) == 1
    assert "--none=--" in capsys.readouterr().err


def test_an_error_of_ours_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run_with(monkeypatch, BundleError("The bundle is upside down.", "Turn it round.")) == 1
    captured = capsys.readouterr()
    assert captured.err == "moss-voice: The bundle is upside down. Turn it round.\n"
    assert captured.out == ""


def test_an_unexpected_error_names_the_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run_with(monkeypatch, ZeroDivisionError("division by zero")) == 1
    text = capsys.readouterr().err
    assert text.startswith("moss-voice: Unexpected ZeroDivisionError: division by zero")
    assert str(paths.log_file()) in text
    assert "Traceback" not in text


@pytest.mark.slow
@pytest.mark.parametrize("name", ["x" * 5000, "x/" * 5000])
@pytest.mark.parametrize("words", ["verify --wavs", "fetch moss-speech --from", "trt inspect --files"])
def test_a_name_that_no_file_can_have_is_reported_in_a_message(
    words: str, name: str, random_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--bundle", str(random_bundle), *words.split(), name]) == 1
    text = capsys.readouterr().err.splitlines()[-1]
    assert text.endswith("cannot be used: File name too long. Check the name.")
    assert len(text) < 300


def test_an_interrupt_is_status_130(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _run_with(monkeypatch, KeyboardInterrupt()) == 130


def test_the_bundle_may_be_given_before_or_after_the_command(tmp_path: Path) -> None:
    for words in (["--bundle", str(tmp_path), "talk"], ["talk", "--bundle", str(tmp_path)]):
        assert start_settings(build_parser().parse_args(words)).bundle == tmp_path
    settings = start_settings(build_parser().parse_args(["--seed", "3", "talk", "--device", "cuda:1"]))
    assert (settings.seed, settings.engine.device, settings.engine.lm_dtype) == (3, "cuda:1", "bfloat16")
    assert settings.bundle == paths.default_bundle()


def test_eagerness_is_read_from_either_place() -> None:
    for words in ("talk --eagerness eager", "--eagerness eager talk", "--eagerness eager"):
        assert start_settings(build_parser().parse_args(words.split())).eagerness == "eager"
    assert start_settings(build_parser().parse_args(["talk"])).eagerness is None


def test_the_input_mode_is_read_for_the_window() -> None:
    assert start_settings(build_parser().parse_args(["--input-mode", "push"])).input_mode == "push"
    assert start_settings(build_parser().parse_args([])).input_mode is None


@pytest.mark.parametrize("words", ["", "console", "bench --duplex"])
def test_the_echo_library_is_read_where_a_microphone_is(words: str) -> None:
    given = start_settings(build_parser().parse_args([*words.split(), "--echo-library", "livekit"]))
    assert SessionSettings.of(given).audio_processing.library == "livekit"
    default = start_settings(build_parser().parse_args(words.split()))
    assert SessionSettings.of(default).audio_processing == AudioProcessing()


def test_how_the_engine_runs_is_read_from_the_command_line() -> None:
    words = "talk --device cuda --dtype bfloat16 --weights int4 --kv fp8 --kernels torch --no-graphs"
    read = start_settings(build_parser().parse_args([*words.split(), "--gpu-memory-gb", "24"])).engine
    assert read == EngineOptions(
        device="cuda",
        dtype="bfloat16",
        weight_format="int4",
        kv_dtype="fp8",
        kernels="torch",
        graphs=False,
        gpu_memory_gb=24.0,
    )
    assert start_settings(build_parser().parse_args(["talk"])).engine == EngineOptions()


def test_what_the_window_may_complete_is_what_was_not_given() -> None:
    given = start_settings(build_parser().parse_args(["--device", "cpu", "--tails"]))
    assert given.given == {"device", "rounds_tails"}
    assert start_settings(build_parser().parse_args([])).given == frozenset()
    words = ["--bundle", "nano", "--backend", "torch", "--trt-codec", "--seed", "3", "--eagerness", "off"]
    given = start_settings(build_parser().parse_args(words))
    assert given.given == {"bundle", "backend", "trt_codec", "engine_cache", "seed", "eagerness"}


def test_without_a_display_the_window_says_what_else_there_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("QT_QPA_PLATFORM", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert find_display() is None
    assert main([]) == 1
    assert "moss-voice talk --in question.wav" in capsys.readouterr().err
    monkeypatch.setenv("DISPLAY", ":5")
    assert find_display() == ":5"


@pytest.mark.slow
def test_it_starts_as_a_module(repository: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "app", "--version"], cwd=repository, capture_output=True, text=True, check=True
    )
    assert result.stdout.startswith("moss-voice ")


@pytest.mark.slow
def test_it_starts_without_what_is_optional(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    optional = {re.split(r"[\[<>=!;]", name)[0].strip() for names in extras.values() for name in names}
    modules = [name.replace("-", "_") for name in optional] + ["PySide6", "sounddevice"]
    assert {"websockets", "fastapi"} <= set(modules)
    code = f"import sys; sys.modules.update(dict.fromkeys({modules!r})); import app.cli"
    result = subprocess.run([sys.executable, "-c", code], cwd=repository, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.slow
def test_a_reader_that_stops_early_is_no_error(repository: Path, random_bundle: Path) -> None:
    command = [sys.executable, "-m", "app", "inspect", str(random_bundle)]
    with subprocess.Popen(
        command,
        cwd=repository,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(os.environ),
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert "Traceback" not in process.stderr.read()


def test_engines_of_the_codec_are_kept_in_the_users_cache() -> None:
    engine = start_settings(build_parser().parse_args(["talk", "--trt-codec"])).engine
    assert engine.trt_codec
    assert engine.engine_cache == paths.engines_dir()
