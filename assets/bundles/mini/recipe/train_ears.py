"""Trains the ears from Whisper base, and says how well they hear.

Loss: CTC on characters from the soft states, and once more from the codes; the commitment of the vector
quantizer; agreement, as in the nano recipe: each window is seen in two disturbed versions, and the state of
one is drawn to the codebook entry of the other; and closeness to Whisper's own encoder, which hears the
undisturbed window as a whole: the causal frame of a moment tells what Whisper said of `LAG` positions before.
That keeps what Whisper knows of people, who are in no training speech here.

WORK holds classic.npz and dev.npz, and neural.npz as soon as it is complete (spoken.py). Every two minutes
weights and figures are written to OUT, so that a run that is cut off leaves what it had.

    python train_ears.py WORK OUT --init whisper.safetensors --tests tests.npz --minutes 9.3
    python train_ears.py WORK OUT ... --start OUT --minutes 18 --before 9     goes on from weights in OUT
    python train_ears.py WORK OUT --start OUT --minutes 0 --tests tests.npz   the figures alone
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path

import augmentation
import corpus
import ears
import numpy as np
import stage
import torch
import torch.nn.functional as F
import voices
import whisper_base
from ears import Ears
from quantizer import Quantizer
from torch import Tensor
from whisper_base import WhisperEncoder

from engine_runtime.bench.word_errors import word_errors
from engine_runtime.codec.speech_tokenizer.features import WhisperLogMel

CODES = 128  # in a training window: 10.24 s
LENGTHS = (0.4, 0.6, 1.0)  # of windows, as shares of that: else the reader knows one length only
TAIL = 4 * corpus.GRID16  # silence at the end of a window, at least, for characters that are written late
LAG = 12  # positions of 20 ms
NEURAL_SHARE = 0.45  # of the windows, once there are Kokoro's voices
COLLECT_FROM, QUANTIZE_FROM = 0.10, 0.14  # shares of the time: states for k-means, then codes
COMMITMENT, AGREEMENT, CLOSENESS, EVENNESS = 0.5, 0.25, 1.0, 0.2  # weights of losses
LARGEST = 8.0  # variance of a dimension over the median one, at most
HIDDEN_NOISE = 0.15  # of the soft states before they are quantized, as a share of their standard deviation
MASKED_BANDS = 12  # mel bands of a mask, at most
ENCODER_RATE, NEW_RATE = 5e-4, 1e-3  # learning rates of Whisper's layers, and of what begins at random
WARM_UP = 0.03  # share of the time
LEAD, SILENCE = 3_200, 6_400  # samples around a sentence of a test: 0.2 and 0.4 s


class Speech:
    """Random windows of the training speech."""

    def __init__(self, work: Path, device: str, codes: int) -> None:
        self.device, self.codes = device, codes
        self.rng = np.random.default_rng(0)
        self.classic = corpus.Questions(work / "classic.npz", device)
        self.neural_file = work / "neural.npz"
        self.neural: corpus.Questions | None = None
        self.look_for_neural()

    def look_for_neural(self) -> None:
        """Take up Kokoro's voices if they are complete by now."""
        if self.neural is None and self.neural_file.exists():
            self.neural = corpus.Questions(self.neural_file, self.device)
            print(f"{len(self.neural)} sentences by Kokoro are there", flush=True)

    def batch(self, rows: int) -> tuple[Tensor, list[str]]:
        """[B, samples] float32 at 16 kHz, and words of each: `rows` long windows or more short ones."""
        share = float(self.rng.choice(LENGTHS))
        rows, samples = int(rows / share), int(self.codes * share) * corpus.GRID16
        neural = int(rows * NEURAL_SHARE) if self.neural else 0
        wave, said = self.classic.windows(self.rng, rows - neural, samples - TAIL)
        if self.neural and neural:
            more, more_said = self.neural.windows(self.rng, neural, samples - TAIL)
            wave, said = torch.cat([wave, more]), said + more_said
        is_moved = torch.from_numpy(self.rng.random(rows) < 0.5).to(self.device)
        wave = torch.where(is_moved[:, None], moved_to_the_end(wave), wave)
        return F.pad(wave, (0, TAIL)), [" ".join(row) for row in said]


def moved_to_the_end(wave: Tensor) -> Tensor:
    """[B, samples] with the silence behind the speech in front of it.

    Only where the end of a window is near do ears learn to write the last words in time.
    """
    place = torch.arange(wave.shape[1], device=wave.device)
    last = torch.where(wave != 0, place, 0).amax(1, keepdim=True)
    return wave.gather(1, (place + last + 1) % wave.shape[1])


def half_precision(device: str) -> torch.autocast:
    """bf16 products on a GPU; on a CPU, where they are no faster, everything stays float32."""
    return torch.autocast(device, torch.bfloat16, enabled=device == "cuda")


class Teacher:
    """Whisper's encoder, and the scale of what it says."""

    def __init__(self, encoder: WhisperEncoder, device: str) -> None:
        self.encoder, self.device = encoder.to(device).eval().requires_grad_(False), device
        self.scale: tuple[Tensor, Tensor] | None = None

    @torch.no_grad()
    def __call__(self, mel: Tensor) -> Tensor:
        """Log-mel ("segment_max") -> states [B, T / 2, d]."""
        with half_precision(self.device):
            states = self.encoder(mel)
        states = states.float()
        if self.scale is None:  # of the first batch
            self.scale = states.mean((0, 1)), states.std((0, 1)).clamp_min(1e-3)
        return states

    def distance(self, made: Tensor, wanted: Tensor) -> Tensor:
        """Mean difference, each dimension on its own scale: some of Whisper's are far larger than others."""
        assert self.scale is not None
        return F.smooth_l1_loss(made.float() / self.scale[1], wanted / self.scale[1])


@dataclass
class Codebook:
    """When and how soft states become codes in training."""

    quantizer: Quantizer
    pool: list[Tensor] = field(default_factory=list)
    is_placed: bool = False

    def __call__(self, states: Tensor, progress: float) -> tuple[Tensor, Tensor, Tensor]:
        """float32 [2B, n, d], two versions one behind the other -> the same, quantized once the entries are
        placed; commitment and agreement, both as shares of the variance."""
        nothing = states.new_zeros(())
        points = states.detach().flatten(0, 1)
        if not self.is_placed and progress > QUANTIZE_FROM and self.pool:
            self.quantizer.k_means(torch.cat(self.pool))
            self.pool.clear()
            self.is_placed = True
        if not self.is_placed:
            if progress > COLLECT_FROM:
                self.pool.append(points[torch.randperm(len(points), device=points.device)[:2_000]])
                self.pool[:] = self.pool[-60:]
            return states, nothing, nothing
        variance = points.var(0).mean().clamp_min(1e-6)
        noise = HIDDEN_NOISE * points.std(0)
        quantized, commitment = self.quantizer(states + noise * torch.randn_like(states))
        agreement = F.mse_loss(states, quantized.detach().roll(len(states) // 2, 0))
        return quantized, commitment / variance, agreement / variance


class Training:
    """The ears with teacher, quantizer and optimizer."""

    def __init__(self, model: Ears, teacher: Teacher, device: str, *, is_placed: bool = False) -> None:
        self.model, self.teacher, self.device = model.to(device), teacher, device
        self.generator = torch.Generator(device).manual_seed(0)
        self.codebook = Codebook(Quantizer(model.encoder.encoder.codebook.weight.data), is_placed=is_placed)
        model.encoder.encoder.codebook.weight.requires_grad_(False)
        self.log_mel = log_mel(device)
        self.whole_mel = WhisperLogMel(voices.RATE, whisper_base.ENCODER.num_mel_bins).to(device)
        new = torch.nn.ModuleList([model.head, model.reader, model.follower])
        self.optimizer = torch.optim.AdamW(
            [
                {"params": [p for p in module.parameters() if p.requires_grad], "lr": rate, "peak": rate}
                for module, rate in ((model.encoder, ENCODER_RATE), (new, NEW_RATE))
            ],
            betas=(0.9, 0.98),
            weight_decay=0.01,
            fused=device == "cuda",
        )
        self.steps = 0
        self.first_progress = 1.0  # later than 0 where weights are trained on

    def step(self, wave: Tensor, texts: list[str], progress: float) -> dict[str, Tensor]:
        """One step on windows [B, samples], B rows twice, at `progress` in 0..1 of the time; its losses."""
        mel, whole = self._mels(wave)
        wanted = self.teacher(whole)
        with half_precision(self.device):
            frames, states = self.model.soft(mel)
            followed = self.model.follower(frames[:, LAG:])
            soft = self.model.head(states)
        # Not in half precision, in which the nearest entry is another one.
        quantized, commitment, agreement = self.codebook(states.float(), progress)
        with half_precision(self.device):
            coded = self.model.reader(quantized)
        targets = [ears.encode(text) for text in texts] * 2
        losses = {
            "soft": ctc(soft, targets),
            "codes": ctc(coded, targets),
            "close": self.teacher.distance(followed, wanted[:, :-LAG].repeat(2, 1, 1)),
            "commit": commitment,
            "agree": agreement,
            "even": unevenness(states),
        }
        # Less and less of the teacher: its states are not causal, and can only be followed so far.
        closeness = CLOSENESS * (1 - 0.9 * progress)
        weights = {"commit": COMMITMENT, "agree": AGREEMENT, "close": closeness, "even": EVENNESS}
        total = torch.stack([weights.get(name, 1.0) * loss for name, loss in losses.items()]).sum()
        self._set_rate(progress)
        self.optimizer.zero_grad(set_to_none=True)
        total.backward()
        losses["norm"] = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.steps += 1
        return losses

    @torch.no_grad()
    def _mels(self, wave: Tensor) -> tuple[Tensor, Tensor]:
        """Log-mels of two disturbed versions [2B, 80, T], and Whisper's of the clean one [B, 80, T], all at
        the same tempo."""
        noisy = augmentation.augment(torch.cat([wave, wave]), self.generator)
        mels = torch.cat([self.log_mel(noisy), self.whole_mel(wave)])
        mels = augmentation.warp_time(mels, self.generator, views=3)
        disturbed, whole = mels[: 2 * len(wave)], mels[2 * len(wave) :]
        disturbed = augmentation.warp_mel(disturbed, self.generator)
        return mask_bands(disturbed, self.generator), whole

    def _set_rate(self, progress: float) -> None:
        self.first_progress = min(self.first_progress, progress)
        warm_up = min(1.0, 0.01 + (progress - self.first_progress) / WARM_UP)
        shape = 0.5 * (1 + math.cos(math.pi * min(progress, 1.0))) * 0.98 + 0.02
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak"] * warm_up * shape


def log_mel(device: str) -> WhisperLogMel:
    """The speech encoder's mel; with a running maximum a stream has the states of the whole recording."""
    return WhisperLogMel(voices.RATE, whisper_base.ENCODER.num_mel_bins, "running_max").to(device)


def unevenness(states: Tensor) -> Tensor:
    """How far the variances of the dimensions of [B, n, d] exceed `LARGEST` times the median one, in nepers.

    One dimension of Whisper base has half of the variance of all 512 and says little: without this, distance
    to the codebook's entries, and so the code, would be a matter of that one.
    """
    variance = states.float().flatten(0, 1).var(0)
    over = (variance / (LARGEST * variance.median().detach())).clamp_min(1e-6).log()
    return over.relu().sum() / 10


def mask_bands(mel: Tensor, generator: torch.Generator) -> Tensor:
    """Log-mels [B, bands, T] with a stripe of bands at the row's mean, in half of the rows (SpecAugment)."""
    batch, bands, _ = mel.shape
    draw = torch.rand(3, batch, 1, device=mel.device, generator=generator)
    width, start = draw[0] * MASKED_BANDS, draw[1] * (bands - MASKED_BANDS)
    band = torch.arange(bands, device=mel.device)[None]
    masked = (band >= start) & (band < start + width) & (draw[2] < 0.5)
    return torch.where(masked[..., None], mel.mean((1, 2), keepdim=True), mel)


def ctc(logits: Tensor, targets: list[list[int]]) -> Tensor:
    """CTC loss of [B, n, 29], for each character."""
    lengths = torch.tensor([len(row) for row in targets], device=logits.device)
    flat = torch.tensor([index for row in targets for index in row], device=logits.device)
    slots = torch.full((len(targets),), logits.shape[1], device=logits.device)
    return F.ctc_loss(
        logits.float().log_softmax(-1).transpose(0, 1), flat, slots, lengths, zero_infinity=True
    )


class Tests:
    """Held-out sentences; word error rates by voice group."""

    def __init__(self, files: list[Path], device: str) -> None:
        self.parts = {file.stem: corpus.Questions(file, device) for file in files}
        self.log_mel = log_mel(device)

    def word_error_rates(self, model: Ears) -> dict[str, dict[str, float]]:
        """Percent by file and voice group: from soft states, from codes, and the number of words."""
        model.eval()
        heard: dict[str, list[tuple[str, str, str]]] = {}
        for name, part in self.parts.items():
            order = np.argsort(part.lengths)
            for picks in np.array_split(order, max(1, len(order) // 32)):
                soft, coded = model.hear(self.log_mel(self._windows(part, picks.tolist())))
                for pick, *texts in zip(picks.tolist(), soft, coded, strict=True):
                    group = f"{name} {voices.voice_group(part.voice[pick])}"
                    heard.setdefault(group, []).append((part.text[pick], texts[0], texts[1]))
        model.train()
        table = {}
        for group, rows in sorted(heard.items()):
            wanted, soft, coded = (list(column) for column in zip(*rows, strict=True))
            errors = {"soft": word_errors(wanted, soft), "codes": word_errors(wanted, coded)}
            table[group] = {name: round(100 * wrong / words, 1) for name, (wrong, words) in errors.items()}
            table[group]["words"] = errors["soft"][1]
        return table

    @staticmethod
    def _windows(part: corpus.Questions, picks: list[int]) -> Tensor:
        longest = LEAD + int(part.lengths[picks].max()) + SILENCE
        samples = -(-longest // corpus.GRID16) * corpus.GRID16
        rows = [[(LEAD, int(part.offsets[pick]), int(part.lengths[pick]))] for pick in picks]
        return corpus.lay_out(part.samples, rows, samples)

    @torch.no_grad()
    def streaming(self, model: Ears, count: int = 8) -> dict[str, float]:
        """Sentences code by code against all at once: share of equal codes and texts, and the largest
        difference of soft states as a share of their largest."""
        model.eval()
        part, codes, texts, apart = next(iter(self.parts.values())), [], [], 0.0
        frames = model.encoder.config.frames_per_code
        for pick in range(min(count, len(part))):
            mel = self.log_mel(self._windows(part, [pick]))
            _, whole = model.soft(mel)
            state, steps = model.encoder.initial_state(), []
            for first in range(0, mel.shape[2], frames):
                states, state = model.encoder.step_hidden(mel[:, :, first : first + frames], state)
                steps.append(states)
            streamed = torch.cat(steps, dim=1)
            codes.append((model.encoder.quantize(whole) == model.encoder.quantize(streamed)).float().mean())
            texts.append(float(ears.greedy(model.head(whole)) == ears.greedy(model.head(streamed))))
            apart = max(apart, float((whole - streamed).abs().max() / whole.abs().max()))
        model.train()
        equal = torch.stack(codes).mean()
        return {"equal codes": float(equal), "equal texts": float(np.mean(texts)), "difference": apart}


def table_text(table: dict[str, dict[str, float]]) -> str:
    """Word error rates as lines."""
    rows = [
        f"{group:22}{row['soft']:8.1f}{row['codes']:8.1f}{row['words']:8.0f}" for group, row in table.items()
    ]
    return "\n".join([f"{'word errors in %':22}{'soft':>8}{'codes':>8}{'words':>8}", *rows])


def main() -> None:
    """Train for a time; figures and weights to OUT."""
    parser = stage.parser(__doc__, minutes=9.3)
    parser.add_argument("--init", type=Path, required=True, help="what `whisper_base.py convert` wrote")
    parser.add_argument("--tests", type=Path, help="what `spoken.py --make-tests` wrote")
    parser.add_argument("--batch", type=int, default=48, help="windows of a step; each is seen twice")
    parser.add_argument("--codes", type=int, default=CODES, help="length of a window")
    parser.add_argument("--layers", type=int, default=whisper_base.ENCODER.layers, help="for a try: fewer")
    parser.add_argument("--start", type=Path, help="folder with weights to go on from")
    parser.add_argument("--save-every", type=float, default=120.0, help="seconds")
    parser.add_argument("--before", type=float, default=0.0, help="minutes, of all, that those took")
    args = parser.parse_args()
    stage.prepare()
    whisper = whisper_base.read_weights(args.init)
    model = Ears(replace(whisper_base.ENCODER, layers=args.layers)).start_from(whisper)
    if args.start:
        model.load_state_dict(ears.load_shards(args.start))
    teacher = Teacher(WhisperEncoder(whisper_base.ENCODER).load(whisper), args.device)
    training = Training(model, teacher, args.device, is_placed=args.before > QUANTIZE_FROM * args.minutes)
    tests = Tests([args.work / "dev.npz", *([args.tests] if args.tests else [])], args.device)
    log: list[dict[str, float]] = []

    def save() -> dict[str, dict[str, float]]:
        ears.save_shards(model, args.out)
        table = tests.word_error_rates(model)
        stage.write_log(args.out / "ears_log.json", steps=training.steps, word_error_rate=table, log=log)
        print(f"after {training.steps} steps", table_text(table), sep="\n", flush=True)
        return table

    if args.minutes:
        speech, due = Speech(args.work, args.device, args.codes), stage.Every(args.save_every)
        for seconds, progress in stage.training_time(args.minutes, args.before * 60):
            losses = training.step(*speech.batch(args.batch), progress)
            if training.steps % 50 == 0:
                speech.look_for_neural()
                used = int((training.codebook.quantizer.count > 0.1).sum())
                values = {name: round(float(value), 3) for name, value in losses.items()}
                log.append({"step": training.steps, "s": round(seconds, 1), **values, "used": used})
                if training.steps % 250 == 0:
                    print(log[-1], flush=True)
            if due:
                save()
    save()
    print("streamed:", tests.streaming(model), flush=True)


if __name__ == "__main__":
    main()
