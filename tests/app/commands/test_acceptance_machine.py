"""No step passes on a machine that lacks something: a GPU, its kernels, memory, a device, silence."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.commands import acceptance_program
from app.commands.acceptance_steps import Figure
from app.commands.gpu_driver import DriverGPU
from app.settings import StartSettings
from engine_runtime.errors import Problem
from engine_runtime.options import EngineOptions
from tests.factories.acceptance import Do, Script, figure

GIGABYTE = 1_000_000_000
DRIVER_FIELDS = ("name", "driver version", "memory, MiB", "compute capability", "power limit, W")


def doctor(*findings: tuple[str, str, str, str]) -> Script:
    names = ("status", "what", "detail", "what_to_do")
    return Script(doctor={"findings": [dict(zip(names, found, strict=True)) for found in findings]})


def test_what_is_missing_fails_with_its_remedy(do: Do) -> None:
    script = doctor(
        ("ok", "torch", "2.13", ""), ("missing", "soxr", "not installed", "Run: pip install soxr")
    )
    outcome = do("environment", script)
    assert (outcome.status, outcome.next_step) == ("failed", "Run: pip install soxr")
    assert "soxr: not installed" in outcome.reason
    assert figure(outcome, "missing") == Figure("missing", 1, "0", False)


def test_a_gpu_that_is_asked_for_has_to_be_there(do: Do, random_bundle: Path) -> None:
    script = doctor(("note", "GPU", "there, but torch cannot use it", "Run: moss-voice gpu install"))
    on_gpu = StartSettings(random_bundle, EngineOptions(device="cuda"))
    outcome = do("environment", script, settings=on_gpu)
    assert outcome.status == "failed"
    assert "Run: moss-voice gpu install" in outcome.next_step
    assert do("environment", script).status == "passed"
    there = doctor(("ok", "GPU", "cuda:0 NVIDIA RTX 4090", ""))
    assert figure(do("environment", there, settings=on_gpu), "GPU that torch can use").is_met is True


def test_a_gpu_whose_kernels_do_not_run_is_slow(do: Do, random_bundle: Path) -> None:
    slow = (
        "note",
        "kernels",
        "cuda:0: plain torch, several times slower",
        "Install one: sudo apt-get install gcc",
    )
    script = doctor(("ok", "GPU", "cuda:0 NVIDIA RTX 4090", ""), slow)
    outcome = do("environment", script, settings=StartSettings(random_bundle, EngineOptions(device="cuda")))
    assert (outcome.status, outcome.reason) == ("failed", "limit not kept: GPU kernels run")
    assert "apt-get install gcc" in outcome.next_step
    assert do("environment", script).status == "passed"


@pytest.mark.parametrize(
    ("gpus", "titles"), [(1, ["GPU"]), (2, ["GPU 0", "GPU 1"])], ids=["one GPU", "several"]
)
def test_the_driver_is_reported_by_named_fields(
    do: Do, random_bundle: Path, monkeypatch: pytest.MonkeyPatch, gpus: int, titles: list[str]
) -> None:
    of_driver = DriverGPU("NVIDIA GeForce RTX 4090", "580.82.07", 24564.0, "8.9", 450.0)
    monkeypatch.setattr(acceptance_program, "driver_gpus", lambda: [of_driver] * gpus)
    on_gpu = StartSettings(random_bundle, EngineOptions(device="cuda"))
    outcome = do("environment", doctor(("ok", "GPU", "cuda:0 NVIDIA RTX 4090", "")), settings=on_gpu)
    for title in titles:
        found = {name: figure(outcome, f"{title}: {name}").value for name in DRIVER_FIELDS}
        assert tuple(found.values()) == ("NVIDIA GeForce RTX 4090", "580.82.07", 24564.0, "8.9", 450.0)
    assert figure(outcome, "CUDA compiler")


def test_another_environment_is_examined(do: Do, tmp_path: Path) -> None:
    """That of this test has no TensorRT-LLM; one that is no interpreter cannot be used."""
    outcome = do("environment", doctor(), engine_python=Path(sys.executable))
    assert figure(outcome, "engine environment: TensorRT-LLM").is_met is False
    assert outcome.status == "failed"
    outcome = do("environment", doctor(), engine_python=tmp_path)
    assert "the interpreter of --engine-python cannot be used" in outcome.reason
    assert "TENSORRT.md" in outcome.next_step


def devices(free_gb: float, **needs_gb: float) -> Script:
    needs = [
        {"weights": name, "saves_memory": False, "bytes": int(gb * GIGABYTE)} for name, gb in needs_gb.items()
    ]
    cuda = {"name": "cuda:0", "free_bytes": int(free_gb * GIGABYTE), "needs": needs}
    return Script(devices={"devices": [{"name": "cpu", "free_bytes": 64 * GIGABYTE, "needs": []}, cuda]})


def test_the_chosen_format_has_to_fit_the_free_memory(do: Do, random_bundle: Path) -> None:
    native = StartSettings(random_bundle, EngineOptions(device="cuda"))
    script = devices(22.0, native=22.8, fp8=15.1, int4=11.0)
    outcome = do("memory", script, settings=native)
    assert (outcome.status, outcome.next_step) == ("failed", "These fit now: --weights fp8, --weights int4.")
    assert figure(outcome, "cuda:0: --weights native, GB") == Figure(
        "cuda:0: --weights native, GB", 22.8, "<= 22.0", False
    )
    fp8 = replace(native, engine=replace(native.engine, weight_format="fp8"))
    assert do("memory", script, settings=fp8).status == "passed"
    other = replace(native, engine=replace(native.engine, device="cuda:1"))
    assert "there is no device cuda:1" in do("memory", script, settings=other).reason
    need = {"weights": "native", "saves_memory": False, "bytes": 20 * GIGABYTE}
    cpu = Script(devices={"devices": [{"name": "cpu", "free_bytes": 64 * GIGABYTE, "needs": [need]}]})
    int8 = StartSettings(random_bundle, EngineOptions(weight_format="int8"))
    assert do("memory", cpu, settings=int8).status == "passed"


def trial(**changes: Any) -> Script:
    echo = {"delay_ms": 82.4, "erl_db": 11.9, "erle_db": 22.0, "drift_ppm": 3.0, "state": "cancelling"}
    found = {
        "asked": 9, "replies": 9, "played": 9, "spoken_s": 18.2, "self_interruptions": 0, "pauses": 0,
        "turns_opened": 0, "turns_answered": 0, "had_microphone": True, "microphone_silent": False,
        "loudest_dbfs": -21.0, "echo": echo, "delay_spread_ms": 0.4, "underruns": 0, "dropped_samples": 0,
        "errors": [],
    }  # fmt: skip
    return Script(console={"trial": found | changes})


NO_ECHO = {"delay_ms": None, "erl_db": None, "erle_db": None, "drift_ppm": 0.0, "state": "off"}


def test_the_loop_is_measured(do: Do) -> None:
    script = trial()
    outcome = do("duplex", script)
    assert outcome.status == "passed"
    assert figure(outcome, "loop latency, ms") == Figure("loop latency, ms", 82.4, "<= 384", True)
    assert figure(outcome, "echo return loss, dB").value == 11.9
    assert {"--ask", "--seconds=600"} <= set(script.words[0])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"self_interruptions": 1}, "self-interruptions"),
        ({"turns_answered": 2}, "turns that nobody spoke, answered"),
        ({"underruns": 1}, "under-runs"),
        ({"dropped_samples": 160}, "captured samples lost"),
        ({"played": 0}, "replies played"),
        ({"echo": NO_ECHO}, "echo"),
        ({"loudest_dbfs": -120.0}, "loudest moment"),
        ({"had_microphone": False}, "no microphone could be opened"),
        ({"microphone_silent": True}, "exact silence"),
        ({"errors": ["The loudspeaker was lost."]}, "The loudspeaker was lost."),
    ],
)
def test_sound_that_is_not_right_fails(do: Do, changes: dict[str, Any], reason: str) -> None:
    outcome = do("duplex", trial(**changes))
    assert outcome.status == "failed"
    assert reason in outcome.reason
    assert outcome.next_step


def test_the_next_step_is_that_of_the_failure(do: Do) -> None:
    assert do("duplex", trial(underruns=3)).next_step.startswith(
        "Close programs that keep the processor busy"
    )
    assert "nobody speaks" in do("duplex", trial(self_interruptions=1)).next_step
    assert "--headphones" in do("duplex", trial(echo=NO_ECHO)).next_step


def test_with_headphones_no_echo_is_wanted(do: Do) -> None:
    assert do("duplex", trial(echo=NO_ECHO), headphones=True).status == "passed"
    assert do("duplex", trial(), headphones=True).status == "passed"


def test_without_sound_the_error_of_the_console_counts(do: Do) -> None:
    missing = Script(
        console=Problem("Sound cannot be used: the PortAudio library is missing.", "Install it with: apt")
    )
    outcome = do("duplex", missing)
    assert (outcome.status, outcome.next_step) == ("failed", "Install it with: apt")
