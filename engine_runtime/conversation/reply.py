"""Reply: generates one reply, one decode step at a time.

In: the committed tokens of a conversation. Out: per `advance`, the events that became ready: text as soon as
its characters are complete, speech as soon as token2mel and vocoder can compute a chunk. What uses a device
is work of a task (work.py): one token needs a step, some tokens a packet of the flow and the vocoder.
`tokens` are the tokens of the reply (reply_tokens.py), `given` the position up to which they were delivered.
A call of a tool (tool_calls.py) ends the reply. If the bundle has a declining reply, the first tokens are
held until it is decided which of the two is given (declining.py); they are those that the first packet of
speech needs, so that this costs no time. Engine thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from engine_runtime.bundle.tools import NO_TOOLS, ToolUse
from engine_runtime.codec.speech_decoder import ReplyVoice
from engine_runtime.conversation.declining import (
    certainty_of,
    correct_subtitles,
    declining_tokens,
    is_declined,
)
from engine_runtime.conversation.reply_tokens import ReplyPosition, ReplyTokens
from engine_runtime.conversation.tool_calls import CallScanner
from engine_runtime.hardware import used_memory
from engine_runtime.lm.block_manager import Sequence
from engine_runtime.lm.chat_template import BegunCall, IncrementalText
from engine_runtime.lm.generation import GeneratedToken, Generation, Mode, Token
from engine_runtime.lm.step import SamplingMetadata, StepOutput, Tails
from engine_runtime.loading import Stages
from engine_runtime.timing import TimingBus
from engine_runtime.types import (
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


def prefill(
    stages: Stages,
    sequence: Sequence,
    tokens: list[Token],
    tails: Tails,
    timing: TimingBus,
    turn_id: int,
    *,
    phase: Literal["listen", "commit"],
    sampling: SamplingMetadata | None = None,
) -> Task[StepOutput]:
    """Prefill the `tokens` missing from `sequence`, with a trace span; returns the output of the last token,
    which only a commit reads."""
    with timing.span("prefill", turn_id, phase=phase) as attributes:
        output, num_new = yield from stages.sequences.prefill(
            sequence, tokens, tails, sampling, wants_output=phase == "commit"
        )
        attributes["tokens"], attributes["cached_tokens"] = num_new, len(tokens) - num_new
        if phase == "commit":
            attributes["tokens_at_commit"] = num_new
    return output


@dataclass(slots=True)
class _Clock:
    """Time stamps and durations from which the latency metrics of a reply are computed. Work is time inside
    `advance`, in ns, with the time in which others had the device. `waited_ns` is the time for which the
    caller held the reply after its prediction."""

    committed_ns: int
    work_ns: int = 0
    waited_ns: int = 0
    predicted_ns: int | None = None
    work_at_first_chunk_ns: int = 0
    work_at_last_chunk_ns: int = 0
    ttfa_ns: int = 0
    first_chunk_samples: int = 0
    samples: int = 0


@dataclass(slots=True)
class Reply:
    """Generates the tokens of one reply, and its speech and text.

    `prompt` is all tokens before the reply, which its first step prefills into `sequence`; `limit` is the
    number of tokens that the context can hold. If the reply has to be a call, the prompt ends with `begun`.
    """

    stages: Stages
    timing: TimingBus
    turn_id: int
    modality: Modality
    params: SamplingParams
    prompt: list[Token]
    sequence: Sequence
    limit: int
    committed_ns: int
    tools: ToolUse = NO_TOOLS
    begun: BegunCall | None = None
    generation: Generation = field(init=False)
    tokens: ReplyTokens = field(init=False)
    given: ReplyPosition = field(default_factory=ReplyPosition)
    """Position up to which the reply was delivered."""
    finish_reason: FinishReason | None = None
    call: ToolCall | None = None
    """The call that the reply ended with."""
    _clock: _Clock = field(init=False)
    _text: IncrementalText = field(init=False)
    _calls: CallScanner | None = None
    """None if the model writes no calls."""
    _voice: ReplyVoice | None = None
    _leaving: ReplyVoice | None = None
    """A voice that received its last code; None once all its audio has arrived."""
    _has_begun: bool = False
    """Whether the codec has started on this reply."""
    _ending: FinishReason | None = None
    """Why generation ended; None while it continues."""
    _chunk_index: int = 0
    _last: GeneratedToken | None = None
    """The latest token of the language model, None before the first."""
    _cached_tokens: int = 0
    """Tokens of the prompt that were prefilled before the commit."""
    _num_heard: int = field(init=False)
    """Tokens of the prompt that are speech."""
    _num_written: int = 0
    """Tokens of the reply with a text."""
    _rated_tokens: int = 0
    """Number of the first tokens from which it is decided whether to decline; 0: never."""
    _held: list[GeneratedToken] = field(default_factory=list)
    """First tokens that wait for that decision."""
    _declining: deque[GeneratedToken] | None = None
    """The rest of the declining reply; None if the model's own is given."""
    _certainty: float | None = None
    """That of the first tokens of the model's own reply."""

    def __post_init__(self) -> None:
        stages, lm = self.stages, self.stages.bundle.lm
        begun, written = self.begun, stages.bundle.card.tool_calls
        if written is not None:
            self._calls = CallScanner(stages.tokenizer, written, None if begun is None else begun.text)
        # A reply of a set length is a measurement or a warm-up: it runs every step.
        if lm.declining is not None and self.params.min_new < self.params.max_new and begun is None:
            flow = stages.bundle.flow
            self._rated_tokens = flow.packets[0] + flow.look_ahead_codes
        self.generation = Generation(
            self.prompt,
            self.params,
            lm.special_ids,
            text_vocab=stages.lm_config.text_vocab,
            audio_vocab=stages.lm_config.audio_vocab,
            want_subtitles=lm.subtitles,
            predict_turn_end=lm.detects_turn_end and begun is None,
            rated_tokens=self._rated_tokens,
            skip_unused_tails=True,
            samples_on_device=stages.lm.executor.can_sample,
            device=str(stages.lm.executor.device),
        )
        forced = () if begun is None else begun.tokens
        self.tokens = ReplyTokens(self.modality, lm.special_ids, stages.samples_per_code, forced)
        self._clock = _Clock(self.committed_ns)
        self._num_heard = sum(token.text == lm.special_ids.modality_pad for token in self.prompt)
        self._text = IncrementalText(stages.tokenizer)

    def advance(self) -> Task[list[ReplyEvent]]:
        """Generate the next token or, after the last, wait for pending speech; returns the events that became
        ready. The last event is a ReplyDone, and `finish_reason` is set."""
        start_ns = self.timing.clock_ns()
        if self._clock.predicted_ns is not None:
            self._clock.waited_ns, self._clock.predicted_ns = start_ns - self._clock.predicted_ns, None
        if self._ending is None:
            events: list[ReplyEvent] = []
            tokens = yield from self._next_tokens(events)
            events += self._arrivals(start_ns)
            for token in tokens:
                if not self._is_after_call(token):
                    self.tokens.append(token)
                    self._num_written += self._is_written(token)
                    yield from self._say(token, start_ns, events)
            self._ending = self._ending_now
            if self._ending is not None:
                self._end_call()
                yield from self._end(start_ns, events)
        else:
            events = []
            yield from self._await_arrivals(start_ns, events)
        if self._leaving is None:
            self.finish_reason = self._ending
        self._clock.work_ns += self.timing.clock_ns() - start_ns
        if self.finish_reason is not None:
            events.append(self.done(self.finish_reason))
        return events

    def done(self, reason: FinishReason) -> ReplyDone:
        """Compute the timing of the complete reply; returns its last event."""
        clock, mel = self._clock, self.stages.token2mel.mel
        audio_s = clock.samples / mel.sample_rate
        attributes: dict[str, float | int | str] = {"audio_s": audio_s, "finish_reason": reason}
        if clock.samples:
            attributes["flow_steps"] = self.stages.token2mel.steps
            attributes["memory_gb"] = used_memory(self.stages.lm.cache.pool.device) / 1e9
            first_s = clock.first_chunk_samples / mel.sample_rate
            attributes["rtf_total"] = clock.work_ns / 1e9 / audio_s
            attributes["first_chunk_ratio"] = clock.ttfa_ns / 1e9 / first_s
            if audio_s > first_s:
                steady_ns = clock.work_at_last_chunk_ns - clock.work_at_first_chunk_ns
                attributes["rtf_steady"] = steady_ns / 1e9 / (audio_s - first_s)
        if self._certainty is not None:
            attributes["certainty"] = self._certainty
        if self._declining is not None:
            attributes["declined"] = 1
        elapsed_ns = self.timing.clock_ns() - clock.committed_ns
        self.timing.emit("reply", self.turn_id, clock.committed_ns, elapsed_ns, **attributes)
        tokens = self.tokens
        return ReplyDone(
            self.turn_id,
            self.modality,
            reason,
            tokens.text.strip(),
            tuple(tokens.codes),
            clock.samples,
            self._usage(),
            self.call,
        )

    def _usage(self) -> TokenUsage:
        """Tokens so far. Asked for with each event, so that nothing is counted again."""
        heard = self._num_heard
        return TokenUsage(
            len(self.prompt) - heard, heard, self._cached_tokens, self._num_written, len(self.tokens.codes)
        )

    def _is_written(self, token: GeneratedToken) -> bool:
        text = token.token.text if token.mode is Mode.TEXT else token.subtitle
        return not token.is_stop and text is not None and not self.stages.tokenizer.is_silent(text)

    def stop(self) -> None:
        """Stop the reply and release the voice, so that the next reply can use its buffers."""
        self._voice = self._leaving = None

    def note_given(self, event: ReplyEvent) -> None:
        """Record an event that is about to be delivered."""
        samples, characters = self.given.samples, self.given.characters
        if isinstance(event, ReplyAudio):
            self.given = ReplyPosition(samples + event.pcm.size, characters)
        elif isinstance(event, ReplyText):
            self.given = ReplyPosition(samples, characters + len(event.text))

    def _next_tokens(self, events: list[ReplyEvent]) -> Task[list[GeneratedToken]]:
        """The next tokens to be given, none while they are held; the prediction is added to `events`."""
        if self._declining is not None:
            return [self._declining.popleft()]
        self._last = yield from self._next_token()
        events += self._predict(self._last)
        self._held.append(self._last)
        if self._last.index + 1 < self._rated_tokens and self._ending_now is None:
            return []
        tokens, self._held = self._held, []
        section = self.stages.bundle.lm.declining
        if section is None or self._last.index >= self._rated_tokens:
            return tokens
        self._certainty = certainty_of(tokens)
        if not is_declined(section, tokens, self.params):
            if self.modality is Modality.SPEECH:
                correct_subtitles(section, tokens)
            return tokens
        most = min(self.params.max_new, self.limit - len(self.prompt))
        self._declining = deque(declining_tokens(section, self.tokens.special, self.modality))
        while len(self._declining) > most:
            self._declining.pop()
        return [self._declining.popleft()]

    @property
    def _ending_now(self) -> FinishReason | None:
        """Why generation ends with the latest token; None while it continues."""
        if self._declining is not None:
            if self._declining:
                return None
            return "stop" if self.tokens.tokens[-1].is_stop else "length"
        if self._calls is not None and self._calls.is_complete:
            return "tool_call"
        is_full = (
            self.sequence.num_tokens >= self.limit
            or len(self.tokens.codes) + len(self._held) >= self.stages.max_codes
        )
        return self.generation.finish_reason or ("length" if is_full else None)

    def _next_token(self) -> Task[GeneratedToken]:
        """Prefill the prompt or run the last token, and sample the next one."""
        generation, timing, sequence = self.generation, self.timing, self.sequence
        tails, sampling, last = generation.tails, generation.sampling, self._last
        if last is None:
            self._cached_tokens = min(sequence.num_tokens, len(self.prompt))
            output = yield from prefill(
                self.stages,
                sequence,
                self.prompt,
                tails,
                timing,
                self.turn_id,
                phase="commit",
                sampling=sampling,
            )
            return generation.sample(output)
        # NOTE: not "while the codec is idle": the result of a step must not depend on timing.
        has_gpu = not (self._has_begun or self.stages.speaking)
        with timing.span(
            "step", self.turn_id, index=last.index + 1, mode=generation.mode.value
        ) as attributes:
            output = yield from self.stages.sequences.decode(
                sequence, last.token, tails, sampling, generation.sampling_ahead, exclusive_gpu=has_gpu
            )
            decoded_ns = timing.clock_ns()
            token = generation.sample(output)
            attributes["sampling_ms"] = (timing.clock_ns() - decoded_ns) / 1e6
        return token

    def _predict(self, token: GeneratedToken) -> Iterator[TurnEndPrediction]:
        """What the first token says about the end of the user's turn."""
        probability = self.generation.turn_end_probability
        if token.index == 0 and probability is not None:
            self._clock.predicted_ns = self.timing.clock_ns()
            yield TurnEndPrediction(self.turn_id, probability)

    def _say(self, token: GeneratedToken, start_ns: int, events: list[ReplyEvent]) -> Task[None]:
        """Add a token to the reply, and its events to `events`."""
        if token.mode is Mode.TEXT:
            if not token.is_stop:
                events += self._write(token.token.text, is_subtitle=False)
                if self._calls is not None:
                    self.tokens.num_call_tokens = self._calls.num_tokens
            return
        if token.subtitle is not None:
            events += self._write(token.subtitle, is_subtitle=True)
        if self.tokens.is_code(token):
            if self.modality is Modality.SPEECH:
                if self._voice is None:
                    while self._leaving is not None:  # earlier speech comes first
                        yield from self._await_arrivals(start_ns, events)
                    self._voice = self._new_voice()
                ready = yield from self._voice.push(token.token.audio)
                if self._voice.has_begun:
                    self._has_begun = True
                    self.stages.speaking.add(self._voice)
                events += self._play(ready, start_ns)
        else:
            yield from self._end_speech(start_ns, events)

    def _write(self, token_id: int, *, is_subtitle: bool) -> Iterator[ReplyText]:
        text = self._text.push(token_id)
        if self._calls is not None and not is_subtitle:
            text = self._calls.push(token_id, text)
        if text:
            yield ReplyText(self.turn_id, text, is_subtitle, self.tokens.add_text(text), self._usage())

    def _is_after_call(self, token: GeneratedToken) -> bool:
        calls = self._calls
        return calls is not None and calls.has_begun and (calls.is_complete or token.is_stop)

    def _end_call(self) -> None:
        """Generation has ended: read the call, if there is one. Raises ToolCallError."""
        if self._calls is None:
            return
        if not self._calls.has_begun:
            self.tokens.num_call_tokens = 0
            return
        self.call, self._ending = self._calls.result(self.tools), "tool_call"
        self.tokens.has_call = True

    def _end(self, start_ns: int, events: list[ReplyEvent]) -> Task[None]:
        """Add the remaining events after the last token."""
        text = self._text.finish()
        if self._calls is not None:
            text = self._calls.finish(text)
        if text:
            start = self.tokens.add_text(text, is_late=True)
            is_spoken = self.modality is Modality.SPEECH
            events.append(ReplyText(self.turn_id, text, is_spoken, start, self._usage()))
        yield from self._end_speech(start_ns, events)

    def _end_speech(self, start_ns: int, events: list[ReplyEvent]) -> Task[None]:
        if self._voice is not None:
            self._leaving, self._voice = self._voice, None
            events += self._left((yield from self._leaving.finish()), start_ns)

    def _arrivals(self, start_ns: int) -> Iterator[ReplyEvent]:
        """Audio that arrived from a voice that received its last code."""
        if self._leaving is not None:
            yield from self._left(self._leaving.take(), start_ns)

    def _await_arrivals(self, start_ns: int, events: list[ReplyEvent]) -> Task[None]:
        """Wait for the next audio of a voice that received its last code, and add it."""
        if self._leaving is not None:
            events += self._left((yield from self._leaving.wait()), start_ns)

    def _left(self, chunks: list[Pcm], start_ns: int) -> Iterator[ReplyEvent]:
        """Audio of a voice that received its last code."""
        if self._leaving is not None and not self._leaving.is_pending:
            self._leaving = None
        yield from self._play(chunks, start_ns)

    def _play(self, chunks: list[Pcm], start_ns: int) -> Iterator[ReplyAudio]:
        clock, sample_rate = self._clock, self.stages.token2mel.mel.sample_rate
        for pcm in chunks:
            now_ns = self.timing.clock_ns()
            clock.work_at_last_chunk_ns = clock.work_ns + now_ns - start_ns
            if not clock.samples:
                clock.work_at_first_chunk_ns = clock.work_at_last_chunk_ns
                clock.ttfa_ns = now_ns - clock.committed_ns - clock.waited_ns
                clock.first_chunk_samples = pcm.size
                self.timing.emit("first_audio", self.turn_id, now_ns - clock.ttfa_ns, clock.ttfa_ns)
            clock.samples += pcm.size
            yield ReplyAudio(self.turn_id, pcm, sample_rate, self._chunk_index, self._usage())
            self._chunk_index += 1

    def _new_voice(self) -> ReplyVoice:
        stages = self.stages
        return ReplyVoice(
            stages.token2mel, stages.vocoder, self.timing, self.turn_id, stages.new_execution_stream
        )
