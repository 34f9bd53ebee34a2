"""A scripted engine without networks: replies by script, at a chosen speed, and records its calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice
from typing import Self

import numpy as np
from typing_extensions import override

from app import paths
from app.session.clocks import Clock
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.bundle.card import ModelCard
from engine_runtime.bundle.tools import NO_TOOLS, ToolCallFormat
from engine_runtime.conversation.context_window import TurnRoom
from engine_runtime.conversation.history import Exchange, Question
from engine_runtime.conversation.reply_events import ReplyEvents
from engine_runtime.conversation.snapshot import ConversationSnapshot
from engine_runtime.conversation.turn import Conversation, Turn
from engine_runtime.engine import BlockStats, Engine
from engine_runtime.errors import MossVoiceError, Problem
from engine_runtime.lm.chat_template import Prompt, TextTokenizer
from engine_runtime.thread_owner import ThreadOwner
from engine_runtime.timing import TimingBus
from engine_runtime.types import (
    CancelScope,
    FinishReason,
    Modality,
    Pcm,
    ReplyAudio,
    ReplyDone,
    ReplyEvent,
    ReplyText,
    SamplingParams,
    TokenUsage,
    ToolCall,
    TurnEndPrediction,
)
from engine_runtime.work import Task
from tests.doubles.stepped_clock import NEVER_NS, SteppedClock

CODE_SAMPLES = 1_280
CHUNK_CODES = 5
OUT_RATE = 24_000


@dataclass
class Script:
    """How the engine behaves."""

    chunks: int = 3
    chunk_s: float = 0.4
    step_s: float = 0.0
    """Time on the session's clock that each chunk takes."""
    pauses_s: tuple[float, ...] = ()
    """Time that the first, second, ... chunk takes on top of that."""
    words: tuple[str, ...] = ()
    """Text of the first, second, ... chunk."""
    push_s: float = 0.0
    fail_on: str = ""
    """Name of a call that raises."""
    error: Exception = field(
        default_factory=lambda: MossVoiceError("The engine is out of order.", "Repair it.")
    )
    gate: threading.Event | None = None
    """If set, a reply waits for it before its first chunk."""
    predictions: tuple[float, ...] = ()
    """How likely the user has finished, at the first, second, ... commit; the last one holds on."""
    predict_s: float = 0.0
    """Time on the session's clock that a prediction takes."""
    call: ToolCall | None = None
    """What each reply ends with while this tool is offered."""


@cache
def scripted_bundle() -> Bundle:
    """The manifest of nano, with values that a test can tell from the defaults."""
    nano = Bundle.open(paths.assets_dir() / "bundles" / "nano", verify="none")
    return replace(
        nano,
        name="scripted",
        card=ModelCard(),
        lm=replace(
            nano.lm,
            detects_turn_end=False,
            sampling_speech=SamplingParams(max_new=11),
            sampling_text=SamplingParams(max_new=22),
        ),
        flow=replace(nano.flow, steps=10),
    )


@cache
def scripted_prompt() -> Prompt:
    """The chat layout of nano, with calls of tools."""
    bundle = scripted_bundle()
    special = bundle.lm.special_ids
    tokenizer = TextTokenizer(bundle.text_tokenizer, special, bundle.lm.config["text_vocab"])
    return Prompt(tokenizer, special, bundle.lm.prompt, ToolCallFormat("<call>", "</call>"))


def reply_of(events: Iterator[ReplyEvent], commit: CancelScope) -> ReplyEvents:
    """A reply of these events, which are made without work."""

    def advance() -> Task[list[ReplyEvent]]:
        yield from ()
        return list(islice(events, 1))

    return ReplyEvents(commit, advance, lambda event: True)


class ScriptedConversation(Conversation):
    """A number: the scripted engine keeps the exchanges."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.instructions, self.retention, self.tools = "", 0.5, NO_TOOLS


class ScriptedTurn(Turn):
    """A turn without stages."""

    def __init__(self, engine: ScriptedEngine, turn_id: int, conversation: ScriptedConversation) -> None:
        self.turn_id = turn_id
        self._conversation = conversation
        self.heard: list[Pcm] = []
        self._engine = engine
        self._codes = 0
        self._cancelled = threading.Event()
        self._commit = CancelScope()
        self._is_replying = False
        self._timing = engine.timing

    def _call(self, name: str, *details: object) -> None:
        self._engine.calls.append((name, self.turn_id, *details))
        if self._engine.script.fail_on == name:
            raise self._engine.script.error

    def _listen(self, name: str, *details: object) -> None:
        """A call for a turn that is not committed."""
        self._call(name, *details)
        if self._is_replying:
            raise RuntimeError(f"turn {self.turn_id} is replying and cannot take a {name}")

    @override
    def push(self, pcm: Pcm) -> Task[int]:
        yield from ()
        self._listen("push", len(pcm))
        time.sleep(self._engine.script.push_s)
        self.heard.append(pcm)
        before, self._codes = self._codes, sum(map(len, self.heard)) // CODE_SAMPLES
        return self._codes - before

    @override
    def push_text(self, text: str) -> Task[None]:
        yield from ()
        self._listen("push_text", text)

    @override
    def push_question(self, question: Question) -> Task[int]:
        yield from ()
        self._listen("push_question")
        return 7

    @property
    @override
    def question(self) -> Question:
        return Question(())

    @override
    def commit(
        self,
        reply: Modality,
        params: SamplingParams | None = None,
        *,
        scope: CancelScope | None = None,
        timing: TimingBus | None = None,
    ) -> Task[ReplyEvents]:
        yield from ()
        self._listen("commit", reply, params)
        self._is_replying = True
        self._commit = scope or CancelScope()
        self._timing = timing or self._engine.timing
        self._committed_ns = self._timing.clock_ns()
        self._engine.commits += 1
        return reply_of(self.events_of(reply), self._commit)

    def events_of(self, reply: Modality) -> Iterator[ReplyEvent]:
        """The events of the reply, as they are asked for."""
        script, commit = self._engine.script, self._commit
        text = ""
        samples = 0
        if script.gate is not None:
            self._await_gate(script.gate)
        if script.predictions:
            self._work(script.predict_s)
            place = min(self._engine.commits, len(script.predictions)) - 1
            yield TurnEndPrediction(self.turn_id, script.predictions[place])
        for chunk in range(script.chunks):
            self._work(script.step_s + sum(script.pauses_s[chunk : chunk + 1]))
            if commit.is_cancelled:
                return
            if self._cancelled.is_set():
                yield ReplyDone(self.turn_id, reply, "cancelled", text, (), samples)
                return
            if script.fail_on == "reply" and chunk == 1:
                raise script.error
            word = script.words[chunk] if chunk < len(script.words) else f"word{chunk} "
            text += word
            made = chunk * CHUNK_CODES if reply is Modality.SPEECH else 0
            usage = TokenUsage(20, 5, 22, chunk + 1, made)
            yield ReplyText(self.turn_id, word, reply is Modality.SPEECH, samples, usage)
            if reply is Modality.SPEECH:
                count = round(script.chunk_s * OUT_RATE)
                time_s = (samples + np.arange(count)) / OUT_RATE
                pcm = (0.5 * np.sin(2 * np.pi * 440 * time_s)).astype(np.float32)
                samples += count
                with self._timing.span("vocoder", self.turn_id, chunk=chunk):
                    pass
                if chunk == 0:
                    waited_ns = self._timing.clock_ns() - self._committed_ns
                    self._timing.emit("first_audio", self.turn_id, self._committed_ns, waited_ns)
                usage = replace(usage, output_audio=made + CHUNK_CODES)
                yield ReplyAudio(self.turn_id, pcm, OUT_RATE, chunk, usage)
        self._engine.exchanges.append(Exchange((), (), text, None, self.turn_id))
        codes = tuple(range(script.chunks * CHUNK_CODES)) if reply is Modality.SPEECH else ()
        usage = TokenUsage(20, 5, 22, script.chunks, len(codes))
        call = script.call
        if call is not None and self._conversation.tools.named(call.name) is None:
            call = None
        reason: FinishReason = "stop" if call is None else "tool_call"
        yield ReplyDone(self.turn_id, reply, reason, text, codes, samples, usage, call)

    def _await_gate(self, gate: threading.Event) -> None:
        """Time passes meanwhile."""
        clock = self._engine.clock
        if isinstance(clock, SteppedClock):
            clock.wanted_ns = NEVER_NS
        while not gate.wait(0.01) and not self._is_stopped:
            pass
        if isinstance(clock, SteppedClock):
            clock.wanted_ns = 0

    def _work(self, seconds: float) -> None:
        """Take this long on the engine's clock: on a busy machine virtual time is slower than real time."""
        clock = self._engine.clock
        if clock is None:
            time.sleep(seconds)
            return
        end_ns = clock.now_ns() + round(seconds * 1e9)
        if isinstance(clock, SteppedClock):
            clock.wanted_ns = end_ns
        while clock.now_ns() < end_ns and not self._is_stopped:
            time.sleep(0.001)
        if isinstance(clock, SteppedClock):
            clock.wanted_ns = 0

    @property
    @override
    def _is_stopped(self) -> bool:
        return self._cancelled.is_set() or self._commit.is_cancelled

    @override
    def reopen(self) -> None:
        self._call("reopen")
        self._is_replying = False

    @override
    def cancel(self) -> None:
        self._call("cancel")
        self._cancelled.set()

    @override
    def truncate(self, samples_played: int, characters_shown: int = 0) -> None:
        self._call("truncate", samples_played, characters_shown)
        self._cancelled.set()


class ScriptedEngine(Engine):
    """An engine without stages."""

    # Properties of an engine, which a test may set here.
    input_sample_rate = 16_000
    output_sample_rate = OUT_RATE
    gains_from_batches = True
    machine = "a processor"
    notes: tuple[Problem, ...] = ()
    speaking_limit: int | None = None
    flow_steps = 0

    def __init__(self, script: Script | None = None, name: str = "scripted") -> None:
        self.script = script or Script()
        self.clock: Clock | None = None
        """That of the session; without one, the work takes real time."""
        bundle = scripted_bundle()
        lm = replace(bundle.lm, detects_turn_end=bool(self.script.predictions))
        self._bundle = replace(bundle, name=name, lm=lm)
        self._limits = {"KV cache": 8}
        self.commits = 0
        self.timing = TimingBus()
        self.owner = ThreadOwner()
        self.calls: list[tuple[object, ...]] = []
        self.turns: list[ScriptedTurn] = []
        self.contexts: list[tuple[str, float | None]] = []
        """Instructions and retention at the beginning of each turn."""
        self.conversations = 0
        self.ended: list[int] = []
        """Numbers of conversations, in the order in which they were ended."""
        self.exchanges: list[Exchange] = []
        self.flow_steps = self.bundle.flow.steps
        self.is_closed = False

    @property
    @override
    def bundle(self) -> Bundle:
        return self._bundle

    @property
    @override
    def conversation_limits(self) -> dict[str, int]:
        return self._limits

    @property
    @override
    def turn_room(self) -> TurnRoom:
        """The context of nano, by its own tokenizer."""
        lm = self.bundle.lm
        sampling = {Modality.SPEECH: lm.sampling_speech, Modality.TEXT: lm.sampling_text}
        return TurnRoom(scripted_prompt(), sampling, lm.context_tokens, CODE_SAMPLES)

    @property
    @override
    def stats(self) -> BlockStats:
        """A KV pool for eight conversations."""
        used = 32 * (self.conversations - len(self.ended))
        return BlockStats(total=256, used=used, free=256 - used, cached=0)

    @override
    def __enter__(self) -> Self:
        return self

    @override
    def __exit__(self, *_: object) -> None:
        self.close()

    @override
    def new_conversation(self) -> ScriptedConversation:
        self.conversations += 1
        return ScriptedConversation(self.conversations)

    @override
    def snapshot(self, conversation: Conversation) -> ConversationSnapshot:
        """With one exchange for each complete reply."""
        exchanges = tuple(self.exchanges)
        return ConversationSnapshot("scripted", "any", 1, len(exchanges), 0, Modality.SPEECH, exchanges)

    @override
    def restore(self, snapshot: ConversationSnapshot) -> ScriptedConversation:
        if snapshot.bundle != "scripted":
            raise MossVoiceError("It is of another bundle.", "Begin a new conversation.")
        self.exchanges = list(snapshot.exchanges)
        return self.new_conversation()

    @override
    def remove(self, conversation: Conversation, turn_ids: range) -> None:
        self.calls.append(("remove", *turn_ids))
        self.exchanges = [known for known in self.exchanges if known.turn_id not in turn_ids]

    @override
    def remember(
        self,
        conversation: Conversation,
        turn_id: int,
        question: Sequence[str | Pcm],
        reply: str | ToolCall,
        before: int | None = None,
    ) -> Task[Question]:
        yield from ()
        said = tuple(part if isinstance(part, str) else len(part) for part in question)
        self.calls.append(("remember", turn_id, said, reply))
        places = [place for place, known in enumerate(self.exchanges) if known.turn_id == before]
        exchange = Exchange((), (), reply if isinstance(reply, str) else "", None, turn_id)
        self.exchanges.insert(places[0] if places else len(self.exchanges), exchange)
        return Question(())

    @override
    def end_conversation(self, conversation: Conversation) -> None:
        assert isinstance(conversation, ScriptedConversation)
        self.ended.append(conversation.number)

    @override
    def use_flow_steps(self, steps: int | None) -> None:
        self.calls.append(("use_flow_steps", steps))
        if self.script.fail_on == "use_flow_steps":
            raise self.script.error
        self.flow_steps = steps or self.bundle.flow.steps

    @override
    def open_turn(
        self,
        conversation: Conversation,
        turn_id: int,
        reply: Modality = Modality.SPEECH,
        timing: TimingBus | None = None,
    ) -> Task[ScriptedTurn]:
        yield from ()
        assert isinstance(conversation, ScriptedConversation)
        self.contexts.append((conversation.instructions, conversation.retention))
        self.calls.append(("open", turn_id, reply, conversation.number))
        if self.script.fail_on == "open":
            raise self.script.error
        self.turns.append(ScriptedTurn(self, turn_id, conversation))
        return self.turns[-1]

    @override
    def warm_up(self) -> None:
        self.calls.append(("warm_up",))

    @override
    def close(self) -> None:
        self.is_closed = True

    def names_of(self, turn_id: int) -> list[object]:
        """Names of the calls of a turn, repetitions once."""
        names = [call[0] for call in self.calls if len(call) > 1 and call[1] == turn_id]
        return [name for i, name in enumerate(names) if i == 0 or names[i - 1] != name]


class LoudnessVad:
    """A frame is speech if it is loud: tests need no network for what is not about speech."""

    sample_rate = 16_000
    frame_samples = 512

    def probability(self, frame: Pcm) -> float:
        return 0.95 if float(np.abs(frame).mean()) > 0.02 else 0.02

    def reset(self) -> None:
        """Does nothing."""
