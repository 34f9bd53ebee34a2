"""Stage 4b of the recipe: codes -> mel of the assistant's voice.

Loss: conditional flow matching on the codec mel, plus L1 between the encoder's output and the mel. Codes come from the
trained speech encoder, on answers made of units.

    python train_flow.py WORK OUT --minutes 8
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import corpus
import numpy as np
import torch
from graphed import Average, Step, adamw, cosine, set_rate
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from train_tokenizer import CONFIG as ENCODER_CONFIG
from train_tokenizer import MEL

from engine_runtime.codec.features import CodecMel, WhisperLogMel
from engine_runtime.models.flow import CausalFlow, FlowConfig
from engine_runtime.models.whisper_vq import WhisperVQ

CONFIG = FlowConfig(
    vocab_size=ENCODER_CONFIG.codebook_size, encoder_dim=160, encoder_heads=4, encoder_ffn=512, encoder_blocks=2,
    encoder_up_blocks=1, xvector_dim=16, channels=96, n_blocks=1, mid_blocks=3, heads=3, head_dim=32, max_frames=6000,
)  # fmt: skip
CODES = 60  # codes of a training answer: 4.8 s
POOL = 24_000  # answers encoded once


def load_encoder(path: Path, device: str) -> WhisperVQ:
    """The trained speech encoder."""
    model = WhisperVQ(ENCODER_CONFIG)
    model.load_state_dict({name: value.float() for name, value in load_file(path).items()})
    return model.to(device).eval()


@torch.no_grad()
def encode(model: WhisperVQ, log_mel: WhisperLogMel, wave: Tensor) -> Tensor:
    """16 kHz windows -> codes."""
    return model(log_mel(wave))


def main() -> None:
    """Train for a time, report the mel error against the steps, write the flow."""
    parser = argparse.ArgumentParser()
    parser.add_argument("work", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--pool", type=int, default=POOL)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    device = args.device
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    rng = np.random.default_rng(0)
    answers = corpus.Answers(args.work / "units.npz", device)
    encoder = load_encoder(args.out / "speech_encoder.safetensors", device)
    log_mel = WhisperLogMel(16_000, ENCODER_CONFIG.num_mel_bins, "running_max").to(device)
    codec_mel = CodecMel(MEL).to(device)

    strings = corpus.training_answers(rng, args.pool // 2)
    strings = [strings[i] for i in rng.permutation(len(strings))[: args.pool]]
    codes_parts, mel_parts, lengths = [], [], []
    for first in range(0, len(strings), 64):
        part = strings[first : first + 64]
        codes_parts.append(encode(encoder, log_mel, answers.batch(part, CODES, 16)))
        mel_parts.append(codec_mel(answers.batch(part, CODES, 24)).half())
        # a quarter second of silence after the answer belongs to it
        lengths += [min(answers.num_codes(units) + 3, CODES) for units in part]
    codes, mels, length = torch.cat(codes_parts), torch.cat(mel_parts), torch.tensor(lengths, device=device)

    flow = CausalFlow(CONFIG).to(device)
    with torch.no_grad():
        flow.encoder_proj.bias.copy_(mels[:512].float().mean((0, 2)))
    print("flow:", sum(p.numel() for p in flow.parameters()), "parameters;", len(strings), "answers", flush=True)
    optimiser = adamw(list(flow.parameters()), device, (0.9, 0.99), 0.01)
    average = Average(flow, 0.999)

    def step(code: Tensor, mel: Tensor, size: Tensor) -> tuple[Tensor, ...]:
        mask = (torch.arange(CODES * 4, device=device) < size[:, None] * 4)[:, None].float()
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            mu = flow.encode(code, size, True)
            l1 = ((mu.float() - mel).abs() * mask).sum() / (mask.sum() * 80)
            cfm = flow.decoder.loss(mel, mask, mu, flow.speaker(None, len(code)), torch.zeros_like(mel), True)
        loss = cfm + l1
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(flow.parameters(), 1.0)
        optimiser.step()
        return cfm.detach(), l1.detach()

    graphed = Step(step, device)
    start, limit, count, log = time.time(), args.minutes * 60, 0, []
    held_out = 64  # the first rows are not trained: they show whether unit strings generalise
    while (elapsed := time.time() - start) < limit:
        set_rate(optimiser, cosine(elapsed / limit, 1e-3))
        pick = torch.randint(held_out, len(codes), (args.batch,), device=device)
        cfm, l1 = graphed(codes[pick], mels[pick].float(), length[pick])
        average.update()
        count += 1
        if count % 500 == 0:
            log.append({"step": count, "s": round(elapsed), "cfm": round(cfm.item(), 4), "l1": round(l1.item(), 4)})
            print(log[-1], flush=True)
    average.apply()
    flow.eval()
    report: dict[str, float] = {}
    mask = torch.arange(CODES * 4, device=device) < length[:held_out, None] * 4
    for steps in (2, 4, 6, 10):
        for rate in (0.0, 0.3, 0.7):
            made = flow.inference(codes[:held_out], n_steps=steps, cfg_rate=rate)
            error = (made - mels[:held_out].float()).abs().mean(1)[mask].mean().item()
            report[f"steps {steps} cfg {rate}"] = round(error, 4)
    print("mel L1 on held-out answers:", report, "steps", count, flush=True)
    save_file({k: v.detach().half().cpu().contiguous() for k, v in flow.state_dict().items()}, args.out / "flow.safetensors")
    (args.out / "flow_log.json").write_text(json.dumps({"mel_l1": report, "steps": count, "log": log}))


if __name__ == "__main__":
    main()
