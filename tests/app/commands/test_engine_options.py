"""Options that select the backend of the language model."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.cli import main
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.engine import Engine
from engine_runtime.errors import EngineError
from engine_runtime.options import EngineOptions
from tests.factories.engine_folder import EngineWorld


@pytest.fixture
def words(random_bundle: Path) -> list[str]:
    return ["talk", "--bundle", str(random_bundle), "--text", "what is two plus three", "--reply", "text"]


@pytest.mark.slow
def test_a_reply_of_an_engine_is_that_of_torch(
    engine_world: EngineWorld,
    random_bundle: Path,
    tmp_path: Path,
    words: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = engine_world.build(random_bundle, tmp_path / "engine")
    assert main(words) == 0
    wanted = capsys.readouterr().out
    assert main(["--backend", "trtllm", "--engine", str(folder), *words]) == 0
    assert capsys.readouterr().out == wanted
    assert engine_world.trt.num_enqueues > 5


@pytest.mark.slow
def test_what_is_not_as_the_bundle_says_is_reported(
    engine_world: EngineWorld,
    random_bundle: Path,
    tmp_path: Path,
    words: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = engine_world.build(random_bundle, tmp_path / "e", with_provenance=False, max_seq_len=512)
    assert main([*words, "--backend", "trtllm", "--engine", str(folder)]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("moss-voice: The engine holds conversations of 512 tokens")
    assert lines[1].startswith("moss-voice: The weights of")


@pytest.mark.parametrize("options", [[], ["--exact-encoding"]])
@pytest.mark.slow
def test_exact_encoding_reaches_the_engine(
    options: list[str], random_bundle: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[EngineOptions] = []

    def load(bundle: Bundle, chosen: EngineOptions, **_: object) -> Engine:
        seen.append(chosen)
        raise EngineError("enough")

    monkeypatch.setattr(Engine, "load", load)
    assert main([*options, *words]) == 1
    assert [chosen.exact_encoding for chosen in seen] == [bool(options)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--backend", "trtllm"], "Give its folder with --engine DIR"),
        (["--engine", "somewhere"], "Add --backend trtllm"),
        (["--backend", "trtllm", "--engine", "somewhere"], "somewhere holds no engine"),
    ],
)
def test_an_engine_and_its_backend_go_together(
    words: list[str], options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, *options]) == 1
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""


@pytest.mark.slow
def test_without_the_library_it_is_said_how_to_get_it(
    engine_world: EngineWorld,
    random_bundle: Path,
    tmp_path: Path,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from engine_runtime.tensorrt.llm import library, loading

    folder = engine_world.build(random_bundle, tmp_path / "engine")
    monkeypatch.setattr(loading, "load_plugins", library.load_plugins)
    assert main([*words, "--backend", "trtllm", "--engine", str(folder)]) == 1
    assert "packaging/TENSORRT.md" in capsys.readouterr().err
