"""Calibration: statistics of the inputs of every linear layer while the model generates replies.

In: an unquantized checkpoint, conversations. Out: for each linear layer the largest and the mean absolute
value of every input channel, and a random sample of inputs. FP8 derives its scales from the first, AWQ
searches with the others, the report computes errors from the last; stored in one file, they serve every later
quantization. Engine thread.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from engine_runtime.bundle.bundle import Bundle
from engine_runtime.bundle.weights import Progress
from engine_runtime.codec.speech_tokenizer.speech_tokenizer import SpeechTokenizer
from engine_runtime.errors import ExportError
from engine_runtime.executors.torch.linear import Linear
from engine_runtime.lm.block_manager import Sequence
from engine_runtime.lm.chat_template import Prompt, TextTokenizer
from engine_runtime.lm.generation import Generation, Token
from engine_runtime.lm.paged_lm import PagedLM
from engine_runtime.lm.sequence_runner import SequenceRunner
from engine_runtime.models.moss_lm import MossLMConfig
from engine_runtime.tensorrt.checkpoint.scales import QuantizeError
from engine_runtime.types import Modality, Pcm

KEPT_ROWS = 128
"""Inputs of each product that are kept."""
_AGAIN = "Give another file with --statistics, or remove it to calibrate again."
_PARTS = ("amax", "mean", "rows")


@dataclass(frozen=True, slots=True)
class Inputs:
    """Statistics of one linear layer's inputs.

    Attributes:
        amax: [in] float32, the largest absolute value of each channel.
        mean: [in] float32, the mean absolute value of each channel.
        rows: [n, in], inputs drawn at random, each as likely as any other.
    """

    amax: Tensor
    mean: Tensor
    rows: Tensor


@dataclass(frozen=True, slots=True)
class Calibration:
    """Inputs of every product, by its module; of how many prompts and rows, and of which model."""

    inputs: dict[str, Inputs]
    prompts: int
    rows: int
    model: str

    def save(self, file: Path) -> None:
        """Write one safetensors file. ExportError if that fails."""
        tensors = {
            f"{module}.{part}": getattr(inputs, part).cpu().contiguous()
            for module, inputs in self.inputs.items()
            for part in _PARTS
        }
        about = {"prompts": self.prompts, "rows": self.rows, "model": self.model}
        unfinished = file.with_name(f"{file.name}.part")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            save_file(tensors, unfinished, {"calibration": json.dumps(about)})
            unfinished.replace(file)
        except (OSError, SafetensorError) as error:
            raise ExportError(
                "{file} cannot be written: {error}.",
                "Free some space, or choose another file with --statistics.",
                file=file,
                error=error,
            ) from error

    @classmethod
    def load(cls, file: Path, model: str) -> Calibration:
        """Read a file of `save`. QuantizeError if it is damaged or of another model."""
        try:
            with safe_open(file, framework="pt") as content:
                about = json.loads(content.metadata()["calibration"])
                modules = sorted({name.rpartition(".")[0] for name in content.keys()})  # noqa: SIM118
                inputs = {
                    module: Inputs(*(content.get_tensor(f"{module}.{part}") for part in _PARTS))
                    for module in modules
                }
                found = cls(inputs, int(about["prompts"]), int(about["rows"]), str(about["model"]))
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            raise QuantizeError(
                "{file} is not a valid calibration file ({error}).",
                _AGAIN,
                file=file,
                error=error,
            ) from error
        if found.model != model:
            raise QuantizeError("{file} was calibrated with another model.", _AGAIN, file=file)
        return found


@dataclass(slots=True)
class _Watch:
    """Accumulates statistics of one linear layer's inputs.

    A row is kept if its random number is among the largest so far; the numbers do not depend on the rows, so
    that no GPU synchronization is needed.
    """

    generator: torch.Generator
    count: int = 0
    amax: Tensor | None = None
    total: Tensor | None = None
    rows: Tensor | None = None
    keys: Tensor = field(default_factory=lambda: torch.zeros(0))

    def __call__(self, x: Tensor) -> None:
        """One input [n, in]."""
        wide = x.float().abs()
        amax, total = wide.amax(dim=0), wide.sum(dim=0)
        self.amax = amax if self.amax is None else torch.maximum(self.amax, amax)
        self.total = total if self.total is None else self.total + total
        self.count += x.shape[0]
        self._keep(x)

    def _keep(self, x: Tensor) -> None:
        keys = torch.rand(x.shape[0], generator=self.generator)
        if len(self.keys) == KEPT_ROWS and float(keys.max()) <= float(self.keys.min()):
            return
        rows = x if self.rows is None else torch.cat((self.rows, x))
        keys = torch.cat((self.keys, keys))
        best = keys.topk(min(KEPT_ROWS, len(keys))).indices
        self.keys, self.rows = keys[best], rows[best.to(x.device)]

    def inputs(self) -> Inputs:
        """The recorded statistics."""
        assert self.amax is not None
        assert self.total is not None
        assert self.rows is not None
        return Inputs(self.amax, self.total / self.count, self.rows.clone())


@dataclass(frozen=True, slots=True)
class _Watched:
    """A linear layer whose inputs are observed."""

    linear: Linear
    watch: _Watch

    def __call__(self, x: Tensor) -> Tensor:
        self.watch(x)
        return self.linear(x)

    def added_to(self, residual: Tensor, x: Tensor) -> Tensor:
        self.watch(x)
        return self.linear.added_to(residual, x)


class Calibrator:
    """Wraps the linear layers of a network during loading, and returns their input statistics afterwards."""

    def __init__(self) -> None:
        self._watches: dict[str, _Watch] = {}

    def wrap(self, module: str, linear: Linear) -> Linear:
        """Observe a linear layer: the `wrap` of `load_paged`."""
        seed = len(self._watches)
        self._watches[module] = _Watch(torch.Generator().manual_seed(seed))
        return _Watched(linear, self._watches[module])

    def run(
        self,
        answering: AnsweringModel,
        prompts: Iterable[CalibrationPrompt],
        *,
        model: str,
        reply_tokens: int,
        total: int,
        progress: Progress | None = None,
    ) -> Calibration:
        """Lead a language model that was loaded with `wrap` through `total` prompts and its replies.

        `model` names the weights, `reply_tokens` is the longest reply. QuantizeError without prompts,
        ExecutorError if a value is not finite.
        """
        count = rows = 0
        for count, prompt in enumerate(prompts, start=1):
            rows += answering.answer(prompt, reply_tokens)
            if progress is not None:
                progress(count / total)
        if not count:
            raise QuantizeError("No prompts to calibrate with.", "Pass recordings with --wavs DIR.")
        inputs = {module: watch.inputs() for module, watch in self._watches.items()}
        return Calibration(inputs, count, rows, model)


@dataclass(frozen=True, slots=True)
class CalibrationPrompt:
    """One question, spoken (at the bundle's input rate) or typed, and how it is to be answered."""

    question: Pcm | str
    reply: Modality


class AnsweringModel:
    """A language model that answers prompts laid out as in a conversation; needs no flow and no vocoder."""

    def __init__(self, bundle: Bundle, lm: PagedLM, speech_tokenizer: SpeechTokenizer) -> None:
        self._section, self.lm, self._speech_tokenizer = bundle.lm, lm, speech_tokenizer
        self.config = MossLMConfig.from_dict(bundle.lm.config)
        special, vocab = bundle.lm.special_ids, self.config.text_vocab
        self._layout = Prompt(TextTokenizer(bundle.text_tokenizer, special, vocab), special, bundle.lm.prompt)
        self._sequences = SequenceRunner(lm, special, vocab)

    def rows(self, prompt: CalibrationPrompt) -> list[Token]:
        """All rows before the reply."""
        layout, question = self._layout, prompt.question
        if isinstance(question, str):
            user = layout.user_text(question)
        else:
            codes = self._speech_tokenizer.encode(question)
            user = [*layout.open_user_speech(), *layout.code_tokens(codes), *layout.end_speech()]
        return [*layout.system(prompt.reply), *user, *layout.end_turn(), *layout.open_reply(prompt.reply)]

    def answer(self, prompt: CalibrationPrompt, reply_tokens: int) -> int:
        """Prefill a prompt and decode the reply, both tails at every row; returns the rows that were run."""
        section, lm = self._section, self.lm
        rows = self.rows(prompt)[: section.context_tokens - reply_tokens]
        sampling = section.sampling_speech if prompt.reply is Modality.SPEECH else section.sampling_text
        generation = Generation(
            rows,
            replace(sampling.seeded(), max_new=max(1, min(reply_tokens, sampling.max_new))),
            section.special_ids,
            text_vocab=self.config.text_vocab,
            audio_vocab=self.config.audio_vocab,
            device=str(lm.executor.device),
        )
        sequence = Sequence()
        try:
            logits = lm.prefill(sequence, self._sequences.merged_ids(rows))
            while reply_tokens and generation.finish_reason is None:
                row = generation.sample(logits).token
                (token_id,) = self._sequences.merged_ids((row,))
                logits = lm.decode(sequence, token_id)
            return sequence.num_tokens
        finally:
            lm.blocks.release(sequence)
