"""The application of a config file of Ray Serve."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from app.ray_application import build
from engine_runtime.errors import MossVoiceError


def test_nobody_is_served_without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MOSS_VOICE_API_KEYS", raising=False)
    with pytest.raises(MossVoiceError, match="needs API keys"):
        build({})


def test_options_of_the_file_are_those_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    replica = ModuleType("app.server.ray_replica")
    vars(replica).update(
        Replicas=lambda on_gpu: f"on gpu: {on_gpu}",
        application=lambda *arguments: seen.append(arguments) or "it",
    )
    monkeypatch.setitem(sys.modules, replica.__name__, replica)
    monkeypatch.setenv("MOSS_VOICE_API_KEYS", "0123456789abcdef")
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    with pytest.raises(MossVoiceError, match="RAY_AUTH_MODE=token"):
        build({})
    assert seen == [], "a cluster in which anybody can run code"
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    assert build({"options": "--device cuda --conversations 32 --kv-blocks 64"}) == "it"
    ((settings, replicas, *_),) = seen
    assert (settings.conversations, settings.access.keys) == (32, ("0123456789abcdef",))
    assert replicas == "on gpu: True"
    assert "0123456789abcdef" not in repr(settings), "it may be logged"
