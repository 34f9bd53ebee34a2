"""Preferences are kept between runs."""

from __future__ import annotations

import dataclasses
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import QByteArray

from app.audio.echo_cancellation import AudioProcessing
from app.dialog.end_of_turn import DEFAULT_EAGERNESS
from app.dialog.turn_taking_settings import TurnTakingSettings
from app.gui.common.preferences import ENGINE_FIELDS, Interruption, Preferences, PreferenceStore
from app.gui.common.themes import ThemeChoice
from app.session.session_settings import SessionSettings
from app.settings import StartSettings
from engine_runtime.options import EngineOptions
from engine_runtime.setting import Setting, settings
from engine_runtime.types import Modality

KNOWN = settings(Preferences)
EVERYTHING = Preferences(
    theme=ThemeChoice.DARK,
    language="zh_CN",
    reply=Modality.TEXT,
    input_device="USB, headset = 1",
    output_device="扬声器",
    latency_ms=80,
    endpointing_ms=900,
    eagerness="eager",
    speculate="off",
    overlap="off",
    input_mode="both",
    hotkey="Ctrl+Alt+Space",
    interruption="never",
    echo_cancellation="off",
    echo_library="livekit",
    noise_suppression=True,
    gain_control=True,
    ignores_bystanders=False,
    seed=0,
    flow_steps=6,
    flow_schedule="uniform",
    codec_dtype="bfloat16",
    exact_encoding=True,
    server="wss://voice.example.org",
    server_key="a-key-of-mine",
    server_voice="marin",
    bundle="/somewhere/else",
    voice="/somewhere/me.wav",
    vocoder="/somewhere/vocoder",
    device="cuda:0",
    weights="int4",
    saves_memory=True,
    backend="trtllm",
    engine="/somewhere/engine",
    engine_python="/somewhere/bin/python",
    trt_codec=True,
    latency_panel=False,
    latency_window=True,
    closes_to_tray=True,
    starts_minimised=True,
)


@pytest.mark.parametrize("preferences", [Preferences(), EVERYTHING], ids=["default", "changed"])
def test_what_is_saved_is_loaded(tmp_path: Path, preferences: Preferences) -> None:
    assert PreferenceStore(tmp_path / "a.ini").save(preferences)
    assert PreferenceStore(tmp_path / "a.ini").load() == preferences


def test_nothing_saved_means_defaults(tmp_path: Path) -> None:
    assert PreferenceStore(tmp_path / "none.ini").load() == Preferences()


def test_values_that_make_no_sense_fall_back_one_by_one(tmp_path: Path) -> None:
    file = tmp_path / "edited.ini"
    lines = [
        "theme=purple",
        "language=tlh",
        "latency_ms=soon",
        "endpointing_ms=99999",
        "volume=101",
        "seed=-4",
        "echo_cancellation=sometimes",
        "noise_suppression=maybe",
        "reply=text",
    ]
    file.write_text("[preferences]\n" + "\n".join(lines), encoding="utf-8")
    assert PreferenceStore(file).load() == Preferences(reply=Modality.TEXT)


@pytest.mark.parametrize(
    "content",
    [
        bytes(range(256)) * 8,
        b"\0" * 900,
        b"[preferences]\nreply=text\n\0\0\0\0",
        b"[preferences]\nvoice=\xff\xfe\n",
        b"[prefere",
        b"reply=text\n",
        b"<html>503</html>",
    ],
)
def test_a_damaged_file_is_kept_under_another_name(tmp_path: Path, content: bytes) -> None:
    file, aside = tmp_path / "window.ini", tmp_path / "window.ini.damaged"
    file.write_bytes(content)
    file.chmod(0o644)
    store = PreferenceStore(file)
    assert store.load() == Preferences()
    assert store.damaged == aside
    assert aside.read_bytes() == content
    assert stat.S_IMODE(aside.stat().st_mode) == 0o600
    assert store.save(Preferences(seed=3))
    again = PreferenceStore(file)
    assert again.load() == Preferences(seed=3)
    assert again.damaged is None


@pytest.mark.parametrize(
    "content", [b"", b"\n\n", b"; nothing\n# yet\n", b"[preferences]\nodd\nreply=text\n"]
)
def test_a_file_that_was_edited_is_not_damaged(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "window.ini"
    file.write_bytes(content)
    store = PreferenceStore(file)
    assert store.damaged is None
    assert (store.load().reply is Modality.TEXT) is (b"text" in content)


@pytest.mark.parametrize("is_there", [True, False])
def test_only_the_owner_can_read_the_settings(tmp_path: Path, is_there: bool) -> None:
    file = tmp_path / "moss-voice" / "window.ini"
    mask = os.umask(0o022)
    try:
        if is_there:  # of an earlier version
            file.parent.mkdir()
            file.write_text("[preferences]\nreply=text\n")
        store = PreferenceStore(file)
        for seed in (1, 2):
            assert store.save(Preferences(seed=seed))
            store.keep_bytes("geometry", QByteArray(b"1"))
    finally:
        os.umask(mask)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_a_second_window_changes_no_file(tmp_path: Path) -> None:
    file = tmp_path / "window.ini"
    first = PreferenceStore(file)
    chosen = Preferences(
        reply=Modality.TEXT,
        server_key="k",
        keep="sound",
        hotkey="Ctrl+Alt+M",
        closes_to_tray=True,
        starts_minimised=True,
    )
    assert first.save(chosen)
    first.keep_bytes("geometry", QByteArray(b"1"))
    del first
    before = {found: found.read_bytes() for found in tmp_path.iterdir()}
    second = PreferenceStore(file, is_kept=False)
    assert second.load() == Preferences(reply=Modality.TEXT)
    assert second.save(Preferences(seed=4))
    second.keep_bytes("geometry", QByteArray(b"2"))
    assert second.kept_bytes("geometry").isEmpty()
    assert not second.is_new
    del second
    assert {found: found.read_bytes() for found in tmp_path.iterdir()} == before


def test_a_second_window_leaves_a_damaged_file_where_it_is(tmp_path: Path) -> None:
    for content in (b"\0" * 9, b"[preferences]\nbundle=@DateTime(1)\n"):
        file = tmp_path / "window.ini"
        file.write_bytes(content)
        assert PreferenceStore(file, is_kept=False).load() == Preferences()
        assert file.read_bytes() == content


@pytest.mark.slow
@pytest.mark.parametrize("place", ["preferences]\nbundle=", "window]\ngeometry="])
@pytest.mark.parametrize(
    "value",
    [
        r"@Variant(\0\0\0\x9\x7f\xff\xff\xff)",  # a list of two thousand million entries
        r"\x40Variant(\0\0\0\x9\x7f\xff\xff\xff)",
        r"\100V\x61riant(\0\0\0\x9\x7f\xff\xff\xff)",
        r'@Var"ian"t(\0\0\0\x9\x7f\xff\xff\xff)',
        "@Var\\\niant(\\0\\0\\0\\x9\\x7f\\xff\\xff\\xff)",
        r"@Variant(\0\0\0\x41\0\0\0\0)",  # a picture, without a screen
        r"@DateTime(\0\0\0\x10\0)",
    ],
)
def test_a_file_that_holds_objects_means_defaults(tmp_path: Path, place: str, value: str) -> None:
    """In a process of its own, since Qt would end it."""
    file = tmp_path / "objects.ini"
    file.write_text(f"[preferences]\nreply=text\n[{place}{value}\n", encoding="latin-1")
    code = (
        "import sys; from pathlib import Path\n"
        "from app.gui.common.preferences import Interruption, PreferenceStore, Preferences\n"
        "store = PreferenceStore(Path(sys.argv[1]))\n"
        "assert store.load() == Preferences()\n"
        "assert store.kept_bytes('geometry').isEmpty()\n"
        "assert store.save(Preferences(seed=3))\n"
    )
    command = [sys.executable, "-c", code, str(file)]
    subprocess.run(command, check=True)
    assert PreferenceStore(file).load() == Preferences(seed=3)
    assert "text" in (tmp_path / "objects.ini.damaged").read_text(encoding="latin-1")


def test_a_file_that_can_be_neither_read_nor_renamed_means_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, target: Path) -> Path:
        raise PermissionError(self)

    monkeypatch.setattr(Path, "replace", refuse)
    file = tmp_path / "objects.ini"
    file.write_text("[preferences]\nreply=text\nbundle=@DateTime(1)\n")
    store = PreferenceStore(file)
    assert store.load() == Preferences()
    assert not store.save(Preferences(seed=3))


@pytest.mark.parametrize("value", ["@Rect(1 2 3 4)", "@Size(9 9)", "@Invalid()", "a, b", '"open', "@", "\\x"])
def test_other_values_of_qt_are_no_text(tmp_path: Path, value: str) -> None:
    file = tmp_path / "odd.ini"
    file.write_text(f"[preferences]\nreply={value}\nseed={value}\ntheme={value}\n")
    assert PreferenceStore(file).load() == Preferences()
    PreferenceStore(file).kept_bytes("geometry")


def test_a_file_of_any_size_means_defaults(tmp_path: Path) -> None:
    file = tmp_path / "large.ini"
    file.write_bytes(b"[preferences]\nreply=text\n" + b"x" * 2_000_000)
    assert PreferenceStore(file).load() == Preferences()


@pytest.mark.parametrize("content", [b"\0preferences]\n", b"[preferences]\ntheme=dark\n\0", b"[preferences"])
def test_a_damaged_file_is_rewritten(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "damaged.ini"
    file.write_bytes(content)
    store = PreferenceStore(file)
    store.load()
    assert store.save(EVERYTHING)
    assert store.save(EVERYTHING)
    assert PreferenceStore(file).load() == EVERYTHING


def test_a_file_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert not PreferenceStore(tmp_path / "file" / "window.ini").save(Preferences())


def test_geometry_is_kept(tmp_path: Path) -> None:
    store = PreferenceStore(tmp_path / "a.ini")
    store.keep_bytes("geometry", QByteArray(b"\x00\x01place"))
    assert store.save(Preferences())
    assert PreferenceStore(tmp_path / "a.ini").kept_bytes("geometry") == QByteArray(b"\x00\x01place")
    assert PreferenceStore(tmp_path / "a.ini").kept_bytes("splitter").isEmpty()


def test_session_settings_follow_the_preferences() -> None:
    settings = EVERYTHING.session_settings()
    assert settings.reply is Modality.TEXT
    assert settings.input_device == "USB, headset = 1"
    assert settings.device_latency_s == pytest.approx(0.08)
    assert settings.turn_taking.end_ms == 900
    assert settings.turn_taking.eagerness == "eager"
    assert settings.turn_taking.input_mode == "both"
    assert not settings.turn_taking.barge_in
    assert settings.turn_taking.bystander_db is None
    assert settings.audio_processing == AudioProcessing(
        "off", noise_suppression=True, gain_control=True, library="livekit"
    )
    assert settings.seed == 0


def another(known: Setting) -> Any:
    """A value that is not the default."""
    if known.choices:
        return next(choice for choice in known.choices if choice != known.default)
    if known.kind is bool:
        return not known.default
    if known.kind is int:
        assert known.least is not None
        return int(known.least) + 1
    return "cuda:0" if known.name == "device" else "F9" if known.name.endswith("hotkey") else "/somewhere"


@pytest.mark.parametrize("name", KNOWN)
def test_each_preference_is_kept_and_handed_to_what_it_names(tmp_path: Path, name: str) -> None:
    known = KNOWN[name]
    needed: dict[str, dict[str, Any]] = {"engine": {"backend": "trtllm"}, "backend": {"engine": "/an/engine"}}
    before = dataclasses.replace(Preferences(device="cuda"), **needed.get(name, {}))
    after = dataclasses.replace(before, **{name: another(known)})
    assert after != before
    store = PreferenceStore(tmp_path / "a.ini")
    assert store.save(dataclasses.replace(after, server="wss://a.example.org"))
    assert getattr(PreferenceStore(tmp_path / "a.ini").load(), name) == (
        getattr(after, name) if name != "server" else "wss://a.example.org"
    )
    starts = [one.start_settings(StartSettings()) for one in (before, after)]
    assert (starts[0] != starts[1]) is bool({StartSettings, EngineOptions} & set(known.into))
    if {SessionSettings, TurnTakingSettings, AudioProcessing} & set(known.into):
        assert before.session_settings() != after.session_settings()


def test_preferences_that_take_another_engine() -> None:
    assert "flow_steps" not in ENGINE_FIELDS, "they change while it runs"
    assert not {"seed", "volume", "theme"} & set(ENGINE_FIELDS)
    assert {"server_key", "weights", "codec_dtype", "engine_python"} <= set(ENGINE_FIELDS)


@pytest.mark.parametrize(("interruption", "needed_ms"), [("half_second", 500), ("second", 1_000)])
def test_an_interruption_may_need_more_speech(interruption: Interruption, needed_ms: int) -> None:
    turns = Preferences(interruption=interruption).session_settings().turn_taking
    assert (turns.barge_in, turns.barge_in_ms) == (True, needed_ms)


def test_defaults_change_nothing() -> None:
    turns = TurnTakingSettings(eagerness=DEFAULT_EAGERNESS, input_mode="voice")
    processing = AudioProcessing(library="pywebrtc")
    expected = SessionSettings(
        turn_taking=turns, overlap="auto", speculate="auto", audio_processing=processing
    )
    assert Preferences().session_settings() == expected


@pytest.mark.parametrize("endpointing_ms", [200, 260, 2000])
def test_every_endpointing_yields_valid_settings(endpointing_ms: int) -> None:
    turns = Preferences(endpointing_ms=endpointing_ms).session_settings().turn_taking
    assert turns.tail_ms <= turns.pause_ms <= turns.end_ms == endpointing_ms


def test_the_command_line_wins() -> None:
    names = frozenset({"seed", "eagerness", "input_mode", "speculate", "echo_library"})
    given = StartSettings(
        seed=5, eagerness="patient", input_mode="push", speculate="on", echo_library="pywebrtc", given=names
    )
    chosen = EVERYTHING.with_given(given).session_settings()
    assert (chosen.seed, chosen.speculate) == (5, "on")
    assert (chosen.turn_taking.eagerness, chosen.turn_taking.input_mode) == ("patient", "push")
    assert chosen.audio_processing.library == "pywebrtc"
    given = StartSettings(
        bundle=Path("given"),
        engine=EngineOptions(
            flow_steps=2, flow_schedule="quadratic", codec_dtype="float16", exact_encoding=True
        ),
        given=frozenset(
            {
                *("bundle", "device", "weight_format", "rounds_tails", "kv_dtype"),
                *("flow_steps", "flow_schedule", "codec_dtype", "exact_encoding", "trt_codec"),
            }
        ),
    )
    assert EVERYTHING.start_settings(given) == given


def test_the_next_start_uses_what_was_chosen() -> None:
    start = dataclasses.replace(EVERYTHING, backend="torch").start_settings(StartSettings())
    assert start == dataclasses.replace(
        StartSettings(),
        server="wss://voice.example.org",
        server_key="a-key-of-mine",
        server_voice="marin",
        bundle=Path("/somewhere/else"),
        voice=Path("/somewhere/me.wav"),
        engine=EngineOptions(
            device="cuda:0",
            weight_format="int4",
            rounds_tails=True,
            kv_dtype="fp8",
            flow_steps=6,
            flow_schedule="uniform",
            codec_dtype="bfloat16",
            vocoder=Path("/somewhere/vocoder"),
            exact_encoding=True,
        ),
    )


def test_the_weights_stay_as_they_are_on_the_processor() -> None:
    on_cpu = dataclasses.replace(EVERYTHING, device="cpu").start_settings(StartSettings()).engine
    assert (on_cpu.weight_format, on_cpu.rounds_tails, on_cpu.kv_dtype) == ("native", False, "native")


def test_the_engine_that_runs_is_shown() -> None:
    engine = EngineOptions(device="cuda:1", rounds_tails=True, trt_codec=True, flow_steps=2)
    names = frozenset({"bundle", "device", "rounds_tails", "trt_codec", "flow_steps"})
    shown = EVERYTHING.with_given(StartSettings(bundle=Path("/given"), engine=engine, given=names))
    assert shown == dataclasses.replace(
        EVERYTHING,
        server="",
        server_key="",
        server_voice="",
        bundle="/given",
        voice="",
        vocoder="",
        backend="torch",
        engine_python="",
        device="cuda:1",
        saves_memory=True,
        trt_codec=True,
        flow_steps=2,
    )
    assert EVERYTHING.with_given(StartSettings()) == EVERYTHING


@pytest.mark.parametrize(("given", "chosen"), [(False, False), (True, False), (False, True)])
def test_exact_encoding_is_used_where_command_line_or_window_ask_for_it(given: bool, chosen: bool) -> None:
    names = frozenset({"exact_encoding"} if given else ())
    start = StartSettings(engine=EngineOptions(exact_encoding=given), given=names)
    engine = Preferences(exact_encoding=chosen).start_settings(start).engine
    assert engine.exact_encoding == (given or chosen)


def test_voice_and_vocoder_stay_with_the_bundle_that_they_were_chosen_for() -> None:
    own = EVERYTHING.start_settings(StartSettings())
    assert (own.voice, own.engine.vocoder) == (Path("/somewhere/me.wav"), Path("/somewhere/vocoder"))
    other = EVERYTHING.start_settings(StartSettings(bundle=Path("given"), given=frozenset({"bundle"})))
    assert (other.voice, other.engine.vocoder) == (None, None)
    given = StartSettings(
        voice=Path("other.wav"),
        engine=EngineOptions(vocoder=Path("other")),
        given=frozenset({"voice", "vocoder"}),
    )
    both = EVERYTHING.start_settings(given)
    assert (both.voice, both.engine.vocoder) == (Path("other.wav"), Path("other"))
    assert EVERYTHING.with_given(given).vocoder == "other"


@pytest.mark.parametrize(
    ("given", "server"),
    [
        (StartSettings(), "wss://saved"),
        (StartSettings(server="wss://given", given=frozenset({"server"})), "wss://given"),
        (StartSettings(bundle=Path("/a/bundle"), given=frozenset({"bundle"})), ""),
        (StartSettings(engine_python=Path("/a/python"), given=frozenset({"engine_python"})), ""),
        (StartSettings(engine=EngineOptions(random_weights=1), given=frozenset({"random_weights"})), ""),
    ],
)
def test_the_saved_server_is_used_unless_the_command_line_names_an_engine(
    given: StartSettings, server: str
) -> None:
    assert Preferences(server="wss://saved").start_settings(given).server == server
