"""Preferences of the window, stored by QSettings in an INI file.

Values that cannot be read (an edited or damaged file) fall back to their default, one by one.
"""

from __future__ import annotations

import dataclasses
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from PySide6.QtCore import QByteArray, QSettings

from app import paths
from app.audio.echo_cancellation import AudioProcessing, EchoMode
from app.audio.echo_libraries import DEFAULT_LIBRARY
from app.dialog.end_of_turn import DEFAULT_EAGERNESS
from app.dialog.turn_taking_settings import TurnTakingSettings
from app.gui.common.key_combination import combination
from app.gui.common.preference_file import ServerKey, holds_objects, is_damaged, make_private_file, set_aside
from app.gui.common.themes import ThemeChoice
from app.session.session_settings import Recording, SessionSettings
from app.settings import (
    DEFAULT_OVERLAP,
    FIXED_IN_AN_ENGINE,
    NAMES_AN_ENGINE,
    Eagerness,
    EchoLibrary,
    InputMode,
    OverlapMode,
    SpeculationMode,
    StartSettings,
)
from engine_runtime.options import Backend, Dtype, EngineOptions, FlowSchedule, WeightFormat
from engine_runtime.setting import setting, settings
from engine_runtime.types import Modality

LATENCIES_MS = (20, 40, 80)
"""Latencies that may be requested of the sound devices."""
Keep = Literal["nothing", "text", "sound"]
"""What is recorded of conversations: nothing, texts with decisions and timings, or these and the sound."""
Interruption = Literal["at_once", "half_second", "second", "never"]
Sensitivity = Literal["low", "normal", "high"]
Language = Literal["system", "en", "zh_CN"]
SENSITIVITY: dict[Sensitivity, tuple[float, float]] = {
    "low": (0.75, 0.6),
    "normal": (SessionSettings().turn_taking.start_threshold, SessionSettings().turn_taking.end_threshold),
    "high": (0.3, 0.2),
}
"""Probability from which on a frame is speech while nobody speaks, and while the user speaks."""
INTERRUPTION_MS: dict[Interruption, int | None] = {
    "at_once": SessionSettings().turn_taking.barge_in_ms,
    "half_second": 500,
    "second": 1_000,
    "never": None,
}
"""Speech without a gap that interrupts a reply; None: the user cannot interrupt by voice."""
FLOW_STEPS_RANGE = (1, 20)
SCALES = (100, 110, 125, 150, 175, 200, 225, 250, 275, 300)
"""Sizes of texts and plots, in percent, that the keys step through."""
_DEVICE_NAME = re.compile(r"cpu|cuda(:[0-9]{1,3})?")
_LARGEST_SEED = 2**31 - 1
"""Largest integer of a Qt field."""


@dataclass(frozen=True, slots=True)
class Preferences:
    """Choices of the user. None (or an empty text): the default of the program or the bundle.

    `into` names what gets a preference as it is; the rules for the others are in `session_settings` and
    `start_settings`.
    """

    theme: ThemeChoice = ThemeChoice.SYSTEM
    language: Language = "system"
    scale_percent: int = setting(100, least=SCALES[0], most=SCALES[-1])
    """Size of texts and plots."""
    reply: Modality = setting(Modality.SPEECH, into=(SessionSettings,))
    input_device: str = setting("", into=(SessionSettings,))
    output_device: str = setting("", into=(SessionSettings,))
    volume: int = setting(100, least=0, most=100)
    """Volume of all that is played, in percent as heard."""
    latency_ms: int = setting(40, least=min(LATENCIES_MS), most=max(LATENCIES_MS))
    endpointing_ms: int = setting(SessionSettings().turn_taking.end_ms, least=200, most=2000)
    eagerness: Eagerness = setting(DEFAULT_EAGERNESS, into=(TurnTakingSettings,))
    speculate: SpeculationMode = setting("auto", into=(SessionSettings,))
    overlap: OverlapMode = setting(DEFAULT_OVERLAP, into=(SessionSettings,))
    input_mode: InputMode = setting("voice", into=(TurnTakingSettings,))
    hotkey: str = setting("", matches=combination)
    """Key combination of push-to-talk, in the window and on the desktop."""
    mute_hotkey: str = setting("", matches=combination)
    window_hotkey: str = setting("", matches=combination)
    """Key combination that shows or hides the window."""
    interruption: Interruption = "at_once"
    sensitivity: Sensitivity = "normal"
    ignores_bystanders: bool = True
    echo_cancellation: EchoMode = setting("auto", into=(AudioProcessing,))
    echo_library: EchoLibrary = DEFAULT_LIBRARY
    noise_suppression: bool = setting(False, into=(AudioProcessing,))
    gain_control: bool = setting(False, into=(AudioProcessing,))
    seed: int | None = setting(None, least=0, most=_LARGEST_SEED, into=(SessionSettings,))
    flow_steps: int | None = setting(
        None,
        least=FLOW_STEPS_RANGE[0],
        most=FLOW_STEPS_RANGE[1],
        into=(SessionSettings, EngineOptions),
    )
    flow_schedule: FlowSchedule = setting("cosine", into=(EngineOptions,))
    codec_dtype: Dtype | None = setting(None, into=(EngineOptions,))
    exact_encoding: bool = setting(False, into=(EngineOptions,))
    server: str = setting("", into=(StartSettings,), decides=("server", "server_key"))
    """Address of a Realtime server; "" for a model on this computer."""
    server_key: str = setting(
        "", repr=False, is_kept=False, into=(StartSettings,), decides=("server", "server_key")
    )
    """Kept in a file of its own."""
    server_voice: str = setting("", into=(StartSettings,))
    bundle: str = setting("", into=(StartSettings,))
    voice: str = setting("", into=(StartSettings,))
    vocoder: str = setting("", into=(EngineOptions,))
    """File of a vocoder in place of the bundle's."""
    device: str = setting("cpu", matches=_DEVICE_NAME.fullmatch, into=(EngineOptions,))
    weights: WeightFormat = setting("native", into=(EngineOptions,), decides=("weight_format",))
    """On a GPU; the CPU computes with the weights as they are."""
    saves_memory: bool = setting(False, into=(EngineOptions,), decides=("rounds_tails", "kv_dtype"))
    """Whether both tails use that format, too, and keys and values fp8."""
    backend: Backend = setting("torch", into=(EngineOptions,), decides=("backend", "engine"))
    engine: str = setting("", into=(EngineOptions,), decides=("backend", "engine"))
    """Folder of a TensorRT-LLM engine; it belongs to the bundle, and is used with its backend."""
    engine_python: str = setting("", into=(StartSettings,))
    """Interpreter of the environment that runs the engine, or empty for this program's own."""
    trt_codec: bool = setting(False, into=(EngineOptions,))
    captions: bool = False
    whisper: str = ""
    """Folder of the Whisper model that makes them."""
    keep: Keep = "nothing"
    conversations: str = ""
    """Folder of the conversations, or empty for the program's own."""
    latency_panel: bool = True
    latency_window: bool = False
    """Whether the latency view is in its own window."""
    closes_to_tray: bool = False
    starts_minimised: bool = False
    starts_listening: bool = False
    """Whether the microphone is opened as soon as the engine is loaded."""

    def session_settings(self) -> SessionSettings:
        """The settings of a session with these choices."""
        base = SessionSettings()
        turns = base.turn_taking
        pause_ms = min(turns.pause_ms, self.endpointing_ms)
        speculate_ms = min(turns.speculate_ms, pause_ms)
        interruption_ms = INTERRUPTION_MS[self.interruption]
        recording = Recording(self.conversations_dir(), with_sound=self.keep == "sound", packs_sound=True)
        return dataclasses.replace(
            base,
            **self._handed_to(SessionSettings),
            recording=None if self.keep == "nothing" else recording,
            captions=paths.user_path(self.whisper) if self.captions and self.whisper else None,
            device_latency_s=self.latency_ms / 1e3,
            volume=self.volume / 100,
            audio_processing=AudioProcessing(**self._handed_to(AudioProcessing), library=self.echo_library),
            turn_taking=dataclasses.replace(
                turns,
                **self._handed_to(TurnTakingSettings),
                start_threshold=SENSITIVITY[self.sensitivity][0],
                end_threshold=SENSITIVITY[self.sensitivity][1],
                end_ms=self.endpointing_ms,
                pause_ms=pause_ms,
                speculate_ms=speculate_ms,
                tail_ms=min(turns.tail_ms, speculate_ms),
                bystander_db=turns.bystander_db if self.ignores_bystanders else None,
                barge_in=interruption_ms is not None,
                barge_in_ms=interruption_ms or turns.barge_in_ms,
            ),
        )

    def conversations_dir(self) -> Path:
        """The folder of the conversations; one that is not an absolute path is not used."""
        chosen = paths.user_path(self.conversations)
        return chosen if chosen.is_absolute() else paths.conversations_dir()

    def start_settings(self, given: StartSettings) -> StartSettings:
        """The command line, completed by these preferences."""
        chosen = self.with_given(given)
        on_engine = chosen.uses_engine
        on_cpu = chosen.device == "cpu" and not on_engine
        is_native = on_cpu or on_engine
        saves_memory = chosen.saves_memory and not is_native
        of_engine = chosen._handed_to(EngineOptions) | {
            "device": "cuda" if on_engine and chosen.device == "cpu" else chosen.device,
            "weight_format": "native" if is_native else chosen.weights,
            "rounds_tails": saves_memory,
            "kv_dtype": "fp8" if saves_memory else "native",
            "trt_codec": chosen.trt_codec and chosen.codec_dtype != "bfloat16",  # which it cannot have
            "backend": "trtllm" if on_engine else "torch",
            "engine": paths.user_path(chosen.engine) if on_engine else None,
        }
        of_start = chosen._handed_to(StartSettings)
        if chosen.server:
            of_start["engine_python"] = None
        if of_start["engine_python"] is not None:
            of_start["seed"] = chosen.seed  # which the other process gets at its start only
        fixed = _given_options(given)
        engine = dataclasses.replace(
            given.engine, **{name: value for name, value in of_engine.items() if name not in fixed}
        )
        engine = dataclasses.replace(engine, engine_cache=paths.engines_dir() if engine.trt_codec else None)
        return dataclasses.replace(
            given,
            engine=engine,
            **{name: value for name, value in of_start.items() if name not in fixed},
        )

    def _handed_to(self, target: type) -> dict[str, Any]:
        """What `target` gets as it is, by the names of its fields. An empty text is the default there."""
        values: dict[str, Any] = {}
        known, default = settings(target), target()
        for own in _SETTINGS.values():
            if target in own.into:
                name, value = own.target, getattr(self, own.name)
                if own.kind is str and not value:
                    value = getattr(default, name)
                elif known[name].kind is Path:
                    value = paths.user_path(value)
                values[name] = value
        return values

    @property
    def uses_engine(self) -> bool:
        """Whether a TensorRT-LLM engine is the language model."""
        return self.backend == "trtllm" and bool(self.engine)

    def with_given(self, given: StartSettings) -> Preferences:
        """The preferences in force: these with the options of the command line, and without those that
        contradict them.

        Voice, vocoder and engine were chosen for the bundle of these preferences, so they are left out with
        another one; the engine also where the command line gives what is fixed in an engine. A server is left
        out where the command line names an engine of this computer.
        """
        fixed = _given_options(given)
        known = {
            "bundle": "" if given.bundle == StartSettings().bundle else str(given.bundle),
            "saves_memory": given.engine.rounds_tails or given.engine.kv_dtype == "fp8",
            "engine": self.engine if given.engine.engine is None else str(given.engine.engine),
        }
        changed: dict[str, Any] = {}
        is_other_bundle = "bundle" in fixed and known["bundle"] != self.bundle
        is_on_cpu = "device" in fixed and given.engine.device == "cpu"
        if is_other_bundle:
            changed |= {"voice": "", "vocoder": ""}
        if is_other_bundle or is_on_cpu or given.given & (FIXED_IN_AN_ENGINE | {"random_weights"}):
            changed |= {"backend": "torch", "engine_python": ""}
        if given.given & NAMES_AN_ENGINE:
            changed |= {"server": "", "server_key": "", "server_voice": ""}
        if given.server:
            changed["engine_python"] = ""
        for own in _SETTINGS.values():
            if fixed.issuperset(own.targets):
                owner = given.engine if hasattr(given.engine, own.target) else given
                value = known[own.name] if own.name in known else getattr(owner, own.target)
                changed[own.name] = own.text(value) if own.kind is str else value
        return dataclasses.replace(self, **changed)

    def releases(self, before: Preferences) -> frozenset[str]:
        """Options of the command line that no longer apply, because the user has changed `before` to
        these."""
        changed = self.changed_from(before)
        options = {option for name in changed for option in _SETTINGS[name].targets}
        if "bundle" in changed:
            options.add("random_weights")
        if "server" in changed and self.server:
            options |= NAMES_AN_ENGINE
        if changed & {"backend", "engine"} and self.uses_engine:
            options |= FIXED_IN_AN_ENGINE | {"random_weights"}
        return frozenset(options)

    def changed_from(self, before: Preferences) -> set[str]:
        """Names of the preferences that differ."""
        return {name for name in _SETTINGS if getattr(self, name) != getattr(before, name)}

    def with_changes(self, before: Preferences, after: Preferences) -> Preferences:
        """These preferences with the edits from `before` to `after`."""
        return dataclasses.replace(
            self, **{name: getattr(after, name) for name in after.changed_from(before)}
        )

    def with_engine_of(self, other: Preferences) -> Preferences:
        """These preferences with the engine of `others`."""
        return dataclasses.replace(self, **{name: getattr(other, name) for name in ENGINE_FIELDS})


_SETTINGS = settings(Preferences)
ENGINE_FIELDS = tuple(
    name
    for name, known in _SETTINGS.items()
    if {StartSettings, EngineOptions}.intersection(known.into) and SessionSettings not in known.into
)
"""Preferences that take another engine."""
ENGINE_OPTIONS = (NAMES_AN_ENGINE | FIXED_IN_AN_ENGINE).union(
    *(_SETTINGS[name].targets for name in ENGINE_FIELDS)
)
"""Options of the command line that take another engine."""


def _given_options(given: StartSettings) -> frozenset[str]:
    """The options given on the command line; those that one preference decides together count as given
    together."""
    together = (known.decides for known in _SETTINGS.values() if given.given.intersection(known.decides))
    return given.given.union(*together)


class PreferenceStore:
    """Reads and writes preferences and the window's geometry, in a file that only its owner can read.

    Attributes:
        is_kept: whether changes are written; a second window only reads the file, and keeps no conversation.
        damaged: where a damaged file was put, None without one.
        is_new: whether nothing was saved before: the first start.
    """

    def __init__(self, file: Path | None = None, *, is_kept: bool = True) -> None:
        self.file = default_file() if file is None else file
        self.is_kept, self.damaged = is_kept, None
        readable = self.file
        if (is_dangerous := holds_objects(self.file)) or is_damaged(self.file):
            readable = Path(os.devnull) / self.file.name  # cannot be read, or written
            if is_kept and (aside := set_aside(self.file)) is not None:
                readable, self.damaged = self.file, aside
            elif not is_dangerous:
                readable = self.file
        self._settings = QSettings(str(readable), QSettings.Format.IniFormat)
        self._key = ServerKey(self.file.with_suffix(".key"))
        self.is_new = is_kept and not self._settings.contains("preferences/theme")

    def load(self) -> Preferences:
        """The saved preferences, with defaults for missing or invalid values."""
        values = {name: known.read(self._text(name)) for name, known in _SETTINGS.items() if known.is_kept}
        values["server"], values["server_key"] = self._key.load(values["server"])
        loaded = Preferences(**values)
        if self.is_kept:
            return loaded
        # The first window has the folder of the conversations, the hotkeys and the tray, and listens.
        return dataclasses.replace(
            loaded,
            keep="nothing",
            hotkey="",
            mute_hotkey="",
            window_hotkey="",
            closes_to_tray=False,
            starts_minimised=False,
            starts_listening=False,
        )

    def save(self, preferences: Preferences) -> bool:
        """Keep all preferences; False if the file cannot be written."""
        if not self.is_kept:
            return True
        make_private_file(self.file)
        if self._settings.status() is not QSettings.Status.NoError:
            # NOTE: the status of an earlier reading or writing, which a later one does not reset.
            self._settings = QSettings(self._settings.fileName(), QSettings.Format.IniFormat)
        for name, known in _SETTINGS.items():
            if known.is_kept:
                self._settings.setValue(f"preferences/{name}", known.text(getattr(preferences, name)))
        self._settings.sync()
        is_kept = self._key.save(preferences.server_key)
        return is_kept and self._settings.status() is QSettings.Status.NoError

    def keep_bytes(self, key: str, value: QByteArray) -> None:
        """Keep the geometry or the splitter of the window."""
        if self.is_kept:
            self._settings.setValue(f"window/{key}", value)

    def kept_bytes(self, key: str) -> QByteArray:
        """The bytes stored by `keep_bytes`; empty if there are none, or if another window has that place."""
        if not self.is_kept:
            return QByteArray()
        value = self._settings.value(f"window/{key}")
        return value if isinstance(value, QByteArray) else QByteArray()

    def _text(self, key: str) -> str | None:
        value = self._settings.value(f"preferences/{key}")
        return value if isinstance(value, str) else None


def default_file() -> Path:
    """The file of this user."""
    return paths.settings_dir() / "window.ini"
