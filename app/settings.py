"""Start-up settings: bundle, device, seed. Preferences changed in the window are saved by app.gui.

In: the command line and the environment. Out: one frozen value that the composition root reads.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from app import paths
from engine_runtime.options import LARGEST_SEED, EngineOptions
from engine_runtime.setting import Setting, check, setting
from engine_runtime.setting import settings as settings_of

Eagerness = Literal["off", "patient", "balanced", "eager"]
"""How soon a pause that sounds finished ends a turn; "off" waits for silence alone."""
SpeculationMode = Literal["auto", "on", "off"]
"""Whether a reply is made before the turn is confirmed; "auto": while the engine keeps up."""

OverlapManner = Literal["pause", "duck", "off"]
"""What happens to a reply when somebody speaks over it, until it is clear whether that is a turn: it is
paused, its volume falls, or nothing."""
OverlapMode = Literal["auto", OverlapManner]
"""The manner, or "auto": "pause" while an echo of the reply is cancelled, else "duck"."""
DEFAULT_OVERLAP: OverlapMode = "auto"
InputMode = Literal["voice", "push", "both"]
"""What opens a turn: voice activity, the push-to-talk button, or both."""
EchoLibrary = Literal["pywebrtc", "livekit"]
"""The echo canceller: the package pywebrtc-audio, or the audio processing of livekit."""


NAMES_AN_ENGINE = frozenset({"bundle", "engine", "backend", "engine_python", "random_weights"})
"""Options that name an engine of this computer."""
FIXED_IN_AN_ENGINE = frozenset({"weight_format", "rounds_tails", "kv_dtype", "dtype", "prefill_tokens"})
"""Options that a TensorRT-LLM engine does not have: they are fixed when it is built."""
OF_AN_ENGINE = ("bundle", "voice", "seed")
"""Start settings that every engine has, beside its `EngineOptions`."""


@dataclass(frozen=True, slots=True)
class StartSettings:
    """Choices of the command line; in the window others can be made while it runs."""

    bundle: Path = setting(
        factory=paths.default_bundle,
        option="--bundle",
        metavar="DIR",
        help=f"model bundle, a folder or the name of a fetched one (default: ${paths.BUNDLE_VARIABLE}, "
        "else the shipped one)",
    )
    engine: EngineOptions = field(default_factory=EngineOptions)
    """How the networks run."""
    given: frozenset[str] = field(default=frozenset(), compare=False)
    """Options that the command line gave, by their names here and in `EngineOptions`. The preferences of the
    window decide the others, and each of these once the user has changed it in the window."""
    seed: int | None = setting(
        None,
        least=0,
        most=LARGEST_SEED,
        option="--seed",
        metavar="SEED",
        help="seed of the sampling: the same conversation gets the same replies (default: the bundle's, or "
        "else a new one for each conversation)",
    )
    voice: Path | None = setting(
        None,
        option="--voice",
        metavar="FILE",
        help="speak in the voice of this recording (WAV or FLAC): at least 3.2 s of speech, of which the "
        "first 6 s are used (bundles with a speaker encoder); its voice print stays in the cache until "
        "`voices --remove`",
    )
    eagerness: Eagerness | None = setting(
        None,
        option="--eagerness",
        help="how soon a pause that sounds finished ends a turn; off waits for silence alone (default: the "
        "window's setting, else balanced)",
    )
    input_mode: InputMode | None = setting(
        None,
        option="--input-mode",
        help="what opens a turn: voice activity, push-to-talk, or both (default: the window's setting, else "
        "voice)",
    )
    overlap: OverlapMode | None = setting(
        None,
        option="--overlap",
        help="what happens to a reply when somebody speaks over it, until it is clear whether that is a "
        "turn: it pauses, its volume falls (duck), or nothing; auto ducks it while the microphone "
        "does not hear it, as with headphones, and else pauses it (default: the window's setting, else auto)",
    )
    speculate: SpeculationMode | None = setting(
        None,
        option="--speculate",
        help="make the reply at the first pause and hold it until the turn is confirmed; auto does so while "
        "the engine keeps up (default: the window's setting, else auto)",
    )
    server: str = setting(
        "",
        option="--server",
        metavar="URL",
        help="hold the conversation with this Realtime server, such as ws://127.0.0.1:8000 or "
        "wss://voice.example.org, and load no model",
    )
    server_key: str = field(default="", repr=False)
    """Key for it, "" if it wants none."""
    server_voice: str = setting(
        "",
        option="--server-voice",
        metavar="NAME",
        help="voice of the server's replies, where it has several, such as marin (default: its own choice)",
    )
    engine_python: Path | None = setting(
        None,
        option="--engine-python",
        metavar="FILE",
        help="run the engine as a child process in the environment of this interpreter, such as "
        "~/moss-trt/bin/python with TensorRT-LLM; it needs this program with the extra serve",
    )
    echo_library: EchoLibrary | None = setting(
        None,
        option="--echo-library",
        help="echo canceller: the package pywebrtc-audio, or that of LiveKit (default: the "
        "window's setting, else pywebrtc)",
    )

    transcribe: Path | None = setting(
        None,
        option="--transcribe",
        metavar="DIR",
        help="write down what is said by the Whisper model in this folder (CTranslate2's format, needs the "
        "extra transcribe), in a process of the lowest priority",
    )

    def __post_init__(self) -> None:
        check(self)

    @property
    def is_remote(self) -> bool:
        """Whether another process makes the replies."""
        return bool(self.server) or self.engine_python is not None

    def loads_as(self, other: StartSettings) -> bool:
        """Whether the same engine can serve both: flow steps change while it runs."""
        steps = self.engine.flow_steps
        return self == replace(other, engine=replace(other.engine, flow_steps=steps))

    def released(self, options: Collection[str]) -> StartSettings:
        """These settings as if some options of the command line had not been given."""
        names = self.given.intersection(options)
        of_engine = _defaults(EngineOptions(), names)
        own = _defaults(StartSettings(), names - of_engine.keys())
        return replace(self, engine=replace(self.engine, **of_engine), given=self.given - names, **own)


def _defaults(settings: EngineOptions | StartSettings, names: Collection[str]) -> dict[str, Any]:
    return {known.name: getattr(settings, known.name) for known in fields(settings) if known.name in names}


def serve_options(settings: StartSettings) -> list[str]:
    """The options of `moss-voice serve` for the engine of these settings."""
    words: list[str] = []
    for owner, names in ((settings, OF_AN_ENGINE), (settings.engine, None)):
        for known in options(type(owner), names):
            value = getattr(owner, known.name)
            if known.kind is bool:
                words += [known.option] * (value is not known.default)
            elif value is not None:
                words.append(f"{known.option}={value}")
    return words


def options(owner: type, names: Collection[str] | None = None) -> list[Setting]:
    """The settings of a class that have an option of the command line, or those of them with these names."""
    with_option = (known for known in settings_of(owner).values() if known.option)
    return [known for known in with_option if names is None or known.name in names]
