"""The codec alone: speech encoder, flow and vocoder, one chunk at a time as in a conversation.

In: the stages of an engine and a question. Out: three tables. Times count only for output of the right shape
that is finite and moves. Engine thread.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from engine_runtime.bench.clock import p50_p95
from engine_runtime.bench.replies import SILENCE_DBFS, BenchError, level_dbfs
from engine_runtime.bench.section import Section
from engine_runtime.codec.speech_tokenizer import SpeechTokenizerStream
from engine_runtime.stages import Stages
from engine_runtime.types import Mel, Pcm

PUSH_MS = 80
OTHER_STEPS = (10, 5)

ENCODER_COLUMNS = {
    "call": f"push: {PUSH_MS} ms of speech; tail: what is left at the end of the speech",
    "ms": "median",
    "ms_p95": "95th percentile",
    "codes": "speech codes of all calls of this kind in one question",
}
FLOW_COLUMNS = {
    "steps": "Euler steps",
    "first_ms": "first chunk of a reply, median; the voice prompt is in the cache already",
    "next_ms": "a later chunk, median",
    "next_ms_p95": "a later chunk, 95th percentile",
    "chunk_ms": "audio of a later chunk",
}
VOCODER_COLUMNS = {
    "chunk": "first chunk of a reply, or a later one",
    "ms": "median",
    "ms_p95": "95th percentile",
    "chunk_ms": "audio of the chunk",
}


@dataclass(slots=True)
class CodecBench:
    """`repeats` replies of `chunks` chunks each."""

    stages: Stages
    repeats: int
    chunks: int = 4
    seed: int = 0
    _mels: list[Mel] = field(default_factory=list)

    def encoder(self, question: Pcm, stream: SpeechTokenizerStream) -> Section:
        """Every push and the tail of one question, `repeats` times."""
        tokenizer = self.stages.speech_tokenizer
        block = tokenizer.sample_rate * PUSH_MS // 1000
        pushes: list[float] = []
        tails: list[float] = []
        counts = (0, 0)
        for _ in range(self.repeats + 1):
            stream.reset()
            codes = []
            for start in range(0, len(question), block):
                began = time.perf_counter()
                codes.append(stream.push(question[start : start + block]))
                pushes.append((time.perf_counter() - began) * 1000)
            began = time.perf_counter()
            rest = stream.tail()
            tails.append((time.perf_counter() - began) * 1000)
            counts = (sum(map(len, codes)), len(rest))
            _check_codes(np.concatenate([*codes, rest]), -(-len(question) // tokenizer.samples_per_code))
        per_question = len(pushes) // len(tails)
        section = Section("speech encoder", ENCODER_COLUMNS)
        for call, times, count in (
            ("push", pushes[per_question:], counts[0]),
            ("tail", tails[1:], counts[1]),
        ):
            p50, p95 = p50_p95(times)
            section.rows.append({"call": call, "ms": p50, "ms_p95": p95, "codes": count})
        return section

    def flow(self) -> Section:
        """The first and later chunks, at the engine's number of steps and at others."""
        stage = self.stages.token2mel
        section = Section("flow", FLOW_COLUMNS)
        section.note = f"voice prompt of {stage.prompt_codes} codes"
        for steps in dict.fromkeys((stage.steps, *OTHER_STEPS)):
            try:
                first, later = self._flow(steps)
            except torch.OutOfMemoryError:
                if steps == stage.steps:
                    raise
                section.note += (
                    f"; {steps} steps not measured: the GPU has too little memory for their caches"
                )
                continue
            p50, p95 = p50_p95(later)
            section.rows.append(
                {
                    "steps": steps,
                    "first_ms": p50_p95(first)[0],
                    "next_ms": p50,
                    "next_ms_p95": p95,
                    "chunk_ms": 1000 * stage.chunk_codes * stage.frames_per_code / stage.mel.frame_rate,
                }
            )
        return section

    def vocoder(self) -> Section:
        """The mel of the flow's last reply, chunk by chunk."""
        if not self._mels:
            self._flow(self.stages.token2mel.steps)
        first: list[float] = []
        later: list[float] = []
        made: list[int] = []
        stream = self.stages.vocoder.stream()
        for _ in range(self.repeats + 1):
            stream.reset()
            pieces = []
            for index, mel in enumerate(self._mels):
                began = time.perf_counter()
                pieces.append(stream.push(mel))
                (later if index else first).append((time.perf_counter() - began) * 1000)
            pieces.append(stream.finish())
            made = [len(piece) for piece in pieces]
            self._check_pcm(np.concatenate(pieces))
        rate = self.stages.vocoder.sample_rate
        section = Section("vocoder", VOCODER_COLUMNS)
        for chunk, times, samples in (
            ("first", first[1:], made[0]),
            ("later", later[len(self._mels) - 1 :], made[1]),
        ):
            p50, p95 = p50_p95(times)
            section.rows.append({"chunk": chunk, "ms": p50, "ms_p95": p95, "chunk_ms": 1000 * samples / rate})
        section.note = f"vocoder {self.stages.vocoder.kind}"
        return section

    def _flow(self, steps: int) -> tuple[list[float], list[float]]:
        """Times of the first chunk and of later ones; the last reply's mels are kept."""
        stage = self.stages.token2mel
        codebook = self.stages.speech_tokenizer.codebook_size
        codes = np.random.default_rng(self.seed).integers(0, codebook, (self.chunks + 1) * stage.chunk_codes)
        codes = np.concatenate([codes, codes[: stage.look_ahead_codes]])
        stream = stage.stream(steps)
        first: list[float] = []
        later: list[float] = []
        for index in range(self.repeats + 1):
            stream.reset()
            self._mels = []
            for code in codes:
                began = time.perf_counter()
                packets = stream.push(np.array([code]))
                if packets and index:
                    (later if self._mels else first).append((time.perf_counter() - began) * 1000)
                self._mels += packets
            _check_mel(self._mels, stage.mel.n_mels)
        return first, later

    def _check_pcm(self, pcm: Pcm) -> None:
        expected = sum(mel.shape[1] for mel in self._mels) * self.stages.vocoder.mel.hop
        if len(pcm) != expected or not np.isfinite(pcm).all() or level_dbfs(pcm) < SILENCE_DBFS:
            raise BenchError(
                f"The vocoder gave {len(pcm)} samples for {expected}, or they are silent or not finite. "
                "No times are given; check the weights."
            )


def _check_codes(codes: NDArray[np.int64], expected: int) -> None:
    if len(codes) != expected or (expected > 8 and len(set(codes.tolist())) < 2):
        raise BenchError(
            f"The speech encoder gave {len(codes)} codes ({len(set(codes.tolist()))} different ones) where "
            f"{expected} were expected. No times are given; check the weights."
        )


def _check_mel(mels: list[Mel], bands: int) -> None:
    mel = np.concatenate(mels, axis=1)
    if mel.shape[0] != bands or not np.isfinite(mel).all() or float(mel.std(axis=1).max()) < 1e-3:
        raise BenchError("The flow's mel is not finite or does not move. No times are given.")
