"""The settings of turn-taking: one frozen value that checks how its times relate. Pure; any thread."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.dialog.end_of_turn import DEFAULT_EAGERNESS, POLICIES, EndOfTurnPolicy, TurnEndFusion
from app.dialog.interruption import InterruptionSettings
from app.settings import Eagerness, InputMode
from engine_runtime.setting import check, setting


@dataclass(frozen=True, slots=True)
class TurnTakingSettings:
    """When a user turn starts, continues and ends. All times in milliseconds of captured audio."""

    input_mode: InputMode | None = None
    """What opens a turn; None for the default, voice activity."""
    start_threshold: float = 0.5
    """A frame at or above this probability is speech while nobody speaks."""
    end_threshold: float = 0.35
    """While the user speaks, a frame is speech down to this probability (hysteresis)."""
    start_ms: int = 96
    """Speech needed, within `start_window_ms`, to open a turn."""
    start_window_ms: int = 128
    """Window in which `start_ms` of speech has to fall."""
    pre_roll_ms: int = setting(320, least=0)
    """Audio before the first speech frame that still belongs to the turn, so that no onset is cut."""
    speculate_ms: int = 96
    """Silence after which a reply is made speculatively. The VAD still hears speech for about 110 ms after
    its end, so this is a real silence of 200 ms."""
    pause_ms: int = 160
    """Silence after which the turn may be over (candidate end): the detector is asked."""
    end_ms: int = 640
    """Silence after which the turn is over: it is committed. With a detector, where its answer is not in
    time, and the least wait where it is not clear."""
    eagerness: Eagerness | None = None
    """How soon a pause that sounds finished is committed (eagerness); None for the default."""
    tail_ms: int = 96
    """Silence after the last speech that is still given to the engine; the rest of a pause only if speech
    resumes."""
    min_speech_ms: int = setting(160, least=0)
    """A turn with less speech than this is dropped (a cough, a click)."""
    max_turn_ms: int = 30_000
    """A turn is committed at this length even if the user continues."""
    reopen_ms: int = setting(1_200, least=0)
    """Speech that starts this soon after a commit, and before the reply is heard, continues the same turn."""
    barge_in: bool = True
    """Whether the user may interrupt a reply by voice."""
    barge_in_threshold: float = 0.6
    """Probability needed while the assistant speaks."""
    barge_in_ms: int = setting(64, least=0)
    """Speech needed, without a gap, to pause the reply. `interruption` decides what follows."""
    barge_in_clear: float = 0.75
    """Probability at which a single frame is enough where two would be needed."""
    bystander_db: float | None = 10.0
    """Speech that is quieter than the user's turns by this much is somebody else's; None: all speech counts.
    People who talk with each other at one microphone differ by less."""
    interruption: InterruptionSettings = field(default_factory=InterruptionSettings)
    """When speech over a reply is a turn, and when the reply resumes."""
    fusion: TurnEndFusion = field(default_factory=TurnEndFusion)
    """How the language model's answer about a pause counts, where it gives one."""

    def __post_init__(self) -> None:
        check(self)
        if not 0.0 < self.end_threshold <= self.start_threshold <= 1.0:
            raise ValueError(
                "need 0 < end_threshold <= start_threshold <= 1, "
                f"got {self.end_threshold} and {self.start_threshold}"
            )
        if not 0.0 < self.barge_in_threshold <= 1.0:
            raise ValueError(f"barge_in_threshold must be in (0, 1], got {self.barge_in_threshold}")
        if not self.barge_in_threshold <= self.barge_in_clear:
            raise ValueError(
                "need barge_in_threshold <= barge_in_clear, "
                f"got {self.barge_in_threshold} and {self.barge_in_clear}"
            )
        if self.bystander_db is not None and self.bystander_db <= 0:
            raise ValueError(f"bystander_db must be positive, got {self.bystander_db}")
        if not 0 < self.start_ms <= self.start_window_ms:
            raise ValueError(
                f"need 0 < start_ms <= start_window_ms, got {self.start_ms} and {self.start_window_ms}"
            )
        silences_ms = [self.tail_ms, self.speculate_ms, self.pause_ms, self.end_ms]
        if self.tail_ms < 0 or silences_ms != sorted(silences_ms):
            raise ValueError(
                "need 0 <= tail_ms <= speculate_ms <= pause_ms <= end_ms, "
                f"got {', '.join(map(str, silences_ms))}"
            )
        if self.max_turn_ms <= self.end_ms:
            raise ValueError(f"max_turn_ms {self.max_turn_ms} must be above end_ms {self.end_ms}")

    @property
    def is_voice_activated(self) -> bool:
        """Whether voice activity opens turns and interrupts replies."""
        return self.input_mode != "push"

    @property
    def policy(self) -> EndOfTurnPolicy | None:
        """What answers of the end-of-turn detector mean, None if it is not asked."""
        return POLICIES[self.eagerness or DEFAULT_EAGERNESS]
