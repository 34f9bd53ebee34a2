"""Streaming steps of the speech encoder on onnxruntime, for the CPU.

In: the loaded encoder and the bundle's graph, which holds no weights. Out: what takes the place of
`WhisperVQ.step_hidden` in a `SpeechTokenizer`. One push is many small operations, of which torch spends more
time on the calls than on the values. Features and codebook search stay in torch, and so do calls with many
codes. Engine thread.

One thread computes: a push is too small to be shared, and a thread pool of its own would not follow the load
(cpu_threads.py). The flow stays in torch: its packets are large enough for all threads, and with two or more
of them onnxruntime is slower.
"""

from __future__ import annotations

import logging
from pathlib import Path

from torch import Tensor

from engine_runtime.codec.speech_tokenizer.speech_tokenizer import SpeechTokenizer
from engine_runtime.codec.tensorrt.onnx_runner import OnnxRunner
from engine_runtime.codec.tensorrt.speech_encoder import (
    EngineSpeechEncoder,
    speech_encoder_graph,
    weights_of_graph,
)
from engine_runtime.errors import MossVoiceError
from engine_runtime.models.whisper_vq import EncoderState, WhisperVQ
from engine_runtime.onnx_runtime import OnnxModelError, library_version

MOST_CODES = 4
"""Codes at once: onnxruntime keeps the memory of its largest call, the scores of a whole segment."""

_log = logging.getLogger(__name__)


class OnnxEncoder:
    """See the module."""

    def __init__(self, model: WhisperVQ, file: Path) -> None:
        """Raises OnnxModelError or ExecutorError for a file that does not compute what the model computes,
        OSError for one that cannot be read, MossVoiceError without onnxruntime."""
        graph = speech_encoder_graph(model)
        # As bytes: a graph of a bundle must not name files of this machine.
        runner = OnnxRunner(
            graph, file.read_bytes(), purpose="encode speech", weights=weights_of_graph(graph)
        )
        graph.try_out(runner)
        self._model, self._step = model, EngineSpeechEncoder(model, runner)

    def __call__(self, mel: Tensor, state: EncoderState) -> tuple[Tensor, EncoderState]:
        """Hidden states of the next frames of a segment [1, n_mels, T], and its new caches."""
        code = self._model.config.frames_per_code
        is_short = mel.shape[2] in range(code, MOST_CODES * code + 1, code)
        return self._step(mel, state) if is_short else self._model.step_hidden(mel, state)


def use_onnxruntime(tokenizer: SpeechTokenizer, file: Path | None) -> None:
    """Let a tokenizer on the CPU run its steps with the graph of this file; where that cannot be, it stays in
    torch and the reason is logged. `SpeechTokenizer.backend` says which."""
    if file is None:
        tokenizer.backend = "torch (the bundle has no graph)"
        _log.info("The speech encoder runs in torch: the bundle has no graph for onnxruntime.")
        return
    try:
        step = OnnxEncoder(tokenizer.model, file)
    except (OnnxModelError, MossVoiceError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        tokenizer.backend = f"torch ({file.name} cannot be used: {reason})"
        _log.warning("The speech encoder runs in torch: %s cannot be used: %s", file.name, reason)
        return
    tokenizer.step, tokenizer.backend = step, f"onnxruntime {library_version()}"
