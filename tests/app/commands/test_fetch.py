"""From a released checkpoint to a conversation in a chosen voice, on the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app import paths
from app.audio.wav import read_wav, write_wav
from app.cli import main
from engine_runtime.bundle.bundle import Bundle
from tests.doubles.hub_server import HubServer, repositories_in

QUESTION = Path(__file__).resolve().parents[2] / "data" / "speech" / "question.wav"


def _refused(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    assert main([*map(str, words)]) == 1
    text = capsys.readouterr().err.splitlines()[-1]
    assert text.startswith("moss-voice: ")
    return text


def _shorten(bundle: Path) -> None:
    """Replies of the tiny random model need not last forty seconds."""
    manifest = bundle / "bundle.toml"
    text = manifest.read_text(encoding="utf-8")
    assert text.count("max_new = 500") == 2
    manifest.write_text(text.replace("max_new = 500", "max_new = 16"), encoding="utf-8")


def _recording(file: Path, seconds: float = 4.0) -> Path:
    pcm, rate = read_wav(QUESTION)
    write_wav(file, np.resize(pcm, round(seconds * rate)), rate)
    return file


@pytest.mark.slow
def test_fetch_load_and_talk(
    released_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fetch", "moss-speech", "--from", str(released_folder)]) == 0
    captured = capsys.readouterr()
    bundle = Path(captured.out.strip())
    assert bundle == paths.user_bundles_dir() / "moss-speech"
    assert "without a licence file" in captured.err
    _shorten(bundle)

    def talk(*words: str) -> dict[str, Any]:
        reply = tmp_path / "reply.wav"
        command = ["talk", "--bundle", "moss-speech", "--in", str(QUESTION), "--out", str(reply), "--json"]
        assert main([*command, *words]) == 0
        document: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert document["bundle"] == "moss-speech"
        assert len(read_wav(reply)[0]) == document["turns"][0]["reply"]["codes"] * 1920 > 0
        return document

    talk()
    assert not paths.voices_dir().exists()
    talk("--voice", str(_recording(tmp_path / "voice.wav")))
    assert len(list(paths.voices_dir().iterdir())) == 1


@pytest.mark.slow
def test_inspect_shows_what_was_fetched(
    released_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fetch", "moss-speech", "--from", str(released_folder), "--to", str(tmp_path / "b")]) == 0
    capsys.readouterr()
    assert main(["inspect", str(tmp_path / "b"), "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert about["vocoder"] == "hift"
    assert all(count > 10_000 for count in about["parameters"].values())


@pytest.mark.slow
def test_voices_that_cannot_be_used(
    released_folder: Path, random_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    voice = _recording(tmp_path / "voice.wav")
    question = ("--in", QUESTION)
    assert "no speaker encoder" in _refused(
        capsys, "talk", "--bundle", random_bundle, "--voice", voice, *question
    )
    assert main(["fetch", "moss-speech", "--from", str(released_folder)]) == 0
    here = ("talk", "--bundle", "moss-speech", *question, "--voice")
    short = _recording(tmp_path / "short.wav", 1.0)
    assert "at least 3.2 s are needed" in _refused(capsys, *here, short)
    assert "There is no file" in _refused(capsys, *here, tmp_path / "none.wav")
    (tmp_path / "broken.wav").write_bytes(b"RIFF")
    assert "is not a WAV or FLAC file" in _refused(capsys, *here, tmp_path / "broken.wav")


def test_what_cannot_be_fetched(
    released_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fetch = ("fetch", "moss-speech", "--to", tmp_path / "bundle")
    assert "There is no folder" in _refused(capsys, *fetch, "--from", tmp_path / "none")
    assert "--codec-from needs --from" in _refused(capsys, *fetch, "--codec-from", tmp_path)
    assert "neither in" in _refused(capsys, *fetch, "--offline")
    lm = released_folder / "MOSS-Speech"
    assert "contains no config.json" in _refused(capsys, *fetch, "--from", lm, "--codec-from", tmp_path)
    assert not (tmp_path / "bundle").exists()


@pytest.mark.slow
def test_a_download_in_a_process_of_its_own(released_folder: Path, tmp_path: Path, repository: Path) -> None:
    """HF_ENDPOINT is read when huggingface_hub is imported, so only a new process shows that it is heeded."""
    repositories = repositories_in(released_folder)
    with HubServer(repositories) as hub:
        result = subprocess.run(
            [sys.executable, "-m", "app", "fetch", "moss-speech", "--to", str(tmp_path / "bundle")],
            cwd=repository,
            env=os.environ | {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert result.returncode == 0, result.stderr
    assert "still to be loaded" in result.stderr
    bundle = Bundle.open(result.stdout.strip(), verify="sha256")
    assert bundle.path == tmp_path / "bundle"
    assert "fnlp/MOSS-Speech at 0123456789" in bundle.description


@pytest.mark.slow
def test_lines_for_another_program_and_removal(
    released_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fetch", "moss-speech", "--from", str(released_folder), "--json"]) == 0
    *lines, result = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[-1] == {"step": "hash", "done": 1.0, "total": 1.0}
    assert Path(result["bundle"]) == paths.user_bundles_dir() / "moss-speech"
    assert main(["fetch", "moss-speech", "--remove"]) == 0
    assert not Path(result["bundle"]).exists()
    assert (released_folder / "MOSS-Speech" / "config.json").is_file()
    assert "--remove excludes" in _refused(capsys, "fetch", "moss-speech", "--remove", "--offline")


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--verbose",)])
def test_a_password_in_the_endpoint_stays_there(
    released_folder: Path, tmp_path: Path, repository: Path, options: tuple[str, ...]
) -> None:
    """Neither the screen nor the log shows it, whether a file comes, is retried, or cannot be had."""
    lm = released_folder / "MOSS-Speech"
    files = {file.name: file.read_bytes() for file in lm.iterdir()}
    home = tmp_path / "home"
    with HubServer({"fnlp/MOSS-Speech": files}) as hub:
        hub.cut_off = {"tokenizer.json"}
        result = subprocess.run(
            [sys.executable, "-m", "app", *options, "fetch", "moss-speech", "--to", str(tmp_path / "bundle")],
            cwd=repository,
            env=os.environ
            | {"HF_ENDPOINT": hub.url.replace("://", "://anna:se@cret-word@"), "HF_HUB_OFFLINE": "0"}
            | {name: str(home) for name in ("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME")},
            capture_output=True,
            text=True,
            check=False,
        )
    assert result.returncode == 1
    assert f"is not at {hub.url}" in result.stderr
    (log,) = home.rglob("*.log")
    text = log.read_text() + result.stderr + result.stdout
    if options:  # what the hub's library logs without it depends on its version
        assert "/api/models/fnlp/MOSS-Speech" in text
    assert "anna" not in text
    assert "cret-word" not in text
