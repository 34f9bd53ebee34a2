"""What version 0.1.0 wrote is read: tests/data/version_0_1_0 holds files that its code made.

`window.ini` has each preference at another value than its default but `flow_schedule`; the two conversations
were held with nano, one in text, one in speech through a loudspeaker of 8 kHz; `bundle.toml` describes the
released model.
"""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from app.gui.common.preferences import Preferences, PreferenceStore
from app.gui.common.themes import ThemeChoice
from app.installed_models import find_models
from app.session.conversation_folder import (
    count_damaged,
    count_damaged_events,
    list_conversations,
    read_events,
)
from app.session.transcript import how_to_continue, read_transcript, spans_of, turn_texts
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.conversation.snapshot import ConversationSnapshot
from engine_runtime.types import Modality

CHOSEN = Preferences(
    theme=ThemeChoice.DARK,
    language="zh_CN",
    reply=Modality.TEXT,
    input_device="USB microphone",
    output_device="Headphones, left",
    volume=70,
    latency_ms=80,
    endpointing_ms=900,
    eagerness="patient",
    speculate="off",
    input_mode="both",
    hotkey="Ctrl+Alt+Space",
    interruption="second",
    sensitivity="high",
    ignores_bystanders=False,
    echo_cancellation="on",
    echo_library="livekit",
    noise_suppression=True,
    gain_control=True,
    seed=11,
    flow_steps=3,
    codec_dtype="float32",
    exact_encoding=True,
    server="ws://127.0.0.1:8000",
    bundle="/srv/voice/.local/share/moss-voice/bundles/moss-speech",
    voice="/srv/voice/voice.wav",
    vocoder="/srv/voice/vocoder.toml",
    device="cuda:1",
    weights="fp8",
    saves_memory=True,
    backend="trtllm",
    engine="/srv/voice/engine",
    engine_python="/srv/voice/moss-trt/bin/python",
    trt_codec=True,
    keep="sound",
    latency_panel=False,
    latency_window=True,
    closes_to_tray=True,
    starts_minimised=True,
)


@pytest.fixture
def earlier(repository: Path, tmp_path: Path) -> Path:
    """A copy of the files, which are read and perhaps written."""
    return Path(shutil.copytree(repository / "tests" / "data" / "version_0_1_0", tmp_path / "0.1.0"))


def test_preferences_are_read_and_kept(earlier: Path) -> None:
    store = PreferenceStore(earlier / "window.ini")
    assert not store.is_new
    assert store.load() == CHOSEN
    assert store.save(dataclasses.replace(CHOSEN, volume=50))
    assert PreferenceStore(earlier / "window.ini").load() == dataclasses.replace(CHOSEN, volume=50)


def test_conversations_are_listed_and_read(earlier: Path) -> None:
    root = earlier / "conversations"
    assert count_damaged(root) == 0
    listed = {known.folder.name: known for known in list_conversations(root)}
    text, sound = listed["text"], listed["sound"]
    assert (text.turns, text.first_words, text.bundle) == (2, "What is the capital of France?", "nano")
    assert (sound.turns, sound.has_sound, text.has_sound) == (1, True, False)
    for known in (text, sound):
        assert count_damaged_events(known.folder) == 0
    said = turn_texts(known.event for known in read_transcript(text.folder))
    assert [turn.reply for turn in said] == [
        "The capital of France is Paris.",
        "The capital of Germany is Berlin.",
    ]
    ((start, end),) = spans_of(read_transcript(sound.folder)).values()
    assert 0 <= start < end <= sound.seconds


def test_their_prefill_tokens_are_known(earlier: Path) -> None:
    prefills = [
        entry["attributes"]
        for entry in read_events(earlier / "conversations" / "text")
        if entry.get("timing") == "prefill"
    ]
    assert [prefill["tokens"] for prefill in prefills] == [13, 7, 5, 6, 7, 5]
    assert [prefill["cached_tokens"] for prefill in prefills] == [0, 12, 19, 31, 36, 43]
    assert [prefill.get("tokens_at_commit") for prefill in prefills] == [None, None, 5, None, None, 5]


def test_a_conversation_can_be_continued(earlier: Path) -> None:
    command = how_to_continue(earlier / "conversations" / "sound")
    assert command.last_turn_id == 1
    assert command.sound_s == pytest.approx(3.8865)
    history = ConversationSnapshot.of(command.history)
    assert (history.bundle, [len(known.user) for known in history.exchanges]) == ("nano", [11])


def test_a_fetched_model_is_used(earlier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.paths.user_bundles_dir", lambda: tmp_path)
    (tmp_path / "moss-speech").mkdir()
    shutil.copy(earlier / "bundle.toml", tmp_path / "moss-speech")
    bundle = Bundle.open(tmp_path / "moss-speech", verify="none")
    assert bundle.lm.context_tokens == 8704
    assert not bundle.unknown_keys
    (model,) = (model for model in find_models() if model.name == "moss-speech")
    assert "context" not in str(model.problem), "only its weights are missing"
