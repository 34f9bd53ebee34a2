from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from app.cli import main
from tests.factories.engine_folder import EngineWorld

QUESTION = Path(__file__).resolve().parents[2] / "data" / "speech" / "question.wav"


@pytest.fixture
def words(random_bundle: Path, tmp_path: Path) -> list[str]:
    wavs = tmp_path / "wavs"
    wavs.mkdir()
    shutil.copy(QUESTION, wavs / "q.wav")
    return [
        "trt",
        "verify",
        str(tmp_path / "engine"),
        "--bundle",
        str(random_bundle),
        "--wavs",
        str(wavs),
        "--rows",
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
    assert main([*words, "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    document = json.loads(lines[-1])
    assert lines[-2] == "aligned"
    assert lines[-3] == "no row differs"
    assert document["aligned"] is True
    assert document["first_difference"] is None
    assert len(document["rows"]) == 16


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
    assert lines[-2].startswith("first row that differs: q.wav, turn 1, ")
    assert "where torch says" in lines[-2]


def test_what_cannot_be_compared_is_said(
    random_bundle: Path, tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 1
    assert "holds no engine" in capsys.readouterr().err
