"""Another engine is loaded while the window runs; a failure brings the one before back."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from app.gui.applied_preferences import AppliedPreferences
from app.gui.bridge import SessionBridge
from app.gui.engine_switch import EngineSwitch
from app.gui.preferences import Preferences, PreferenceStore
from app.session.commands import LoadEngine
from app.session.engine_source import EngineFactory
from app.session.events import EngineReady, ErrorRaised
from app.session.session_settings import SessionSettings
from app.settings import StartSettings
from engine_runtime.options import EngineOptions
from tests.doubles.scripted_session import ScriptedSession

FATAL = ErrorRaised("The bundle is broken.", "Get it again.", is_fatal=True)


class Rig:
    """A switch, and the engines that it asked for."""

    def __init__(self, host: QWidget, session: ScriptedSession, store: PreferenceStore, given: StartSettings):
        self.session = session
        self.bridge = SessionBridge(session, host)
        self.applied = AppliedPreferences(host, self.bridge, store, SessionSettings())
        self.requested: list[StartSettings] = []
        self.notices: list[str] = []
        self.switch = EngineSwitch(host, self.bridge, self.applied, given, self.loader)
        self.switch.noticed.connect(self.notices.append)

    def loader(self, start: StartSettings) -> EngineFactory:
        self.requested.append(start)
        engine: Any = nullcontext()
        return lambda: engine

    def choose(self, **changes: Any) -> None:
        """Change preferences in the settings dialog."""
        self.switch.apply(dataclasses.replace(self.switch.shown(), **changes))

    def report(self, event: EngineReady | ErrorRaised) -> None:
        self.session.feed(event)
        self.bridge.poll()

    def is_ready(self, name: str = "nano", *, keeps_history: bool = True) -> None:
        self.report(EngineReady(name, 1.0, 16_000, 24_000, keeps_history=keeps_history))


@pytest.fixture
def host(qtbot: QtBot) -> QWidget:
    host = QWidget()
    qtbot.addWidget(host)
    return host


@pytest.fixture
def rig(host: QWidget, session: ScriptedSession, store: PreferenceStore) -> Rig:
    rig = Rig(host, session, store, StartSettings())
    rig.is_ready()
    return rig


def test_another_device_and_format_load_another_engine(rig: Rig, store: PreferenceStore) -> None:
    rig.choose(device="cuda:0", weights="fp8", saves_memory=True)
    (start,) = rig.requested
    assert start.engine == EngineOptions(
        device="cuda:0", weight_format="fp8", rounds_tails=True, kv_dtype="fp8", flow_schedule="cosine"
    )
    assert len([command for command in rig.session.commands if isinstance(command, LoadEngine)]) == 1
    assert store.load().device == "cuda:0"
    rig.is_ready()
    assert rig.notices == ["nano is ready."]
    assert not rig.switch.is_loading


def test_other_preferences_keep_the_engine(rig: Rig, store: PreferenceStore) -> None:
    rig.choose(endpointing_ms=900, weights="fp8")  # no GPU: the weights stay as they are
    assert rig.requested == []
    assert store.load().endpointing_ms == 900


def test_the_first_engine_is_not_announced(rig: Rig) -> None:
    assert rig.notices == []


def test_another_model_says_that_it_knows_nothing_of_the_conversation(rig: Rig) -> None:
    rig.choose(bundle="/models/other")
    assert rig.requested[0].bundle == Path("/models/other")
    rig.is_ready("other", keeps_history=False)
    assert rig.notices == ["other is ready. It does not know what was said before."]


def test_after_a_failure_the_engine_before_is_loaded_again(rig: Rig, store: PreferenceStore) -> None:
    before = rig.switch.wanted
    rig.choose(bundle="/models/broken", endpointing_ms=900)
    rig.choose(bundle="/models/broken too")  # while the other one is being loaded
    rig.report(FATAL)
    assert [start.bundle.name for start in rig.requested] == ["broken", "broken too", before.bundle.name]
    assert rig.switch.wanted == before
    assert store.load().bundle == ""
    assert store.load().endpointing_ms == 900
    rig.report(FATAL)  # not again
    assert len(rig.requested) == 3


def test_a_first_engine_that_cannot_be_loaded_stays_chosen(
    host: QWidget, session: ScriptedSession, store: PreferenceStore
) -> None:
    rig = Rig(host, session, store, StartSettings())
    rig.report(FATAL)
    assert rig.requested == []
    rig.choose(bundle="/models/other")
    rig.is_ready("other")
    assert [start.bundle.name for start in rig.requested] == ["other"]


def test_the_engine_of_the_command_line_holds_until_another_is_chosen(
    host: QWidget, session: ScriptedSession, store: PreferenceStore
) -> None:
    saved = dataclasses.replace(store.load(), device="cuda:1", weights="int4", bundle="/models/mine")
    store.save(saved)
    given = StartSettings(
        bundle=Path("/given"),
        engine=EngineOptions(device="cpu", flow_steps=3),
        left_open=frozenset({"weight_format"}),
        seed=4,
    )
    rig = Rig(host, session, store, given)
    rig.is_ready()
    assert rig.switch.shown().bundle == "/given"
    assert (rig.switch.shown().device, rig.switch.shown().flow_steps) == ("cpu", 3)
    rig.choose(language="zh_CN")
    assert rig.requested == []
    assert store.load() == dataclasses.replace(saved, language="zh_CN")
    rig.choose(device="cuda:2")
    (start,) = rig.requested
    assert (start.engine.device, start.bundle, start.seed) == ("cuda:2", Path("/given"), 4)
    assert start.engine.flow_steps == 3
    assert store.load().bundle == "/given"


def test_a_session_whose_engine_is_fixed_only_saves_the_choice(
    host: QWidget, session: ScriptedSession, store: PreferenceStore
) -> None:
    bridge = SessionBridge(session, host)
    applied = AppliedPreferences(host, bridge, store, SessionSettings())
    switch = EngineSwitch(host, bridge, applied, StartSettings(), None)
    switch.apply(Preferences(bundle="/models/other"))
    assert store.load().bundle == "/models/other"
    assert not [command for command in session.commands if isinstance(command, LoadEngine)]


def test_a_server_takes_the_place_of_the_model_and_is_left_again(rig: Rig, store: PreferenceStore) -> None:
    rig.choose(server="wss://a.example.org", server_key="secret")
    assert (rig.requested[-1].server, rig.requested[-1].server_key) == ("wss://a.example.org", "secret")
    assert store.load().server == "wss://a.example.org"
    rig.is_ready("a.example.org")
    rig.choose(volume=50)
    assert len(rig.requested) == 1, "nothing else was chosen"
    rig.choose(server="", server_key="")
    assert not rig.requested[-1].is_remote
    assert store.load().server == ""


def test_a_server_that_cannot_be_reached_brings_the_model_back(rig: Rig) -> None:
    rig.choose(server="wss://a.example.org")
    rig.report(FATAL)
    assert not rig.requested[-1].is_remote
    assert rig.switch.shown().server == ""


def test_a_server_takes_the_place_of_an_engine_of_another_environment(
    host: QWidget, session: ScriptedSession, store: PreferenceStore
) -> None:
    rig = Rig(host, session, store, StartSettings(engine_python=Path("python")))
    rig.is_ready()
    rig.choose(server="wss://a.example.org")
    assert rig.requested[-1].engine_python is None
    assert rig.requested[-1].server == "wss://a.example.org"
