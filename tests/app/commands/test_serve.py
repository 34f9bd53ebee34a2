"""The subcommand serve: its options, what it says where packages are missing, and its log."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from app.cli import build_parser, main
from app.commands import serve
from engine_runtime import installation
from engine_runtime.options import EngineOptions


def test_options_become_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import app.server.run

    (tmp_path / "keys").write_text("0123456789abcdef\n")
    seen: list[Any] = []
    monkeypatch.setattr(app.server.run, "serve", lambda settings, *rest: seen.append(settings) or 0)
    words = ["serve", "--host", "0.0.0.0", "--port", "9000", "--conversations", "3"]
    words += ["--api-key-file", str(tmp_path / "keys"), "--allow-origin", "https://example.org"]
    words += ["--session-minutes", "5", "--drain-seconds", "7", "--seed", "3"]
    arguments = build_parser().parse_args(words)
    assert arguments.run(arguments) == 0
    (settings,) = seen
    assert (settings.host, settings.port, settings.conversations) == ("0.0.0.0", 9_000, 3)
    assert settings.access.keys == ("0123456789abcdef",)
    assert settings.access.origins == ("https://example.org",)
    assert settings.seed == 3
    assert (settings.limits.session_s, settings.drain_s) == (300.0, 7.0)


def test_missing_packages_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serve, "find_spec", lambda name: None if name == "uvicorn" else object())
    assert main(["serve"]) == 1
    error = capsys.readouterr().err
    assert "not installed: uvicorn" in error
    assert "pip install 'moss-voice[serve]'" in error


def engine_of(*words: str) -> EngineOptions:
    return serve.engine_settings(build_parser().parse_args(["serve", *words])).engine


def test_the_engine_has_room_for_the_conversations() -> None:
    options = engine_of("--conversations", "96", "--context-tokens", "1024")
    assert (options.conversations, options.context_tokens, options.kv_blocks) == (96, 1024, None)
    assert (options.max_batch_size, options.captures_batches) == (64, True)
    assert engine_of("--kv-blocks", "512").kv_blocks == 512
    assert engine_of().conversations is None, "as many as fit into memory"
    assert engine_of().max_batch_size == 64


@pytest.mark.parametrize(
    ("words", "absent", "remedy"),
    [
        ([], "uvicorn", "reinstall MOSS Voice"),
        (["--ray"], "ray", "in an environment of Python 3.11 or 3.12: pip install"),
    ],
)
def test_a_packaged_program_says_what_can_be_done(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    absent: str,
    remedy: str,
) -> None:
    monkeypatch.setattr(serve, "find_spec", lambda name: None if name == absent else object())
    monkeypatch.setattr(installation, "is_frozen", lambda: True)
    assert main(["serve", *words]) == 1
    assert remedy in capsys.readouterr().err


def test_it_listens_to_nobody_else_without_a_key(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MOSS_VOICE_API_KEYS", raising=False)
    assert main(["serve", "--host", "0.0.0.0"]) == 1
    assert "no API key is set" in capsys.readouterr().err


def test_a_record_is_one_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    serve.log_to_stderr()
    logging.getLogger("app.server.http_app").info("session_opened", extra={"fields": {"conversations": 2}})
    (line,) = capsys.readouterr().err.splitlines()
    known = json.loads(line)
    assert (known["event"], known["conversations"], known["level"]) == ("session_opened", 2, "info")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--replicas", "2"], "Add --ray"),
        (["--ray", "--replicas", "1-4"], "Add --conversations"),
        (["--ray", "--device", "cuda:1"], "Use --device cuda."),
    ],
)
def test_options_of_ray_that_cannot_be_served(
    words: list[str], reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serve, "find_spec", lambda name: object())
    assert main(["serve", *words]) == 1
    assert reason in capsys.readouterr().err


def test_ray_is_named_where_it_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serve, "find_spec", lambda name: None if name == "ray" else object())
    assert main(["serve", "--ray"]) == 1
    assert "pip install 'moss-voice[ray]'" in capsys.readouterr().err
