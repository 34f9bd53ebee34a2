"""Contract of the transcriber, with a double of its child process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from app import paths
from app.audio.wav import read_wav
from app.sample_questions import load_samples
from app.session import transcriber as module
from app.session.transcriber import Speech, TranscribedSpeech, Transcriber, whisper_command
from engine_runtime import whisper
from engine_runtime.bench.word_errors import word_errors
from engine_runtime.whisper import WhisperError
from tests.doubles import transcriber_child

LONG_S = 60.0
"""Never reached: what waits for it is there at once."""


def _has_autogroups() -> bool:
    switch = Path("/proc/sys/kernel/sched_autogroup_enabled")
    return switch.is_file() and switch.read_text().strip() == "1"


def speech(samples: int = 1_600, rate: int = 16_000, language: str | None = None, prompt: str = "") -> Speech:
    return Speech(np.zeros(samples, np.float32), rate, language, prompt)


@contextmanager
def running(folder: Path, limit_s: float = LONG_S) -> Iterator[Transcriber]:
    folder.mkdir(exist_ok=True)
    transcriber = Transcriber(transcriber_child.command, limit_s)
    transcriber.use(folder)
    thread = threading.Thread(target=transcriber.run, daemon=True)
    thread.start()
    yield transcriber
    transcriber.close()
    thread.join(LONG_S)
    assert not thread.is_alive()


def answers(transcriber: Transcriber, *asked: Speech) -> list[TranscribedSpeech]:
    found: list[TranscribedSpeech] = []
    for one in asked:
        transcriber.submit(one, found.append)
    assert transcriber.wait(LONG_S)
    return found


def reason(transcript: TranscribedSpeech) -> str:
    assert transcript.problem is not None
    assert not transcript.text
    return str(transcript.problem)


def test_every_speech_is_answered_in_its_order(tmp_path: Path) -> None:
    with running(tmp_path / "words") as transcriber:
        found = answers(transcriber, speech(800), speech(1_600, language="zh", prompt="tea"))
        assert found == [TranscribedSpeech("800", "en", 0.05), TranscribedSpeech("1600 tea", "zh", 0.1)]
        (resampled,) = answers(transcriber, speech(4_800, 48_000))
        assert (int(resampled.text), resampled.seconds) == (pytest.approx(1_600, abs=2), 0.1)
        assert transcriber.name == "words"


def test_a_crash_costs_one_turn(tmp_path: Path) -> None:
    with running(tmp_path / "crash-once") as transcriber:
        first, second = answers(transcriber, speech(), speech())
        assert "has ended with status 3" in reason(first)
        assert second.text == "1600"


def test_a_child_that_always_crashes_is_not_started_for_ever(tmp_path: Path) -> None:
    with running(tmp_path / "crash") as transcriber:
        assert len({reason(found) for found in answers(transcriber, *[speech()] * 5)}) == 1
        (tmp_path / "crash" / "crashed").unlink()
        (last,) = answers(transcriber, speech())
        assert "status 3" in reason(last)
        assert not (tmp_path / "crash" / "crashed").exists(), "no child was started"
        (tmp_path / "words").mkdir()
        transcriber.use(tmp_path / "words")
        assert answers(transcriber, speech())[0].text == "1600", "another model gets its chance"


def test_an_answer_that_is_none_costs_one_turn(tmp_path: Path) -> None:
    with running(tmp_path / "garbage") as transcriber:
        (found,) = answers(transcriber, speech())
        assert "cannot be transcribed" in reason(found)


def test_a_hang_is_ended(tmp_path: Path) -> None:
    with running(tmp_path / "hang", limit_s=0.2) as transcriber:
        found = answers(transcriber, *[speech()] * 4)
        assert all("took more than 0 s" in reason(known) for known in found)
        (tmp_path / "hang" / "awake").touch()
        transcriber._limit_s = LONG_S
        (last,) = answers(transcriber, speech())
        assert last.text == "1600", "the processors were busy, and are free now"


def test_the_end_does_not_wait_for_a_child_that_hangs(tmp_path: Path) -> None:
    found: list[TranscribedSpeech] = []
    with running(tmp_path / "hang") as transcriber:
        transcriber.submit(speech(), found.append)
    assert not found


def test_a_model_that_cannot_be_loaded_and_a_language_that_it_lacks(tmp_path: Path) -> None:
    with running(tmp_path / "refuse") as transcriber:
        assert reason(answers(transcriber, speech())[0]) == "refuse is no model."
    with running(tmp_path / "unknown") as transcriber:
        found = answers(transcriber, *[speech(language="xx")] * 4)
        assert all("is not a language" in reason(known) for known in found)


def test_of_too_much_speech_the_oldest_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_WAITING_S", 0.25)
    transcriber = Transcriber(transcriber_child.command)
    transcriber.use(tmp_path)
    found: list[tuple[int, TranscribedSpeech]] = []
    for number in range(4):
        transcriber.submit(speech(), lambda transcript, number=number: found.append((number, transcript)))  # type: ignore[misc]
    assert [number for number, _ in found] == [0, 1]
    assert "More is said than can be transcribed" in reason(found[0][1])


def test_without_a_model_nothing_is_kept(tmp_path: Path) -> None:
    transcriber = Transcriber(transcriber_child.command)
    transcriber.submit(speech(), lambda transcript: pytest.fail("there is no model"))
    assert transcriber.wait(0)
    transcriber.use(tmp_path)
    transcriber.submit(speech(), lambda transcript: pytest.fail("it was switched off"))
    transcriber.use(None)
    assert transcriber.wait(0)


def test_without_the_extra_the_reason_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine_runtime.whisper.find_spec", lambda name: None)
    with pytest.raises(WhisperError, match=r"faster-whisper.*\[transcribe\]"):
        whisper_command(tmp_path, 3)
    transcriber = Transcriber()
    transcriber.use(tmp_path)
    thread = threading.Thread(target=transcriber.run, daemon=True)
    thread.start()
    assert "faster-whisper" in reason(answers(transcriber, speech())[0])
    transcriber.close()
    thread.join(LONG_S)


@pytest.mark.slow
@pytest.mark.skipif(not _has_autogroups(), reason="there are no autogroups")
def test_the_child_and_its_session_make_way_for_all_others() -> None:
    code = (
        "import os, pathlib, engine_runtime.whisper as w; w._yield_to_others(); "
        "print(os.nice(0), os.sched_getscheduler(0) == os.SCHED_IDLE, "
        "pathlib.Path('/proc/self/autogroup').read_text().split()[-1])"
    )
    command = [sys.executable, "-c", code]
    root = Path(whisper.__file__).parents[1]
    found = subprocess.run(
        command, cwd=root, capture_output=True, text=True, check=True, start_new_session=True
    )
    assert found.stdout.split() == ["19", "True", "19"]


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("MOSS_VOICE_WHISPER"), reason="$MOSS_VOICE_WHISPER names no model")
def test_whisper_itself() -> None:
    transcriber = Transcriber()
    transcriber.use(Path(os.environ["MOSS_VOICE_WHISPER"]))
    thread = threading.Thread(target=transcriber.run, daemon=True)
    thread.start()
    samples = load_samples(paths.assets_dir() / "samples")
    found: list[TranscribedSpeech] = []
    for sample in samples:
        transcriber.submit(Speech(*read_wav(sample.path), language="en"), found.append)
    assert transcriber.wait(600)
    transcriber.close()
    thread.join(LONG_S)
    assert not [transcript.problem for transcript in found if transcript.problem]
    errors, words = word_errors(
        [sample.english for sample in samples], [transcript.text for transcript in found]
    )
    assert errors <= 0.3 * words, [transcript.text for transcript in found]
