"""StreamPool: encoder streams that serve one turn after the other.

A stream holds caches of fixed size and, on a GPU, belongs to captured graphs, so it is reset and reused. The
thread that holds the engine's lock.
"""

from __future__ import annotations

from engine_runtime.codec.speech_tokenizer.speech_tokenizer import SpeechTokenizer, SpeechTokenizerStream


class StreamPool:
    """See the module."""

    def __init__(self, tokenizer: SpeechTokenizer) -> None:
        self._tokenizer = tokenizer
        self._free: list[SpeechTokenizerStream] = []

    def acquire(self, prior: float | None = None) -> SpeechTokenizerStream:
        """A stream at its beginning; `prior` as in `SpeechTokenizerStream.reset`."""
        stream = self._free.pop() if self._free else self._tokenizer.stream()
        stream.reset(prior)
        return stream

    def release(self, stream: SpeechTokenizerStream) -> None:
        """Take a stream back; it keeps nothing of what it heard."""
        stream.reset()
        self._free.append(stream)

    def clear(self) -> None:
        """Let the free streams go."""
        self._free.clear()
