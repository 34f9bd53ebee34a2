"""End to end on the command line, with tiny random networks and real voice activity detection."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NoReturn, get_args

import numpy as np
import pytest

from app.audio.wav import read_wav, write_wav
from app.cli import main
from app.commands.talk import speculation_line
from app.session.events import SpeculationStats
from app.session.start_policy import StartReason
from engine_runtime.errors import ExportError
from tests.engine_runtime.bundle.test_vocoder_file import SPEC
from tests.engine_runtime.bundle.test_vocoder_file import write as write_vocoder

QUESTION = Path(__file__).resolve().parents[2] / "data" / "speech" / "question.wav"


@pytest.fixture(autouse=True)
def _bundle(random_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOSS_VOICE_BUNDLE", str(random_bundle))


def _talk(capsys: pytest.CaptureFixture[str], *words: str | Path) -> dict[str, Any]:
    assert main(["talk", *map(str, words), "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return document


def _refused(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    assert main(["talk", *map(str, words)]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("moss-voice: ")
    assert "Traceback" not in captured.err
    return captured.err


@pytest.mark.slow
def test_a_bundle_may_lie_in_a_folder_with_an_umlaut_in_the_c_locale(
    random_bundle: Path, tmp_path: Path, repository: Path
) -> None:
    folder = tmp_path / "bündel"
    folder.symlink_to(random_bundle)
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    result = subprocess.run(
        [sys.executable, "-m", "app", "talk", "--bundle", folder, "--text", "hello", "--reply", "text"],
        cwd=repository,
        env=os.environ | locale,
        capture_output=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert b"1. you      hello" in result.stdout


def test_only_a_recording_can_be_played_straight_through(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--no-hold" in _refused(capsys, "--text", "hello", "--no-hold")


def test_a_vocoder_of_another_mel_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = write_vocoder(tmp_path / "other.safetensors", replace(SPEC, fmax=12_000.0))
    said = _refused(capsys, "--text", "hello", "--vocoder", other)
    for words in (f"{other} was trained on; they differ in fmax.", "fmax=8000.0", "fmax=12000.0"):
        assert words in said


@pytest.mark.slow
def test_a_reply_is_heard_through_the_given_vocoder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_vocoder(tmp_path / "vocoder.safetensors", SPEC)
    heard = {}
    for name, words in (("own", ()), ("given", ("--vocoder", file))):
        _talk(capsys, "--text", "hello", "--seed", "3", "--out", tmp_path / f"{name}.wav", *words)
        heard[name], _ = read_wav(tmp_path / f"{name}.wav")
    assert len(heard["own"]) == len(heard["given"]) > 0
    assert np.square(heard["given"]).mean() ** 0.5 > 0.01
    assert np.abs(heard["own"] - heard["given"]).max() > 0.01


@pytest.mark.slow
def test_a_spoken_question_is_answered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {name: tmp_path / name for name in ("reply.wav", "session.wav", "trace.json")}
    options: list[str | Path] = [
        "--out",
        files["reply.wav"],
        "--record",
        files["session.wav"],
        "--trace",
        files["trace.json"],
    ]
    document = _talk(capsys, "--in", QUESTION, *options)
    assert document["bundle"] == "random"
    (turn,) = document["turns"]
    assert turn["user"]["codes"] > 5
    assert turn["user"]["end_s"] > turn["user"]["start_s"]
    assert turn["reply"]["modality"] == "speech"
    reply, rate = read_wav(files["reply.wav"])
    assert rate == 24000
    assert len(reply) / rate == pytest.approx(turn["reply"]["audio_s"], abs=1e-3)
    assert len(reply) == turn["reply"]["codes"] * 1920
    timings = turn["timings"]
    assert set(timings) == {
        "prefill_ms", "prefill_speaking_ms", "prefill_at_commit_ms", "prefill_tokens", "tokens_at_commit",
        "step_ms", "token2mel_ms", "vocoder_ms",
        "ttfa_ms", "endpointing_ms", "playback_hold_ms", "playback_hold_reason", "confirm_to_sound_ms",
        "voice_to_voice_ms", "rtf_total", "rtf_steady", "first_chunk_ratio",
    }  # fmt: skip
    assert timings.pop("playback_hold_reason") in get_args(StartReason)
    assert timings.pop("playback_hold_ms") >= 0
    assert timings.pop("confirm_to_sound_ms") >= 0
    assert all(value is not None and value > 0 for value in timings.values())
    assert timings["voice_to_voice_ms"] >= timings["endpointing_ms"]
    decisions = document["decisions"]
    assert [each["kind"] for each in decisions][:2] == ["speculate", "pause"]
    assert "probability" not in decisions[1]
    assert sum(each["kind"] == "confirm" for each in decisions) == 1
    (rated,) = [each for each in decisions[2:] if each["kind"] == "pause"]
    assert 0 <= rated["probability"] <= 1
    assert timings["prefill_tokens"] > timings["tokens_at_commit"]
    names = {event["name"] for event in json.loads(files["trace.json"].read_text())["traceEvents"]}
    assert {"encode", "prefill", "step", "token2mel", "vocoder", "first_audio", "reply"} <= names
    assert read_wav(files["session.wav"])[0].size > len(reply)


@pytest.mark.slow
def test_the_same_seed_yields_the_same_reply(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    replies = []
    for seed, name in ((3, "a"), (3, "b"), (4, "c")):
        _talk(capsys, "--in", QUESTION, "--out", tmp_path / name, "--seed", str(seed))
        replies.append(read_wav(tmp_path / name)[0])
    assert np.array_equal(replies[0], replies[1])
    assert replies[0].shape != replies[2].shape or not np.allclose(replies[0], replies[2])


@pytest.mark.slow
def test_a_typed_question_is_answered_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["talk", "--text", "what is two plus three", "--reply", "text", "--json"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert all(map(str.strip, lines)), "a reply without times has no line for them"
    document = json.loads(last)
    (turn,) = document["turns"]
    assert turn["user"]["codes"] == 0
    assert turn["reply"]["modality"] == "text"
    assert f"text, {turn['reply']['finish_reason']}" in map(str.strip, lines)
    assert lines[0] == "1. you      what is two plus three"
    assert turn["reply"]["text"]
    assert turn["timings"]["prefill_tokens"] > 10
    assert turn["timings"]["vocoder_ms"] is None


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["stereo", "8 bit", "96 kHz", "float"])
def test_any_usual_wav_is_understood(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import scipy.io.wavfile
    import scipy.signal

    pcm, rate = read_wav(QUESTION)
    samples: dict[str, tuple[int, Any]] = {
        "stereo": (rate, (np.stack([pcm, pcm], 1) * 32767).astype(np.int16)),
        "8 bit": (rate, (pcm * 127 + 128).astype(np.uint8)),
        "96 kHz": (96000, (scipy.signal.resample_poly(pcm, 96000, rate) * 30000).astype(np.int16)),
        "float": (rate, pcm),
    }
    scipy.io.wavfile.write(tmp_path / "q.wav", *samples[kind])
    assert _talk(capsys, "--in", tmp_path / "q.wav")["turns"][0]["user"]["codes"] > 5


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is empty"),
        (b"hello, I am no sound", "not a WAV or FLAC file"),
        (b"RIFF\x10\x00\x00\x00WAVEfmt ", "No 'data' chunk marker"),
        (QUESTION.read_bytes()[:5000], "is truncated"),
    ],
)
def test_a_broken_file_is_refused_in_words(
    content: bytes, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "q.wav").write_bytes(content)
    out = tmp_path / "reply.wav"
    assert expected in _refused(capsys, "--in", tmp_path / "q.wav", "--out", out)
    assert not out.exists()


@pytest.mark.slow
def test_silence_is_no_question(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_wav(tmp_path / "q.wav", np.zeros(48000, np.float32), 16000)
    assert "No speech was found" in _refused(capsys, "--in", tmp_path / "q.wav")


def test_a_missing_file_and_a_missing_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "There is no file" in _refused(capsys, "--in", tmp_path / "none.wav")
    text = _refused(capsys, "--in", QUESTION, "--out", tmp_path / "no" / "reply.wav")
    assert "no folder" in text


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--in", "q.wav", "--out", "q.wav"], "--in and --out are the same file"),
        (["--in", "q.wav", "--out", "a", "--record", "./a"], "--out and --record are the same file"),
        (["--in", "q.wav", "--record", "a", "--trace", "a"], "--record and --trace are the same file"),
        (["--text", "hi", "--voice", "q.wav", "--trace", "q.wav"], "--voice and --trace are the same file"),
        (["--text", "hi", "--reply", "text", "--out", "a"], "--reply text has none"),
        (["--text", os.fsdecode(b"caf\xe9")], "not valid UTF-8"),
    ],
)
def test_options_that_do_not_go_together(
    words: list[str],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    content = QUESTION.read_bytes()
    (tmp_path / "q.wav").write_bytes(content)
    assert expected in _refused(capsys, *words)
    assert (tmp_path / "q.wav").read_bytes() == content
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.slow
def test_a_full_disk_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import app.session.headless

    def full(path: Path, rate: int) -> NoReturn:
        raise ExportError("{path} was not written: the disk is full.", "Free some space.", path=path)

    monkeypatch.setattr(app.session.headless, "WavWriter", full)
    assert "disk is full" in _refused(capsys, "--in", QUESTION, "--out", tmp_path / "reply.wav")


@pytest.mark.parametrize("words", [[], ["--in", str(QUESTION), "--text", "hello"]])
def test_one_question_has_to_be_given(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "Give either a recording" in _refused(capsys, *words)


@pytest.mark.slow
def test_an_endless_text_is_refused_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    text = _refused(capsys, "--text", "why " * 2500, "--reply", "text")
    assert "9,999 characters" in text
    assert "Shorten it" in text


@pytest.mark.slow
def test_an_empty_text_is_refused_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert _refused(capsys, "--text", "   ", "--reply", "text")


@pytest.mark.slow
def test_a_bundle_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no bundle folder" in _refused(capsys, "--text", "hello", "--bundle", tmp_path / "nowhere")


@pytest.mark.slow
def test_a_device_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    text = _refused(capsys, "--text", "hello", "--device", "cuda")
    assert "cuda is not available: this machine has no CUDA device" in text
    assert "'quantum' is not a device" in _refused(capsys, "--text", "hello", "--device", "quantum")


def test_what_speculation_cost_is_one_line() -> None:
    line = speculation_line(asdict(SpeculationStats("slow_engine", 12, 9, 3, 245.3, 1.62, 40, 31.4)))
    assert line == (
        "speculative replies: off (slow engine), 12 made, 9 confirmed, 3 rolled back: 245 ms of the engine "
        "and 1.6 s of speech discarded, ready again within 31 ms"
    )
