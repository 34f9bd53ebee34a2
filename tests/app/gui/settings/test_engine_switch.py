"""Another engine is loaded while the window runs; a failure brings the one before back."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtWidgets import QWidget

from app.gui.common.bridge import SessionBridge
from app.gui.common.preferences import Preferences, PreferenceStore
from app.gui.settings.applied_preferences import AppliedPreferences
from app.gui.settings.engine_switch import EngineSwitch
from app.session.commands import ApplySettings, LoadEngine
from app.session.engine_slot import EngineFactory
from app.session.events import EngineReady, ErrorRaised
from app.settings import StartSettings
from engine_runtime.errors import Problem
from engine_runtime.options import EngineOptions
from tests.doubles.scripted_session import ScriptedSession

FATAL = ErrorRaised(Problem("The bundle is broken.", "Get it again."), is_fatal=True)


class Rig:
    """A switch, and the engines that it asked for."""

    def __init__(self, host: QWidget, session: ScriptedSession, store: PreferenceStore, given: StartSettings):
        self.session = session
        self.bridge = SessionBridge(session, host)
        self.applied = AppliedPreferences(host, self.bridge, store, given)
        self.requested: list[StartSettings] = []
        self.notices: list[str] = []
        self.switch = EngineSwitch(host, self.bridge, self.applied, self.loader)
        self.switch.noticed.connect(self.notices.append)

    def loader(self, start: StartSettings) -> EngineFactory:
        self.requested.append(start)
        engine: Any = nullcontext()
        return lambda: engine

    def choose(self, **changes: Any) -> None:
        """Change preferences in the settings dialog."""
        self.switch.apply_edited(dataclasses.replace(self.applied.current, **changes))

    def report(self, event: EngineReady | ErrorRaised) -> None:
        self.session.feed(event)
        self.bridge.poll()

    def is_ready(self, name: str = "nano", *, keeps_history: bool = True) -> None:
        self.report(EngineReady(name, 1.0, 16_000, 24_000, keeps_history=keeps_history))


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
    assert rig.notices == ["other is ready. It does not know the conversation so far."]


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
        given=frozenset({"bundle", "device", "flow_steps", "rounds_tails", "kv_dtype", "seed"}),
        seed=4,
    )
    rig = Rig(host, session, store, given)
    rig.is_ready()
    assert rig.applied.current.bundle == "/given"
    assert (rig.applied.current.device, rig.applied.current.flow_steps) == ("cpu", 3)
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
    applied = AppliedPreferences(host, bridge, store, StartSettings())
    switch = EngineSwitch(host, bridge, applied, None)
    switch.apply_edited(Preferences(bundle="/models/other"))
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
    assert rig.applied.current.server == ""


def test_a_server_takes_the_place_of_an_engine_of_another_environment(
    host: QWidget, session: ScriptedSession, store: PreferenceStore
) -> None:
    rig = Rig(
        host, session, store, StartSettings(engine_python=Path("python"), given=frozenset({"engine_python"}))
    )
    rig.is_ready()
    rig.choose(server="wss://a.example.org")
    assert rig.requested[-1].engine_python is None
    assert rig.requested[-1].server == "wss://a.example.org"


ON_ENGINE = Preferences(
    device="cuda:0",
    weights="fp8",
    saves_memory=True,
    bundle="/models/mine",
    voice="/me.wav",
    backend="trtllm",
    engine="/engines/fp8",
    engine_python="/env/bin/python",
    trt_codec=True,
)


def test_a_saved_engine_is_loaded_without_what_it_cannot_have(
    host: QWidget, session: ScriptedSession, store: PreferenceStore
) -> None:
    store.save(ON_ENGINE)
    start = Rig(host, session, store, StartSettings()).switch.wanted
    assert (start.engine.backend, start.engine.engine) == ("trtllm", Path("/engines/fp8"))
    assert start.engine_python == Path("/env/bin/python")
    assert start.engine.trt_codec
    assert start.engine.engine_cache is not None
    assert start.engine.device == "cuda:0"
    formats = start.engine.weight_format, start.engine.rounds_tails, start.engine.kv_dtype
    assert formats == ("native", False, "native")
    store.save(dataclasses.replace(ON_ENGINE, device="cpu"))
    assert Rig(host, session, store, StartSettings()).switch.wanted.engine.device == "cuda"


def test_saved_formats_are_left_out_of_an_engine_of_the_command_line(
    host: QWidget, session: ScriptedSession, store: PreferenceStore
) -> None:
    store.save(Preferences(device="cuda", weights="fp8", saves_memory=True))
    options = EngineOptions(backend="trtllm", engine=Path("/given/engine"))
    given = StartSettings(engine=options, given=frozenset({"backend", "engine"}))
    start = Rig(host, session, store, given).switch.wanted
    assert start.engine == dataclasses.replace(options, device="cuda", flow_schedule="cosine")
    assert store.load().weights == "fp8", "holds for PyTorch"


@pytest.mark.parametrize(
    ("engine", "name"),
    [
        (EngineOptions(weight_format="fp8"), "weight_format"),
        (EngineOptions(kv_dtype="fp8"), "kv_dtype"),
        (EngineOptions(device="cpu"), "device"),
        (EngineOptions(random_weights=1), "random_weights"),
        (EngineOptions(backend="torch"), "backend"),
        (EngineOptions(), "bundle"),
    ],
)
def test_a_saved_engine_is_left_out_where_the_command_line_contradicts_it(
    host: QWidget, session: ScriptedSession, store: PreferenceStore, engine: EngineOptions, name: str
) -> None:
    store.save(ON_ENGINE)
    start = Rig(host, session, store, StartSettings(engine=engine, given=frozenset({name}))).switch.wanted
    assert (start.engine.backend, start.engine.engine) == ("torch", None)
    assert store.load() == ON_ENGINE


@pytest.mark.parametrize("is_saved", [True, False])
@pytest.mark.parametrize(
    "change", [{"flow_steps": 4}, {"voice": "/you.wav"}, {"exact_encoding": True}, {"eagerness": "off"}]
)
def test_another_preference_keeps_the_engine_and_its_environment(
    host: QWidget, session: ScriptedSession, store: PreferenceStore, is_saved: bool, change: dict[str, Any]
) -> None:
    given = StartSettings()
    if is_saved:
        store.save(ON_ENGINE)
    else:
        options = EngineOptions(
            backend="trtllm", engine=Path("/engines/fp8"), device="cuda:0", trt_codec=True, kernels="torch"
        )
        given = StartSettings(
            bundle=Path("/models/mine"),
            engine=options,
            engine_python=Path("/env/bin/python"),
            given=frozenset(
                {"bundle", "backend", "engine", "device", "trt_codec", "kernels", "engine_python"}
            ),
        )
    rig = Rig(host, session, store, given)
    rig.is_ready()
    before = rig.switch.wanted
    rig.choose(**change)
    engine = rig.switch.wanted.engine
    assert rig.switch.wanted.engine_python == Path("/env/bin/python")
    assert rig.switch.wanted.bundle == Path("/models/mine")
    assert (engine.backend, engine.engine, engine.device) == ("trtllm", Path("/engines/fp8"), "cuda:0")
    assert (engine.trt_codec, engine.kernels) == (True, before.engine.kernels)
    assert bool(rig.requested) == (not change.keys() & {"eagerness", "flow_steps"})


def test_what_the_window_takes_from_the_command_line_comes_back_after_a_failure(
    host: QWidget, session: ScriptedSession, store: PreferenceStore
) -> None:
    given = StartSettings(
        engine=EngineOptions(codec_dtype="float16", flow_steps=3),
        eagerness="off",
        given=frozenset({"codec_dtype", "flow_steps", "eagerness"}),
    )
    rig = Rig(host, session, store, given)
    rig.is_ready()
    rig.choose(codec_dtype="float32")
    rig.choose(eagerness="eager", flow_steps=9)
    rig.report(FATAL)
    assert rig.requested[-1].engine.codec_dtype == "float16"
    assert rig.requested[-1].engine.flow_steps == 9, "no engine was loaded for them"
    assert rig.switch.stands_in
    assert rig.applied.current.eagerness == "eager"


def test_formats_of_the_command_line_give_way_to_an_engine_of_the_window(
    host: QWidget, session: ScriptedSession, store: PreferenceStore
) -> None:
    options = EngineOptions(weight_format="fp8", dtype="bfloat16", device="cuda")
    given = StartSettings(engine=options, given=frozenset({"weight_format", "dtype", "device"}))
    rig = Rig(host, session, store, given)
    rig.is_ready()
    rig.choose(backend="trtllm", engine="/engines/fp8")
    start = rig.requested[-1].engine
    assert (start.backend, start.weight_format, start.dtype) == ("trtllm", "native", None)


def test_a_saved_engine_that_fails_at_the_start_is_replaced_by_the_shipped_model(
    host: QWidget, session: ScriptedSession, store: PreferenceStore
) -> None:
    store.save(ON_ENGINE)
    rig = Rig(host, session, store, StartSettings(seed=5, given=frozenset({"seed"})))
    rig.report(FATAL)
    (start,) = rig.requested
    assert start.bundle == StartSettings().bundle
    assert start.engine == EngineOptions(flow_schedule="cosine")
    assert (start.engine_python, start.voice, start.seed) == (None, None, 5)
    assert rig.switch.stands_in
    assert store.load() == ON_ENGINE, "stays chosen, and can be put right"
    rig.report(FATAL)
    assert len(rig.requested) == 1, "there is nothing else"


def test_the_engine_is_tried_again_when_the_settings_are_confirmed(
    host: QWidget, session: ScriptedSession, store: PreferenceStore
) -> None:
    store.save(ON_ENGINE)
    rig = Rig(host, session, store, StartSettings())
    rig.report(FATAL)
    rig.is_ready()
    rig.choose()
    assert rig.requested[-1].engine.backend == "trtllm"
    assert not rig.switch.stands_in
    rig.report(FATAL)
    assert rig.requested[-1].engine.backend == "torch"
    assert len(rig.requested) == 3


def test_an_engine_of_the_command_line_that_fails_is_not_replaced(
    host: QWidget, session: ScriptedSession, store: PreferenceStore
) -> None:
    options = EngineOptions(backend="trtllm", engine=Path("/given/engine"))
    given = StartSettings(engine=options, given=frozenset({"backend", "engine"}))
    rig = Rig(host, session, store, given)
    rig.report(FATAL)
    assert rig.requested == []
    edited = dataclasses.replace(rig.applied.current, backend="torch")
    assert rig.switch.gives_up(edited) is None, "it does not run"


@pytest.mark.parametrize(
    ("change", "gives_up"),
    [
        ({"backend": "torch"}, True),
        ({"server": "wss://a.example.org"}, True),
        ({"flow_steps": 4}, False),
        ({"engine": "/engines/other"}, False),
        ({"eagerness": "off"}, False),
    ],
)
def test_what_gives_up_the_engine_is_known_beforehand(
    host: QWidget, session: ScriptedSession, store: PreferenceStore, change: dict[str, Any], gives_up: bool
) -> None:
    store.save(ON_ENGINE)
    rig = Rig(host, session, store, StartSettings())
    rig.is_ready()
    edited = dataclasses.replace(rig.applied.current, **change)
    assert (rig.switch.gives_up(edited) is not None) == gives_up
    assert rig.requested == []
    assert store.load() == ON_ENGINE


@pytest.mark.parametrize(
    "given", [StartSettings(), StartSettings(bundle=Path("/a"), given=frozenset({"bundle"}))]
)
def test_flow_steps_change_in_the_engine_that_runs(
    host: QWidget, session: ScriptedSession, store: PreferenceStore, given: StartSettings
) -> None:
    store.save(dataclasses.replace(store.load(), bundle="/saved"))
    rig = Rig(host, session, store, given)
    rig.is_ready()
    rig.choose(flow_steps=4)
    assert rig.requested == []
    (applied,) = [command for command in session.commands if isinstance(command, ApplySettings)]
    assert applied.settings.flow_steps == 4
    saved = store.load()
    assert (saved.flow_steps, saved.bundle) == (4, "/saved"), (
        "what the command line named is not saved with it"
    )
    rig.choose(codec_dtype="float32")
    assert rig.requested[-1].engine.flow_steps == 4
    rig.report(FATAL)
    assert rig.requested[-1].engine.codec_dtype is None, "the engine before had worked"
    assert rig.requested[-1].engine.flow_steps == 4


def test_flow_steps_do_not_try_a_failed_engine_again(
    host: QWidget, session: ScriptedSession, store: PreferenceStore
) -> None:
    store.save(dataclasses.replace(ON_ENGINE, flow_steps=6))
    rig = Rig(host, session, store, StartSettings())
    rig.report(FATAL)
    assert rig.requested[-1].engine.flow_steps == 6, "they are no part of what failed"
    rig.is_ready()
    rig.applied.choose_flow_steps(4)
    assert len(rig.requested) == 1
    assert rig.switch.stands_in
