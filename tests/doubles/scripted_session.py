"""A scripted session without an engine, and a realistic conversation. For tests and screenshots."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from app import paths
from app.session.commands import Command
from app.session.engine_jobs import FlowSteps
from app.session.events import (
    Counters,
    DevicesChanged,
    EngineReady,
    Event,
    Levels,
    PlaybackFinished,
    PlaybackStarted,
    ReplyCut,
    ReplyFinished,
    ReplyTextDelta,
    SampleFinished,
    SampleStarted,
    SessionState,
    StateChanged,
    Timing,
    TurnCancelled,
    TurnCommitted,
    TurnOpened,
    TurnSource,
)
from app.session.session import Session
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.timing import TimingEvent
from engine_runtime.types import Modality

MS = 1_000_000
NANO = Bundle.open(paths.assets_dir() / "bundles" / "nano", verify="none").card
CHUNK_MS = 400.0


class ScriptedSession(Session):
    """Records commands; `poll` returns the events passed to `feed`. Has no engine, device or thread."""

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.events: list[Event] = []
        self.is_started = False
        self.is_stopped = False
        self.sound: Path | None = None

    def start(self) -> None:
        """Note the call."""
        self.is_started = True

    def stop(self, timeout_s: float = 5.0) -> bool:
        """Note the call."""
        self.is_stopped = True
        return timeout_s > 0

    def send(self, command: Command) -> None:
        """Record a command."""
        self.commands.append(command)

    def poll(self) -> list[Event]:
        """What was fed since the last call."""
        events, self.events = self.events, []
        return events

    def recorded_sound(self) -> Path | None:
        """The file of a test."""
        return self.sound

    def feed(self, *events: Event) -> None:
        """Let the next poll return these."""
        self.events += events


@dataclass(frozen=True)
class Exchange:
    """One question and its answer, as a script."""

    source: TurnSource
    answer: str
    question: str = ""
    modality: Modality = Modality.SPEECH
    speech_ms: float = 1700.0
    chunks: int = 5
    heard_words: int | None = None
    """Of an answer that is interrupted, the words that are heard."""


EXCHANGES = (
    Exchange("sample", "I am Moss, a small voice assistant.", "Hello, who are you?", chunks=6),
    Exchange("voice", "two plus three is five", speech_ms=1900, chunks=4),
    Exchange("voice", "plus two is seven", speech_ms=1100, chunks=4),
    Exchange("text", "The capital of France is Paris.", "What is the capital of France?", Modality.TEXT),
    Exchange("voice", "the day after Monday is Tuesday", speech_ms=2300, chunks=6),
    Exchange("text", "the opposite of big is small", "What is the opposite of big?", chunks=5),
    Exchange("sample", "five four three two one", "Count down from five.", speech_ms=1500, chunks=6),
    Exchange("voice", "the sky is blue", speech_ms=1600, chunks=4),
)

INTERRUPTED = (
    Exchange("text", "The opposite of", "What is the opposite of big?", Modality.TEXT, heard_words=3),
    Exchange("voice", "the sky is blue", speech_ms=1600, chunks=4, heard_words=0),
    Exchange("voice", "two plus three is five", speech_ms=1900, chunks=4, heard_words=2),
    Exchange(
        "text",
        "The capital of France is Paris, a city on the Seine with about two million people, known for the "
        "Eiffel Tower and for its bakeries.",
        "What is the capital of France?",
        chunks=18,
        heard_words=9,
    ),
)


def opening() -> list[Event]:
    """Engine ready, devices open, listening."""
    return [
        DevicesChanged(("pulse", "USB headset"), ("pulse", "USB headset"), "pulse", "pulse"),
        EngineReady("nano", 2.4, 16000, 24000, NANO, flow_steps=FlowSteps(2, 2)),
        Counters(0, 0),
        StateChanged(SessionState.LISTENING),
    ]


def conversation(exchanges: tuple[Exchange, ...] = EXCHANGES, seed: int = 7) -> Iterator[list[Event]]:
    """The events of a conversation, one list per exchange."""
    chance, now_ms = random.Random(seed), 1000.0
    for turn_id, exchange in enumerate(exchanges, start=1):
        timings, now_ms = exchange_timings(turn_id, exchange, now_ms, chance)
        now_ms += chance.uniform(500, 1600)
        yield exchange_events(turn_id, exchange, timings, chance)


def all_timings(seed: int = 7, rounds: int = 3) -> list[TimingEvent]:
    """The timing events alone, of the script held several times."""
    return [
        event.event
        for events in conversation(EXCHANGES * rounds, seed)
        for event in events
        if isinstance(event, Timing)
    ]


def exchange_events(
    turn_id: int, exchange: Exchange, timings: list[TimingEvent], chance: random.Random
) -> list[Event]:
    """What a session reports of one exchange, in order."""
    events: list[Event] = []
    spoken = exchange.modality is Modality.SPEECH
    sample = Path("samples") / f"{exchange.question or 'question'}.wav"
    if exchange.source == "sample":
        events.append(SampleStarted(sample, exchange.speech_ms / 1e3))
    events.append(
        TurnOpened(turn_id, exchange.source, exchange.question if exchange.source == "text" else "")
    )
    if exchange.source != "text":
        events.append(StateChanged(SessionState.HEARING))
        events += [Levels(level, -120.0, 0.9) for level in _loudness(exchange.speech_ms, chance)]
    seconds = 0.0 if exchange.source == "text" else exchange.speech_ms / 1e3
    events += [TurnCommitted(turn_id, seconds), StateChanged(SessionState.THINKING)]
    events += [Timing(timing) for timing in timings]
    words = exchange.answer.split(" ")
    events += [ReplyTextDelta(turn_id, word if not i else f" {word}", spoken) for i, word in enumerate(words)]
    audio_ms = exchange.chunks * CHUNK_MS if spoken else 0.0
    share = _heard_share(exchange)
    if spoken and share:
        events += [PlaybackStarted(turn_id), StateChanged(SessionState.SPEAKING)]
        events += [Levels(-120.0, level, 0.02) for level in _loudness(share * audio_ms, chance)]
    codes = round(audio_ms / 80)
    events.append(
        ReplyFinished(turn_id, exchange.modality, audio_ms / 1e3, exchange.answer, 20, codes, "stop")
    )
    if exchange.heard_words is not None:
        events += _cut(turn_id, exchange, audio_ms / 1e3)
    elif spoken:
        events.append(PlaybackFinished(turn_id))
    if exchange.source == "sample":
        events.append(SampleFinished(sample))
    return [*events, StateChanged(SessionState.LISTENING)]


def _heard_share(exchange: Exchange) -> float:
    """How much of the answer is heard."""
    words = exchange.answer.split(" ")[: exchange.heard_words]
    return len(" ".join(words)) / len(exchange.answer)


def _cut(turn_id: int, exchange: Exchange, made_s: float) -> list[Event]:
    """The answer was interrupted by the user's voice."""
    share = _heard_share(exchange)
    place = round(share * len(exchange.answer))
    heard, rest = exchange.answer[:place], exchange.answer[place:]
    heard_s, codes = share * made_s, round(share * made_s * 12.5)
    cut = ReplyCut(turn_id, "barge_in", exchange.modality, heard, rest, heard_s, made_s, 20, codes)
    return [cut, TurnCancelled(turn_id, "barge_in")]


def exchange_timings(
    turn_id: int, exchange: Exchange, at_ms: float, chance: random.Random
) -> tuple[list[TimingEvent], float]:
    """Timing events of one exchange on the tests' clock, and when its last sound is over (ms)."""
    events: list[TimingEvent] = []

    def emit(name: str, start_ms: float, duration_ms: float, **attributes: float | int | str) -> float:
        span = (int(start_ms * MS), int(duration_ms * MS))
        events.append(TimingEvent(name, turn_id, *span, "engine", attributes))
        return start_ms + duration_ms

    spoken = exchange.modality is Modality.SPEECH
    end = commit = at_ms
    if exchange.source != "text":
        end = at_ms + exchange.speech_ms
        for index in range(int(exchange.speech_ms // 160)):
            emit(
                "prefill",
                at_ms + index * 160,
                max(2.4, chance.gauss(5.2, 0.9)),
                tokens=2,
                cached_tokens=2 * index,
            )
        commit = end + 640 + chance.uniform(0, 12)
        answer: dict[str, float | int | str] = {
            "probability": 0.86,
            "stage": "possible",
            "asked_ms": 160.0,
            "answered_ms": 224.0,
        }
        emit("end_of_turn", end + 162, 48, **answer)
        emit("endpointing", end, commit - end, reason="possible", silence_ms=640.0)
    emit("commit", commit, 0)
    rows = chance.randint(4, 9) if exchange.source != "text" else chance.randint(10, 16)
    clock = (
        emit("prefill", commit + 2, 4 + rows * 1.1, tokens=rows, tokens_at_commit=rows, phase="commit") + 1
    )
    if not spoken:
        for index in range(9):
            clock = emit("step", clock, max(3.0, chance.gauss(4.2, 0.5)), index=index, mode="text") + 0.3
        emit("reply", commit, clock - commit, audio_s=0.0, finish_reason="stop")
        return events, clock
    first = 0.0
    for chunk in range(exchange.chunks):
        for index in range(8 if chunk == 0 else 5):
            clock = emit("step", clock, max(3.0, chance.gauss(4.4, 0.6)), index=index, mode="audio") + 0.3
        clock = emit("token2mel", clock, chance.gauss(74, 8), chunk=chunk, frames=20, audio_ms=CHUNK_MS) + 0.6
        clock = (
            emit("vocoder", clock, chance.gauss(33, 4), chunk=chunk, samples=9600, audio_ms=CHUNK_MS) + 0.6
        )
        if chunk == 0:
            first = emit("first_audio", commit, clock - commit)
    hold = 20 + chance.uniform(0, 30)
    sound = emit("playback_hold", first, hold, reason="pace", target_ms=0.0) + 28 + chance.uniform(0, 14)
    if exchange.source != "text":
        emit("confirm_to_sound", commit, first + hold - commit)
        emit("voice_to_voice", end, sound - end)
    audio_ms = exchange.chunks * CHUNK_MS
    for tick in range(int(audio_ms // 50) + 1):
        made = CHUNK_MS * (1 + min(exchange.chunks - 1, math.floor((sound - first + tick * 50) / 150)))
        emit("playback_buffer", sound + tick * 50, 0, level_ms=max(0.0, made - tick * 50))
    steady = (clock - first) / max(1.0, audio_ms - CHUNK_MS)
    ratios = {"rtf_total": (clock - commit) / audio_ms, "rtf_steady": steady}
    ratios |= {"first_chunk_ratio": (first - commit) / CHUNK_MS, "flow_steps": 2, "memory_gb": 0.6}
    emit("reply", commit, clock - commit, audio_s=audio_ms / 1e3, finish_reason="stop", **ratios)
    return sorted(events, key=lambda event: event.start_ns + event.duration_ns), sound + audio_ms


def _loudness(duration_ms: float, chance: random.Random) -> list[float]:
    """Levels of something that sounds like syllables, one per 50 ms."""
    count = int(duration_ms // 50)
    return [
        -16 - 20 * abs(math.sin(index * 0.9 + chance.uniform(0, 0.7))) ** 2 - 8 * chance.random()
        for index in range(count)
    ]
