"""Engine: a loaded bundle that serves conversations.

    with Engine.load(Bundle.open(folder)) as engine:
        conversation = engine.new_conversation()
        turn = run_alone(engine.open_turn(conversation, turn_id=1))
        run_alone(turn.push(pcm))  # while the user speaks: encoded and prefilled at once
        for event in run_alone(turn.commit(Modality.SPEECH)): ...  # text, audio, done

It owns the loaded stages and the shared KV pool. What waits for a device is a task (work.py): `run_alone`
carries out one, a scheduler those of many conversations. One thread uses an engine and its turns: its
`owner`, if it claimed the engine. It starts none. Durations go to `timing`.

The system turn follows the modality of the reply. When a conversation changes it, the common tokens and those
in the prefix cache are reused, the rest is prefilled again.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from engine_runtime.bundle.bundle import Bundle
from engine_runtime.bundle.tools import ToolUse
from engine_runtime.bundle.weights import Progress
from engine_runtime.codec.runtime import packet_frames, tail_frames
from engine_runtime.codec.speech_tokenizer.encoder_pool import split_bytes
from engine_runtime.codec.speech_tokenizer.speech_tokenizer import SpeechTokenizer
from engine_runtime.codec.voice.recording import VoiceSource
from engine_runtime.conversation.context_window import TurnRoom
from engine_runtime.conversation.history import Exchange, Question
from engine_runtime.conversation.snapshot import ConversationSnapshot, vocabulary_of
from engine_runtime.conversation.turn import Conversation, Turn
from engine_runtime.conversation.user_input import UserInput
from engine_runtime.cuda.availability import check_formats, uses_triton
from engine_runtime.cuda.gpu_memory import explain_out_of_memory, memory_of
from engine_runtime.errors import FlowCacheError, Problem
from engine_runtime.hardware import device_name, limit_capability
from engine_runtime.lm.step import BOTH_TAILS
from engine_runtime.loading import Stages, load_stages
from engine_runtime.memory_plan import LATER_BYTES, fitting_conversations
from engine_runtime.options import EngineOptions
from engine_runtime.thread_owner import ThreadOwner
from engine_runtime.timing import TimingBus
from engine_runtime.types import Modality, Pcm, ToolCall
from engine_runtime.work import Task, run_alone

_log = logging.getLogger(__name__)
_LONG_REPLY_S = 10.0
"""Replies up to this length are expected when many users speak."""


@dataclass(frozen=True, slots=True)
class BlockStats:
    """KV blocks of the pool: `used` + `free` = `total`; `cached` of the free blocks still hold reusable
    tokens."""

    total: int
    used: int
    free: int
    cached: int


class Engine:
    """Loaded stages and their conversations, for one thread."""

    def __init__(self, stages: Stages, timing: TimingBus | None = None) -> None:
        """Use `load`, unless the stages were created differently."""
        self.stages = stages
        self.timing = timing or TimingBus()
        self.owner = ThreadOwner()
        """The thread that uses the engine, its conversations and their turns."""
        self._conversations: weakref.WeakSet[Conversation] = weakref.WeakSet()
        self._is_closed = False
        self._vocabulary = vocabulary_of(stages.bundle)
        self._flow_steps = stages.token2mel.steps

    @classmethod
    def load(
        cls,
        bundle: Bundle,
        options: EngineOptions | None = None,
        *,
        timing: TimingBus | None = None,
        voice: VoiceSource | None = None,
        progress: Progress | None = None,
    ) -> Engine:
        """Load every network of the bundle; `progress` receives the completed share.

        `voice` replaces the bundle's own voice. Raises BundleError for mismatched weights, AcceleratorError
        for a missing device, too little memory, or quantized weights on a GPU without Triton, AudioInputError
        for an unusable voice recording.
        """
        chosen = options or EngineOptions()
        limit_capability(chosen.compute_capability)
        check_formats(chosen)
        if chosen.context_tokens is not None:
            tokens = min(chosen.context_tokens, bundle.lm.context_tokens)
            bundle = replace(bundle, lm=replace(bundle.lm, context_tokens=tokens))
        if chosen.kv_blocks is None:
            conversations = chosen.conversations or fitting_conversations(bundle, chosen)
            chosen = replace(chosen, conversations=conversations)
            if conversations is not None and conversations > 1:
                enough = conversations * bundle.lm.context_blocks
                chosen = replace(chosen, kv_blocks=max(bundle.lm.kv_blocks, enough))
        stages = explain_out_of_memory(
            lambda: load_stages(bundle, chosen, voice=voice, progress=progress), bundle.lm, chosen
        )
        return cls(stages, timing)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def bundle(self) -> Bundle:
        """The bundle that was loaded."""
        return self.stages.bundle

    @property
    def notes(self) -> tuple[Problem, ...]:
        """Notes for the user on how it runs, such as a GPU without its kernels."""
        return self.stages.notes

    @property
    def input_sample_rate(self) -> int:
        """Rate of the PCM that `Turn.push` takes, in Hz."""
        return self.stages.speech_tokenizer.sample_rate

    @property
    def output_sample_rate(self) -> int:
        """Rate of reply PCM, in Hz."""
        return self.stages.vocoder.sample_rate

    @property
    def stats(self) -> BlockStats:
        """Usage of the KV pool."""
        blocks = self.stages.lm.blocks
        return BlockStats(blocks.num_blocks, blocks.num_used, blocks.num_free, blocks.num_cached)

    @property
    def gains_from_batches(self) -> bool:
        """Whether a step of several sequences takes less time than their single steps. On a CPU it does not,
        and with single steps no reply depends on the others."""
        return self.stages.lm.cache.pool.device.type != "cpu"

    @property
    def machine(self) -> str:
        """The GPU or processor that computes."""
        return device_name(self.stages.lm.cache.pool.device)

    @property
    def conversation_limits(self) -> dict[str, int]:
        """Conversations that fit into memory at once, by the kind of memory that limits them."""
        blocks, encoder = self.stages.lm.blocks, self.stages.speech_tokenizer.pool
        limits = {"KV cache": blocks.num_blocks // -(-self._context_tokens // blocks.tokens_per_block)}
        if encoder is not None:  # without common buffers a stream allocates its own
            limits["speech encoder"] = encoder.num_slots
        return limits

    @property
    def speaking_limit(self) -> int | None:
        """Replies of ten seconds at once whose flow caches fit on the device (half made on average); the
        caches of more are copied to host memory and back. None without common caches."""
        codes = self.stages.token2mel.cached_codes
        if codes is None:
            return None
        samples = codes * self.bundle.samples_per_code
        return max(int(2 * samples / self.output_sample_rate / _LONG_REPLY_S), 1)

    @property
    def flow_steps(self) -> int:
        """Euler steps of the flow from the next reply on."""
        return self._flow_steps

    def use_flow_steps(self, steps: int | None) -> None:
        """Run this many Euler steps of the flow from the next reply on; None for those of the bundle. A reply
        in progress keeps its own. The captured start of a reply is captured again on a GPU: at once, or
        before the next turn if a reply is in progress.

        Raises OptionsError for a number out of range, FlowCacheError if there is too little memory for so
        many, or if the conversations of the engine share their caches. Nothing changes then.
        """
        self._require_open()
        chosen = replace(self.stages.options, flow_steps=steps).flow_steps or self.bundle.flow.steps
        self.stages.token2mel.check_steps(chosen)
        self._flow_steps = chosen
        self._settle_flow_steps()

    def _settle_flow_steps(self) -> None:
        """Change to the chosen flow steps unless a reply is in progress. FlowCacheError as above."""
        token2mel = self.stages.token2mel
        turns = [conversation.turn for conversation in self._conversations]
        if self._flow_steps == token2mel.steps or any(turn and turn.is_replying for turn in turns):
            return
        try:
            token2mel.use_steps(self._flow_steps)
        except FlowCacheError:
            self._flow_steps = token2mel.steps
            raise

    @property
    def _context_tokens(self) -> int:
        return min(self.stages.lm.max_tokens, self.bundle.lm.context_tokens)

    @property
    def turn_room(self) -> TurnRoom:
        """How much of the context a turn of the user may take."""
        lm = self.bundle.lm
        sampling = {Modality.SPEECH: lm.sampling_speech, Modality.TEXT: lm.sampling_text}
        code_s = self.bundle.samples_per_code / self.output_sample_rate
        samples_per_code = code_s * self.input_sample_rate
        offered = ToolUse(self.bundle.card.tools)
        return TurnRoom(self.stages.prompt, sampling, self._context_tokens, samples_per_code, offered)

    def new_conversation(self) -> Conversation:
        """A new conversation. `end_conversation` frees its KV blocks; otherwise they are freed after it was
        garbage-collected, or when the pool runs out."""
        self._require_open()
        conversation = Conversation(self.stages.prompt, self._context_tokens)
        self.stages.sequences.register(conversation, conversation.sequence)
        self._conversations.add(conversation)
        return conversation

    def end_conversation(self, conversation: Conversation) -> None:
        """Stop its turn and free its KV blocks; their content stays in the prefix cache."""
        assert self.owner.is_here
        if conversation.turn is not None:
            conversation.turn.close()
            conversation.turn = None  # breaks the reference cycle with the conversation
        self.stages.sequences.release(conversation.sequence)
        self._conversations.discard(conversation)

    def snapshot(self, conversation: Conversation) -> ConversationSnapshot:
        """The conversation as plain data, for `restore`."""
        assert self.owner.is_here
        return ConversationSnapshot(
            self.bundle.name,
            self._vocabulary,
            conversation.seed,
            conversation.num_commits,
            conversation.num_forgotten,
            conversation.modality,
            tuple(conversation.exchanges),
        )

    def restore(self, snapshot: ConversationSnapshot) -> Conversation:
        """A new conversation that continues the one of the snapshot; its history is prefilled. Raises
        HistoryError if it was held with another bundle."""
        snapshot.check(self.bundle)
        conversation = self.new_conversation()
        conversation.seed, conversation.num_commits = snapshot.seed, snapshot.num_commits
        conversation.modality = snapshot.modality
        conversation.exchanges = list(snapshot.exchanges)
        conversation.num_forgotten = snapshot.num_forgotten
        if snapshot.exchanges:
            tokens = conversation.plan([], 0)
            run_alone(self.stages.sequences.prefill(conversation.sequence, tokens, BOTH_TAILS))
        return conversation

    def remove(self, conversation: Conversation, turn_ids: range) -> None:
        """Remove turns from the history; the cache follows with the next turn."""
        assert self.owner.is_here
        if conversation.turn is not None and conversation.turn.turn_id in turn_ids:
            conversation.turn.close()
            conversation.turn = None
        conversation.remove(turn_ids)

    def remember(
        self,
        conversation: Conversation,
        turn_id: int,
        question: Sequence[str | Pcm],
        reply: str | ToolCall,
        before: int | None = None,
    ) -> Task[Question]:
        """Add an exchange that was held elsewhere to the history: typed texts and speech [n] at the input
        rate, and the text of the reply, either of which may be empty, or its call. It goes before the
        exchange of the turn `before`, or to the end. Returns the question. AudioInputError if speech is too
        short."""
        self._require_open()
        asked = Question(())
        if question:
            asked = yield from self._encode_question(conversation, turn_id, question)
        prompt = self.stages.prompt
        if isinstance(reply, ToolCall):
            text, tokens = "", prompt.call_turn(reply)
        else:
            text, tokens = reply, prompt.text_turn(reply) if reply else []
        exchange = Exchange(asked.user, tuple(tokens), text, asked.speech_maximum, turn_id)
        conversation.insert(exchange, before)
        return asked

    def _encode_question(
        self, conversation: Conversation, turn_id: int, parts: Sequence[str | Pcm]
    ) -> Task[Question]:
        asked = UserInput(self.stages, TimingBus(), turn_id)
        asked.open(conversation.expected_maximum)
        try:
            for part in parts:
                if isinstance(part, str):
                    yield from asked.type(part)
                else:
                    yield from asked.push(part)
            yield from asked.end()
        finally:
            asked.release()
        return asked.question

    def open_turn(
        self,
        conversation: Conversation,
        turn_id: int,
        reply: Modality = Modality.SPEECH,
        timing: TimingBus | None = None,
    ) -> Task[Turn]:
        """Start a user turn. `reply` is the expected modality; the commit sets the actual one. `timing` takes
        the durations instead of the engine's bus.

        An earlier turn of the conversation that is still open is cancelled. Errors as in `Turn.push`.
        """
        self._require_open()
        if conversation.turn is not None:
            conversation.turn.close()
        try:
            self._settle_flow_steps()
        except FlowCacheError as error:
            _log.warning("The flow steps stay at %d: %s", self._flow_steps, error)
        turn = conversation.turn = Turn(
            self.stages, self.owner, conversation, turn_id, reply, timing or self.timing
        )
        yield from turn.open()
        return turn

    def warm_up(self) -> None:
        """Warm up with a reply to a second of faint noise, so that the first real reply is as fast as later
        ones. Leaves no state. Raises AcceleratorError if the GPU has too little memory."""
        explain_out_of_memory(self._warm_up, self.bundle.lm, self.stages.options)

    def _warm_up(self) -> None:
        bundle, rate = self.bundle, self.input_sample_rate
        share_encoder(self.stages.speech_tokenizer, self.stages.options)
        if self.stages.token2mel.is_static:  # on a CPU the reply below is enough
            self.stages.token2mel.warm_up()
            tails = tail_frames(bundle.flow) if self.stages.options.captures_batches else []
            self.stages.vocoder.warm_up(packet_frames(bundle.flow), tails)
        noise = np.random.default_rng(0).normal(0.0, 1e-3, rate).astype(np.float32)
        codes = bundle.flow.first_chunk_codes + bundle.flow.chunk_codes + bundle.flow.look_ahead_codes
        for modality in Modality:
            sampling = bundle.lm.sampling_speech if modality is Modality.SPEECH else bundle.lm.sampling_text
            params = replace(sampling, min_new=codes, max_new=codes)
            conversation = self.new_conversation()
            turn = run_alone(self.open_turn(conversation, 0, modality, TimingBus()))
            for start in range(0, rate, rate // 10):
                run_alone(turn.push(noise[start : start + rate // 10]))
            for _ in run_alone(turn.commit(modality, params)):
                pass
            self.end_conversation(conversation)

    def close(self) -> None:
        """Stop all work and release the memory. The engine cannot be used afterwards."""
        assert self.owner.is_here
        for conversation in list(self._conversations):
            if conversation.turn is not None:
                conversation.turn.cancel()
        self._is_closed = True
        self.stages.sequences.release_all()
        self._conversations.clear()
        self.stages.streams.clear()
        self.stages.cpu_threads.restore()
        self.stages.speech_tokenizer.clear_captures()
        self.stages.lm.close()

    def _require_open(self) -> None:
        assert self.owner.is_here
        if self._is_closed:
            raise RuntimeError("the engine is closed")


def share_encoder(tokenizer: SpeechTokenizer, options: EngineOptions) -> None:
    """Give the streams of the speech encoder common buffers, so that it takes several in one captured call:
    as many as asked for, within the free memory of its device."""
    if not (options.serves_several and tokenizer.calls.is_capturing):
        return
    if tokenizer.takes_batches and tokenizer.pool is None:
        # A stream belongs to a conversation until its next turn.
        wanted = options.conversations or 2 * options.max_batch_size
        free, _ = memory_of(tokenizer.calls.device)
        copy = split_bytes(tokenizer.model.config)
        triton = copy <= free // 4 and uses_triton(options.kernels, tokenizer.calls.device)
        most = free // 2 if options.conversations is None else max(free // 2, free - LATER_BYTES)
        room = most - (copy if triton else 0)
        slots = min(wanted, room // tokenizer.stream_bytes - 1)
        if slots >= 1:
            tokenizer.use_pool(slots, options.max_batch_size, triton=triton)
