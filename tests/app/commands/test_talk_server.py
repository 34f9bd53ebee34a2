"""`talk --server`: the conversation of a recording or a text with a server on loopback."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from app import main as composition
from app.audio.wav import read_wav
from app.cli import main
from tests.doubles import openai_realtime
from tests.doubles.openai_realtime import OpenAiSession
from tests.doubles.realtime_server import Event, RealtimeServer
from tests.doubles.speech_to_speech import REPLY_S, SpeechToSpeechSession

KEY = "0123456789abcdef"
QUESTION = Path(__file__).resolve().parents[2] / "data" / "speech" / "question.wav"
OLDER = {
    "response.output_audio.delta": "response.audio.delta",
    "response.output_audio_transcript.delta": "response.audio_transcript.delta",
}


def _talk(capsys: pytest.CaptureFixture[str], url: str, *words: str | Path) -> dict[str, Any]:
    assert main(["talk", "--server", url, *map(str, words), "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return document


def _older(event: Event) -> Event:
    """The same server in the dialect before GA."""
    if event["type"] in ("session.created", "session.updated"):
        session = {"model": "older", "modalities": ["audio", "text"], "turn_detection": None}
        return event | {"session": session | {"input_audio_format": "pcm16", "output_audio_format": "pcm16"}}
    return event | {"type": OLDER.get(event["type"], event["type"])}


@pytest.mark.slow
def test_a_recording_is_answered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "key").write_text(f"{KEY}\n")
    with RealtimeServer(key=KEY) as server:
        words: list[str | Path] = [
            "--in",
            QUESTION,
            "--out",
            tmp_path / "reply.wav",
            "--server-key-file",
            tmp_path / "key",
        ]
        document = _talk(capsys, server.url, *words)
    (turn,) = document["turns"]
    assert turn["reply"]["text"] == "word0 word1 word2"
    assert turn["reply"]["audio_s"] == pytest.approx(1.2)
    assert turn["user"]["end_s"] > turn["user"]["start_s"]
    timings = turn["timings"]
    assert timings["server_ms"] + timings["network_ms"] == pytest.approx(timings["ttfa_ms"], abs=0.01)
    speculation = document["speculation"]
    assert (speculation["off_reason"], speculation["confirmed"]) == (None, 1)
    pcm, rate = read_wav(tmp_path / "reply.wav")
    assert len(pcm) / rate == pytest.approx(1.2)
    assert float(abs(pcm).max()) == pytest.approx(0.5, abs=0.01)


@pytest.mark.slow
def test_an_older_server_is_understood(capsys: pytest.CaptureFixture[str]) -> None:
    with RealtimeServer(change=_older) as server:
        document = _talk(capsys, server.url, "--text", "hello")
        created = server.sent("response.create")
    assert created[0]["response"] == {"modalities": ["audio", "text"]}
    assert document["bundle"] == "older"
    (turn,) = document["turns"]
    assert (turn["reply"]["text"], turn["reply"]["audio_s"]) == ("word0 word1 word2", 1.2)


@pytest.mark.slow
def test_a_server_of_speech_to_speech_is_understood(capsys: pytest.CaptureFixture[str]) -> None:
    with RealtimeServer(make_session=SpeechToSpeechSession) as server:
        document = _talk(capsys, server.url, "--in", QUESTION)
        (turn,) = document["turns"]
        assert turn["reply"]["text"] == f"You said: turn {len(server.sessions[0].heard_s)}."
        assert turn["reply"]["audio_s"] == pytest.approx(REPLY_S)
        spoken_s = turn["user"]["end_s"] - turn["user"]["start_s"]
        assert sum(server.sessions[0].heard_s) == pytest.approx(spoken_s, abs=0.6)
        document = _talk(capsys, server.url, "--text", "hello")
        assert document["turns"][0]["reply"]["text"] == "You said: hello."


@pytest.mark.slow
def test_a_server_of_openai_is_understood(capsys: pytest.CaptureFixture[str]) -> None:
    with RealtimeServer(make_session=OpenAiSession) as server:
        document = _talk(capsys, server.url, "--in", QUESTION, "--server-voice", "cedar")
        assert [session.voice for session in server.sessions] == ["cedar"]
    assert document["bundle"] == "gpt-realtime"
    (turn,) = document["turns"]
    assert turn["user"]["text"] == "question 1"
    assert turn["reply"]["text"] == "".join(openai_realtime.WORDS)
    assert turn["reply"]["audio_s"] == pytest.approx(openai_realtime.REPLY_S)
    assert turn["timings"]["ttfa_ms"] is not None
    missing = ("prefill_ms", "step_ms", "token2mel_ms", "vocoder_ms")
    assert [turn["timings"][name] for name in missing] == [None] * len(missing)
    assert document["speculation"]["off_reason"] == "server"


@pytest.mark.slow
def test_errors_are_sentences(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOSS_VOICE_SERVER_KEY", "wrong-key-nobody-may-see")
    with RealtimeServer(key=KEY) as server:
        assert main(["talk", "--server", server.url, "--text", "hello"]) == 1
    error = capsys.readouterr().err
    assert "does not accept the key" in error
    assert "Traceback" not in error
    assert "wrong-key-nobody-may-see" not in error


def test_an_address_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["talk", "--server", "ftp://a", "--text", "hello"]) == 1
    assert "is not a valid server address" in capsys.readouterr().err


def test_a_missing_package_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(composition, "find_spec", lambda name: None if name == "websockets" else found(name))
    assert main(["talk", "--server", "127.0.0.1:1", "--text", "hello"]) == 1
    assert "pip install 'moss-voice[client]'" in capsys.readouterr().err
