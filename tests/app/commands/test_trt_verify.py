from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from app.cli import main
from tests.factories.engine_folder import EngineWorld

QUESTION = Path(__file__).resolve().parents[2] / "data" / "speech" / "question.wav"


@pytest.fixture
def words(random_bundle: Path, tmp_path: Path) -> list[str]:
    wavs = tmp_path / "wavs"
    wavs.mkdir()
    shutil.copy(QUESTION, wavs / "q.wav")
    texts = wavs / "texts.txt"
    texts.write_text("What is that?\n", encoding="utf-8")
    return [
        "trt",
        "verify",
        str(tmp_path / "engine"),
        "--bundle",
        str(random_bundle),
        "--wavs",
        str(wavs),
        "--texts",
        str(texts),
        "--tokens",
        "6",
    ]


@pytest.mark.slow
def test_an_engine_that_is_aligned(
    engine_world: EngineWorld,
    random_bundle: Path,
    tmp_path: Path,
    words: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    engine_world.build(random_bundle, tmp_path / "engine")
    assert main([*words, "--reference-device", "cpu", "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    document = json.loads(lines[-1])
    assert lines[-2] == "aligned"
    assert lines[-3] == "no token differs"
    assert document["aligned"] is True
    assert document["first_difference"] is None
    assert (document["reference"], document["reference_dtype"]) == ("plain", "float32")
    assert "one layer at a time on cpu" in document["note"]
    assert len(document["rows"]) == 24, "three turns, two phases, two heads, top-1 and cosine"


@pytest.mark.slow
@pytest.mark.parametrize("contract", ["1.x", "0.13"])
def test_an_engine_for_several_conversations_is_compared_in_steps_of_several(
    engine_world: EngineWorld,
    random_bundle: Path,
    tmp_path: Path,
    words: list[str],
    capsys: pytest.CaptureFixture[str],
    contract: str,
) -> None:
    engine_world.build(random_bundle, tmp_path / "engine", contract, max_batch_size=3)
    batches: list[tuple[int, int]] = []
    engine_world.trt.tamper = lambda device, host: batches.append(
        (len(host["host_request_types"]), int(host["host_request_types"].sum()))
    )
    assert main([*words, "--json"]) == 0
    printed = capsys.readouterr().out
    document = json.loads(printed.splitlines()[-1])
    assert "float32, K/V float32, steps of 1 to 3 conversations) against the reference" in printed
    assert (document["aligned"], document["conversations_of_a_step"]) == (True, 3)
    checks = {row["check"]: row for row in document["rows"]}
    assert len(checks) == 48
    assert checks["turn 2 decode audio together top-1"]["of"] == 2 * checks["turn 2 decode audio top-1"]["of"]
    assert {(3, 3), (3, 2)} <= set(batches), "decode steps of three, and a prefill beside two"


@pytest.mark.slow
def test_a_mistake_in_steps_of_several_is_found(
    engine_world: EngineWorld,
    random_bundle: Path,
    tmp_path: Path,
    words: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    def misplaced(device: dict[str, torch.Tensor], host: dict[str, torch.Tensor]) -> None:
        device["last_token_ids"][1:] -= 1

    engine_world.build(random_bundle, tmp_path / "engine", max_batch_size=3)
    engine_world.trt.tamper = misplaced
    assert main(words) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "not aligned"
    assert ", in a step with others, position" in lines[-2]


@pytest.mark.slow
def test_an_engine_that_is_not(
    engine_world: EngineWorld,
    random_bundle: Path,
    tmp_path: Path,
    words: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    engine_world.build(random_bundle, tmp_path / "engine", layer_indices=[0, 1, 3, 3])
    assert main(words) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "not aligned"
    assert lines[-2].startswith("first token that differs: q.wav, turn 1, ")
    assert "where the reference says" in lines[-2]


def test_what_cannot_be_compared_is_said(
    random_bundle: Path, tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 1
    assert "holds no engine" in capsys.readouterr().err
