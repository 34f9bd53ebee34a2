"""Conversations without window and sound card: files, report, bad input."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import soundfile

from app.audio.wav import write_wav
from app.session import headless
from app.session.headless import run_file
from app.session.session_settings import SessionSettings
from engine_runtime.errors import AudioInputError, ExportError, MossVoiceError
from engine_runtime.types import Modality
from tests.doubles.scripted_engine import OUT_RATE, LoudnessVad, Script, ScriptedEngine
from tests.doubles.stepped_clock import SteppedClock
from tests.tools.session_driver import RATE, silence, speech, write_question


def hold(engine: ScriptedEngine | None = None, **given: Any) -> dict[str, Any]:
    return run_file(lambda: engine or ScriptedEngine(), vad=LoudnessVad(), **given)


@pytest.fixture(autouse=True)
def _stepped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headless, "VirtualClock", SteppedClock)


@pytest.fixture
def two_questions(tmp_path: Path) -> Path:
    parts = (silence(0.5), speech(1.0), silence(1.0), speech(0.6), silence(0.2))
    return write_question(tmp_path / "two.wav", *parts)


@pytest.mark.slow
def test_a_file_that_is_not_held_interrupts_the_reply(tmp_path: Path) -> None:
    parts = (silence(0.5), speech(1.0), silence(1.5), speech(1.5), silence(0.2))
    question = write_question(tmp_path / "over.wav", *parts)
    script = Script(chunks=8)
    held = hold(ScriptedEngine(script), wav_in=question)
    assert [turn["reply"]["cut"] for turn in held["turns"]] == [None, None]
    through = hold(ScriptedEngine(script), wav_in=question, settings=SessionSettings(holds_samples=False))
    first, second = through["turns"]
    assert first["reply"]["cut"]["reason"] == "barge_in"
    assert 0 < first["reply"]["audio_s"] < 3.2
    assert second["user"]["start_s"] == pytest.approx(3.0, abs=0.04)
    assert second["reply"]["cut"] is None
    (cut,) = [decision for decision in through["decisions"] if decision["kind"] == "cut"]
    assert cut["at_s"] > 3.0


@pytest.mark.slow
def test_the_report_has_every_turn(two_questions: Path) -> None:
    document = hold(wav_in=two_questions)
    assert json.loads(json.dumps(document)) == document
    assert list(document) == ["bundle", "turns", "decisions", "speculation", "underruns", "echo"]
    assert document["bundle"] == "scripted"
    assert document["underruns"] == 0
    assert document["echo"]["state"] == "off"  # a file has no echo
    first, second = document["turns"]
    assert list(first) == ["user", "reply", "timings"]
    assert first["user"] == {
        "start_s": pytest.approx(0.5, abs=0.04), "end_s": pytest.approx(1.5, abs=0.04), "codes": 18,
        "text": "",
    }  # fmt: skip
    assert second["user"]["start_s"] == pytest.approx(2.5, abs=0.04)
    assert first["reply"] == {
        "modality": "speech",
        "text": "word0 word1 word2 ",
        "codes": 15,
        "audio_s": 1.2,
        "finish_reason": "stop",
        "cut": None,
    }
    assert set(first["timings"]) == {
        "prefill_ms", "prefill_speaking_ms", "prefill_at_commit_ms", "prefill_tokens", "tokens_at_commit",
        "step_ms", "token2mel_ms", "vocoder_ms",
        "ttfa_ms", "endpointing_ms", "playback_hold_ms", "playback_hold_reason", "confirm_to_sound_ms",
        "voice_to_voice_ms", "rtf_total", "rtf_steady", "first_chunk_ratio",
    }  # fmt: skip
    assert first["timings"]["endpointing_ms"] == pytest.approx(640, abs=60)
    assert first["timings"]["voice_to_voice_ms"] >= first["timings"]["endpointing_ms"]
    assert first["timings"]["ttfa_ms"] > 0
    assert first["timings"]["prefill_ms"] is None  # the scripted engine has none


@pytest.mark.slow
def test_the_files_are_reply_record_and_trace(two_questions: Path, tmp_path: Path) -> None:
    out, record, trace = tmp_path / "a.wav", tmp_path / "session.wav", tmp_path / "t.json"
    hold(wav_in=two_questions, out=out, record=record, trace=trace)
    reply, rate = soundfile.read(out, dtype="float32")
    assert rate == OUT_RATE
    assert len(reply) == round((1.2 + 0.5 + 1.2) * OUT_RATE)
    both, rate = soundfile.read(record, dtype="float32")
    user, assistant = both[:, 0], both[:, 1]
    user_s = np.flatnonzero(np.abs(user) > 0.05) / rate
    assistant_s = np.flatnonzero(np.abs(assistant) > 0.05) / rate
    # One clock: question 0.5-1.5 s, reply after the end of the turn, then the rest of the file.
    assert user_s[0] == pytest.approx(0.5, abs=0.02)
    first_end = user_s[np.flatnonzero(np.diff(user_s) > 0.5)[0]]
    assert first_end == pytest.approx(1.5, abs=0.02)
    assert assistant_s[0] == pytest.approx(1.5 + 0.65, abs=0.1)
    second_start = user_s[user_s > first_end + 0.5][0]
    assert second_start > assistant_s[assistant_s < second_start][-1]
    assert not (np.abs(user[np.abs(assistant) > 0.05]) > 0.05).any()
    names = {entry["name"] for entry in json.loads(trace.read_text())["traceEvents"]}
    assert {"vocoder", "endpointing", "voice_to_voice"} <= names


@pytest.mark.slow
@pytest.mark.parametrize("rate", [RATE, 44_100])
def test_a_turn_does_not_depend_on_how_long_the_reply_before_it_took(tmp_path: Path, rate: int) -> None:
    noise = np.random.default_rng(0).uniform(-0.3, 0.3, 2 * rate).astype(np.float32)
    parts = silence(0.5, rate), noise[:rate], silence(1.0, rate), noise[rate:], silence(1.0, rate)
    write_wav(tmp_path / "two.wav", np.concatenate(parts), rate)
    heard = []
    for chunk_s in (0.4, 0.41, 0.417, 0.42):
        engine = ScriptedEngine(Script(chunk_s=chunk_s))
        document = hold(engine, wav_in=tmp_path / "two.wav")
        heard.append(
            (
                [turn["user"] for turn in document["turns"]],
                [block for turn in engine.turns for block in turn.heard],
            )
        )
    (users, blocks), *others = heard
    assert len(users) == 2
    for other_users, other_blocks in others:
        assert other_users == users
        assert [len(block) for block in other_blocks] == [len(block) for block in blocks]
        assert np.array_equal(np.concatenate(other_blocks), np.concatenate(blocks))


@pytest.mark.slow
@pytest.mark.parametrize("modality", list(Modality))
def test_a_typed_question(tmp_path: Path, modality: Modality) -> None:
    out = tmp_path / "a.wav"
    given: dict[str, Any] = {"out": out} if modality is Modality.SPEECH else {}
    document = hold(text="what is it?", settings=SessionSettings(reply=modality, seed=3), **given)
    (turn,) = document["turns"]
    assert turn["user"] == {"start_s": 0.0, "end_s": 0.0, "codes": 0, "text": ""}
    assert turn["reply"]["modality"] == modality.value
    assert turn["timings"]["endpointing_ms"] is None
    assert out.exists() == (modality is Modality.SPEECH)


@pytest.mark.slow
def test_in_real_time_a_conversation_takes_as_long_as_it_lasts(tmp_path: Path) -> None:
    path = write_question(tmp_path / "q.wav", silence(0.3), speech(0.5), silence(0.2))
    started = time.monotonic()
    document = hold(ScriptedEngine(Script(chunks=1)), wav_in=path, realtime=True)
    # 0.3 + 0.5 s, 0.64 s to the commit, 0.4 s of reply, 1 s of silence
    assert time.monotonic() - started > 2.7
    assert len(document["turns"]) == 1


@pytest.mark.slow
def test_progress_goes_from_nothing_to_all(two_questions: Path) -> None:
    seen: list[float] = []
    hold(wav_in=two_questions, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    assert len(seen) > 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rate", "channels", "subtype"), [(96_000, 2, "PCM_24"), (8_000, 1, "PCM_U8"), (44_100, 2, "FLOAT")]
)
def test_every_kind_of_file_is_understood(tmp_path: Path, rate: int, channels: int, subtype: str) -> None:
    pcm = np.concatenate([silence(0.4, rate), speech(0.8, rate), silence(0.3, rate)])
    path = tmp_path / "q.wav"
    soundfile.write(path, np.repeat(pcm[:, None], channels, axis=1), rate, subtype=subtype)
    (turn,) = hold(wav_in=path)["turns"]
    assert turn["user"]["start_s"] == pytest.approx(0.4, abs=0.05)
    assert turn["user"]["end_s"] == pytest.approx(1.2, abs=0.05)


@pytest.mark.slow
def test_a_silent_file_is_an_error_that_helps(tmp_path: Path) -> None:
    write_wav(tmp_path / "silent.wav", silence(2.0), RATE)
    with pytest.raises(AudioInputError, match="-120 dBFS"):
        hold(wav_in=tmp_path / "silent.wav", out=tmp_path / "a.wav", record=tmp_path / "s.wav")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["silent.wav"]


@pytest.mark.parametrize("content", [b"", b"no sound at all"])
def test_a_bad_file_is_reported_before_the_engine_is_loaded(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.wav").write_bytes(content)

    def load() -> ScriptedEngine:
        raise AssertionError("the engine was loaded for nothing")

    with pytest.raises(AudioInputError, match=r"bad\.wav"):
        run_file(load, wav_in=tmp_path / "bad.wav", vad=LoudnessVad())


def test_an_engine_that_cannot_be_loaded() -> None:
    def load() -> ScriptedEngine:
        raise MossVoiceError("The bundle is broken.", "Get it again.")

    with pytest.raises(MossVoiceError, match=r"The bundle is broken\. Get it again\."):
        run_file(load, text="hello", vad=LoudnessVad())


@pytest.mark.slow
def test_what_was_answered_before_an_error_is_kept(tmp_path: Path) -> None:
    # Time for the first answer, also on a busy machine: the second question would cut it short.
    parts = (silence(0.5), speech(1.0), silence(5.0), speech(0.6), silence(0.2))
    questions = write_question(tmp_path / "questions.wav", *parts)

    class Failing(ScriptedEngine):
        def open_turn(self, conversation: Any, turn_id: int, *options: Any) -> Any:
            if turn_id == 2:
                raise MossVoiceError("The engine is out of order.", "Repair it.")
            return super().open_turn(conversation, turn_id, *options)

    out, record = tmp_path / "a.wav", tmp_path / "s.wav"
    with pytest.raises(MossVoiceError, match=r"out of order\. Repair it\."):
        hold(Failing(), wav_in=questions, out=out, record=record)
    assert len(soundfile.read(out)[0]) == round(1.2 * OUT_RATE)
    assert record.exists()


@pytest.mark.slow
def test_a_reply_that_breaks_off_is_kept_as_far_as_it_was_heard(tmp_path: Path) -> None:
    out, record = tmp_path / "a.wav", tmp_path / "s.wav"
    # The first chunk is heard while the second one is made and fails.
    engine = ScriptedEngine(Script(fail_on="reply", chunk_s=2.0, step_s=0.4))
    with pytest.raises(MossVoiceError, match=r"out of order\. Repair it\."):
        hold(engine, text="what is it?", out=out, record=record)
    (_, _, samples, _) = next(call for call in engine.calls if call[0] == "truncate")
    assert isinstance(samples, int)
    assert 0 < samples < 2 * OUT_RATE
    reply, rate = soundfile.read(out, dtype="float32")
    assert (len(reply), rate) == (samples, OUT_RATE)
    both, rate = soundfile.read(record, dtype="float32")
    played = np.flatnonzero(np.abs(both[:, 1]) > 0.01)
    assert (played[-1] - played[0]) / rate == pytest.approx(samples / OUT_RATE, abs=0.03)


@pytest.mark.slow
def test_a_question_of_ten_thousand_characters() -> None:
    with pytest.raises(MossVoiceError, match="10,000 characters"):
        hold(text="x" * 10_000)


def test_files_that_cannot_be_written_are_refused_before_the_engine_is_loaded(
    two_questions: Path, tmp_path: Path
) -> None:
    def load() -> ScriptedEngine:
        raise AssertionError("the engine was loaded for nothing")

    for name in ("out", "record", "trace"):
        given: dict[str, Any] = {name: tmp_path / "missing" / "x"}
        with pytest.raises(ExportError, match="no folder"):
            run_file(load, wav_in=two_questions, vad=LoudnessVad(), **given)


@pytest.mark.slow
def test_a_reply_that_cannot_be_written_leaves_no_other_file(
    two_questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, rate: int) -> NoReturn:
        raise ExportError("{path} was not written: the disk is full.", path=path)

    monkeypatch.setattr("app.session.headless.WavWriter", full)
    with pytest.raises(ExportError, match="disk is full"):
        hold(wav_in=two_questions, out=tmp_path / "a.wav", record=tmp_path / "s.wav")
    assert list(tmp_path.iterdir()) == [two_questions]


@pytest.mark.slow
def test_a_reply_without_speech_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(MossVoiceError, match="speech"):
        hold(text="hi", settings=SessionSettings(reply=Modality.TEXT), out=tmp_path / "a.wav")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_loud_file_without_speech_is_not_to_be_recorded_louder(tmp_path: Path) -> None:
    class Deaf(LoudnessVad):
        def probability(self, frame: Any) -> float:
            return 0.0

    loud = write_question(tmp_path / "loud.wav", np.float32(0.9) * np.sign(speech(1.0)))
    with pytest.raises(AudioInputError, match="loud enough") as caught:
        run_file(ScriptedEngine, wav_in=loud, vad=Deaf())
    assert "louder" not in str(caught.value)


def test_either_a_file_or_a_text() -> None:
    with pytest.raises(ValueError, match="either"):
        hold()
    with pytest.raises(ValueError, match="either"):
        hold(wav_in=Path("a.wav"), text="b")


@pytest.mark.slow
def test_no_thread_is_left() -> None:
    before = set(threading.enumerate())
    hold(text="hello")
    assert set(threading.enumerate()) <= before
