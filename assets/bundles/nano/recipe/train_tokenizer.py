"""Stage 3 of the recipe: the speech encoder and its codebook.

Loss: CTC on phones from the codes (so that codes carry what is said), plus L1 on the codec mel (so that the
assistant's speech can be made again from them), plus the commitment of the vector quantiser. The decoders are thrown
away. The codebook starts from k-means after a warm-up without quantiser, follows by moving averages, and entries that
nobody uses are put where data is.

    python train_tokenizer.py WORK OUT --minutes 8
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from pathlib import Path

import corpus
import domain
import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from engine_runtime.codec.features import CodecMel, WhisperLogMel
from engine_runtime.models.whisper_vq import WhisperVQ, WhisperVQConfig
from engine_runtime.types import MelSpec

CONFIG = WhisperVQConfig(
    num_mel_bins=128, d_model=256, heads=4, ffn=1024, layers=4, max_positions=752, codebook_size=2048
)
MEL = MelSpec(sample_rate=24_000, n_mels=80, n_fft=1920, hop=480, win=1920, fmin=0.0, fmax=8000.0)
MEL16 = MelSpec(sample_rate=16_000, n_mels=80, n_fft=1280, hop=320, win=1280, fmin=0.0, fmax=8000.0)
CODES = 64  # codes in a training window: 5.12 s


def pronunciations() -> dict[str, list[str]]:
    """Word -> phones, as flite says it."""
    words = domain.vocabulary(domain.all_dialogues())
    found = {}
    for word in words:
        command = ["flite", "-voice", "kal", "-ps", "-t", word, "none"]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found[word] = [phone for phone in text.split() if phone != "pau"]
    return found


class Quantiser(nn.Module):
    """Codebook with moving averages. Its state lives in the encoder's `codebook` weight."""

    def __init__(self, codebook: Tensor, decay: float = 0.99) -> None:
        super().__init__()
        self.entries, self.decay = codebook, decay
        self.register_buffer("count", torch.ones(len(codebook), device=codebook.device))
        self.register_buffer("total", codebook.detach().clone())

    @torch.no_grad()
    def k_means(self, points: Tensor, rounds: int = 12) -> None:
        """Place the entries on `points` [n, d]."""
        entries = points[torch.randint(len(points), (len(self.entries),), device=points.device)].clone()
        for _ in range(rounds):
            nearest = self._nearest(points, entries)
            count = torch.bincount(nearest, minlength=len(entries)).float()
            total = torch.zeros_like(entries).index_add_(0, nearest, points)
            entries = torch.where(count[:, None] > 0, total / count.clamp_min(1)[:, None], entries)
        self.entries.copy_(entries)
        self.total.copy_(entries)
        self.count.fill_(1.0)

    @staticmethod
    def _nearest(points: Tensor, entries: Tensor) -> Tensor:
        return torch.cat([(entries.square().sum(1) - 2 * part @ entries.T).argmin(1) for part in points.split(16_384)])

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[B, n, d] -> quantised with straight-through gradient, codes, commitment loss."""
        points = hidden.detach().float().reshape(-1, hidden.shape[-1])
        with torch.no_grad():
            codes = self._nearest(points, self.entries)
            count = torch.bincount(codes, minlength=len(self.entries)).float()
            total = torch.zeros_like(self.entries).index_add_(0, codes, points)
            self.count.mul_(self.decay).add_(count, alpha=1 - self.decay)
            self.total.mul_(self.decay).add_(total, alpha=1 - self.decay)
            dead = self.count < 0.05
            fresh = points[torch.randint(len(points), (len(self.entries),), device=points.device)]
            quantised = self.entries[codes].view_as(hidden)
            self.entries.copy_(torch.where(dead[:, None], fresh, self.total / self.count.clamp_min(1e-3)[:, None]))
            self.total.copy_(torch.where(dead[:, None], fresh, self.total))
            self.count.masked_fill_(dead, 1.0)
        commitment = F.mse_loss(hidden.float(), quantised)
        straight = hidden + (quantised - hidden.float()).detach().to(hidden.dtype)
        return straight, codes.view(hidden.shape[:2]), commitment


class Decoder(nn.Module):
    """Training only: quantised hidden -> phone logits at 50 Hz, codec mel at 50 Hz."""

    def __init__(self, width: int, phones: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        layer = {"d_model": width, "nhead": 4, "dim_feedforward": 4 * width, "dropout": 0.0, "batch_first": True,
                 "norm_first": True, "activation": "gelu"}  # fmt: skip
        self.phone_layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(**layer), 3, enable_nested_tensor=False)
        self.mel_layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(**layer), 2, enable_nested_tensor=False)
        self.position = nn.Parameter(torch.randn(CODES * 4, width) * 0.02)
        self.speaker = nn.Linear(80, width)
        self.phone_head, self.mel_head = nn.Linear(width, phones), nn.Linear(width, 80)

    def forward(self, hidden: Tensor, mean_mel: Tensor) -> tuple[Tensor, Tensor]:
        """[B, n, d], [B, 80] -> [B, 4n, phones], [B, 4n, 80]."""
        batch, n, width = hidden.shape
        x = self.up(hidden).view(batch, 4 * n, width) + self.position[: 4 * n]
        phones = self.phone_head(self.phone_layers(x))
        return phones, self.mel_head(self.mel_layers(x + self.speaker(mean_mel)[:, None]))


def sinusoids(positions: int, width: int) -> Tensor:
    """Whisper's position table."""
    scale = torch.exp(-np.log(10_000) / (width // 2 - 1) * torch.arange(width // 2))
    angle = torch.arange(positions)[:, None] * scale
    return torch.cat([angle.sin(), angle.cos()], 1)


def greedy(logits: Tensor) -> list[list[int]]:
    """CTC best path."""
    best = logits.argmax(-1).cpu().numpy()
    return [[int(p) for i, p in enumerate(row) if p and (i == 0 or p != row[i - 1])] for row in best]


def edit_distance(a: list[int], b: list[int]) -> int:
    """Levenshtein."""
    row = np.arange(len(b) + 1)
    for i, x in enumerate(a):
        before, row[0] = row[0], i + 1
        for j, y in enumerate(b):
            before, row[j + 1] = row[j + 1], min(row[j + 1] + 1, row[j] + 1, before + (x != y))
    return int(row[-1])


def main() -> None:
    """Train for a time, report phone errors on held-out questions, write the encoder."""
    parser = argparse.ArgumentParser()
    parser.add_argument("work", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--batch", type=int, default=192)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    device = args.device
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    rng = np.random.default_rng(0)
    generator = torch.Generator(device).manual_seed(0)
    lexicon = pronunciations()
    phones = sorted({phone for word in lexicon.values() for phone in word})
    ids = {phone: i + 1 for i, phone in enumerate(phones)}  # 0 is the blank

    def target(text: str) -> list[int]:
        return [ids[phone] for word in text.split() for phone in lexicon[word]]

    questions = corpus.Questions(args.work / "users.npz", device)
    dev = corpus.Questions(args.work / "dev.npz", device)
    answers = corpus.Answers(args.work / "units.npz", device)
    strings = corpus.training_answers(rng, 20_000)

    model = WhisperVQ(CONFIG).to(device)
    with torch.no_grad():
        model.encoder.embed_positions.weight.copy_(sinusoids(CONFIG.max_positions, CONFIG.d_model) * 0.3)
    model.encoder.codebook.weight.requires_grad_(False)
    decoder = Decoder(CONFIG.d_model, len(phones) + 1).to(device)
    quantiser = Quantiser(model.encoder.codebook.weight.data)
    log_mel = WhisperLogMel(16_000, CONFIG.num_mel_bins, "running_max").to(device)
    codec_mel = CodecMel(MEL16).to(device)
    parameters = [p for p in [*model.parameters(), *decoder.parameters()] if p.requires_grad]
    optimiser = torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, 0.98), weight_decay=0.01, fused=device == "cuda")
    samples = CODES * corpus.GRID16

    def encode(wave: Tensor, count_warped: int = 0) -> Tensor:
        with torch.no_grad():
            mel = log_mel(wave)
            if count_warped:
                mel[:count_warped] = corpus.warp_mel(mel[:count_warped], generator)
        with torch.autocast(device, torch.bfloat16):
            return model.encode_hidden(mel)

    def batch_of(count_user: int, count_answer: int) -> tuple[Tensor, Tensor, list[list[int]]]:
        user, said = questions.windows(rng, count_user, samples)
        picks = [strings[i] for i in rng.integers(0, len(strings), count_answer)]
        spoken = answers.batch(picks, CODES, 16)
        clean = torch.cat([user, spoken])
        keep = torch.rand(len(spoken), 1, device=device, generator=generator) < 0.7
        noisy = torch.cat([augment_all(user), torch.where(keep, spoken, augment_all(spoken))])
        targets = [[t for text in row for t in target(text)] for row in said]
        targets += [[t for unit in row for t in target(unit)] for row in picks]
        return clean, noisy, targets

    def augment_all(wave: Tensor) -> Tensor:
        return corpus.augment(wave, generator)

    steps_done, start, limit = 0, time.time(), args.minutes * 60
    log, hidden_pool = [], []
    while (elapsed := time.time() - start) < limit:
        progress = elapsed / limit
        quantise = progress > 0.10
        rate = 1e-3 * min(1.0, (steps_done + 1) / 300) * (0.5 * (1 + np.cos(np.pi * progress)) * 0.98 + 0.02)
        for group in optimiser.param_groups:
            group["lr"] = rate
        count_answer = args.batch // 4
        clean, noisy, targets = batch_of(args.batch - count_answer, count_answer)
        with torch.no_grad():
            mel = (codec_mel(clean)[..., : CODES * 4].transpose(1, 2) + 5.0) / 2.5
        hidden = encode(noisy, args.batch - count_answer)
        commitment = hidden.new_zeros(())
        if quantise and hidden_pool:
            quantiser.k_means(torch.cat(hidden_pool))
            hidden_pool.clear()
        if quantise:
            hidden, _, commitment = quantiser(hidden)
        elif progress > 0.06:
            hidden_pool.append(hidden.detach().float().reshape(-1, CONFIG.d_model)[torch.randperm(args.batch * CODES)[:2_000].to(device)])
            hidden_pool[:] = hidden_pool[-60:]
        with torch.autocast(device, torch.bfloat16):
            phone_logits, mel_made = decoder(hidden, mel.mean(1))
        lengths = torch.tensor([len(t) for t in targets], device=device)
        flat_targets = torch.tensor([p for t in targets for p in t], device=device)
        log_probability = phone_logits.float().log_softmax(-1).transpose(0, 1)
        frames = torch.full((len(targets),), CODES * 4, device=device)
        ctc = F.ctc_loss(log_probability, flat_targets, frames, lengths, zero_infinity=True)
        difference = (mel_made.float() - mel).abs().mean((1, 2))
        mel_loss = difference[:-count_answer].mean() + 3.0 * difference[-count_answer:].mean()
        loss = ctc + mel_loss + 0.5 * commitment
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        steps_done += 1
        if steps_done % 100 == 0:
            used = int((quantiser.count > 0.1).sum()) if quantise else 0
            row = {"step": steps_done, "s": round(elapsed), "ctc": round(ctc.item(), 3), "mel": round(difference[:-count_answer].mean().item(), 3),
                   "mel_answer": round(difference[-count_answer:].mean().item(), 3), "commit": round(commitment.item(), 3),
                   "norm": round(norm.item(), 2), "codes": used}  # fmt: skip
            log.append(row)
            if steps_done % 500 == 0:
                print(row, flush=True)

    model.eval(), decoder.eval()
    errors: dict[str, list[int]] = {}
    with torch.no_grad():
        for first in range(0, len(dev), 64):
            picks = range(first, min(first + 64, len(dev)))
            wave = torch.zeros(len(picks), samples, device=device)
            for row, pick in enumerate(picks):
                piece = dev.samples[dev.offsets[pick] : dev.offsets[pick + 1]][: samples - 4_000].float() / 32768
                wave[row, 3_200 : 3_200 + len(piece)] = piece
            mel = (codec_mel(wave)[..., : CODES * 4].transpose(1, 2) + 5.0) / 2.5
            codes = model.quantize(encode(wave))
            with torch.autocast(device, torch.bfloat16):
                phone_logits, _ = decoder(model.encoder.codebook(codes), mel.mean(1))
            for row, pick in enumerate(picks):
                wanted = target(str(dev.text[pick]))
                voice = str(dev.voice[pick])
                group = voice if voice in ("flite-rms", "espeak-en-us+f4") else "seen"
                found = errors.setdefault(group, [0, 0])
                found[0] += edit_distance(greedy(phone_logits[row : row + 1])[0], wanted)
                found[1] += len(wanted)
    report = {group: round(wrong / total, 4) for group, (wrong, total) in errors.items()}
    print("phone error rate, held-out questions:", report, "steps", steps_done, flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    weights = {name: value.detach().half().cpu().contiguous() for name, value in model.state_dict().items()}
    save_file(weights, args.out / "speech_encoder.safetensors")
    (args.out / "tokenizer_log.json").write_text(json.dumps({"phone_error_rate": report, "steps": steps_done, "log": log}))


if __name__ == "__main__":
    main()
