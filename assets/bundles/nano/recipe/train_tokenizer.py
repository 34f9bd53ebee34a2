"""Stage 3 of the recipe: the speech encoder and its codebook.

Loss: CTC on phones from the codes (so that codes carry what is said); L1 on the codec mel of the assistant's
speech (so that it can be made again from them); the commitment of the vector quantizer; and agreement: each
user's window is seen in two disturbed versions, and the hidden state of one is drawn to the codebook entry of
the other, so that voice, room and microphone leave the codes alone. Noise on the hidden states keeps them
away from the borders between codes. The decoders are thrown away. The codebook starts from k-means after a
warm-up without quantizer, follows by moving averages, and entries that nobody uses are put where data is.

The encoder starts from `--init` (whisper_weights.py) if it is given. Training begins with `users.npz`, and
takes `neural.npz` up as soon as that is there.

    python train_tokenizer.py WORK OUT --minutes 8 [--init whisper.safetensors]
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import augmentation
import corpus
import domain
import numpy as np
import stage
import torch
import torch.nn.functional as F
import voices
from quantizer import Quantizer
from speech_codes import ENCODER, FRAMES_PER_CODE, MEL, RATE, log_mel
from torch import Tensor, nn

from engine_runtime.codec.speech_tokenizer.features import CodecMel
from engine_runtime.models.whisper_vq import WhisperVQ
from engine_runtime.types import MelSpec

CODES = 64  # codes in a training window: 5.12 s
SAMPLES = CODES * corpus.GRID16
FRAMES = CODES * FRAMES_PER_CODE
# The codec's mel of 16 kHz speech: the same window and hop in seconds.
MEL16 = MelSpec(
    sample_rate=RATE, n_mels=MEL.n_mels, n_fft=1280, hop=320, win=1280, fmin=MEL.fmin, fmax=MEL.fmax
)
COLLECT_FROM, QUANTIZE_FROM = 0.06, 0.10  # shares of the time: hidden states for k-means, then codes
AGREEMENT = 0.25  # weight of its loss
NEURAL_SHARE = 0.5  # of the users' windows, once there are Kokoro's voices
HIDDEN_NOISE = 0.15  # of the hidden states, as a share of their standard deviation
DEV_LEAD = 3_200  # samples of silence before a held-out question


class Phones:
    """Text -> phone ids, as flite says its words. Id 0 is the blank of CTC."""

    def __init__(self) -> None:
        words = domain.vocabulary(domain.all_dialogues())
        self.lexicon = {word: self._pronounce(word) for word in words}
        phones = sorted({phone for word in self.lexicon.values() for phone in word})
        self.ids = {phone: i + 1 for i, phone in enumerate(phones)}

    @staticmethod
    def _pronounce(word: str) -> list[str]:
        command = ["flite", "-voice", "kal", "-ps", "-t", word, "none"]
        spoken = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return [phone for phone in spoken.split() if phone != "pau"]

    def __len__(self) -> int:
        """Phones and the blank."""
        return len(self.ids) + 1

    def of(self, text: str) -> list[int]:
        """Ids of all words of `text`."""
        return [self.ids[phone] for word in domain.normalize(text).split() for phone in self.lexicon[word]]


class Decoder(nn.Module):
    """Training only: quantized hidden -> phone logits at 50 Hz, codec mel of the assistant at 50 Hz."""

    WIDTH = 256

    def __init__(self, hidden: int, phones: int) -> None:
        super().__init__()
        self.up = nn.Linear(hidden, FRAMES_PER_CODE * self.WIDTH)
        self.phone_layers, self.mel_layers = self._layers(3), self._layers(2)
        self.position = nn.Parameter(torch.randn(FRAMES, self.WIDTH) * 0.02)
        self.phone_head = nn.Linear(self.WIDTH, phones)
        self.mel_head = nn.Linear(self.WIDTH, MEL.n_mels)

    def _layers(self, count: int) -> nn.TransformerEncoder:
        layer = nn.TransformerEncoderLayer(
            self.WIDTH, 4, 4 * self.WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        return nn.TransformerEncoder(layer, count, enable_nested_tensor=False)

    def forward(self, hidden: Tensor, users: int) -> tuple[Tensor, Tensor]:
        """[B, n, d] -> [B, 4n, phones], and [B - users, 4n, 80] of the rows behind the users'."""
        x = self._frames(hidden)
        return self.phone_head(self.phone_layers(x)), self.mel_head(self.mel_layers(x[users:]))

    def phones(self, hidden: Tensor) -> Tensor:
        """[B, n, d] -> [B, 4n, phones]."""
        logits: Tensor = self.phone_head(self.phone_layers(self._frames(hidden)))
        return logits

    def _frames(self, hidden: Tensor) -> Tensor:
        batch, n, _ = hidden.shape
        frames = FRAMES_PER_CODE * n
        return self.up(hidden).view(batch, frames, self.WIDTH) + self.position[:frames]


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


@dataclass
class Batch:
    """Windows of user questions twice (two versions, one behind the other), then of answers."""

    clean: Tensor
    """[B, SAMPLES]"""
    noisy: Tensor
    targets: list[list[int]]
    """Phones of each row."""
    users: int
    """Rows of user questions, both versions."""


class Speech:
    """Random batches: three quarters user questions, one quarter the assistant's unit strings."""

    def __init__(self, work: Path, phones: Phones, device: str, generator: torch.Generator) -> None:
        self.rng = np.random.default_rng(0)
        self.generator, self.phones, self.device = generator, phones, device
        self.questions = corpus.Questions(work / "users.npz", device)
        self.neural_file = work / "neural.npz"
        self.neural: corpus.Questions | None = None
        self.answers = corpus.Answers(work / "units.npz", device)
        self.strings = corpus.training_answers(self.rng, 20_000)

    def look_for_neural(self) -> None:
        """Take up Kokoro's voices if they are complete by now."""
        if self.neural is None and self.neural_file.exists():
            self.neural = corpus.Questions(self.neural_file, self.device)
            print(f"{len(self.neural)} questions in Kokoro's voices are there", flush=True)

    def batch(self, size: int) -> Batch:
        """Questions are always disturbed, answers in three of ten rows."""
        each = size * 3 // 8
        neural = int(each * NEURAL_SHARE) if self.neural else 0
        user, said = self.questions.windows(self.rng, each - neural, SAMPLES)
        if self.neural and neural:
            more, more_said = self.neural.windows(self.rng, neural, SAMPLES)
            user, said = torch.cat([user, more]), said + more_said
        picks = [self.strings[i] for i in self.rng.integers(0, len(self.strings), size - 2 * each)]
        spoken = self.answers.batch(picks, CODES, 16)
        keep = torch.rand(len(spoken), 1, device=spoken.device, generator=self.generator) < 0.7
        noisy_answer = torch.where(keep, spoken, augmentation.augment(spoken, self.generator))
        user = torch.cat([user, user])
        noisy_user = augmentation.augment(user, self.generator)
        targets = [self.phones.of(" ".join(row)) for row in [*said, *said, *picks]]
        return Batch(torch.cat([user, spoken]), torch.cat([noisy_user, noisy_answer]), targets, len(user))


class Training:
    """Encoder, codebook and decoders with their optimizer."""

    def __init__(
        self, phones: Phones, device: str, generator: torch.Generator, init: Path | None = None
    ) -> None:
        self.device, self.phones, self.generator = device, phones, generator
        self.model = WhisperVQ(ENCODER)  # with Whisper's position table
        if init is not None:
            known = self.model.state_dict()
            weights = {name: value for name, value in stage.read_weights(init).items() if name in known}
            self.model.load_state_dict(weights, strict=False)  # neither codebook nor positions are there
        self.model = self.model.to(device)
        self.model.encoder.codebook.weight.requires_grad_(False)
        self.decoder = Decoder(ENCODER.d_model, len(phones)).to(device)
        self.quantizer = Quantizer(self.model.encoder.codebook.weight.data)
        self.log_mel, self.codec_mel = log_mel(device), CodecMel(MEL16).to(device)
        everything = [*self.model.parameters(), *self.decoder.parameters()]
        self.parameters = [parameter for parameter in everything if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=1e-3, betas=(0.9, 0.98), weight_decay=0.01, fused=device == "cuda"
        )
        self.steps = 0
        self.hidden_pool: list[Tensor] = []

    def step(self, batch: Batch, progress: float) -> dict[str, Tensor]:
        """One step at `progress` in 0..1 of the training time; the losses, and `norm`, of the gradient."""
        self._set_rate(progress)
        hidden = self._hidden(batch.noisy, batch.users)
        hidden, commitment, agreement = self._quantize(hidden, progress, batch.users)
        wanted = self.wanted_mel(batch.clean[batch.users :])
        with torch.autocast(self.device, torch.bfloat16):
            phone_logits, mel_made = self.decoder(hidden, batch.users)
        ctc = self._ctc(phone_logits, batch.targets)
        mel = (mel_made.float() - wanted).abs().mean()
        loss = ctc + 0.75 * mel + 0.5 * commitment + AGREEMENT * agreement
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        self.steps += 1
        return {"ctc": ctc, "mel": mel, "commit": commitment, "agree": agreement, "norm": norm}

    def _set_rate(self, progress: float) -> None:
        warm_up = min(1.0, (self.steps + 1) / 300)
        for group in self.optimizer.param_groups:
            group["lr"] = 1e-3 * warm_up * (0.5 * (1 + np.cos(np.pi * progress)) * 0.98 + 0.02)

    def wanted_mel(self, wave: Tensor) -> Tensor:
        """16 kHz [B, SAMPLES] -> codec mel [B, FRAMES, 80], about unit variance."""
        with torch.no_grad():
            return (self.codec_mel(wave)[..., :FRAMES].transpose(1, 2) + 5.0) / 2.5

    def _hidden(self, wave: Tensor, users: int = 0) -> Tensor:
        """[B, SAMPLES] -> [B, CODES, d]; the users' rows get other tempi (both versions the same) and vocal
        tracts."""
        with torch.no_grad():
            mel = self.log_mel(wave)
            if users:
                slower = augmentation.warp_time(mel[:users], self.generator, views=2)
                mel[:users] = augmentation.warp_mel(slower, self.generator)
        with torch.autocast(self.device, torch.bfloat16):
            return self.model.encode_hidden(mel)

    def _quantize(self, hidden: Tensor, progress: float, users: int) -> tuple[Tensor, Tensor, Tensor]:
        """Codes once the codebook is placed, their commitment, and the agreement of the users' versions;
        before that a collection of points to place it on."""
        nothing = hidden.new_zeros(())
        if progress > QUANTIZE_FROM:
            if self.hidden_pool:
                self.quantizer.k_means(torch.cat(self.hidden_pool))
                self.hidden_pool.clear()
            spread = HIDDEN_NOISE * hidden.detach().float().std()
            noisy = hidden + (spread * torch.randn_like(hidden)).to(hidden.dtype)
            quantized, commitment = self.quantizer(noisy)
            entries = quantized.detach().float()[:users]
            agreement = F.mse_loss(hidden[:users].float(), entries.roll(users // 2, 0))
            return quantized, commitment, agreement
        if progress > COLLECT_FROM:
            points = hidden.detach().float().reshape(-1, ENCODER.d_model)
            self.hidden_pool.append(points[torch.randperm(len(points))[:2_000].to(self.device)])
            self.hidden_pool[:] = self.hidden_pool[-60:]
        return hidden, nothing, nothing

    def _ctc(self, logits: Tensor, targets: list[list[int]]) -> Tensor:
        lengths = torch.tensor([len(row) for row in targets], device=self.device)
        flat = torch.tensor([phone for row in targets for phone in row], device=self.device)
        frames = torch.full((len(targets),), FRAMES, device=self.device)
        log_probability = logits.float().log_softmax(-1).transpose(0, 1)
        return F.ctc_loss(log_probability, flat, frames, lengths, zero_infinity=True)

    @torch.no_grad()
    def heard_phones(self, wave: Tensor) -> list[list[int]]:
        """16 kHz [B, SAMPLES] -> the phones of each row, by way of the codes."""
        codes = self.model.quantize(self._hidden(wave))
        with torch.autocast(self.device, torch.bfloat16):
            logits = self.decoder.phones(self.model.encoder.codebook(codes))
        return greedy(logits)


def phone_error_rates(training: Training, dev: corpus.Questions) -> dict[str, float]:
    """Phone errors by voice group, on held-out questions."""
    training.model.eval()
    training.decoder.eval()
    errors: dict[str, list[int]] = {}
    for first in range(0, len(dev), 64):
        picks = range(first, min(first + 64, len(dev)))
        lengths = [min(int(dev.lengths[pick]), SAMPLES - DEV_LEAD - 800) for pick in picks]
        segments = [
            [(DEV_LEAD, int(dev.offsets[pick]), length)] for pick, length in zip(picks, lengths, strict=True)
        ]
        heard = training.heard_phones(corpus.lay_out(dev.samples, segments, SAMPLES))
        for pick, phones in zip(picks, heard, strict=True):
            wanted = training.phones.of(dev.text[pick])
            found = errors.setdefault(voices.voice_group(dev.voice[pick]), [0, 0])
            found[0] += edit_distance(phones, wanted)
            found[1] += len(wanted)
    return {group: round(wrong / total, 4) for group, (wrong, total) in errors.items()}


def main() -> None:
    """Train for a time, report phone errors on held-out questions, write the encoder."""
    parser = stage.parser(__doc__, minutes=8.0)
    parser.add_argument("--batch", type=int, default=192)
    parser.add_argument("--init", type=Path, help="weights to start from")
    args = parser.parse_args()
    stage.prepare()
    generator = torch.Generator(args.device).manual_seed(0)
    phones = Phones()
    speech = Speech(args.work, phones, args.device, generator)
    training = Training(phones, args.device, generator, args.init)
    log = []
    for seconds, progress in stage.training_time(args.minutes):
        losses = training.step(speech.batch(args.batch), progress)
        if training.steps % 100 == 0:
            speech.look_for_neural()
            used = int((training.quantizer.count > 0.1).sum()) if progress > QUANTIZE_FROM else 0
            values = {name: round(value.item(), 3) for name, value in losses.items()}
            log.append({"step": training.steps, "s": round(seconds), **values, "codes": used})
            if training.steps % 500 == 0:
                print(log[-1], flush=True)
    # Before the report, so that its failure costs no training.
    stage.save_weights(training.model, args.out / "speech_encoder.safetensors")
    report = phone_error_rates(training, corpus.Questions(args.work / "dev.npz", args.device))
    print("phone error rate, held-out questions:", report, "steps", training.steps, flush=True)
    stage.write_log(args.out / "tokenizer_log.json", phone_error_rate=report, steps=training.steps, log=log)


if __name__ == "__main__":
    main()
