"""Stage 4b of the recipe: codes -> mel of the assistant's voice.

Loss: conditional flow matching on the codec mel, plus L1 between the encoder's output and the mel. Codes come
from the trained speech encoder, on answers made of units.

    python train_flow.py WORK OUT --minutes 8
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import corpus
import numpy as np
import stage
import torch
from graphed import Average, Step, adamw, cosine, set_rate
from speech_codes import ENCODER, FRAMES_PER_CODE, MEL, SpeechCoder
from torch import Tensor, nn

from engine_runtime.codec.speech_tokenizer.features import CodecMel
from engine_runtime.models.flow import CausalFlow, FlowConfig

CONFIG = FlowConfig(
    vocab_size=ENCODER.codebook_size, encoder_dim=160, encoder_heads=4, encoder_ffn=512, encoder_blocks=2,
    encoder_up_blocks=1, xvector_dim=16, channels=96, n_blocks=1, mid_blocks=3, heads=3, head_dim=32,
    max_frames=6000,
)  # fmt: skip
CODES = 60  # codes of a training answer: 4.8 s
FRAMES = CODES * FRAMES_PER_CODE
POOL = 24_000  # answers encoded once
HELD_OUT = 64  # the first answers are not trained: they show whether unit strings generalise
TAIL_CODES = 3  # a quarter second of silence after the answer belongs to it


@dataclass
class Pairs:
    """Answers as the flow sees them."""

    codes: Tensor
    """[n, CODES] int64"""
    mels: Tensor
    """[n, 80, FRAMES] float16"""
    lengths: Tensor
    """[n] codes of each answer, its silence included"""

    def mask(self, rows: slice) -> Tensor:
        """[rows, FRAMES]: True inside the answer."""
        frames = torch.arange(FRAMES, device=self.lengths.device)
        return frames < self.lengths[rows, None] * FRAMES_PER_CODE


@torch.no_grad()
def encode_answers(work: Path, coder: SpeechCoder, pool: int, device: str) -> Pairs:
    """Codes and mels of `pool` answers, half of them random unit strings."""
    rng = np.random.default_rng(0)
    answers = corpus.Answers(work / "units.npz", device)
    codec_mel = CodecMel(MEL).to(device)
    strings = corpus.training_answers(rng, pool // 2)
    strings = [strings[i] for i in rng.permutation(len(strings))[:pool]]
    codes, mels = [], []
    for first in range(0, len(strings), 64):
        part = strings[first : first + 64]
        codes.append(coder.codes(answers.batch(part, CODES, 16)))
        mels.append(codec_mel(answers.batch(part, CODES, 24)).half())
    lengths = [min(answers.num_codes(units) + TAIL_CODES, CODES) for units in strings]
    return Pairs(torch.cat(codes), torch.cat(mels), torch.tensor(lengths, device=device))


class Training:
    """The flow with its optimizer."""

    def __init__(self, pairs: Pairs, device: str) -> None:
        self.device = device
        self.flow = CausalFlow(CONFIG).to(device)
        with torch.no_grad():
            self.flow.encoder_proj.bias.copy_(pairs.mels[:512].float().mean((0, 2)))
        self.optimizer = adamw(self.flow, device, (0.9, 0.99), 0.01)

    def step(self, code: Tensor, mel: Tensor, size: Tensor) -> tuple[Tensor, ...]:
        """Codes [B, CODES], mels [B, 80, FRAMES], lengths [B] -> the losses of flow matching and L1."""
        mask = (torch.arange(FRAMES, device=self.device) < size[:, None] * FRAMES_PER_CODE)[:, None].float()
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            mu = self.flow.encode(code, size, True)
            l1 = ((mu.float() - mel).abs() * mask).sum() / (mask.sum() * MEL.n_mels)
            speaker = self.flow.speaker(None, len(code))
            cfm = self.flow.decoder.loss(mel, mask, mu, speaker, torch.zeros_like(mel), True)
        self.optimizer.zero_grad(set_to_none=True)
        (cfm + l1).backward()
        nn.utils.clip_grad_norm_(self.flow.parameters(), 1.0)
        self.optimizer.step()
        return cfm.detach(), l1.detach()


def mel_errors(flow: CausalFlow, pairs: Pairs) -> dict[str, float]:
    """L1 of the held-out answers' mels by number of steps and strength of the guidance."""
    flow.eval()
    held_out = slice(HELD_OUT)
    mask, wanted = pairs.mask(held_out), pairs.mels[held_out].float()
    report: dict[str, float] = {}
    for steps in (2, 4, 6, 10):
        for rate in (0.0, 0.3, 0.7):
            made = flow.inference(pairs.codes[held_out], n_steps=steps, cfg_rate=rate)
            error = (made - wanted).abs().mean(1)[mask].mean().item()
            report[f"steps {steps} cfg {rate}"] = round(error, 4)
    return report


def main() -> None:
    """Train for a time, report the mel error against the steps, write the flow."""
    parser = stage.parser(__doc__, minutes=8.0)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--pool", type=int, default=POOL, help="answers that are encoded once")
    args = parser.parse_args()
    stage.prepare()
    coder = SpeechCoder(args.out / "speech_encoder.safetensors", args.device)
    pairs = encode_answers(args.work, coder, args.pool, args.device)
    training = Training(pairs, args.device)
    flow, count, log = training.flow, 0, []
    print("flow:", stage.count_parameters(flow), "parameters;", len(pairs.codes), "answers", flush=True)
    average, step = Average(flow, 0.999), Step(training.step, args.device)
    for seconds, progress in stage.training_time(args.minutes):
        set_rate(training.optimizer, cosine(progress, 1e-3))
        pick = torch.randint(HELD_OUT, len(pairs.codes), (args.batch,), device=args.device)
        cfm, l1 = step(pairs.codes[pick], pairs.mels[pick].float(), pairs.lengths[pick])
        average.update()
        count += 1
        if count % 500 == 0:
            values = {"cfm": round(cfm.item(), 4), "l1": round(l1.item(), 4)}
            log.append({"step": count, "s": round(seconds), **values})
            print(log[-1], flush=True)
    average.apply()
    report = mel_errors(flow, pairs)
    print("mel L1 on held-out answers:", report, "steps", count, flush=True)
    stage.save_weights(flow, args.out / "flow.safetensors")
    stage.write_log(args.out / "flow_log.json", mel_l1=report, steps=count, log=log)


if __name__ == "__main__":
    main()
