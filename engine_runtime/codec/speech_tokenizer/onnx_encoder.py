"""Streaming steps of the speech encoder on onnxruntime, for the CPU.

In: the loaded encoder and the bundle's graph, which holds no weights. Out: a replacement of
`WhisperVQ.step_hidden` for a `SpeechTokenizer`. One push is many small operations, for which torch spends
more time on dispatch than on arithmetic. Features and codebook search stay in torch, and so do calls with
many codes. Engine thread.

It runs on one thread: a push is too small to parallelize, and a separate thread pool would not adapt to the
load (cpu_threads.py). The flow stays in torch: its packets are large enough for all threads, and onnxruntime
is slower with two or more threads.
"""

from __future__ import annotations

import logging
from pathlib import Path

from torch import Tensor

from engine_runtime.codec.onnx_runner import OnnxRunner
from engine_runtime.codec.speech_tokenizer.encoder_graph import (
    EngineSpeechEncoder,
    speech_encoder_graph,
    weights_of_graph,
)
from engine_runtime.codec.speech_tokenizer.speech_tokenizer import SpeechTokenizer
from engine_runtime.errors import MossVoiceError
from engine_runtime.models.whisper_vq import EncoderState, WhisperVQ
from engine_runtime.onnx_runtime import OnnxModelError, library_version

MOST_CODES = 4
"""Maximum number of codes per call: onnxruntime keeps the memory of its largest call, the attention scores of
a full segment."""

_log = logging.getLogger(__name__)


class OnnxEncoder:
    """See the module."""

    def __init__(self, model: WhisperVQ, file: Path) -> None:
        """Raises OnnxModelError or ExecutorError if the graph's results differ from the model's, OSError for
        an unreadable file, MossVoiceError without onnxruntime."""
        graph = speech_encoder_graph(model)
        # As bytes, so that a graph cannot reference other files of this machine.
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
    """Run the steps of a tokenizer on the CPU with the graph of this file; otherwise it stays in torch and
    the reason is logged. `SpeechTokenizer.backend` names the backend."""
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
