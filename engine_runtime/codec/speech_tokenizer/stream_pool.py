"""StreamPool: encoder streams that are reused from turn to turn.

A stream holds caches of fixed size and, on a GPU, is referenced by captured graphs, so it is reset and
reused. Engine thread.
"""

from __future__ import annotations

from engine_runtime.codec.speech_tokenizer.speech_tokenizer import SpeechTokenizer, SpeechTokenizerStream


class StreamPool:
    def __init__(self, tokenizer: SpeechTokenizer) -> None:
        self._tokenizer = tokenizer
        self._free: list[SpeechTokenizerStream] = []

    def acquire(self, prior: float | None = None) -> SpeechTokenizerStream:
        """A stream that was reset; `prior` as in `SpeechTokenizerStream.reset`."""
        stream = self._free.pop() if self._free else self._tokenizer.stream()
        stream.reset(prior)
        return stream

    def release(self, stream: SpeechTokenizerStream) -> None:
        """Return a stream to the pool and clear its audio."""
        stream.reset()
        self._free.append(stream)

    def clear(self) -> None:
        """Drop the free streams."""
        self._free.clear()
