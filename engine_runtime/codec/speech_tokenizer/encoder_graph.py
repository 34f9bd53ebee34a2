"""The speech encoder as a graph: the next codes of a segment, caches in and out.

In: the encoder network. Out: its `Graph`, and `EngineSpeechEncoder`, which continues an `EncoderState` with a
runner: an engine on a GPU, onnxruntime on the CPU. The codebook search stays in torch: it is a product and a
minimum, and a rounded distance may select another code. Always float32.

On the CPU the bundle's graph, which holds no weights, runs on onnxruntime (`use_onnxruntime`): one push is
many small operations, for which torch spends more time on dispatch than on arithmetic. Calls with many codes
stay in torch. It runs on one thread: a push is too small to parallelize, and a separate thread pool would not
adapt to the load (cpu_threads.py). The flow stays in torch: its packets are large enough for all threads, and
onnxruntime is slower with two or more threads. Engine thread.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engine_runtime.codec.graph import Axis, Graph, GraphTensor, Runner, attend
from engine_runtime.codec.onnx_graph import OnnxRunner
from engine_runtime.codec.speech_tokenizer.speech_tokenizer import SpeechTokenizer
from engine_runtime.errors import MossVoiceError
from engine_runtime.models.whisper_vq import CONV2_STRIDE, CONV_KERNEL, EncoderLayer, EncoderState, WhisperVQ
from engine_runtime.onnx_runtime import OnnxModelError, library_version

PAST_BUCKET = 128
"""The past is padded to a multiple of this number of positions, so that an engine gets few shapes."""


class SpeechEncoderStep(nn.Module):
    """`WhisperVQ.step_hidden` with all state as arguments."""

    def __init__(self, model: WhisperVQ) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        mel: Tensor,
        conv1: Tensor,
        conv2: Tensor,
        positions: Tensor,
        mask: Tensor,
        keys: Tensor,
        values: Tensor,
    ) -> tuple[Tensor, ...]:
        """Hidden states, both convolution caches, new keys and values. See `speech_encoder_graph`."""
        encoder, keep = self.model.encoder, CONV_KERNEL - 1
        first = F.gelu(encoder.conv1(mel, conv1))
        x = F.gelu(encoder.conv2(first, conv2)).transpose(1, 2)
        x = x + F.embedding(positions, encoder.embed_positions.weight)
        new_keys, new_values = [], []
        for index, layer in enumerate(encoder.layers):
            assert isinstance(layer, EncoderLayer)
            query, key, value = layer.self_attn.project(layer.self_attn_layer_norm(x))
            seen = attend(query, (keys[index], values[index]), (key, value), mask)
            x = layer.feed_forward(x + layer.self_attn.merge(seen))
            new_keys.append(key)
            new_values.append(value)
        hidden = self.model.pool(x)
        return hidden, mel[:, :, -keep:], first[:, :, -keep:], torch.stack(new_keys), torch.stack(new_values)


def speech_encoder_graph(model: WhisperVQ) -> Graph:
    """The graph of an encoder for one code up to a full segment per call."""
    config, keep = model.config, CONV_KERNEL - 1
    codes = Axis("codes", 1, 2, config.max_positions // config.pool)
    bucket = min(PAST_BUCKET, config.max_positions)
    past = Axis("past", bucket, bucket, config.max_positions)
    new = config.pool * codes
    lead, head_dim = (config.layers, 1, config.heads), config.d_model // config.heads
    mel = GraphTensor("mel", (1, config.num_mel_bins, config.frames_per_code * codes))
    conv1 = GraphTensor("conv1", (1, config.num_mel_bins, keep))
    conv2 = GraphTensor("conv2", (1, config.d_model, keep))
    return Graph(
        "speech_encoder",
        SpeechEncoderStep(model),
        inputs=(
            mel,
            conv1,
            conv2,
            GraphTensor("positions", (new,), torch.int64),
            GraphTensor("mask", (new, past + new)),
            GraphTensor("keys", (*lead, past, head_dim)),
            GraphTensor("values", (*lead, past, head_dim)),
        ),
        outputs=(
            GraphTensor("hidden", (1, codes, config.d_model)),
            replace(conv1, name="new_conv1"),
            replace(conv2, name="new_conv2"),
            GraphTensor("new_keys", (*lead, new, head_dim)),
            GraphTensor("new_values", (*lead, new, head_dim)),
        ),
        device=model.encoder.conv1.weight.device,
        example_values={"positions": lambda shape: torch.arange(shape[0]), "mask": torch.zeros},
    )


def weights_of_graph(graph: Graph) -> dict[str, Tensor]:
    """Weights of the step, by name: all of the encoder except its codebook."""
    state = graph.module.state_dict()
    return {name: value for name, value in state.items() if ".codebook." not in name}


class EngineSpeechEncoder:
    """Implements `WhisperVQ.step_hidden` with a runner of `speech_encoder_graph`."""

    def __init__(self, model: WhisperVQ, runner: Runner) -> None:
        self._config, self._runner = model.config, runner

    def __call__(self, mel: Tensor, state: EncoderState) -> tuple[Tensor, EncoderState]:
        """Hidden states of the next frames of a segment [1, n_mels, T], and its new caches."""
        new = mel.shape[2] // CONV2_STRIDE
        end = state.length + new
        bucket = min(max(-(-state.length // PAST_BUCKET), 1) * PAST_BUCKET, self._config.max_positions)
        positions = torch.arange(state.length, end, device=mel.device)
        is_seen = torch.ones((new, bucket + new), dtype=torch.bool, device=mel.device)
        is_seen[:, state.length : bucket] = False
        is_seen[:, bucket:] = is_seen[:, bucket:].tril()
        mask = torch.zeros_like(is_seen, dtype=mel.dtype).masked_fill_(~is_seen, float("-inf"))
        past = (kept[:, :, :, :bucket] for kept in (state.keys, state.values))
        hidden, conv1, conv2, keys, values = self._runner(
            mel, state.conv1, state.conv2, positions, mask, *past
        )
        state.keys[:, :, :, state.length : end] = keys
        state.values[:, :, :, state.length : end] = values
        return hidden, replace(state, conv1=conv1, conv2=conv2, length=end)


MOST_CODES = 4
"""Maximum number of codes per call: onnxruntime keeps the memory of its largest call, the attention scores of
a full segment."""

_log = logging.getLogger(__name__)


class OnnxEncoder:
    """Implements `WhisperVQ.step_hidden` with the bundle's graph on onnxruntime."""

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
