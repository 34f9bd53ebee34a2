"""Preferences of the window, stored by QSettings in an INI file.

Values that cannot be read (an edited or damaged file) fall back to their default, one by one.
"""

from __future__ import annotations

import dataclasses
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from PySide6.QtCore import QByteArray, QSettings

from app import paths
from app.audio.echo_cancellation import AudioProcessing, EchoMode
from app.audio.echo_libraries import DEFAULT_LIBRARY
from app.dialog.end_of_turn import DEFAULT_EAGERNESS
from app.gui.common.key_combination import combination
from app.gui.common.preference_file import ServerKey, holds_objects, is_damaged, make_private_file, set_aside
from app.gui.common.themes import ThemeChoice
from app.session.recording import Recording
from app.session.session_settings import SessionSettings
from app.settings import (
    FIXED_IN_AN_ENGINE,
    NAMES_AN_ENGINE,
    Eagerness,
    EchoLibrary,
    InputMode,
    SpeculationMode,
    StartSettings,
)
from engine_runtime.options import Backend, Dtype, FlowSchedule, WeightFormat
from engine_runtime.types import Modality

Choice = TypeVar("Choice", ThemeChoice, Modality)
Name = TypeVar("Name", bound=str)

LATENCIES_MS = (20, 40, 80)
"""What may be asked of the sound devices."""
ENDPOINTING_RANGE_MS = (200, 2000)
Keep = Literal["nothing", "text", "sound"]
"""What is recorded of conversations: nothing, texts with decisions and timings, or these and the sound."""
Interruption = Literal["at_once", "half_second", "second", "never"]
Sensitivity = Literal["low", "normal", "high"]
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
DEVICE_NAME = re.compile(r"cpu|cuda(:[0-9]{1,3})?")
ENGINE_FIELDS = (
    *("server", "server_key", "bundle", "voice", "vocoder", "device", "weights", "saves_memory"),
    *("backend", "engine", "engine_python"),
    *("flow_schedule", "codec_dtype", "exact_encoding", "trt_codec"),
)
"""Preferences that take another engine."""
_OPTIONS = {
    "weights": ("weight_format",),
    "saves_memory": ("rounds_tails", "kv_dtype"),
    "backend": ("backend", "engine"),
    "engine": ("backend", "engine"),
    "server": ("server", "server_key"),
    "server_key": ("server", "server_key"),
}
"""Options of the command line that a preference decides, where that is not the one of its own name."""
ENGINE_OPTIONS = (NAMES_AN_ENGINE | FIXED_IN_AN_ENGINE).union(
    *(_OPTIONS.get(name, (name,)) for name in ENGINE_FIELDS)
)
"""Options of the command line that take another engine."""
LARGEST_SEED = 2**31 - 1
LANGUAGES = ("system", "en", "zh_CN")


@dataclass(frozen=True, slots=True)
class Preferences:
    """Choices of the user. None (or an empty text): the default of the program or the bundle."""

    theme: ThemeChoice = ThemeChoice.SYSTEM
    language: str = "system"
    reply: Modality = Modality.SPEECH
    input_device: str = ""
    output_device: str = ""
    volume: int = 100
    """Volume of what is played, in percent as heard."""
    latency_ms: int = 40
    endpointing_ms: int = SessionSettings().turn_taking.end_ms
    eagerness: Eagerness = DEFAULT_EAGERNESS
    speculate: SpeculationMode = "auto"
    input_mode: InputMode = "voice"
    hotkey: str = ""
    interruption: Interruption = "at_once"
    sensitivity: Sensitivity = "normal"
    ignores_bystanders: bool = True
    echo_cancellation: EchoMode = "auto"
    echo_library: EchoLibrary = DEFAULT_LIBRARY
    noise_suppression: bool = False
    gain_control: bool = False
    seed: int | None = None
    flow_steps: int | None = None
    flow_schedule: FlowSchedule = "cosine"
    codec_dtype: Dtype | None = None
    exact_encoding: bool = False
    server: str = ""
    """Address of a Realtime server; "" for a model on this computer."""
    server_key: str = field(default="", repr=False)
    """Kept in a file of its own."""
    bundle: str = ""
    voice: str = ""
    vocoder: str = ""
    """File of a vocoder in place of the bundle's."""
    device: str = "cpu"
    weights: WeightFormat = "native"
    """On a GPU; the CPU computes with the weights as they are."""
    saves_memory: bool = False
    """Whether both tails use that format, too, and keys and values fp8."""
    backend: Backend = "torch"
    engine: str = ""
    """Folder of a TensorRT-LLM engine; it belongs to the bundle, and is used with its backend."""
    engine_python: str = ""
    """Interpreter of the environment that runs the engine, or empty for this program's own."""
    trt_codec: bool = False
    keep: Keep = "nothing"
    latency_panel: bool = True
    latency_window: bool = False
    """The latency view is in a window of its own."""
    closes_to_tray: bool = False
    starts_minimised: bool = False

    def session_settings(self) -> SessionSettings:
        """The settings of a session with these choices."""
        base = SessionSettings()
        turns = base.turn_taking
        pause_ms = min(turns.pause_ms, self.endpointing_ms)
        speculate_ms = min(turns.speculate_ms, pause_ms)
        interruption_ms = INTERRUPTION_MS[self.interruption]
        recording = Recording(paths.conversations_dir(), with_sound=self.keep == "sound")
        return dataclasses.replace(
            base,
            recording=None if self.keep == "nothing" else recording,
            reply=self.reply,
            input_device=self.input_device or None,
            output_device=self.output_device or None,
            device_latency_s=self.latency_ms / 1e3,
            volume=self.volume / 100,
            seed=self.seed,
            flow_steps=self.flow_steps,
            speculate=self.speculate,
            audio_processing=AudioProcessing(
                self.echo_cancellation, self.noise_suppression, self.gain_control, self.echo_library
            ),
            turn_taking=dataclasses.replace(
                turns,
                start_threshold=SENSITIVITY[self.sensitivity][0],
                end_threshold=SENSITIVITY[self.sensitivity][1],
                end_ms=self.endpointing_ms,
                eagerness=self.eagerness,
                input_mode=self.input_mode,
                pause_ms=pause_ms,
                speculate_ms=speculate_ms,
                tail_ms=min(turns.tail_ms, speculate_ms),
                bystander_db=turns.bystander_db if self.ignores_bystanders else None,
                barge_in=interruption_ms is not None,
                barge_in_ms=interruption_ms or turns.barge_in_ms,
            ),
        )

    def start_settings(self, given: StartSettings) -> StartSettings:
        """The command line, completed by these preferences."""
        chosen = self.with_given(given)
        on_engine = chosen.uses_engine
        on_cpu = chosen.device == "cpu" and not on_engine
        is_native = on_cpu or on_engine
        saves_memory = chosen.saves_memory and not is_native
        decided: dict[str, Any] = {
            "device": "cuda" if on_engine and chosen.device == "cpu" else chosen.device,
            "weight_format": "native" if is_native else chosen.weights,
            "rounds_tails": saves_memory,
            "kv_dtype": "fp8" if saves_memory else "native",
            "flow_steps": chosen.flow_steps,
            "flow_schedule": chosen.flow_schedule,
            "codec_dtype": chosen.codec_dtype,
            "vocoder": paths.user_path(chosen.vocoder) if chosen.vocoder else None,
            "exact_encoding": chosen.exact_encoding,
            "trt_codec": chosen.trt_codec and chosen.codec_dtype != "bfloat16",  # which it cannot have
            "backend": "trtllm" if on_engine else "torch",
            "engine": paths.user_path(chosen.engine) if on_engine else None,
        }
        of_start: dict[str, Any] = {
            "bundle": paths.user_path(chosen.bundle) if chosen.bundle else StartSettings().bundle,
            "voice": paths.user_path(chosen.voice) if chosen.voice else None,
            "server": chosen.server,
            "server_key": chosen.server_key,
            "engine_python": paths.user_path(chosen.engine_python)
            if chosen.engine_python and not chosen.server
            else None,
        }
        if of_start["engine_python"] is not None:
            of_start["seed"] = chosen.seed  # which the other process gets at its start only
        fixed = _given_options(given)
        engine = dataclasses.replace(
            given.engine, **{name: value for name, value in decided.items() if name not in fixed}
        )
        engine = dataclasses.replace(engine, engine_cache=paths.engines_dir() if engine.trt_codec else None)
        return dataclasses.replace(
            given,
            engine=engine,
            **{name: value for name, value in of_start.items() if name not in fixed},
        )

    @property
    def uses_engine(self) -> bool:
        """Whether a TensorRT-LLM engine is the language model."""
        return self.backend == "trtllm" and bool(self.engine)

    def with_given(self, given: StartSettings) -> Preferences:
        """These with what the command line gave, and without what contradicts it: the preferences in force.

        Voice, vocoder and engine were chosen for the bundle of these preferences, so they are left out with
        another one; the engine also where the command line gives what is fixed in an engine. A server is left
        out where the command line names an engine of this computer.
        """
        fixed = _given_options(given)
        known = {
            "bundle": "" if given.bundle == StartSettings().bundle else str(given.bundle),
            "voice": "" if given.voice is None else str(given.voice),
            "vocoder": "" if given.engine.vocoder is None else str(given.engine.vocoder),
            "server": given.server,
            "server_key": given.server_key,
            "engine_python": "" if given.engine_python is None else str(given.engine_python),
            "weights": given.engine.weight_format,
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
            changed |= {"server": "", "server_key": ""}
        if given.server:
            changed["engine_python"] = ""
        for name in (preference.name for preference in dataclasses.fields(self)):
            if fixed.issuperset(_options_of(name)):
                own = given.engine if hasattr(given.engine, name) else given
                changed[name] = known[name] if name in known else getattr(own, name)
        return dataclasses.replace(self, **changed)

    def releases(self, before: Preferences) -> frozenset[str]:
        """Options of the command line that hold no longer, because the user has changed `before` to these."""
        changed = self.changed_from(before)
        options = {option for name in changed for option in _options_of(name)}
        if "bundle" in changed:
            options.add("random_weights")
        if "server" in changed and self.server:
            options |= NAMES_AN_ENGINE
        if changed & {"backend", "engine"} and self.uses_engine:
            options |= FIXED_IN_AN_ENGINE | {"random_weights"}
        return frozenset(options)

    def changed_from(self, before: Preferences) -> set[str]:
        """Names of those that differ."""
        names = [known.name for known in dataclasses.fields(self)]
        return {name for name in names if getattr(self, name) != getattr(before, name)}

    def with_changes(self, before: Preferences, after: Preferences) -> Preferences:
        """These, with what was edited from `before` to `after`."""
        return dataclasses.replace(
            self, **{name: getattr(after, name) for name in after.changed_from(before)}
        )

    def with_engine_of(self, other: Preferences) -> Preferences:
        """These, with the engine of others."""
        return dataclasses.replace(self, **{name: getattr(other, name) for name in ENGINE_FIELDS})


def _options_of(preference: str) -> tuple[str, ...]:
    return _OPTIONS.get(preference, (preference,))


def _given_options(given: StartSettings) -> frozenset[str]:
    """What the command line gave; options that one preference decides together count as given together."""
    together = (set(options) for options in _OPTIONS.values() if given.given.intersection(options))
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
        default = Preferences()
        server, key = self._key.load(self._text("server"))
        loaded = Preferences(
            server=server,
            server_key=key,
            theme=_one_of(ThemeChoice, self._text("theme"), default.theme),
            language=self._text("language") if self._text("language") in LANGUAGES else default.language,
            reply=_one_of(Modality, self._text("reply"), default.reply),
            input_device=self._text("input_device"),
            output_device=self._text("output_device"),
            volume=_or(self._number("volume", 0, 100), default.volume),
            latency_ms=self._number("latency_ms", min(LATENCIES_MS), max(LATENCIES_MS)) or default.latency_ms,
            endpointing_ms=self._number("endpointing_ms", *ENDPOINTING_RANGE_MS) or default.endpointing_ms,
            eagerness=_known(get_args(Eagerness), self._text("eagerness"), default.eagerness),
            speculate=_known(get_args(SpeculationMode), self._text("speculate"), default.speculate),
            input_mode=_known(get_args(InputMode), self._text("input_mode"), default.input_mode),
            hotkey=self._text("hotkey") if combination(self._text("hotkey")) else default.hotkey,
            interruption=_known(get_args(Interruption), self._text("interruption"), default.interruption),
            sensitivity=_known(get_args(Sensitivity), self._text("sensitivity"), default.sensitivity),
            ignores_bystanders=self._text("ignores_bystanders") != "false",
            echo_cancellation=_known(
                get_args(EchoMode), self._text("echo_cancellation"), default.echo_cancellation
            ),
            echo_library=_known(get_args(EchoLibrary), self._text("echo_library"), default.echo_library),
            noise_suppression=self._text("noise_suppression") == "true",
            gain_control=self._text("gain_control") == "true",
            seed=self._number("seed", 0, LARGEST_SEED),
            flow_steps=self._number("flow_steps", *FLOW_STEPS_RANGE),
            flow_schedule=_known(get_args(FlowSchedule), self._text("flow_schedule"), default.flow_schedule),
            codec_dtype=_known((*get_args(Dtype), None), self._text("codec_dtype"), default.codec_dtype),
            exact_encoding=self._text("exact_encoding") == "true",
            bundle=self._text("bundle"),
            voice=self._text("voice"),
            vocoder=self._text("vocoder"),
            device=self._text("device") if DEVICE_NAME.fullmatch(self._text("device")) else default.device,
            weights=_known(get_args(WeightFormat), self._text("weights"), default.weights),
            saves_memory=self._text("saves_memory") == "true",
            backend=_known(get_args(Backend), self._text("backend"), default.backend),
            engine=self._text("engine"),
            engine_python=self._text("engine_python"),
            trt_codec=self._text("trt_codec") == "true",
            keep=_known(get_args(Keep), self._text("keep"), default.keep),
            latency_panel=self._text("latency_panel") != "false",
            latency_window=self._text("latency_window") == "true",
            closes_to_tray=self._text("closes_to_tray") == "true",
            starts_minimised=self._text("starts_minimised") == "true",
        )
        if self.is_kept:
            return loaded
        # The first window has the folder of the conversations, the hotkey and the tray.
        return dataclasses.replace(
            loaded, keep=default.keep, hotkey="", closes_to_tray=False, starts_minimised=False
        )

    def save(self, preferences: Preferences) -> bool:
        """Keep all preferences; False if the file cannot be written."""
        if not self.is_kept:
            return True
        make_private_file(self.file)
        for name in (known.name for known in dataclasses.fields(preferences) if known.repr):
            self._settings.setValue(f"preferences/{name}", _as_text(getattr(preferences, name)))
        self._settings.sync()
        if self._settings.status() is QSettings.Status.FormatError:
            # NOTE: the status of reading the file, which a later write does not reset.
            self._settings = QSettings(self._settings.fileName(), QSettings.Format.IniFormat)
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

    def _text(self, key: str) -> str:
        value = self._settings.value(f"preferences/{key}", "")
        return value if isinstance(value, str) else ""

    def _number(self, key: str, low: int, high: int) -> int | None:
        try:
            number = int(self._text(key))
        except ValueError:
            return None
        return number if low <= number <= high else None


def default_file() -> Path:
    """The file of this user."""
    return paths.settings_dir() / "window.ini"


def _as_text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value.value) if isinstance(value, (ThemeChoice, Modality)) else str(value)


def _or(number: int | None, default: int) -> int:
    return default if number is None else number


def _one_of(kind: type[Choice], text: str, default: Choice) -> Choice:
    try:
        return kind(text)
    except ValueError:
        return default


def _known(choices: tuple[Name, ...], text: str, default: Name) -> Name:
    return next((choice for choice in choices if choice == text), default)
