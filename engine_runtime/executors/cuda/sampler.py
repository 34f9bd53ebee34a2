"""Samples the next ids on the device: the counterpart of lm/sampler.py.

In: logits in static buffers and the values of StepInputs, including the uniform samples. Out: `result` [5]
float64, which represents integers exactly: text id, audio id, most likely text id (for subtitles); and the
sums by which lm/step.py validates the text and the audio logits. The same uniform samples yield the
same ids as the Sampler on the CPU, except for a sample within rounding of the boundary between two ids. `run`
needs no host value, so that it can be captured in a CUDA graph; `read` waits for it. Engine thread.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine_runtime.cuda.transfer import pinned
from engine_runtime.executors.cuda.inputs import StepInputs
from engine_runtime.lm.step import (
    MAX_TOP_K,
    ReplySampling,
    SampledIds,
    SamplingMetadata,
    StepOutput,
    Tails,
    check_magnitude,
)

TEXT, AUDIO, SUBTITLE, TEXT_MAGNITUDE, AUDIO_MAGNITUDE = range(5)


def sampled_output(found: Sequence[float], tails: Tails, *, wants_subtitle: bool) -> StepOutput:
    """The result of a step that sampled for a sequence, from its numbers [5]. Refuses logits as lm/step.py
    does, by their sums."""
    if tails.text:
        check_magnitude("logits", found[TEXT_MAGNITUDE])
    if tails.audio:
        check_magnitude("audio_logits", found[AUDIO_MAGNITUDE])
    ids = SampledIds(
        int(found[TEXT]) if tails.text else None,
        int(found[AUDIO]) if tails.audio else None,
        int(found[SUBTITLE]) if tails.text and wants_subtitle else None,
    )
    return StepOutput(None, None, ids)


class DeviceSampler:
    """Keeps, per channel, the ids subject to the repetition penalty."""

    def __init__(self, text_vocab: int, audio_vocab: int, inputs: StepInputs, device: torch.device) -> None:
        self._inputs = inputs
        self._seen_text = torch.zeros(text_vocab, dtype=torch.bool, device=device)
        self._seen_audio = torch.zeros(audio_vocab, dtype=torch.bool, device=device)
        self._audio_ids = torch.arange(audio_vocab, device=device)
        self._reply: ReplySampling | None = None
        self._device = device
        self._read = torch.zeros(5, dtype=torch.float64, pin_memory=device.type == "cuda")
        self.result = torch.zeros(5, dtype=torch.float64, device=device)

    def set(self, sampling: SamplingMetadata) -> None:
        """Write the inputs of a step; the state of the reply only where it is another one than before."""
        reply = sampling.reply
        if reply is not self._reply:
            if reply.params.repetition_penalty != 1.0:  # else whatever is there has no effect
                for own, seen in ((self._seen_text, reply.seen_text), (self._seen_audio, reply.seen_audio)):
                    own.copy_(pinned(seen, self._device), non_blocking=True)
            self._reply = reply
        self._inputs.set_sampling(sampling)

    def forget(self, reply: ReplySampling) -> None:
        """Read the state of a reply again at its next step here: some of its steps run elsewhere."""
        if reply is self._reply:
            self._reply = None

    def run(self, text: Tensor | None, audio: Tensor | None, *, do_sample: bool, subtitle: bool) -> None:
        """Fill `result` from logits [1, vocab] float32; None for a tail that did not run."""
        inputs = self._inputs
        self._seen_text.index_fill_(0, inputs["seen_text"], True)
        self._seen_audio.index_fill_(0, inputs["seen_audio"], True)
        if text is not None:
            self.result[TEXT_MAGNITUDE] = text.abs().sum()
            scores = self._penalized(text[0], self._seen_text)
            self.result[TEXT] = self._sample(scores, inputs["draw_text"], do_sample)
            if subtitle:
                self.result[SUBTITLE] = text[0].argmax()
        if audio is not None:
            self.result[AUDIO_MAGNITUDE] = audio.abs().sum()
            eosp = inputs["eosp"]
            scores = audio[0].masked_fill(self._audio_ids >= inputs["banned_from"], -torch.inf)
            held = scores.index_select(0, eosp).masked_fill(inputs["bans_eosp"] != 0, -torch.inf)
            scores = scores.index_copy(0, eosp, held)
            scores = self._penalized(scores, self._seen_audio)
            self.result[AUDIO] = self._sample(scores, inputs["draw_audio"], do_sample)

    def read(self) -> list[float]:
        """Synchronize with the current stream and return `result`."""
        if self.result is not self._read:
            self._read.copy_(self.result, non_blocking=True)
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        return self._read.tolist()

    def _penalized(self, scores: Tensor, seen: Tensor) -> Tensor:
        penalty = self._inputs["penalty"].float()
        return torch.where(seen, torch.where(scores < 0, scores * penalty, scores / penalty), scores)

    def _sample(self, scores: Tensor, draw: Tensor, do_sample: bool) -> Tensor:
        if not do_sample:
            return scores.argmax()
        inputs = self._inputs
        # Dividing by the temperature keeps the order, so only the candidates are divided.
        values, ids = scores.topk(min(MAX_TOP_K, scores.numel()))
        values = values / inputs["temperature"].float()
        return sample_candidate(values, ids, inputs["top_k"], inputs["top_p"].float(), draw)


def sample_candidate(values: Tensor, ids: Tensor, top_k: Tensor, top_p: Tensor, draw: Tensor) -> Tensor:
    """The id at which the cumulative probability in vocabulary order passes `draw`.

    Args:
        values: the highest scores, in descending order, divided by the temperature [n] float32.
        ids: their ids [n] int64.
        top_k: scores not below the top_k-th are kept (1..n).
        top_p: of those, a score is kept if the probabilities of the higher ones sum to less.
        draw: uniform in [0, 1), float64.

    Nothing is sorted: n is small enough to compare every candidate with every other.
    """
    kth = values.index_select(0, (top_k - 1).clamp(0, values.numel() - 1).reshape(1))
    values = values.masked_fill(values < kth, -torch.inf)
    higher = values[None, :] > values[:, None]
    earlier = ids[None, :] < ids[:, None]
    comes_before = higher | ((values[None, :] == values[:, None]) & earlier)
    mass_before = (values.softmax(-1)[None, :] * comes_before).sum(-1)
    is_kept = (mass_before < top_p) & (values > -torch.inf)
    probabilities = values.masked_fill(~is_kept, -torch.inf).double().softmax(-1)
    up_to = (probabilities[None, :] * (ids[None, :] <= ids[:, None])).sum(-1)
    # NOTE: rounding may leave the last sum slightly below 1; a larger uniform sample selects the last kept
    # id.
    last = ids.masked_fill(~is_kept, -1).max()
    passed = ids.masked_fill(~(is_kept & (up_to > draw)), torch.iinfo(torch.int64).max).min()
    return torch.minimum(passed, last)
