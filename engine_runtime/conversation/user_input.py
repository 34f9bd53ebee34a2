"""User input: what the user says or types in a turn, as tokens of the chat layout.

In: PCM as it arrives, typed texts and results of tools in any order, or the question of an earlier turn. Out:
the tokens so far and, at the end, the complete question. What is typed and what is said between two texts are
turns of the chat layout, one after the other. Encoding is work of a task (work.py). Codes may change while
the user speaks (codec/speech_tokenizer/speech_tokenizer.py), and with `exact_encoding` again at the end.
Engine thread.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from engine_runtime.codec.speech_tokenizer.speech_tokenizer import SpeechTokenizerStream
from engine_runtime.conversation.history import Question
from engine_runtime.errors import AudioInputError
from engine_runtime.lm.generation import Token
from engine_runtime.loading import Stages
from engine_runtime.timing import TimingBus
from engine_runtime.types import Codes, Pcm, SystemText, ToolOutput
from engine_runtime.work import SingleWork, Task


class UserInput:
    """The user's part of a turn. `open` comes first; `release` returns its encoder stream.

    Attributes:
        question: the complete turn, set by `end`.
    """

    def __init__(self, stages: Stages, timing: TimingBus, turn_id: int) -> None:
        self.question = Question(())
        self._stages, self._timing, self._turn_id = stages, timing, turn_id
        self._stream: SpeechTokenizerStream | None = None
        self._codes: list[int] = []
        is_encoded_again = stages.options.exact_encoding and stages.speech_tokenizer.is_revised
        self._spoken: list[Pcm] | None = [] if is_encoded_again else None
        """All of the user's speech if it is encoded again at the end."""
        self._has_pcm = False
        """Whether anything of the present speech was pushed."""
        self._text: str | None = None
        self._earlier: list[Token] = []
        """What was said and typed before the present speech or text."""
        self._earlier_maximum: float | None = None

    def open(self, expected_maximum: float | None) -> None:
        """Acquire an encoder stream; `expected_maximum` as in `Conversation`."""
        self._stream = self._stages.streams.acquire(expected_maximum)

    @property
    def stream(self) -> SpeechTokenizerStream:
        """The encoder stream. Raises RuntimeError after `release`."""
        if self._stream is None:
            raise RuntimeError(f"the encoder stream of turn {self._turn_id} was released")
        return self._stream

    def push(self, pcm: Pcm) -> Task[int]:
        """Encode more speech [n] at the engine's input rate; returns the number of new codes."""
        if self._text is not None:
            self._earlier += self._typed_turn(self._text)
            self._text = None
        self._has_pcm = True
        num_new = (yield from self._encode(pcm)).size
        if self._spoken is not None:
            self._spoken.append(pcm.copy())
        if num_new:
            self._codes = self.stream.codes
        return num_new

    def type(self, text: str) -> Task[None]:
        """A typed text, one of the system or the result of a tool, which ends the speech before it. Raises
        AudioInputError if it is empty, LanguageError if the model does not know the script of what the user
        typed."""
        if not (text.strip() or isinstance(text, ToolOutput)):
            raise AudioInputError("The question is empty.", "Say or type something.")
        if not isinstance(text, SystemText | ToolOutput):
            self._stages.bundle.card.require_known_script(text)
        if self._text is not None:
            self._earlier += self._typed_turn(self._text)
        elif self._has_pcm:
            yield from self._end_speech()
        self._text = text

    def ask_again(self, question: Question) -> None:
        """Begin with the question of an earlier turn."""
        self._earlier += question.user
        self._earlier_maximum = question.speech_maximum

    def tokens(self) -> list[Token]:
        """Tokens of the turn so far."""
        prompt = self._stages.prompt
        if self._text is not None:
            return [*self._earlier, *self._typed(self._text)]
        if self._earlier and not self._has_pcm:
            return list(self._earlier)
        return [*self._earlier, *prompt.open_user_speech(), *prompt.code_tokens(self._codes)]

    def end(self) -> Task[None]:
        """Complete the question. Raises AudioInputError if it is empty.

        The stream is not changed, so that speech can continue and the turn end again.
        """
        maximum = self._earlier_maximum
        last: list[Token] = []
        if self._text is not None:
            last = self._typed_turn(self._text)
        elif self._has_pcm and (last := self._spoken_turn((yield from self._all_codes()))):
            maximum = self.stream.maximum
        if not (self._earlier or last):
            raise AudioInputError("This turn is empty.", "Say or type something.")
        self.question = Question((*self._earlier, *last), maximum)

    def _end_speech(self) -> Task[None]:
        """The present speech is complete: what is said next is another turn of the layout."""
        spoken = self._spoken_turn((yield from self._all_codes()))
        maximum = self.stream.maximum
        if spoken:
            self._earlier += spoken
            self._earlier_maximum = maximum
        keeps_speech = self._spoken is not None
        self.release()
        self.open(maximum)
        self._codes, self._has_pcm = [], False
        self._spoken = [] if keeps_speech else None

    def _typed_turn(self, text: str) -> list[Token]:
        return [*self._typed(text), *self._stages.prompt.end_turn()]

    def _typed(self, text: str) -> list[Token]:
        prompt = self._stages.prompt
        if isinstance(text, ToolOutput):
            return prompt.tool_output(text)
        return prompt.system_text(text) if isinstance(text, SystemText) else prompt.user_text(text)

    def _spoken_turn(self, codes: list[int]) -> list[Token]:
        """Empty without codes."""
        prompt = self._stages.prompt
        speech = [*prompt.open_user_speech(), *prompt.code_tokens(codes), *prompt.end_speech()]
        return [*speech, *prompt.end_turn()] if codes else []

    def release(self) -> None:
        """Release the encoder stream for another turn."""
        self._spoken = None
        if self._stream is not None:
            stream, self._stream = self._stream, None
            self._stages.streams.release(stream)

    def _encode(self, pcm: Pcm | None) -> Task[Codes]:
        """New codes of more speech or, for None, of the end of speech."""
        stream = self.stream
        with self._timing.span("encode", self._turn_id) as attributes:
            codes = yield from (stream.tail() if pcm is None else stream.push(pcm))
            attributes["codes"] = codes.size
        return codes

    def _all_codes(self) -> Task[list[int]]:
        if not self._spoken:
            return [*self._codes, *(yield from self._encode(None)).tolist()]
        with self._timing.span("encode", self._turn_id, exact=1) as attributes:
            encode = partial(self._stages.speech_tokenizer.encode, np.concatenate(self._spoken))
            codes: list[int] = (yield SingleWork("encode", encode)).tolist()
            attributes["codes"] = len(codes)
            changed = (new != old for new, old in zip(codes, self._codes, strict=False))
            attributes["changed_codes"] = sum(changed)
        return codes
