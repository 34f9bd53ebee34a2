"""Preferences of the window, stored by QSettings in an INI file.

Values that cannot be read (an edited or damaged file) fall back to their default, one by one.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import platformdirs
from PySide6.QtCore import QByteArray, QSettings

from app import paths
from app.audio.echo_cancellation import AudioProcessing, EchoMode
from app.audio.echo_libraries import DEFAULT_LIBRARY
from app.dialog.end_of_turn import DEFAULT_EAGERNESS
from app.gui.key_combination import combination
from app.gui.preference_file import holds_objects, set_aside
from app.gui.server_key import ServerKey
from app.gui.themes import ThemeChoice
from app.session.recording import Recording
from app.session.session_settings import SessionSettings
from app.settings import PREFERRED, Eagerness, EchoLibrary, InputMode, SpeculationMode, StartSettings
from engine_runtime.options import Dtype, EngineOptions, FlowSchedule, WeightFormat
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
    *("server", "server_key", "bundle", "voice", "device", "weights", "saves_memory"),
    *("flow_steps", "flow_schedule", "codec_dtype", "exact_encoding"),
)
"""Preferences that take another engine."""
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
    """Of what is played, in percent as heard."""
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
    device: str = "cpu"
    weights: WeightFormat = "native"
    """On a GPU; the CPU computes with the weights as they are."""
    saves_memory: bool = False
    """Whether both tails use that format, too, and keys and values fp8."""
    keep: Keep = "nothing"
    latency_panel: bool = True
    latency_window: bool = False
    """The latency view is in a window of its own."""
    closes_to_tray: bool = False
    starts_minimised: bool = False

    def session_settings(self, base: SessionSettings | None = None) -> SessionSettings:
        """The settings of a session with these choices; all else, and seed, eagerness and input mode that are
        set, as in `base`."""
        base = SessionSettings() if base is None else base
        turns = base.turn_taking
        pause_ms = min(turns.pause_ms, self.endpointing_ms)
        speculate_ms = min(turns.speculate_ms, pause_ms)
        interruption_ms = INTERRUPTION_MS[self.interruption]
        recording = Recording(paths.conversations_dir(), with_sound=self.keep == "sound")
        return dataclasses.replace(
            base,
            recording=base.recording if self.keep == "nothing" else recording,
            reply=self.reply,
            input_device=self.input_device or None,
            output_device=self.output_device or None,
            device_latency_s=self.latency_ms / 1e3,
            volume=self.volume / 100,
            seed=self.seed if base.seed is None else base.seed,
            speculate=base.speculate or self.speculate,
            audio_processing=AudioProcessing(
                self.echo_cancellation,
                self.noise_suppression,
                self.gain_control,
                base.audio_processing.library or self.echo_library,
            ),
            turn_taking=dataclasses.replace(
                turns,
                start_threshold=SENSITIVITY[self.sensitivity][0],
                end_threshold=SENSITIVITY[self.sensitivity][1],
                end_ms=self.endpointing_ms,
                eagerness=turns.eagerness or self.eagerness,
                input_mode=turns.input_mode or self.input_mode,
                pause_ms=pause_ms,
                speculate_ms=speculate_ms,
                tail_ms=min(turns.tail_ms, speculate_ms),
                bystander_db=turns.bystander_db if self.ignores_bystanders else None,
                barge_in=interruption_ms is not None,
                barge_in_ms=interruption_ms or turns.barge_in_ms,
            ),
        )

    def start_settings(self, given: StartSettings) -> StartSettings:
        """Complete what the command line left open: bundle, voice, device, and how the networks run.

        The voice was chosen for the bundle of these preferences, so it is left out with another one.
        """
        bundle, voice = given.bundle, given.voice
        if bundle == StartSettings().bundle:
            bundle = paths.user_path(self.bundle) if self.bundle else bundle
            voice = paths.user_path(self.voice) if self.voice and voice is None else voice
        engine = given.engine
        engine = dataclasses.replace(
            engine,
            flow_steps=self.flow_steps if engine.flow_steps is None else engine.flow_steps,
            flow_schedule=engine.flow_schedule or self.flow_schedule,
            codec_dtype=engine.codec_dtype or self.codec_dtype,
            exact_encoding=engine.exact_encoding or self.exact_encoding,
            **{name: value for name, value in self._preferred().items() if name in given.left_open},
        )
        # A model that the command line names is one of this computer.
        is_open = not given.is_remote and given.bundle == StartSettings().bundle
        if not (self.server and is_open and engine.random_weights is None):
            return dataclasses.replace(given, bundle=bundle, voice=voice, engine=engine)
        return dataclasses.replace(
            given, bundle=bundle, voice=voice, engine=engine, server=self.server, server_key=self.server_key
        )

    def _preferred(self) -> dict[str, Any]:
        """Values of `app.settings.PREFERRED`."""
        if self.device == "cpu":
            default = EngineOptions()
            return {name: getattr(default, name) for name in PREFERRED}
        return {
            "device": self.device,
            "weight_format": self.weights,
            "rounds_tails": self.saves_memory,
            "kv_dtype": "fp8" if self.saves_memory else "native",
        }

    def with_engine_of(self, other: Preferences) -> Preferences:
        """These, with the engine of others."""
        return dataclasses.replace(self, **{name: getattr(other, name) for name in ENGINE_FIELDS})

    def with_engine(self, start: StartSettings) -> Preferences:
        """These, with the engine that runs, which the command line may have chosen."""
        engine = start.engine
        return dataclasses.replace(
            self,
            server=start.server,
            server_key=start.server_key,
            bundle="" if start.bundle == StartSettings().bundle else str(start.bundle),
            voice="" if start.voice is None else str(start.voice),
            device=engine.device,
            weights=engine.weight_format,
            saves_memory=engine.rounds_tails or engine.kv_dtype == "fp8",
            flow_steps=engine.flow_steps,
            flow_schedule=engine.flow_schedule or self.flow_schedule,
            codec_dtype=engine.codec_dtype,
            exact_encoding=engine.exact_encoding,
        )


class PreferenceStore:
    """Reads and writes preferences and the window's geometry."""

    def __init__(self, file: Path | None = None) -> None:
        self.file = default_file() if file is None else file
        readable = set_aside(self.file) if holds_objects(self.file) else self.file
        self._settings = QSettings(str(readable), QSettings.Format.IniFormat)
        self._key = ServerKey(self.file.with_suffix(".key"))
        self.is_new = not self._settings.contains("preferences/theme")
        """Whether nothing was saved before: the first start."""

    def load(self) -> Preferences:
        """The saved preferences, with defaults for missing or invalid values."""
        default = Preferences()
        server, key = self._key.load(self._text("server"))
        return Preferences(
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
            device=self._text("device") if DEVICE_NAME.fullmatch(self._text("device")) else default.device,
            weights=_known(get_args(WeightFormat), self._text("weights"), default.weights),
            saves_memory=self._text("saves_memory") == "true",
            keep=_known(get_args(Keep), self._text("keep"), default.keep),
            latency_panel=self._text("latency_panel") != "false",
            latency_window=self._text("latency_window") == "true",
            closes_to_tray=self._text("closes_to_tray") == "true",
            starts_minimised=self._text("starts_minimised") == "true",
        )

    def save(self, preferences: Preferences) -> bool:
        """Keep all preferences; False if the file cannot be written."""
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
        self._settings.setValue(f"window/{key}", value)

    def kept_bytes(self, key: str) -> QByteArray:
        """The bytes stored by `keep_bytes`; empty if there are none."""
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
    return Path(platformdirs.user_config_dir(paths.APP_NAME, appauthor=False)) / "window.ini"


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
