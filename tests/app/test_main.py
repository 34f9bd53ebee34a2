from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app import main
from app.audio.wav import write_wav
from app.dialog import smart_turn
from app.session.events import EngineLoading, ErrorRaised
from app.session.session import Session
from app.settings import StartSettings
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.codec.voice.recording import VoiceSource
from engine_runtime.errors import BundleError, MossVoiceError
from engine_runtime.options import EngineOptions


def test_nothing_is_read_before_the_engine_thread_asks(tmp_path: Path) -> None:
    load = main.engine_factory(StartSettings(bundle=tmp_path / "nowhere"))
    with pytest.raises(BundleError, match="no bundle folder"):
        load()


def test_the_engine_is_loaded_as_the_settings_say(random_bundle: Path) -> None:
    engine = main.engine_factory(StartSettings(bundle=random_bundle, engine=EngineOptions(flow_steps=1)))()
    try:
        assert engine.bundle.path == random_bundle
        assert engine.input_sample_rate == engine.bundle.speech_encoder.sample_rate
        assert engine.output_sample_rate == engine.bundle.vocoder.mel.sample_rate
    finally:
        engine.close()


def test_the_length_of_replies_can_be_fixed(random_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Bundle] = []

    def load(bundle: Bundle, options: object, *, voice: object, progress: object) -> None:
        given.append(bundle)
        raise BundleError("That will do.")

    monkeypatch.setattr("engine_runtime.engine.Engine.load", load)
    for codes in (None, 12):
        with pytest.raises(BundleError, match="That will do"):
            main.engine_factory(StartSettings(bundle=random_bundle), codes)()
    own, fixed = (bundle.lm.sampling_speech for bundle in given)
    assert own == Bundle.open(random_bundle).lm.sampling_speech
    assert (fixed.max_new, fixed.min_new, fixed.do_sample) == (12, 13, True)  # its end is not sampled before
    assert fixed.temperature == own.temperature


def test_without_smart_turn_a_note_says_what_ends_a_turn(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.load_turn_end_detector() is not None
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(smart_turn, "find_model", lambda package, file: None)
    assert main.load_turn_end_detector() is None
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("moss-voice: Silence alone ends a turn")


@pytest.mark.slow
def test_only_the_beginning_of_a_voice_is_read(
    random_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recording of 20 minutes will do: speech is looked for in its first minute."""
    rate, given = 8_000, []
    write_wav(tmp_path / "long.wav", np.full(1_200 * rate, 0.1, np.float32), rate)

    def load(bundle: object, options: object, *, voice: VoiceSource, progress: object) -> None:
        given.append(voice)
        raise BundleError("That will do.")

    monkeypatch.setattr("engine_runtime.engine.Engine.load", load)
    with pytest.raises(BundleError, match="That will do"):
        main.engine_factory(StartSettings(bundle=random_bundle, voice=tmp_path / "long.wav"))()
    assert [(len(voice.pcm), voice.sample_rate) for voice in given] == [(60 * rate, rate)]


@pytest.mark.slow
def test_the_window_gets_a_session_that_is_not_started(
    random_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import app.gui.window.run

    given: dict[str, Any] = {}

    def run_gui(session: Session, **named: Any) -> int:
        given.update(named, session=session, events=session.poll())
        return 7

    monkeypatch.setattr(app.gui.window.run, "run_gui", run_gui)
    assert (
        main.open_window(StartSettings(bundle=random_bundle, seed=5, given=frozenset({"bundle", "seed"})))
        == 7
    )
    assert given["start"].seed == 5
    assert given["is_minimised"] is False
    assert given["events"] == []
    with given["loader"](given["start"])() as engine:
        assert engine.bundle.path == random_bundle
    (*_, loaded) = given["session"].poll()
    assert loaded == EngineLoading(1.0)
    assert given["session"].stop()


@pytest.mark.slow
def test_an_environment_of_the_settings_that_cannot_be_used_opens_the_window(
    random_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import app.gui.window.run
    from app.gui.common.preferences import Preferences, PreferenceStore

    PreferenceStore().save(Preferences(engine_python="/a/python"))
    monkeypatch.setattr(main, "find_spec", lambda name: None)  # without websockets
    errors: list[ErrorRaised] = []

    def run_gui(session: Session, **_: Any) -> int:
        session.start()
        ends_s = time.monotonic() + 30
        while not errors and time.monotonic() < ends_s:
            errors.extend(event for event in session.poll() if isinstance(event, ErrorRaised))
            time.sleep(0.01)
        session.stop()
        return 0

    monkeypatch.setattr(app.gui.window.run, "run_gui", run_gui)
    assert main.open_window(StartSettings()) == 0
    assert errors[0].is_fatal
    assert "needs the package websockets" in errors[0].problem.what_is_wrong
    given = StartSettings(engine_python=Path("/a/python"), given=frozenset({"engine_python"}))
    with pytest.raises(MossVoiceError, match="websockets"):
        main.open_window(given)
