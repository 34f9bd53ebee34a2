"""Jobs of the dialog thread for the engine thread, and their results. Plain frozen values.

A turn has a `CancelScope`, and each commit of it a scope within that one. The dialog thread creates them; it
cancels the turn's when the turn is dropped or its reply interrupted, and the commit's when the turn is
reopened. The engine thread skips cancelled jobs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from engine_runtime.bundle.card import ModelCard
from engine_runtime.bundle.tools import NO_TOOLS, ToolUse
from engine_runtime.errors import MossVoiceError, Problem
from engine_runtime.timing import TimingBus, TimingEvent
from engine_runtime.types import CancelScope, Modality, Pcm, ReplyEvent, ToolCall

if TYPE_CHECKING:  # it imports torch
    from engine_runtime.conversation.snapshot import ConversationSnapshot

HELD_S = 1.0
"""Speech of a speculative reply in seconds after which it waits for its confirmation."""
HELD_DELTAS = 32
"""The same for a text reply."""

# ---- dialog -> engine ----


@dataclass(frozen=True, slots=True)
class OpenTurn:
    """The user starts a turn."""

    turn_id: int
    reply: Modality
    scope: CancelScope


@dataclass(frozen=True, slots=True)
class Hear:
    """More speech, at the engine's input rate."""

    turn_id: int
    pcm: Pcm


@dataclass(frozen=True, slots=True)
class Ask:
    """A typed question."""

    turn_id: int
    text: str


@dataclass(frozen=True, slots=True)
class AskAgain:
    """The question of an earlier turn; that turn and all later ones are removed from the history, unless it
    `keeps` them."""

    turn_id: int
    earlier_id: int
    keeps: bool = False


@dataclass(frozen=True, slots=True)
class Commit:
    """The user's turn is over: make the reply. `seed` overrides the bundle's.

    With `timings` the reply is speculative: its durations go there, and it is made only as far as it is worth
    holding (`HELD_S`) until `Confirm`; where the language model predicts less than `finished`, no further.
    """

    turn_id: int
    reply: Modality
    seed: int | None
    scope: CancelScope
    timings: TimingBus | None = None
    finished: float = 0.0
    max_new: int | None = None
    """Limit of the reply in tokens; None for the bundle's."""
    reports_stages: bool = False
    """Whether `ReplyMade` has the durations of the stages."""


@dataclass(frozen=True, slots=True)
class Confirm:
    """The end of the user's turn is confirmed: make the rest of its speculative reply."""

    turn_id: int


@dataclass(frozen=True, slots=True)
class Reopen:
    """The user continues: revert the commit of `scope` and its reply. The caller has cancelled it."""

    turn_id: int
    scope: CancelScope


@dataclass(frozen=True, slots=True)
class Cancel:
    """Drop the turn, which was not committed. Cancel its scope first: jobs that wait are skipped then."""

    turn_id: int


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Stop the reply, complete or not, and keep the part that was heard: a number of samples at the engine's
    output rate, or of characters of a text reply. Cancel the scope of the turn first: then no step
    follows the one in progress."""

    turn_id: int
    samples_played: int
    characters_shown: int


@dataclass(frozen=True, slots=True)
class Forget:
    """A new conversation."""


@dataclass(frozen=True, slots=True)
class Remove:
    """Take a turn out of the history."""

    turn_id: int


@dataclass(frozen=True, slots=True)
class Remember:
    """Add an exchange that was held elsewhere: typed texts and speech at the engine's input rate, and the
    text of the reply, either of which may be empty, or its call. It goes before the exchange of the turn
    `before`, or to the end."""

    turn_id: int
    question: tuple[str | Pcm, ...]
    reply: str | ToolCall
    before: int | None = None


@dataclass(frozen=True, slots=True)
class Restore:
    """Continue the conversation of a snapshot. Answered with Restored or RestoreFailed."""

    history: dict[str, Any]
    """Its document."""


@dataclass(frozen=True, slots=True)
class UseFlowSteps:
    """Run this many Euler steps of the flow from the next turn on; None for those of the bundle. Answered
    with FlowStepsSet."""

    steps: int | None


@dataclass(frozen=True, slots=True)
class UseContext:
    """What the system turn says beside the modality of the replies; the part of the context that the history
    fills once its oldest part is left out, None if nothing may be left out; and the tools that replies may
    call. From the next prefill on."""

    instructions: str
    retention: float | None
    tools: ToolUse = NO_TOOLS


@dataclass(frozen=True, slots=True)
class Load:
    """Close the engine and load another one. Answered with Loaded or LoadFailed."""

    factory: Callable[[], Any]
    """An EngineSource, whose type names these jobs."""


Job = (
    OpenTurn
    | Hear
    | Ask
    | Commit
    | Confirm
    | Reopen
    | Cancel
    | Interrupt
    | Forget
    | AskAgain
    | Remove
    | Remember
    | Restore
    | UseFlowSteps
    | UseContext
    | Load
)


class JobQueue(Protocol):
    """Takes jobs for the engine thread."""

    def submit(self, job: Job) -> None:
        """Put a job in the queue; never blocks."""


# ---- engine -> dialog ----


@dataclass(frozen=True, slots=True)
class FlowSteps:
    """Euler steps of the flow: those from the next turn on, and those that the bundle names."""

    chosen: int
    bundle: int


@dataclass(frozen=True, slots=True)
class Loaded:
    """The engine is ready."""

    bundle: str
    load_s: float
    input_sample_rate: int
    output_sample_rate: int
    samples_per_code: int
    """0 where the codes are not known, as for a server."""
    card: ModelCard = field(default_factory=ModelCard)
    keeps_history: bool = True
    """Whether the conversation of the engine before continues."""
    can_speculate: bool = True
    """Whether a reply can be made before the turn is confirmed, and taken back: not so with each server."""
    flow_steps: FlowSteps | None = None
    """None where they cannot be chosen."""
    machine: str = ""
    """The GPU or processor that the engine runs on; "" for a server."""


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """There is no engine until another one is loaded."""

    problem: Problem


@dataclass(frozen=True, slots=True)
class EngineLost:
    """The engine is gone for good; there is none until another one is loaded."""

    problem: Problem


@dataclass(frozen=True, slots=True)
class EngineNotice:
    """Something about the engine that needs no action, in words for the user: what slows it down, or that
    the connection to its server was lost or is back. The conversation continues. An event of the session."""

    problem: Problem
    is_connected: bool | None = None
    """False where it says that the connection was lost, True where it is back."""


@dataclass(frozen=True, slots=True)
class FlowStepsSet:
    """The flow steps from the next turn on. `problem` says why they are not the chosen ones, where they are
    not. An event of the session, too."""

    flow_steps: FlowSteps
    problem: Problem | None = None


@dataclass(frozen=True, slots=True)
class Heard:
    """Speech codes of the user so far."""

    turn_id: int
    codes: int


@dataclass(frozen=True, slots=True)
class ReplyResult:
    """The next event of a reply; stale once the `scope` of its commit is cancelled."""

    scope: CancelScope
    event: ReplyEvent


@dataclass(frozen=True, slots=True)
class ReplyMade:
    """The engine has made all of a spoken reply, with this real-time factor: its work / the audio. `stages`
    are the first timing events of the reply, if the commit asked for them."""

    rtf_total: float
    stages: tuple[TimingEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class RolledBack:
    """The reply to the commit of `scope` was discarded, and the engine was ready for more at `ready_ns`, by
    the clock of the timing bus. `work_ns` is the time that it had spent on the reply."""

    scope: CancelScope
    work_ns: int
    ready_ns: int


@dataclass(frozen=True, slots=True)
class HistoryChanged:
    """The history, after it changed."""

    snapshot: ConversationSnapshot


@dataclass(frozen=True, slots=True)
class Restored:
    """The conversation continues; a HistoryChanged came before."""


@dataclass(frozen=True, slots=True)
class RestoreFailed:
    """The conversation cannot be continued; a new one has begun."""

    problem: Problem


@dataclass(frozen=True, slots=True)
class Transcribed:
    """What the user has said so far in a turn, in words; any time after its commit."""

    turn_id: int
    text: str


@dataclass(frozen=True, slots=True)
class TurnFailed:
    """The turn failed and is dropped. `code` as in MossVoiceError."""

    turn_id: int
    problem: Problem
    code: str = MossVoiceError.code


Result = (
    Loaded
    | LoadFailed
    | EngineLost
    | EngineNotice
    | FlowStepsSet
    | Heard
    | ReplyResult
    | ReplyMade
    | RolledBack
    | Transcribed
    | TurnFailed
    | HistoryChanged
    | Restored
    | RestoreFailed
)
