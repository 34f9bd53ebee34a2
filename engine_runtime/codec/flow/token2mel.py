"""Speech codes to mel, chunk by chunk: the streaming counterpart of `CausalFlow.inference(streaming=True)`.

In: codes as the language model generates them. Out: log-mel of a packet of codes at a time (complete
attention chunks), as soon as `look_ahead_codes` more have arrived. A stream keeps keys, values and
convolution rows of the encoder and of every Euler step, and computes every frame once. The voice prompt runs
through the caches once, when `Token2Mel` is created; a stream starts from a copy.

All chunks together equal the one-shot call: for fp32 within 1e-4 (measured 5e-6 for log-mels up to 9). Runs
in the thread of its caller; streams do not share state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, repeat
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine_runtime.codec.flow.dynamic import DynamicFlow
from engine_runtime.codec.flow.encoder import EncoderSteps
from engine_runtime.codec.flow.estimator import EstimatorSteps
from engine_runtime.codec.flow.packed_weights import WeightPacker
from engine_runtime.codec.flow.parts import FlowBackend, FlowParts
from engine_runtime.codec.flow.static import StaticFlow
from engine_runtime.cuda.graphs import GraphedCalls
from engine_runtime.errors import BundleError, MossVoiceError
from engine_runtime.models.flow import CausalFlow
from engine_runtime.models.flow.cfm import fixed_noise
from engine_runtime.options import FlowSchedule
from engine_runtime.types import Codes, Mel, MelSpec, VoicePrompt
from engine_runtime.work import Task, run_alone


class Token2Mel:
    """The packed flow and its voice. Creates streams; holds no reference to the original network.

    `steps` and `cfg_rate` default to those of the flow's config. `packet_codes` are the minimum numbers of
    codes of the first, second, ... packet, the last value also for all later ones; a packet ends at a chunk
    boundary. `left_codes` limits the attention of long replies to this many past codes (rounded up to
    chunks); the result then differs from the one-shot call. Raises BundleError for mismatched parts.

    `static_bytes` selects static caches of at most this total size for all streams, a packet at a time,
    captured by `calls` (`StaticFlow`); without it, caches are dynamic (`DynamicFlow`). With `triton`, equal
    packets of up to `streams` streams run in one call (`PagedFlow`).
    """

    def __init__(
        self,
        flow: CausalFlow,
        mel: MelSpec,
        *,
        steps: int | None = None,
        cfg_rate: float | None = None,
        schedule: FlowSchedule = "cosine",
        packet_codes: Sequence[int] = (),
        prompt: VoicePrompt | None = None,
        left_codes: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        static_bytes: int | None = None,
        calls: GraphedCalls | None = None,
        triton: bool = False,
        streams: int = 1,
    ) -> None:
        config = flow.config
        if mel.n_mels != config.n_mels:
            raise BundleError(
                "the flow has {n_mels} mel bands, but [flow.mel] has {wanted}; make them equal",
                n_mels=config.n_mels,
                wanted=mel.n_mels,
            )
        self.mel = mel
        self.config = config
        self.frames_per_code = config.upsample
        self.look_ahead_codes = config.look_ahead_codes
        self.chunk_codes = config.chunk_codes
        self.packet_codes = tuple(packet_codes) or (config.chunk_codes,)
        self.steps = steps or config.steps
        self.schedule: FlowSchedule = schedule
        self.prompt = prompt
        self.prompt_codes = 0 if prompt is None else len(prompt.codes)
        device = torch.device(device)
        pack = WeightPacker(dtype, device)
        rate = config.cfg_rate if cfg_rate is None else cfg_rate
        limit = None if left_codes is None else -(-left_codes // config.chunk_codes) * config.chunk_codes
        codes = np.zeros(0, np.int64) if prompt is None else self._checked(prompt.codes)
        with torch.no_grad():
            xvector = None if prompt is None else prompt.xvector
            speaker = flow.speaker(None if xvector is None else torch.as_tensor(xvector)[None])
            self._parts = parts = FlowParts(
                config=config,
                encoder=EncoderSteps(flow, limit, pack),
                estimator=EstimatorSteps(flow, rate, limit and limit * config.upsample, pack, schedule),
                speaker=pack.tensor(speaker),
                noise=fixed_noise(config.n_mels, config.max_frames).T.to(device).contiguous(),
                prompt_codes=codes,
                prompt_mel=pack.tensor(self._prompt_mel(prompt)),
                device=device,
            )
        self.backend: FlowBackend
        """What computes the packets of all streams."""
        self.cached_codes: int | None = None
        """Codes of all replies together whose caches fit on the device; None without common caches."""
        self.most_streams: int | None = None
        """Most streams at once; None if memory alone limits them."""
        self._capture: Callable[[int], None] | None = None
        """Captures all graphs of a number of steps; None for dynamic caches."""
        if static_bytes is None:
            self.backend = DynamicFlow(parts)
        elif triton and streams > 1:
            from engine_runtime.codec.flow.paged import PagedFlow

            self.backend = paged = PagedFlow(
                parts, self.packet_codes, static_bytes, self.steps, calls, streams
            )
            self._capture = paged.warm_up
            self.cached_codes = paged.pool.num_free * flow.config.chunk_codes
            self.most_streams = streams
        else:
            self.backend = static = StaticFlow(
                parts, self.packet_codes, static_bytes, self.steps, calls, triton=triton
            )
            self._capture = static.warm_up
        self.backend.start(self.steps)

    def check_steps(self, steps: int) -> None:
        """Raise FlowCacheError if `use_steps` cannot change to this many Euler steps."""
        self.backend.check_steps(steps)

    def use_steps(self, steps: int) -> None:
        """Give new streams this many Euler steps; graphs are captured again, those that a reply begins with
        at once. Raises FlowCacheError, with nothing changed, while there are streams in static caches, or if
        memory is too short for them."""
        self.backend.use_steps(steps)
        self.steps = steps

    def stream(self, n_steps: int | None = None) -> Token2MelStream:
        """A new stream, with `n_steps` Euler steps (default: those of this stage). Raises FlowCacheError if
        active streams leave too little memory for its caches."""
        return Token2MelStream(self, n_steps or self.steps)

    def convert(self, codes: Codes, n_steps: int | None = None) -> Mel:
        """Mel [n_mels, codes * frames_per_code] of all codes."""
        stream = self.stream(n_steps)
        empty = np.zeros((self.mel.n_mels, 0), dtype=np.float32)
        return np.concatenate([empty, *arrays_of(stream.push(codes)), *arrays_of(stream.finish())], axis=1)

    def packet_ends(self) -> Iterator[int]:
        """Infinite iterator over the ends of a reply's packets, in codes from the start of the voice prompt:
        each is the first chunk boundary that makes the packet large enough."""
        end, chunk = self.prompt_codes, self.chunk_codes
        for size in chain(self.packet_codes, repeat(self.packet_codes[-1])):
            end = -(-(end + size) // chunk) * chunk
            yield end

    @property
    def estimator(self) -> EstimatorSteps:
        """The packed estimator, shared by all streams."""
        return self._parts.estimator

    @property
    def is_static(self) -> bool:
        """Whether the caches have a fixed size."""
        return self._capture is not None

    def warm_up(self) -> None:
        """Capture all graphs, if graphs are enabled."""
        if self._capture is not None:
            self._capture(self.steps)

    def _prompt_mel(self, prompt: VoicePrompt | None) -> Tensor:
        """The prompt's mel as [1, frames, n_mels]; raises BundleError if its length does not match its
        codes."""
        shape = (self.mel.n_mels, self.prompt_codes * self.frames_per_code)
        if prompt is None:
            return torch.zeros((1, 0, shape[0]))
        if prompt.mel.shape != shape:
            raise BundleError(
                "the voice prompt has {count} codes, so its mel must be {shape}, not {mel_shape}; cut "
                "both to the same length",
                count=len(prompt.codes),
                shape=list(shape),
                mel_shape=list(prompt.mel.shape),
            )
        return torch.as_tensor(prompt.mel.T[None])

    def _checked(self, codes: Codes) -> Codes:
        """Codes [n] as int64; raises BundleError for one outside the flow's vocabulary."""
        codes = np.asarray(codes, dtype=np.int64).ravel()
        if codes.size and not 0 <= codes.min() <= codes.max() < self.config.vocab_size:
            wrong = codes[(codes < 0) | (codes >= self.config.vocab_size)][0]
            raise BundleError(
                "speech code {wrong} is outside the flow's range 0..{vocab_size}; use the language model "
                "and the codec of one bundle",
                wrong=wrong,
                vocab_size=self.config.vocab_size - 1,
            )
        return codes


class Token2MelStream:
    """The stream of one reply: codes in as they arrive, packets out as they are complete."""

    def __init__(self, stage: Token2Mel, steps: int) -> None:
        self._stage, self._steps = stage, steps
        self._state: Any = None
        self.reset()

    def reset(self) -> None:
        """Return to the state after the voice prompt."""
        stage = self._stage
        self._state = None  # releases its slot
        self._state = stage.backend.start(self._steps)
        self._held: list[Tensor] = []
        self._is_finished = False
        self._packet_ends = stage.packet_ends()
        self._packet_end = next(self._packet_ends)

    def push(self, codes: Codes) -> Task[list[Tensor]]:
        """Add codes; returns the packets [n_mels, frames] that are complete now, in order, usually
        none or one: float32 tensors on the device, which are not waited for.

        Raises BundleError for a code outside the flow's vocabulary, ContextLengthError if the reply is too
        long.
        """
        self.add(codes)
        return (yield from self.packets())

    def add(self, codes: Codes) -> None:
        """Add codes; `packets` computes what they complete. Errors as in `push`."""
        if self._is_finished:
            raise MossVoiceError("this mel stream is finished; call reset() before the next reply")
        self._stage.backend.push(self._state, self._stage._checked(codes))

    @property
    def is_ready(self) -> bool:
        """Whether `packets` has something to compute."""
        return self._stage.backend.ready(self._state, self._packet_end, finishing=False) > 0

    def packets(self) -> Task[list[Tensor]]:
        """The packets that are complete now."""
        return self._run(finishing=False)

    def finish(self) -> Task[list[Tensor]]:
        """End of the codes; the remaining mel. Reset the stream before using it again."""
        packets = yield from self._run(finishing=True)
        self._is_finished = True
        return packets

    @torch.inference_mode()
    def _run(self, *, finishing: bool) -> Task[list[Tensor]]:
        stage, state, packets = self._stage, self._state, []
        while count := stage.backend.ready(state, self._packet_end, finishing):
            prompt_frames = max(stage.prompt_codes * stage.frames_per_code - state.position, 0)
            frames = yield stage.backend.work(state, count)
            mel = frames[:, prompt_frames:]
            if mel.shape[1]:
                self._held.append(mel)
            if state.position >= self._packet_end * stage.frames_per_code and self._held:
                packets.append(self._release())
                self._packet_end = next(self._packet_ends)
        if finishing and self._held:
            packets.append(self._release())
        return packets

    def _release(self) -> Tensor:
        mel = torch.cat(self._held, dim=1)[0].T.float().contiguous()
        self._held = []
        return mel


def arrays_of(packets: Task[list[Tensor]]) -> list[Mel]:
    """Compute packets of a stream alone, and wait for them."""
    return [mel.cpu().numpy() for mel in run_alone(packets)]
