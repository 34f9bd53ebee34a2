"""The settings of a session, and whether and where it is recorded, as frozen values. Any thread."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from app.audio.echo_cancellation import AudioProcessing
from app.dialog.turn_taking_settings import TurnTakingSettings
from app.settings import OverlapMode, SpeculationMode, StartSettings
from engine_runtime.setting import check, setting
from engine_runtime.types import Modality


@dataclass(frozen=True, slots=True)
class Recording:
    """What is kept of each conversation: texts, decisions and timings, and the sound of both sides."""

    root: Path
    """Each conversation gets a folder in it."""
    with_sound: bool = True
    name: str = ""
    """Name of the folder; "" for the date and time."""
    packs_sound: bool = False
    """Whether sound becomes FLAC after its conversation, that of earlier ones in `root` as well."""


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Settings of a session; `ApplySettings` replaces the complete value at run time."""

    reply: Modality = Modality.SPEECH
    """Kind of reply, from the next turn on."""
    input_device: str | None = None
    """Name of the microphone, or None for the default."""
    output_device: str | None = None
    """Name of the loudspeaker, or None for the default."""
    device_latency_s: float = setting(0.04, least=0.001)
    """Requested latency of the sound devices, in seconds: 0.02, 0.04 or 0.08."""
    playback_start_ms: int = setting(300, least=0)
    """Reply audio to buffer before the first reply starts to play (or the complete reply, if shorter). Later
    replies start as `start_policy` decides."""
    volume: float = setting(1.0, least=0, most=1)
    """Loudness of all that is played, from 0 to 1 as heard (`levels.gain_of`)."""
    turn_taking: TurnTakingSettings = field(default_factory=TurnTakingSettings)
    """When turns start and end."""
    audio_processing: AudioProcessing = field(default_factory=AudioProcessing)
    """Echo cancellation, noise suppression and gain control of the microphone."""
    overlap: OverlapMode | None = None
    """What happens to a reply when somebody speaks over it; None for the default, "auto"."""
    speculate: SpeculationMode | None = None
    """Whether a reply is made and held before the turn is confirmed; None for the default, "auto"."""
    hear_samples: bool = True
    """Whether a sample question is played aloud while it is fed to the assistant."""
    holds_samples: bool = True
    """Whether a sample question waits while a turn is answered; else it continues, and may interrupt."""
    seed: int | None = None
    """Seed of the sampling, or None for the bundle's own or else one for each conversation."""
    flow_steps: int | None = None
    """Euler steps of the flow from the next turn on after a change, None for the bundle's own. Those of the
    beginning are what the engine is loaded with."""
    recording: Recording | None = None
    """Where the conversation is recorded, None if it is not."""
    captions: Path | None = None
    """Folder of the Whisper model that writes down what the user says; None for no captions."""
    max_text_chars: int = setting(2_000, least=1)
    """A typed question longer than this is refused with an explanation."""

    @classmethod
    def of(
        cls,
        start: StartSettings,
        *,
        reply: Modality = Modality.SPEECH,
        input_device: str | None = None,
        output_device: str | None = None,
    ) -> SessionSettings:
        """The defaults, with the turn-taking options of the command line."""
        return cls(
            reply=reply,
            input_device=input_device,
            output_device=output_device,
            seed=start.seed,
            flow_steps=start.engine.flow_steps,
            turn_taking=TurnTakingSettings(eagerness=start.eagerness, input_mode=start.input_mode),
            audio_processing=AudioProcessing(library=start.echo_library),
            overlap=start.overlap,
            speculate=start.speculate,
            captions=start.transcribe,
        )

    def __post_init__(self) -> None:
        check(self)
