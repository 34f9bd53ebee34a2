"""No step passes for a model that is wrong: a hash, a shape, a kernel that is off, a missed target."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from app.commands.acceptance_steps import Figure
from app.settings import StartSettings
from engine_runtime.errors import Problem
from engine_runtime.options import EngineOptions
from tests.factories.acceptance import Do, Script, figure, run_here


def test_a_model_that_is_not_there_is_not_downloaded_unasked(do: Do, tmp_path: Path) -> None:
    script = Script(fetch=Problem("The hub does not answer.", "Try again later."))
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
    outcome = do(
        name, Script(verify=Problem("The GPU has 20 GB free, not 22.8 GB.", "Choose --weights fp8."))
    )
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


def test_the_bench_measures_the_chosen_format_alone(do: Do, random_bundle: Path) -> None:
    script = Script(bench=bench_document())
    do("bench", script, settings=StartSettings(random_bundle, EngineOptions(weight_format="int4")))
    assert {"--formats=int4", "--weights=int4", "--check"} <= set(script.words[0])


def test_a_bench_that_ends_early_fails(do: Do) -> None:
    script = Script(
        bench={
            "error": "A reply is silent. Check the weights.",
            "problem": Problem("A reply is silent.", "Check the weights.").to_json(),
        }
    )
    outcome = do("bench", script)
    assert (outcome.status, outcome.reason) == ("failed", "A reply is silent.")
    unmet = Script(bench=bench_document())
    unmet.status = 1
    assert do("bench", unmet).reason == "it failed"
    assert do("bench", Script(bench=Problem("It ended with signal 9 and wrote nothing."))).status == "failed"


def test_random_weights_leave_out_what_needs_real_ones(do: Do, tmp_path: Path) -> None:
    settings = StartSettings(Path("moss-speech"), EngineOptions(random_weights=0))
    for name in ("files", "tensors", "verify"):
        outcome = do(name, Script(), bundle=Path("moss-speech"), settings=settings)
        assert (outcome.status, "random weights" in outcome.reason) == ("skipped", True)


def soak_rows(*host_mb: float, used: int = 0) -> dict[str, Any]:
    rows = [
        {"at_s": 30_000.0 * place, "turns": 10 * place, "host_mb": mb, "blocks_used": used}
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
    lost = do("soak", Script(bench=soak_rows(700, 720, used=3)), soak_hours=10)
    assert (lost.status, lost.reason) == ("failed", "limit not kept: cache blocks in use at the end")
    assert do("soak", script, soak_hours=30).reason == "limit not kept: hours"
    grew = Script(
        bench={
            "error": "host_mb grew by 400.0 over 9 turns. This is a defect of the program.",
            "problem": Problem(
                "host_mb grew by 400.0 over 9 turns.", "This is a defect of the program."
            ).to_json(),
        }
    )
    assert do("soak", grew, soak_hours=22).reason == "host_mb grew by 400.0 over 9 turns."
