"""Benchmark of the codec: speech encoder, flow and vocoder, one packet at a time as in a conversation.

In: the stages of an engine and a question. Out: three tables. Times are reported only if the output has the
expected shape, is finite and is not constant. Engine thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import islice, pairwise
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from engine_runtime.bench.measuring import BenchError, check_sound, p50_p95
from engine_runtime.codec.flow.token2mel import Token2Mel, arrays_of
from engine_runtime.codec.speech_tokenizer.speech_tokenizer import SpeechTokenizerStream
from engine_runtime.cuda.stopwatch import Stopwatch, rounds_ms
from engine_runtime.errors import FlowCacheError
from engine_runtime.loading import Stages
from engine_runtime.table import Cell, Section
from engine_runtime.types import Mel, Pcm
from engine_runtime.work import run_alone

PUSH_MS = 80
OTHER_STEPS = (10, 5)

ENCODER_COLUMNS = {
    "call": f"push: {PUSH_MS} ms of speech; tail: the remaining samples at the end of the speech",
    "ms": "median",
    "ms_p95": "95th percentile",
    "codes": "speech codes from all calls of this kind for one question",
}
FLOW_COLUMNS = {
    "steps": "Euler steps",
    "packet": "first or later in a reply; the voice prompt is already cached",
    "codes": "of the packet, without its look-ahead",
    "ms": "median",
    "ms_p95": "95th percentile",
    "audio_ms": "audio of the packet",
}
VOCODER_COLUMNS = {
    "packet": "first or later in a reply",
    "codes": "codes of the packet",
    "ms": "median",
    "ms_p95": "95th percentile",
    "audio_ms": "audio returned; the first packet is shorter by the look-ahead",
}


@dataclass(frozen=True, slots=True)
class Packet:
    """A packet of a reply: its number of codes, and the slice of codes pushed for it, including its
    look-ahead."""

    place: Literal["first", "later"]
    codes: int
    fed: slice


def packets_of(stage: Token2Mel, count: int) -> list[Packet]:
    """The first `count` packets of a reply."""
    ends = [end - stage.prompt_codes for end in islice(stage.packet_ends(), count)]
    ahead = stage.look_ahead_codes
    first = Packet("first", ends[0], slice(0, ends[0] + ahead))
    later = [Packet("later", end - start, slice(start + ahead, end + ahead)) for start, end in pairwise(ends)]
    return [first, *later]


@dataclass(slots=True)
class CodecBench:
    """Runs `repeats` replies of a few packets each, which include every packet size."""

    stages: Stages
    repeats: int
    least_packets: int = 4
    seed: int = 0
    _mels: list[Mel] = field(default_factory=list)

    def encoder(self, question: Pcm, stream: SpeechTokenizerStream) -> Section:
        """Time every push and the tail of one question, `repeats` times."""
        tokenizer = self.stages.speech_tokenizer
        block = tokenizer.sample_rate * PUSH_MS // 1000

        def ask(watch: Stopwatch) -> tuple[int, int]:
            stream.reset()
            codes = []
            for start in range(0, len(question), block):
                self.stages.cpu_threads.adapt()
                codes.append(watch.time(partial(run_alone, stream.push(question[start : start + block]))))
            rest = watch.time(partial(run_alone, stream.tail()))
            _check_codes(np.concatenate([*codes, rest]), -(-len(question) // tokenizer.samples_per_code))
            return sum(map(len, codes)), len(rest)

        (*pushes, tails), counts = rounds_ms(ask, self.device, self.repeats)
        section = Section("speech encoder", ENCODER_COLUMNS)
        all_pushes = [ms for times in pushes for ms in times]
        for call, times, count in (("push", all_pushes, counts[0]), ("tail", tails, counts[1])):
            p50, p95 = p50_p95(times)
            section.rows.append({"call": call, "ms": p50, "ms_p95": p95, "codes": count})
        return section

    def flow(self) -> Section:
        """Time first and later packets, with the engine's number of Euler steps and with others."""
        stage = self.stages.token2mel
        section = Section("flow", FLOW_COLUMNS)
        section.note = f"voice prompt of {stage.prompt_codes} codes"
        ms_of_code = 1000 * stage.frames_per_code / stage.mel.frame_rate
        audio_ms = [packet.codes * ms_of_code for packet in self._packets]
        for steps in dict.fromkeys((stage.steps, *OTHER_STEPS)):
            try:
                times = self._flow(steps)
            except (torch.OutOfMemoryError, FlowCacheError):
                if steps == stage.steps:
                    raise
                section.note += (
                    f"; {steps} steps not measured: the GPU has too little memory for their caches"
                )
                continue
            section.rows += [{"steps": steps, **row} for row in self._rows(times, audio_ms)]
        return section

    def vocoder(self) -> Section:
        """Time the vocoder on the mel of the last reply of the flow, packet by packet."""
        if not self._mels:
            self._flow(self.stages.token2mel.steps)
        stream = self.stages.vocoder.stream()

        def speak(watch: Stopwatch) -> list[int]:
            stream.reset()
            chunks = []
            for mel in self._mels:
                self.stages.cpu_threads.adapt()
                chunks.append(watch.time(partial(stream.push, mel)))
            chunks.append(stream.finish())
            frames = sum(mel.shape[1] for mel in self._mels)
            check_sound("The vocoder's output", np.concatenate(chunks), frames * self.stages.vocoder.mel.hop)
            return [len(chunk) for chunk in chunks]

        times, made = rounds_ms(speak, self.device, self.repeats)
        rate = self.stages.vocoder.sample_rate
        section = Section("vocoder", VOCODER_COLUMNS, note=f"vocoder {self.stages.vocoder.kind}")
        section.rows += self._rows(times, [1000 * samples / rate for samples in made])
        return section

    @property
    def device(self) -> torch.device:
        """The device of the stages."""
        return self.stages.lm.cache.pool.device

    @property
    def _packets(self) -> list[Packet]:
        stage = self.stages.token2mel
        return packets_of(stage, max(self.least_packets, len(stage.packet_codes)))

    def _rows(self, times: list[list[float]], audio_ms: list[float]) -> list[dict[str, Cell]]:
        """One row per packet size, over all packets of that size."""
        together: dict[tuple[str, int], list[int]] = {}
        for index, packet in enumerate(self._packets):
            together.setdefault((packet.place, packet.codes), []).append(index)
        rows: list[dict[str, Cell]] = []
        for (place, codes), indices in together.items():
            p50, p95 = p50_p95([ms for index in indices for ms in times[index]])
            rows.append(
                {
                    "packet": place,
                    "codes": codes,
                    "ms": p50,
                    "ms_p95": p95,
                    "audio_ms": audio_ms[indices[0]],
                }
            )
        return rows

    def _flow(self, steps: int) -> list[list[float]]:
        """Times of each packet in ms; keeps the mels of the last reply."""
        stage, packets = self.stages.token2mel, self._packets
        codebook = self.stages.speech_tokenizer.codebook_size
        codes = np.random.default_rng(self.seed).integers(0, codebook, packets[-1].fed.stop)
        stream = stage.stream(steps)

        def make(watch: Stopwatch) -> list[Mel]:
            stream.reset()
            mels: list[Mel] = []
            for packet in packets:
                self.stages.cpu_threads.adapt()
                mels += watch.time(partial(arrays_of, stream.push(codes[packet.fed])))
            _check_mel(mels, stage.mel.n_mels, [packet.codes * stage.frames_per_code for packet in packets])
            return mels

        times, self._mels = rounds_ms(make, self.device, self.repeats)
        return times


def _check_codes(codes: NDArray[np.int64], expected: int) -> None:
    if len(codes) != expected or (expected > 8 and len(set(codes.tolist())) < 2):
        raise BenchError(
            "The speech encoder returned {count} codes ({different} different ones) where "
            "{expected} were expected.",
            "No times are reported; check the weights.",
            count=len(codes),
            different=len(set(codes.tolist())),
            expected=expected,
        )


def _check_mel(mels: list[Mel], bands: int, frames: list[int]) -> None:
    if [mel.shape for mel in mels] != [(bands, count) for count in frames]:
        raise BenchError(
            "The flow returned packets of {made} frames where {frames} were expected.",
            "No times are reported.",
            made=[mel.shape[1] for mel in mels],
            frames=frames,
        )
    mel = np.concatenate(mels, axis=1)
    if not np.isfinite(mel).all() or float(mel.std(axis=1).max()) < 1e-3:
        raise BenchError("The flow's mel is not finite or is constant.", "No times are reported.")
