"""An engine in another environment: started as a child process, used, lost, ended with its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from app.cli import build_parser, main
from app.commands.shared_options import start_settings
from app.remote import engine_process
from app.remote.engine_process import (
    EngineProcess,
    EngineProcessError,
    ProcessEngine,
    engine_process_source,
)
from app.server_address import ServerAddress
from app.session.engine_jobs import EngineLost, FlowSteps, FlowStepsSet, Loaded, LoadFailed, UseFlowSteps
from app.settings import StartSettings, serve_options
from tests.doubles.remote_client import RemoteClient

CHILD = """
import os, sys
from tests.doubles.realtime_server import RealtimeServer
print("moss-voice: loading", file=sys.stderr, flush=True)
with RealtimeServer(key=os.environ["MOSS_VOICE_API_KEYS"]) as server:
    print(f"moss-voice: listening on {server.url}", file=sys.stderr, flush=True)
    sys.stdin.buffer.read()
"""


@pytest.fixture
def interpreter(tmp_path: Path, repository: Path) -> Callable[[str], Path]:
    """Makes what stands for the interpreter of another environment: a shell script."""

    def make(script: str) -> Path:
        file = tmp_path / "with blanks" / "python"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
        return file

    return make


@pytest.fixture
def scripted(interpreter: Callable[[str], Path], repository: Path, tmp_path: Path) -> Path:
    """One whose server is scripted."""
    (tmp_path / "child.py").write_text(CHILD)
    return interpreter(f"PYTHONPATH='{repository}' exec '{sys.executable}' '{tmp_path}/child.py'")


def run_worker(python: Path) -> tuple[RemoteClient, list[EngineProcess]]:
    """A session's engine worker with this environment, and the child."""
    children: list[EngineProcess] = []

    def source() -> ProcessEngine:
        children.append(EngineProcess(python, []))
        return ProcessEngine(children[0])

    return RemoteClient(source), children


def test_the_child_gets_the_options_of_the_settings(nano_bundle: Path, tmp_path: Path) -> None:
    words = ["--voice", "me.wav", "--device", "cuda:1", "--dtype", "float16", "--seed", "3"]
    words += ["--flow-steps", "4", "--flow-schedule", "uniform", "--codec-dtype", "float32"]
    words += ["--weights", "fp8", "--tails", "--kv", "fp8", "--kernels", "torch", "--no-graphs"]
    words += ["--gpu-memory-gb", "20", "--backend", "trtllm", "--engine", str(tmp_path)]
    words += ["--compute-capability", "8.9", "--exact-encoding", "--trt-codec", "--bundle", str(nano_bundle)]
    words += ["--vocoder", str(tmp_path / "vocoder.safetensors")]
    words += ["--prefill-tokens", "128"]
    parser = build_parser()
    for given in (words, [], ["--random-weights", "0"]):
        wanted = start_settings(parser.parse_args(given))
        found = start_settings(parser.parse_args(["serve", *serve_options(wanted)]))
        assert (found.bundle, found.voice, found.seed) == (wanted.bundle, wanted.voice, wanted.seed)
        assert found.engine == wanted.engine


@pytest.mark.slow
def test_a_conversation_with_a_child_that_ends_with_it(scripted: Path) -> None:
    user, children = run_worker(scripted)
    user.ask(1, "hello")
    user.until(user.done)
    assert user.of(Loaded)[0].can_speculate
    assert [reply.text for reply in user.done()] == ["word0 word1 word2"]
    user.close()
    assert children[0].status == 0


@pytest.mark.slow
def test_others_cannot_use_the_child(scripted: Path) -> None:
    child = EngineProcess(scripted, [])
    try:
        stranger = RemoteClient(ServerAddress(child.address.url, "0123456789abcdef"))
        stranger.until(lambda: stranger.of(LoadFailed) or stranger.of(EngineLost))
        stranger.close()
        assert child.address.is_loopback
    finally:
        child.close()


@pytest.mark.slow
def test_a_child_that_dies_is_reported(scripted: Path) -> None:
    user, children = run_worker(scripted)
    user.ask(1, "hello")
    user.until(user.done)
    os.kill(children[0]._process.pid, signal.SIGKILL)
    user.until(lambda: user.of(EngineLost))
    assert "ended with status -9" in user.of(EngineLost)[0].problem.what_is_wrong
    user.close()


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'moss-voice: There is no bundle.' >&2; exit 1", r"did not start: There is no bundle\.$"),
        ("echo 'python: No module named app' >&2; exit 1", "No module named app. Check that this version"),
        ("exit 0", "did not start: it wrote nothing. Check"),
    ],
)
def test_a_child_that_does_not_start_says_why(
    interpreter: Callable[[str], Path], script: str, reason: str
) -> None:
    with pytest.raises(EngineProcessError, match=reason):
        EngineProcess(interpreter(script), [])


@pytest.mark.slow
def test_no_interpreter(tmp_path: Path, nano_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["talk", "--engine-python", str(tmp_path / "none"), "--text", "hello"]) == 1
    assert "cannot be started: No such file" in capsys.readouterr().err


def test_one_engine_only(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["talk", "--engine-python", "python", "--server", "ws://127.0.0.1:1", "--text", "hello"]
    assert main(words) == 1
    assert "both name an engine" in capsys.readouterr().err


@pytest.mark.slow
def test_nano_answers_from_another_environment(
    interpreter: Callable[[str], Path],
    repository: Path,
    nano_bundle: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    python = interpreter(f"PYTHONPATH='{repository}' exec '{sys.executable}' \"$@\"")
    assert main(["talk", "--engine-python", str(python), "--text", "what is the capital of france"]) == 0
    assert "The capital of France is Paris." in capsys.readouterr().out


@pytest.mark.slow
def test_a_server_ends_with_its_standard_input(repository: Path, nano_bundle: Path) -> None:
    command = [sys.executable, "-m", "app", "serve", "--port", "0", "--exit-with-stdin"]
    process = subprocess.Popen(
        command, cwd=repository, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stderr is not None
    try:
        assert any("listening on" in line for line in process.stderr)
        process.stdin.close()
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.stderr.close()


@pytest.mark.slow
def test_a_child_that_hangs_while_it_loads_is_ended(
    interpreter: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_process, "LOAD_S", 0.2)
    monkeypatch.setattr(engine_process, "END_S", 0.2)
    python = interpreter("echo 'moss-voice: loading' >&2; exec sleep 600")
    with pytest.raises(EngineProcessError, match="0 minutes: loading"):
        EngineProcess(python, [])


@pytest.mark.slow
def test_what_a_child_writes_is_kept_in_bounds(scripted: Path) -> None:
    child = EngineProcess(scripted, [])
    try:
        output = child._output.fileno()
        for number in range(3):
            os.write(output, b"x" * (engine_process.KEPT_BYTES + 1) + b"\nline %d\n" % number)
            child.trim()
            assert os.fstat(output).st_size <= engine_process.SHOWN_BYTES
            assert child.last_line() == f"line {number}."
    finally:
        child.close()


@pytest.mark.slow
def test_nano_in_another_environment_changes_its_flow_steps(
    interpreter: Callable[[str], Path], repository: Path, nano_bundle: Path
) -> None:
    python = interpreter(f"PYTHONPATH='{repository}' exec '{sys.executable}' \"$@\"")
    user = RemoteClient(engine_process_source(StartSettings(bundle=nano_bundle, engine_python=python)))
    user.until(lambda: user.of(Loaded))
    assert user.of(Loaded)[0].flow_steps == FlowSteps(2, 2)
    user.slot.submit(UseFlowSteps(5))
    user.until(lambda: user.of(FlowStepsSet))
    user.ask(1, "what is the capital of france")
    user.until(user.done)
    user.slot.submit(UseFlowSteps(None))
    user.until(lambda: len(user.of(FlowStepsSet)) == 2)
    user.close()
    assert [result.flow_steps for result in user.of(FlowStepsSet)] == [FlowSteps(5, 2), FlowSteps(2, 2)]
