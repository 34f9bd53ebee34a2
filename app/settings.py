"""Start-up settings: bundle, device, seed. Preferences changed in the window are saved by app.gui.

In: the command line and the environment. Out: one frozen value that the composition root reads.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from app import paths
from engine_runtime.options import EngineOptions

Eagerness = Literal["off", "patient", "balanced", "eager"]
"""How soon a pause that sounds finished ends a turn; "off" goes by silence alone."""
SpeculationMode = Literal["auto", "on", "off"]
"""Whether a reply is made before the turn is confirmed; "auto": while the engine keeps up."""

InputMode = Literal["voice", "push", "both"]
"""What opens a turn: voice activity, the button of push-to-talk, or both."""
EchoLibrary = Literal["pywebrtc", "livekit"]
"""What cancels the echo: the package pywebrtc-audio, or the audio processing of livekit."""


NAMES_AN_ENGINE = frozenset({"bundle", "engine", "backend", "engine_python", "random_weights"})
"""Options that name an engine of this computer."""
FIXED_IN_AN_ENGINE = frozenset({"weight_format", "rounds_tails", "kv_dtype", "dtype", "prefill_tokens"})
"""Options that a TensorRT-LLM engine does not have: they are fixed when it is built."""


@dataclass(frozen=True, slots=True)
class StartSettings:
    """Choices of the command line; in the window others can be made while it runs."""

    bundle: Path = field(default_factory=paths.default_bundle)
    """Folder of the model bundle."""
    engine: EngineOptions = field(default_factory=EngineOptions)
    """How the networks run."""
    given: frozenset[str] = field(default=frozenset(), compare=False)
    """Options that the command line gave, by their names here and in `EngineOptions`. The preferences of the
    window decide the others, and each of these once the user has changed it in the window."""
    seed: int | None = None
    """Seed of the sampling, or None for the bundle's own."""
    voice: Path | None = None
    """Recording of the voice to speak with, or None for the bundle's own."""
    eagerness: Eagerness | None = None
    """How soon turns end, or None for what the user chose in the window."""
    input_mode: InputMode | None = None
    """What opens a turn, or None for what the user chose in the window."""
    speculate: SpeculationMode | None = None
    """Whether replies are made speculatively, or None for what the user chose in the window."""
    server: str = ""
    """Address of the Realtime server that makes the replies, "" for an engine of this process."""
    server_key: str = field(default="", repr=False)
    """Key for it, "" if it wants none."""
    engine_python: Path | None = None
    """Interpreter of the environment that runs the engine as a child process, or None for this process."""
    echo_library: EchoLibrary | None = None
    """What cancels the echo, or None for what the user chose in the window."""

    @property
    def is_remote(self) -> bool:
        """Whether another process makes the replies."""
        return bool(self.server) or self.engine_python is not None

    def loads_as(self, other: StartSettings) -> bool:
        """Whether the same engine serves both: its flow steps change while it runs."""
        steps = self.engine.flow_steps
        return self == replace(other, engine=replace(other.engine, flow_steps=steps))

    def released(self, options: Collection[str]) -> StartSettings:
        """These as if the command line had not given some of its options."""
        names = self.given.intersection(options)
        of_engine = _defaults(EngineOptions(), names)
        own = _defaults(StartSettings(), names - of_engine.keys())
        return replace(self, engine=replace(self.engine, **of_engine), given=self.given - names, **own)


def _defaults(settings: EngineOptions | StartSettings, names: Collection[str]) -> dict[str, Any]:
    return {known.name: getattr(settings, known.name) for known in fields(settings) if known.name in names}


def serve_options(settings: StartSettings) -> list[str]:
    """The options of `moss-voice serve` for the engine of these settings."""
    engine = settings.engine
    values = {
        "--bundle": settings.bundle,
        "--voice": settings.voice,
        "--device": engine.device,
        "--dtype": engine.dtype,
        "--seed": settings.seed,
        "--flow-steps": engine.flow_steps,
        "--flow-schedule": engine.flow_schedule,
        "--codec-dtype": engine.codec_dtype,
        "--vocoder": engine.vocoder,
        "--weights": engine.weight_format,
        "--kv": engine.kv_dtype,
        "--prefill-tokens": engine.prefill_tokens,
        "--kernels": engine.kernels,
        "--compute-capability": engine.compute_capability,
        "--gpu-memory-gb": engine.gpu_memory_gb,
        "--backend": engine.backend,
        "--engine": engine.engine,
        "--random-weights": engine.random_weights,
    }
    switches = {
        "--trt-codec": engine.trt_codec,
        "--exact-encoding": engine.exact_encoding,
        "--tails": engine.rounds_tails,
        "--no-graphs": not engine.graphs,
    }
    words = [f"{name}={value}" for name, value in values.items() if value is not None]
    return words + [name for name, is_on in switches.items() if is_on]
