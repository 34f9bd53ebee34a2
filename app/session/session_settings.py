"""The settings of a session, as one frozen value. Any thread may hold it."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.dialog.turn_taking import TurnTakingSettings
from engine_runtime.types import Modality


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Settings of a session; `ApplySettings` replaces the whole value at run time."""

    reply: Modality = Modality.SPEECH
    """What replies are made of, from the next turn on."""
    input_device: str | None = None
    """Name of the microphone, or None for the default."""
    output_device: str | None = None
    """Name of the loudspeaker, or None for the default."""
    device_latency_s: float = 0.04
    """Latency asked of the sound devices, in seconds: 0.02, 0.04 or 0.08."""
    playback_start_ms: int = 300
    """Reply audio to hold before the first sample of the first reply is handed to the device (or the whole
    reply, if shorter). Later replies start when `start_policy` says that they will not run dry."""
    turn_taking: TurnTakingSettings = field(default_factory=TurnTakingSettings)
    """When turns start and end."""
    hear_samples: bool = True
    """Whether a sample question is played aloud while it is fed to the assistant."""
    seed: int | None = None
    """Seed of the sampling, or None for the bundle's own or else one for each conversation."""
    max_text_chars: int = 2_000
    """A typed question longer than this is refused with an explanation."""

    def __post_init__(self) -> None:
        if self.device_latency_s <= 0:
            raise ValueError(f"device_latency_s must be above 0, got {self.device_latency_s}")
        if self.playback_start_ms < 0:
            raise ValueError(f"playback_start_ms must not be negative, got {self.playback_start_ms}")
        if self.max_text_chars < 1:
            raise ValueError(f"max_text_chars must be at least 1, got {self.max_text_chars}")
