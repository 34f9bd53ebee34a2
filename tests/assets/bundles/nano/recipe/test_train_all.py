"""Order and arguments of the training stages."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.assets.conftest import Recipe

Run = Callable[..., list[Any]]


@pytest.fixture
def stages(recipe: Recipe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Runs `train_all` with options: what it started (name, GPU, arguments) and awaited, in order."""
    train_all = recipe("train_all")
    events: list[Any] = []

    class Recorder:
        def __init__(self, name: str, arguments: list[str], out: Path, gpu: int) -> None:
            self.name = name
            events.append((name, gpu, arguments))

        def wait(self) -> None:
            events.append(f"{self.name} ended")

    def run(*options: str) -> list[Any]:
        monkeypatch.setattr(train_all, "Stage", Recorder)
        monkeypatch.setattr(sys, "argv", ["train_all.py", str(tmp_path / "w"), str(tmp_path / "o"), *options])
        train_all.main()
        return events

    return run


def _order(events: list[Any]) -> list[str]:
    return [event if isinstance(event, str) else event[0] for event in events]


def test_on_one_gpu_only_the_cpu_works_beside_the_tokenizer(stages: Run, tmp_path: Path) -> None:
    events = stages("--tokenizer", "3", "--init", str(tmp_path / "i"), "--tests", str(tmp_path / "t"))
    order = _order(events)
    assert order[:2] == ["synthesize", "synthesize ended"]
    assert order[2:6] == ["neural", "tokenizer", "tokenizer ended", "neural ended"]
    assert {event[1] for event in events if not isinstance(event, str)} == {0}
    assert events[0][2][-2:] == ["--tests", str(tmp_path / "t")]
    assert events[2][2][-4:] == ["--neural", "4.0", "--device", "cuda"]
    tokenizer = events[3][2]
    assert tokenizer[0] == "train_tokenizer.py"
    assert tokenizer[3:] == ["--minutes", "3.0", "--init", str(tmp_path / "i")]


def test_without_minutes_there_are_no_neural_voices(stages: Run) -> None:
    assert "neural" not in _order(stages("--neural", "0"))


def test_on_two_gpus_the_vocoder_starts_at_once_and_is_refined_on_the_flow(stages: Run) -> None:
    events = stages("--gpus", "2")
    order = _order(events)
    gpus = {event[0]: event[1] for event in events if not isinstance(event, str)}
    assert order.index("vocoder") < order.index("tokenizer ended") < order.index("flow")
    assert order.index("flow ended") < order.index("refine") > order.index("vocoder ended")
    assert gpus == {
        "synthesize": 0,
        "neural": 1,
        "tokenizer": 0,
        "lm": 0,
        "vocoder": 1,
        "flow": 1,
        "refine": 1,
        "finish": 1,
    }
    refine = next(event for event in events if event[0] == "refine")[2]
    assert "--flow" in refine
    assert refine[refine.index("--init") + 1] == refine[2]
    assert order.index("refine ended") < order.index("finish")


def test_without_minutes_the_vocoder_is_not_finished(stages: Run) -> None:
    assert "finish" not in _order(stages("--finish", "0"))


def test_without_minutes_nothing_is_refined(stages: Run) -> None:
    assert "refine" not in _order(stages("--refine", "0"))


@pytest.mark.parametrize("gpus", ["1", "2"])
def test_only_the_first_training_of_the_vocoder_starts_from_a_larger_one(
    stages: Run, tmp_path: Path, gpus: str
) -> None:
    events = stages("--gpus", gpus, "--start", str(tmp_path / "large.safetensors"))
    started = {event[0]: event[2] for event in events if not isinstance(event, str) and "--start" in event[2]}
    assert list(started) == ["vocoder"]
    assert started["vocoder"][-1] == str(tmp_path / "large.safetensors")


def test_with_a_bundle_only_its_language_model_is_trained(stages: Run, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    for name in ("speech_encoder", "flow", "vocoder", "lm"):
        (bundle / f"{name}.safetensors").write_bytes(name.encode())
    (tmp_path / "o").mkdir()
    events = stages("--bundle", str(bundle), "--lm", "7.5", "--peak", "2e-3")
    assert _order(events) == ["synthesize", "neural", "synthesize ended", "neural ended", "lm", "lm ended"]
    script, _work, out, *options = events[-2][2]
    assert script == "train_lm.py"
    assert options == [
        "--minutes",
        "7.5",
        "--init",
        str(bundle / "lm.safetensors"),
        "--peak",
        "2e-3",
        "--blend",
        "0.5",
    ]
    kept = {path.name: path.read_bytes() for path in (tmp_path / "o").iterdir()}
    assert kept == {f"{name}.safetensors": name.encode() for name in ("speech_encoder", "flow", "vocoder")}
    assert out == str(tmp_path / "o")
