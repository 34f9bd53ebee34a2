"""No step passes for what its command did not find: wrong tensors, a kernel that is off, a missing device."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from app.commands import acceptance_program
from app.commands.acceptance_program import Plan, program_steps, soak_step, value_text
from app.commands.acceptance_steps import Figure, StepOutcome
from app.settings import StartSettings
from engine_runtime.options import EngineOptions
from tests.factories.acceptance import Script, done, make_plan, run_here

GIGABYTE = 1_000_000_000
Do = Callable[..., StepOutcome]


@pytest.fixture
def do(random_bundle: Path, tmp_path: Path) -> Do:
    """Do one step with a script."""

    def do_step(name: str, script: Any, bundle: Path = random_bundle, **more: Any) -> StepOutcome:
        plan = make_plan(tmp_path, bundle, script, **more)
        return done([*program_steps(plan), soak_step(plan)], name, tmp_path)

    return do_step


def figure(outcome: StepOutcome, name: str) -> Figure:
    (found,) = [figure for figure in outcome.figures if figure.name == name]
    return found


# ---- the machine ----


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


def test_without_a_compiler_a_gpu_is_slow(
    do: Do, random_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptance_program, "has_launcher", lambda: False)
    there = doctor(("ok", "GPU", "cuda:0 NVIDIA RTX 4090", ""))
    outcome = do("environment", there, settings=StartSettings(random_bundle, EngineOptions(device="cuda")))
    assert outcome.status == "failed"
    assert "apt-get install gcc" in outcome.next_step


def test_another_environment_is_examined(do: Do, tmp_path: Path) -> None:
    """That of this test has no TensorRT-LLM; one that is no interpreter cannot be used."""
    outcome = do("environment", doctor(), engine_python=Path(sys.executable))
    assert figure(outcome, "engine environment: TensorRT-LLM").is_met is False
    assert outcome.status == "failed"
    outcome = do("environment", doctor(), engine_python=tmp_path)
    assert "the interpreter of --engine-python cannot be used" in outcome.reason
    assert "TENSORRT.md" in outcome.next_step


# ---- files and tensors ----


def test_a_model_that_is_not_there_is_not_downloaded_unasked(do: Do, tmp_path: Path) -> None:
    script = Script(fetch="The hub does not answer. Try again later.")
    outcome = do("files", script, bundle=tmp_path / "moss-speech")
    assert (outcome.status, script.words) == ("failed", [])
    assert "--fetch" in outcome.next_step
    outcome = do("files", script, bundle=tmp_path / "moss-speech", fetch=("--from=x",))
    assert (outcome.reason, outcome.next_step) == ("The hub does not answer.", "Try again later.")
    assert script.words == [("fetch", str(tmp_path / "moss-speech"), "--json", "--from=x")]


def test_a_file_with_another_hash_fails(do: Do, random_bundle: Path, tmp_path: Path) -> None:
    damaged = Path(shutil.copytree(random_bundle, tmp_path / "bundle"))
    content = bytearray((damaged / "flow.safetensors").read_bytes())
    content[-1] ^= 1
    (damaged / "flow.safetensors").write_bytes(bytes(content))
    outcome = do("files", run_here, bundle=damaged)
    assert outcome.status == "failed"
    assert "flow.safetensors" in outcome.reason
    outcome = do("files", run_here)
    assert outcome.status == "passed"
    assert figure(outcome, "files").value == 5


def test_a_tensor_of_a_wrong_shape_fails_and_is_named(do: Do, random_bundle: Path, tmp_path: Path) -> None:
    assert do("tensors", run_here).status == "passed"
    damaged = Path(shutil.copytree(random_bundle, tmp_path / "bundle"))
    tensors = safetensors.torch.load_file(damaged / "lm.safetensors")
    tensors["model.audio_norm.weight"] = torch.ones(3)
    safetensors.torch.save_file(tensors, damaged / "lm.safetensors")
    outcome = do("tensors", run_here, bundle=damaged)
    assert outcome.status == "failed"
    assert "language model: wrong shape: model.audio_norm.weight is [3], expected [64]" in outcome.reason
    assert [figure.is_met for figure in outcome.figures] == [False, True, True, True]


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


# ---- the engine ----


def verdict(*rows: tuple[str, float, str, str], aligned: bool) -> dict[str, Any]:
    names = ("check", "value", "threshold", "aligned")
    table = [dict(zip(names, row, strict=True)) for row in rows]
    return {"rows": table, "aligned": aligned, "kernels": {"one": {}}}


@pytest.mark.parametrize("name", ["kernels", "verify"])
def test_what_is_not_aligned_fails(do: Do, name: str) -> None:
    off = verdict(("logits, error", 0.3, "<= 0.06", "no"), ("top-1", 0.97, "-", "-"), aligned=False)
    outcome = do(name, Script(verify=off))
    assert outcome.status == "failed"
    assert outcome.figures == (Figure("logits, error", 0.3, "<= 0.06", False), Figure("top-1", 0.97))
    good = verdict(("logits, error", 0.01, "<= 0.06", "yes"), aligned=True)
    assert do(name, Script(verify=good)).status == "passed"
    outcome = do(name, Script(verify="The GPU has 20 GB free, not 22.8 GB. Choose --weights fp8."))
    assert (outcome.status, outcome.next_step) == ("failed", "Choose --weights fp8.")


def test_which_kernels_ran_is_a_figure(do: Do) -> None:
    found = verdict(aligned=True) | {
        "kernels": {"one": {"decode_step": "Triton kernels"}},
        "note": "kernels of several conversations were not compared: too little memory",
    }
    outcome = do("kernels", Script(verify=found))
    assert figure(outcome, "kernels for one: decode step").value == "Triton kernels"
    assert "too little memory" in str(figure(outcome, "note").value)


def test_the_kernels_are_compared_in_the_format_that_was_chosen(do: Do, random_bundle: Path) -> None:
    script = Script(verify=verdict(aligned=True))
    settings = StartSettings(random_bundle, EngineOptions(device="cuda", weight_format="fp8"))
    do("kernels", script, settings=settings)
    words = script.words[0]
    assert {"--kernel-paths", "--weights=fp8", "--device=cuda", f"--bundle={random_bundle}"} <= set(words)


def bench_document(result: str = "passed", **more: Any) -> dict[str, Any]:
    rows = [
        {
            "target": "ttfa",
            "measured": 340.0 if result == "failed" else 61.5,
            "limit": 300.0,
            "result": result,
        },
        {"target": "step_floor", "measured": None, "limit": 1.5, "result": "not measured"},
    ]
    return {"metrics": {"ttfa_ms": {"p50": 61.5}}, "targets": {"rows": rows}} | more


def test_a_target_that_is_missed_fails_the_bench(do: Do) -> None:
    outcome = do("bench", Script(bench=bench_document("failed")))
    assert outcome.status == "failed"
    assert figure(outcome, "target ttfa") == Figure("target ttfa", 340.0, "<= 300", False)
    assert do("bench", Script(bench=bench_document())).status == "passed"
    outcome = do("bench", Script(bench=bench_document("not measured")))
    assert (outcome.status, outcome.reason) == ("failed", "no target was measured")


def test_a_bench_that_ends_early_fails(do: Do) -> None:
    script = Script(bench={"error": "A reply is silent. Check the weights."})
    outcome = do("bench", script)
    assert (outcome.status, outcome.reason) == ("failed", "A reply is silent.")
    unmet = Script(bench=bench_document())
    unmet.status = 1
    assert do("bench", unmet).reason == "it failed"
    assert do("bench", Script(bench="It ended with signal 9 and wrote nothing.")).status == "failed"


def test_random_weights_leave_out_what_needs_real_ones(do: Do, tmp_path: Path) -> None:
    settings = StartSettings(Path("moss-speech"), EngineOptions(random_weights=0))
    for name in ("files", "tensors", "verify"):
        outcome = do(name, Script(), bundle=Path("moss-speech"), settings=settings)
        assert (outcome.status, "random weights" in outcome.reason) == ("skipped", True)


def soak_rows(*host_mb: float, used: int = 0) -> dict[str, Any]:
    rows = [
        {"at_s": 360.0 * place, "turns": 10 * place, "host_mb": mb, "blocks_used": used}
        for place, mb in enumerate(host_mb, 1)
    ]
    return bench_document(endurance={"rows": rows})


def test_the_soak_is_on_request_and_fails_with_its_bench(do: Do) -> None:
    assert do("soak", Script()).status == "skipped"
    script = Script(bench=soak_rows(700, 720, 730.5))
    outcome = do("soak", script, soak_hours=24)
    assert outcome.status == "passed"
    assert "--endurance-minutes=1440" in script.words[0]
    assert figure(outcome, "main memory, growth after the first tenth, MB").value == 10.5
    lost = do("soak", Script(bench=soak_rows(700, 720, used=3)), soak_hours=23)
    assert (lost.status, lost.reason) == ("failed", "limit not kept: cache blocks in use at the end")
    grew = Script(bench={"error": "host_mb grew by 400.0 over 9 turns. This is a defect of the program."})
    assert do("soak", grew, soak_hours=22).reason == "host_mb grew by 400.0 over 9 turns."


# ---- the sound devices ----


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
    assert "--headphones" in outcome.next_step


def test_with_headphones_no_echo_is_wanted(do: Do) -> None:
    assert do("duplex", trial(echo=NO_ECHO), headphones=True).status == "passed"
    assert do("duplex", trial(), headphones=True).status == "passed"


def test_without_sound_the_error_of_the_console_counts(do: Do) -> None:
    missing = Script(console="Sound cannot be used: the PortAudio library is missing. Install it with: apt")
    outcome = do("duplex", missing)
    assert (outcome.status, outcome.next_step) == ("failed", "Install it with: apt")


# ---- what is done again ----


def test_what_a_step_depends_on(random_bundle: Path, tmp_path: Path) -> None:
    def inputs(plan: Plan, name: str) -> Any:
        (step,) = [step for step in program_steps(plan) if step.name == name]
        return step.inputs()

    bundle = Path(shutil.copytree(random_bundle, tmp_path / "bundle"))
    wavs = tmp_path / "wavs"
    wavs.mkdir()
    plan = make_plan(tmp_path, bundle, Script())
    before = {name: inputs(plan, name) for name in ("files", "kernels", "verify", "bench", "duplex")}
    assert {name: inputs(plan, name) for name in before} == before
    with_wavs = replace(plan, wavs=wavs)
    empty = inputs(with_wavs, "verify")
    (wavs / "q.wav").write_bytes(b"x")
    assert inputs(with_wavs, "verify") != empty
    assert inputs(replace(plan, runs=3), "bench") != before["bench"]
    assert inputs(replace(plan, headphones=True), "duplex") != before["duplex"]
    fp8 = replace(plan.settings, engine=EngineOptions(weight_format="fp8"))
    assert inputs(replace(plan, settings=fp8), "kernels") != before["kernels"]
    manifest = bundle / "bundle.toml"
    manifest.write_text(manifest.read_text() + "\n# changed\n")
    assert all(inputs(plan, name) != before[name] for name in before)
    assert inputs(plan, "environment") != inputs(plan, "environment")


def test_values_are_for_a_reader() -> None:
    assert [value_text(value) for value in (True, None, 0.123456, 12345.6, 7, "x")] == [
        "yes", "-", "0.1235", "12346", "7", "x"
    ]  # fmt: skip
