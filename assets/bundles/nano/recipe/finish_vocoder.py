"""Stage 4c of the recipe: the trained vocoder once more, on whole answers, all skills alike.

The codec's own mel weighs most: L1 between the mel of the copy and that of the answer, beside the resolutions
of `MultiMel`; then also the discriminators. Segments are cut out of the mels of whole answers, and frames
that depend on something outside of their segment do not count. A third of a batch are mels of the trained
flow. What is written is an average: BLEND of the finished weights, the rest of those before.

    python finish_vocoder.py WORK OUT --minutes 7 [--blend 0.75]
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import corpus
import domain
import stage
import torch
import torch.nn.functional as F
from bigvgan_training import MultiMel, take_weights, without_weight_norm
from discriminators import Discriminators, adversarial_loss, discriminator_loss, matching_loss
from fast_activation import use_fast_activations
from graphed import Average, Step, adamw, cosine, set_rate
from speech_codes import FRAMES_PER_CODE, MEL, SpeechCoder
from topics import Units
from torch import Tensor, nn
from train_vocoder import CONFIG, FLOW_CFG, FLOW_STEPS, trained_flow

from engine_runtime.codec.speech_tokenizer.features import CodecMel
from engine_runtime.models.bigvgan import BigVGAN, build_bigvgan, receptive_field

CODES = 72  # of the longest answer that is taken, with its silence
SILENCE = 12  # frames behind an answer that count
FRAMES = 80  # of a training segment
EDGE = max(receptive_field(CONFIG)) + MEL.n_fft // MEL.hop // 2  # frames that depend on what is cut off
INNER = slice(EDGE * MEL.hop, (FRAMES - EDGE) * MEL.hop)  # samples that the discriminators see
PER_SKILL = 192  # answers
VALIDATION = 4  # answers of each skill that are held aside
JUDGED = 60  # answers whose copies the model card compares
FLOW_SHARE = 1 / 3
CODEC_WEIGHT = 10.0  # of the codec's mel; each other resolution has 1
SPECTRAL_SHARE = 0.5  # of the time, before the discriminators join
SPECTRAL_PEAK, GAN_PEAK, DISCRIMINATOR_PEAK = 8e-5, 3e-5, 1e-4  # learning rates
WARM_UP = 0.12
BLEND = 0.75  # of the finished weights in those that are written


def answers_by_skill(dialogues: list[domain.Dialogue], rng: random.Random) -> dict[str, list[Units]]:
    """Distinct answers of the training dialogues, shuffled; under "joints" strings of their units at random.

    Without those whose copies are judged, unless a skill has no other.
    """
    answered = [d for d in dialogues if len(d.turns) == 1 and d.turns[0].units]
    judged = domain.balanced([d for d in answered if d.held_out], JUDGED, random.Random(4))
    left_out = {dialogue.turns[0].units for dialogue in judged}
    piles: dict[str, dict[Units, None]] = {}
    for dialogue in answered:
        if not dialogue.held_out:
            piles.setdefault(dialogue.skill, {})[dialogue.turns[0].units] = None
    units = sorted({unit for pile in piles.values() for answer in pile for unit in answer})
    found = {
        skill: [answer for answer in pile if answer not in left_out] or list(pile)
        for skill, pile in piles.items()
    }
    found["joints"] = [tuple(rng.sample(units, rng.randint(2, 4))) for _ in range(4 * PER_SKILL)]
    for pile in found.values():
        rng.shuffle(pile)
    return found


@dataclass(frozen=True, slots=True)
class Pool:
    """Whole answers with their mels and what the flow makes of their codes. The first `aside` are for
    validation."""

    waves: Tensor  # [answers, T * hop] int16
    mels: Tensor  # [2, answers, 80, T]: of the waves times their gains, and of the flow
    gains: Tensor  # [answers, 1]
    frames: Tensor  # [answers], that count
    aside: int

    def batch(self, size: int) -> tuple[Tensor, Tensor, Tensor]:
        """mel [size, 80, FRAMES], wave [size, FRAMES * hop], and which frames count [size, FRAMES]."""
        device, total = self.waves.device, self.mels.shape[3]
        rows = torch.randint(self.aside, len(self.waves), (size, 1), device=device)
        of_flow = (torch.arange(size, device=device) < round(size * FLOW_SHARE))[:, None]
        length, place = self.frames[rows], torch.arange(FRAMES, device=device)
        # From before the start to behind the end, so that both are met often enough.
        span = (length - FRAMES).clamp_min(0) + FRAMES // 2
        first = (torch.rand(size, 1, device=device) * span).long() - FRAMES // 4
        first = first.clamp(0, total - FRAMES)
        frames = (first + place)[:, None].expand(-1, MEL.n_mels, -1)
        mel = self.mels[of_flow.long(), rows][:, 0].gather(2, frames)
        samples = first * MEL.hop + torch.arange(FRAMES * MEL.hop, device=device)
        gain = torch.where(of_flow, 1.0, self.gains[rows[:, 0]])
        wave = self.waves[rows[:, 0]].gather(1, samples).float() / 32767 * gain
        counts = (place >= EDGE * (first > 0)) & (place < FRAMES - EDGE) & (first + place < length)
        return mel, wave, counts.float()


@torch.no_grad()
def make_pool(work: Path, out: Path, device: str) -> Pool:
    """Answers of all skills in equal numbers; those of a skill with few are there several times."""
    rng = random.Random(5)
    answers = corpus.Answers(work / "units.npz", device)
    aside: list[Units] = []
    trained: list[Units] = []
    for pile in answers_by_skill(domain.all_dialogues(), rng).values():
        fitting = [units for units in pile if answers.num_codes(units) + 3 <= CODES]
        rest = fitting[VALIDATION:] if len(fitting) >= 2 * VALIDATION else fitting
        aside += [fitting[i % len(fitting)] for i in range(VALIDATION)]
        trained += [rest[i % len(rest)] for i in range(PER_SKILL)]
    picks = aside + trained
    gains = 10 ** (torch.empty(len(picks), 1, device=device).uniform_(-1, 1) / 20)
    gains[: len(aside)] = 1.0
    coder, mel_of = SpeechCoder(out / "speech_encoder.safetensors", device), CodecMel(MEL).to(device)
    flow = trained_flow(out, device)
    waves, mels, flow_mels = [], [], []
    for first in range(0, len(picks), 64):
        part = picks[first : first + 64]
        wave = answers.batch(part, CODES, 24)
        waves.append((wave * 32767).short())
        mels.append(mel_of(wave * gains[first : first + 64]))
        codes = coder.codes(answers.batch(part, CODES, 16))
        flow_mels.append(flow.inference(codes, n_steps=FLOW_STEPS, cfg_rate=FLOW_CFG))
    frames = [answers.num_codes(units) * FRAMES_PER_CODE + SILENCE for units in picks]
    both = torch.stack((torch.cat(mels), torch.cat(flow_mels)))
    return Pool(torch.cat(waves), both, gains, torch.tensor(frames, device=device), len(aside))


def mean(error: Tensor, counts: Tensor) -> Tensor:
    """Of [B, bands, T] over the frames that count, which may be longer ones: [B, FRAMES]."""
    if counts.shape[1] != error.shape[2]:
        counts = F.interpolate(counts[:, None], size=error.shape[2])[:, 0]
    return (error.mean(1) * counts).sum() / counts.sum()


class Finishing:
    """Generator and discriminators with their optimizers."""

    def __init__(self, weights: Path, device: str) -> None:
        self.device = device
        self.generator = build_bigvgan(CONFIG, weight_norm=True).train()
        take_weights(self.generator, stage.read_weights(weights))
        self.generator.to(device)
        torch._dynamo.config.recompile_limit = 64  # the activation is compiled for each width and length
        use_fast_activations(self.generator, compiled=device == "cuda")
        self.discriminators = Discriminators().to(device)
        self.multi_mel, self.codec_mel = MultiMel(MEL.sample_rate).to(device), CodecMel(MEL).to(device)
        self.d_optimizer = adamw(self.discriminators, device, (0.8, 0.99), 0.01)
        self.start()

    def start(self) -> None:
        """Forget what the generator's optimizer knows."""
        self.g_optimizer = adamw(self.generator, self.device, (0.8, 0.99), 0.0)

    def losses(self, made: Tensor, wave: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """L1 of the codec's mel, and the sum of it over the other resolutions."""
        codec = mean((self.codec_mel(made) - self.codec_mel(wave)).abs(), counts)
        others = [mean((mel(made) - mel(wave)).abs(), counts) for mel in self.multi_mel.mels]
        return codec, torch.stack(others).sum()

    def spectral_step(self, mel: Tensor, wave: Tensor, counts: Tensor) -> tuple[Tensor, ...]:
        """As `Pool.batch` has them -> both losses."""
        codec, others = self.losses(self.generator(mel)[:, 0], wave, counts)
        self._improve_generator(15 * (CODEC_WEIGHT * codec + others))
        return codec.detach(), others.detach()

    def gan_step(self, mel: Tensor, wave: Tensor, counts: Tensor) -> tuple[Tensor, ...]:
        """As `Pool.batch` has them -> both losses, discriminator, adversarial and matching loss."""
        made = self.generator(mel)[:, 0]
        codec, others = self.losses(made, wave, counts)
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            real_features = self.discriminators(wave[:, INNER])
            made_features = self.discriminators(made[:, INNER])
        d_loss = discriminator_loss(real_features, made_features)
        adversarial, matching = adversarial_loss(made_features), matching_loss(real_features, made_features)
        self.d_optimizer.zero_grad(set_to_none=True)
        d_loss.backward(inputs=list(self.discriminators.parameters()), retain_graph=True)
        self._improve_generator(15 * (CODEC_WEIGHT * codec + others) + adversarial + 2 * matching)
        nn.utils.clip_grad_norm_(self.discriminators.parameters(), 50.0)
        self.d_optimizer.step()
        return tuple(loss.detach() for loss in (codec, others, d_loss, adversarial, matching))

    def _improve_generator(self, loss: Tensor) -> None:
        self.g_optimizer.zero_grad(set_to_none=True)
        loss.backward(inputs=list(self.generator.parameters()))
        nn.utils.clip_grad_norm_(self.generator.parameters(), 300.0)
        self.g_optimizer.step()

    @torch.no_grad()
    def validate(self, pool: Pool) -> list[float]:
        """Difference of the codec's mel of copies of the answers held aside: from their mels, from the
        flow's."""
        whole = build_bigvgan(CONFIG, weight_norm=True).to(self.device).eval()
        whole.load_state_dict(self.generator.state_dict())
        errors: list[list[Tensor]] = [[], []]
        for first in range(0, pool.aside, 16):
            part = slice(first, min(first + 16, pool.aside))
            wanted = self.codec_mel(pool.waves[part].float() / 32767)
            counts = torch.arange(wanted.shape[2], device=self.device) < pool.frames[part, None]
            for error, mels in zip(errors, pool.mels, strict=True):
                made = self.codec_mel(whole(mels[part])[:, 0])
                error.append(((made - wanted).abs().mean(1) * counts).sum(1) / counts.sum(1))
        return [round(torch.cat(error).mean().item(), 4) for error in errors]


def train(
    finishing: Finishing,
    pool: Pool,
    step: Callable[..., tuple[Tensor, ...]],
    peak: float,
    minutes: float,
    batch: int,
) -> int:
    """Train for a time; the generator is the average of its weights then. Returns the number of steps."""
    finishing.start()
    count, average, run = 0, Average(finishing.generator, 0.999), Step(step, finishing.device)
    for _, progress in stage.training_time(minutes):
        set_rate(finishing.g_optimizer, cosine(progress, peak, WARM_UP, floor=0.002))
        set_rate(finishing.d_optimizer, cosine(progress, DISCRIMINATOR_PEAK, floor=0.05))
        losses = run(*pool.batch(batch))
        average.update()
        count += 1
        if count % 500 == 0:
            print({"step": count, "losses": [round(loss.item(), 3) for loss in losses]}, flush=True)
    average.apply()
    return count


def save_blend(generator: BigVGAN, start: Mapping[str, Tensor], share: float, path: Path) -> None:
    """Write `share` of the generator's weights and the rest of those that its training started from."""
    plain = without_weight_norm(generator)
    stage.blend(plain, start, share)
    stage.save_weights(plain, path)


def main() -> None:
    """Train without and with the discriminators, write the vocoder."""
    parser = stage.parser(__doc__, minutes=7.0)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--blend", type=float, default=BLEND, help="share of the finished weights")
    args = parser.parse_args()
    stage.prepare()
    torch.backends.cudnn.benchmark = True
    pool = make_pool(args.work, args.out, args.device)
    vocoder = args.out / "vocoder.safetensors"
    start, finishing = stage.read_weights(vocoder), Finishing(vocoder, args.device)
    log = [finishing.validate(pool)]
    steps = []
    for step, peak, share in (
        (finishing.spectral_step, SPECTRAL_PEAK, SPECTRAL_SHARE),
        (finishing.gan_step, GAN_PEAK, 1 - SPECTRAL_SHARE),
    ):
        steps.append(train(finishing, pool, step, peak, args.minutes * share, args.batch))
        log.append(finishing.validate(pool))
        print("codec mel, of the flow", log[-2:], "steps", steps[-1], flush=True)
        save_blend(finishing.generator, start, args.blend, vocoder)
    stage.write_log(args.out / "finish_log.json", codec_mel=log, steps=steps)


if __name__ == "__main__":
    main()
