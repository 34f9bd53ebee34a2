"""Stage 4a of the recipe: mel -> waveform, a BigVGAN for the codec's mel.

Loss: multi-resolution log-mel L1, then also least-squares GAN with multi-period and multi-resolution discriminators and
feature matching (HiFi-GAN, BigVGAN). Mostly the assistant's voice, some user voices. With `--flow` a part of the mels is
what the trained flow makes of the codes, frame for frame on the same speech: what the vocoder will really be given.

    python train_vocoder.py WORK OUT --minutes 20 [--flow] [--init vocoder.safetensors]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import corpus
import numpy as np
import torch
import torch.nn.functional as F
from fast_activation import use_fast_activations
from graphed import Average, Step, adamw, cosine, set_rate
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.utils import weight_norm
from train_tokenizer import CONFIG as ENCODER_CONFIG
from train_tokenizer import MEL

from engine_runtime.codec.features import CodecMel, WhisperLogMel
from engine_runtime.models.bigvgan import build_bigvgan, receptive_field
from engine_runtime.types import MelSpec

CONFIG = {
    "resblock": "1", "upsample_rates": [10, 6, 4, 2], "upsample_kernel_sizes": [20, 12, 8, 4],
    "upsample_initial_channel": 512, "resblock_kernel_sizes": [3, 7], "resblock_dilation_sizes": [[1, 3], [1, 2]],
    "activation": "snakebeta", "snake_logscale": True, "num_mels": 80, "use_tanh_at_final": False,
    "use_bias_at_final": False,
}  # fmt: skip
FRAMES = 32  # mel frames of a training segment
USER_SHARE = 0.15
FLOW_CODES = 40


class PeriodDiscriminator(nn.Module):
    """HiFi-GAN's discriminator on the wave folded by a period."""

    def __init__(self, period: int) -> None:
        super().__init__()
        self.period = period
        widths = [1, 24, 72, 160, 256]
        self.layers = nn.ModuleList(
            weight_norm(nn.Conv2d(a, b, (5, 1), (3, 1), padding=(2, 0))) for a, b in zip(widths, widths[1:], strict=False)
        )
        self.last = weight_norm(nn.Conv2d(widths[-1], widths[-1], (5, 1), padding=(2, 0)))
        self.head = weight_norm(nn.Conv2d(widths[-1], 1, (3, 1), padding=(1, 0)))

    def forward(self, wave: Tensor) -> list[Tensor]:
        """[B, n] -> feature maps, the score last."""
        wave = F.pad(wave, (0, -wave.shape[1] % self.period))
        x, features = wave.view(len(wave), 1, -1, self.period), []
        for layer in [*self.layers, self.last]:
            x = F.leaky_relu(layer(x), 0.1)
            features.append(x)
        return [*features, self.head(x)]


class ResolutionDiscriminator(nn.Module):
    """Discriminator on the magnitude spectrogram of one resolution."""

    def __init__(self, n_fft: int, hop: int, width: int = 24) -> None:
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        self.register_buffer("window", torch.hann_window(n_fft), persistent=False)
        shapes = [(1, width, 1), (width, width, 2), (width, width, 2), (width, width, 2)]
        self.layers = nn.ModuleList(
            weight_norm(nn.Conv2d(a, b, (3, 9), (1, s), padding=(1, 4))) for a, b, s in shapes
        )
        self.last = weight_norm(nn.Conv2d(width, width, (3, 3), padding=(1, 1)))
        self.head = weight_norm(nn.Conv2d(width, 1, (3, 3), padding=(1, 1)))

    def forward(self, wave: Tensor) -> list[Tensor]:
        """[B, n] -> feature maps, the score last."""
        with torch.autocast(wave.device.type, enabled=False):
            spectrum = torch.stft(wave.float(), self.n_fft, self.hop, window=self.window, return_complex=True, center=True)
            magnitude = (spectrum.real.square() + spectrum.imag.square() + 1e-9).sqrt()
        x, features = magnitude.transpose(1, 2)[:, None], []
        for layer in [*self.layers, self.last]:
            x = F.leaky_relu(layer(x), 0.1)
            features.append(x)
        return [*features, self.head(x)]


class Discriminators(nn.Module):
    """All of them."""

    def __init__(self) -> None:
        super().__init__()
        self.all = nn.ModuleList([PeriodDiscriminator(p) for p in (2, 3, 5, 7, 11)])
        self.all.extend(ResolutionDiscriminator(n, h) for n, h in ((2048, 512), (1024, 256), (512, 128)))

    def forward(self, wave: Tensor) -> list[list[Tensor]]:
        """Feature maps of each discriminator."""
        return [discriminator(wave) for discriminator in self.all]


class MultiMel(nn.Module):
    """L1 between log-mels at several resolutions."""

    def __init__(self) -> None:
        super().__init__()
        sizes = ((64, 10), (128, 20), (256, 40), (512, 80), (1024, 120), (2048, 160))
        self.mels = nn.ModuleList(
            CodecMel(MelSpec(24_000, bands, n, n // 4, n, 0.0, 12_000.0)) for n, bands in sizes
        )

    def forward(self, made: Tensor, wanted: Tensor) -> Tensor:
        """Sum over resolutions."""
        return torch.stack([(mel(made) - mel(wanted)).abs().mean() for mel in self.mels]).sum()


class Segments:
    """Random segments with their mels."""

    def __init__(self, work: Path, out: Path, device: str, use_flow: bool, pool: int) -> None:
        self.answers = corpus.Answers(work / "units.npz", device)
        self.questions = corpus.Questions(work / "users.npz", device)
        self.rng = np.random.default_rng(1)
        self.strings = corpus.training_answers(self.rng, 20_000)
        self.mel = CodecMel(MEL).to(device)
        self.device = device
        self.flow_mels: Tensor | None = None
        if use_flow:
            self._make_flow_mels(out, pool)

    @torch.no_grad()
    def _make_flow_mels(self, out: Path, pool: int) -> None:
        from train_flow import CONFIG as FLOW_CONFIG
        from train_flow import load_encoder

        from engine_runtime.models.flow import CausalFlow

        encoder = load_encoder(out / "speech_encoder.safetensors", self.device)
        log_mel = WhisperLogMel(16_000, ENCODER_CONFIG.num_mel_bins, "running_max").to(self.device)
        flow = CausalFlow(FLOW_CONFIG)
        flow.load_state_dict({k: v.float() for k, v in load_file(out / "flow.safetensors").items()})
        flow = flow.to(self.device).eval()
        picks = [self.strings[i] for i in self.rng.integers(0, len(self.strings), pool)]
        mels, waves = [], []
        for first in range(0, pool, 256):
            part = picks[first : first + 256]
            codes = encoder(log_mel(self.answers.batch(part, FLOW_CODES, 16)))
            mels.append(flow.inference(codes, n_steps=FLOW_STEPS, cfg_rate=FLOW_CFG).half())
            waves.append((self.answers.batch(part, FLOW_CODES, 24) * 32767).short())
        self.flow_mels, self.flow_waves = torch.cat(mels), torch.cat(waves)

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        """mel [B, 80, FRAMES], wave [B, FRAMES * hop]."""
        samples = FRAMES * MEL.hop
        count_user = int(size * USER_SHARE)
        picks = [self.strings[i] for i in self.rng.integers(0, len(self.strings), size - count_user)]
        # one window of some codes, then cut at a random place inside the speech
        codes = 24
        spoken = self.answers.batch(picks, codes, 24)
        starts = torch.tensor(
            [int(self.rng.integers(0, max(1, min(codes, self.answers.num_codes(p)) * 1920 - samples + 1))) for p in picks],
            device=self.device,
        )
        spoken = spoken.gather(1, starts[:, None] + torch.arange(samples, device=self.device))
        user16, _ = self.questions.windows(self.rng, count_user, 40_000)
        at = torch.randint(0, 40_000 - samples * 2 // 3, (count_user, 1), device=self.device)
        user16 = user16.gather(1, at + torch.arange(samples * 2 // 3, device=self.device))
        spectrum = torch.fft.rfft(user16)
        user = torch.fft.irfft(F.pad(spectrum, (0, samples // 2 + 1 - spectrum.shape[1])), samples) * 1.5
        gain = 10 ** (torch.empty(size, 1, device=self.device).uniform_(-6, 2) / 20)
        wave = (torch.cat([spoken, user]) * gain).clamp(-0.99, 0.99)
        mel = self.mel(wave)
        if self.flow_mels is not None:
            rows = torch.randint(0, len(self.flow_mels), (size // 2,), device=self.device)
            first = torch.randint(0, FLOW_CODES * 4 - FRAMES, (size // 2, 1), device=self.device)
            frames = first + torch.arange(FRAMES, device=self.device)
            made = self.flow_mels[rows].gather(2, frames[:, None].expand(-1, 80, -1)).float()
            where = first * MEL.hop + torch.arange(samples, device=self.device)
            mel[: size // 2], wave[: size // 2] = made, self.flow_waves[rows].gather(1, where).float() / 32767
        return mel, wave


FLOW_STEPS, FLOW_CFG = 4, 0.0


@torch.no_grad()
def continue_from(folder: Path, generator: nn.Module, discriminators: nn.Module) -> None:
    """Take the weights of an earlier call; plain weights become direction and length of the weight norm."""
    state = generator.state_dict()
    for name, value in load_file(folder / "vocoder.safetensors").items():
        value = value.float()
        if name in state:
            state[name].copy_(value)
        else:
            state[f"{name}_v"].copy_(value)
            state[f"{name}_g"].copy_(value.flatten(1).norm(dim=1).view_as(state[f"{name}_g"]))
    discriminators.load_state_dict({k: v.float() for k, v in load_file(folder / "discriminators.safetensors").items()})


def main() -> None:
    """Train for a time, write the vocoder."""
    parser = argparse.ArgumentParser()
    parser.add_argument("work", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--flow", action="store_true")
    parser.add_argument("--init", type=Path, help="folder of an earlier call, to go on from")
    parser.add_argument("--pool", type=int, default=4096)
    parser.add_argument("--peak", type=float, default=4e-4)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    device = args.device
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    data = Segments(args.work, args.out, device, args.flow, args.pool)
    generator = build_bigvgan(CONFIG, weight_norm=True).to(device).train()
    discriminators, multi_mel = Discriminators().to(device), MultiMel().to(device)
    if args.init:
        continue_from(args.init, generator, discriminators)
    torch._dynamo.config.recompile_limit = 64  # the activation is compiled for each width and length
    use_fast_activations(generator, compiled=device == "cuda")
    print("vocoder:", sum(p.numel() for p in generator.parameters()), "parameters, context", receptive_field(CONFIG), flush=True)
    g_optimiser = adamw(list(generator.parameters()), device, (0.8, 0.99), 0.01)
    d_optimiser = adamw(list(discriminators.parameters()), device, (0.8, 0.99), 0.01)
    average = Average(generator, 0.999)

    def spectral_step(mel: Tensor, wave: Tensor) -> tuple[Tensor, ...]:
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            made = generator(mel)[:, 0]
        loss = multi_mel(made.float(), wave)
        g_optimiser.zero_grad(set_to_none=True)
        (15 * loss).backward()
        nn.utils.clip_grad_norm_(generator.parameters(), 500.0)
        g_optimiser.step()
        return (loss.detach(),)

    def gan_step(mel: Tensor, wave: Tensor) -> tuple[Tensor, ...]:
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            made = generator(mel)[:, 0].float()
            real_scores, fake_scores = discriminators(wave), discriminators(made.detach())
        d_loss = sum(((1 - r[-1].float()) ** 2).mean() + (f[-1].float() ** 2).mean() for r, f in zip(real_scores, fake_scores, strict=True))
        d_optimiser.zero_grad(set_to_none=True)
        d_loss.backward()
        nn.utils.clip_grad_norm_(discriminators.parameters(), 50.0)
        d_optimiser.step()
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            with torch.no_grad():
                real_scores = discriminators(wave)
            fake_scores = discriminators(made)
        adversarial = sum(((1 - f[-1].float()) ** 2).mean() for f in fake_scores)
        matching = sum(
            (a.float() - b.float()).abs().mean() for r, f in zip(real_scores, fake_scores, strict=True)
            for a, b in zip(r[:-1], f[:-1], strict=True)
        )  # fmt: skip
        spectral = multi_mel(made, wave)
        g_optimiser.zero_grad(set_to_none=True)
        (15 * spectral + adversarial + 2 * matching).backward()
        nn.utils.clip_grad_norm_(generator.parameters(), 500.0)
        g_optimiser.step()
        return spectral.detach(), d_loss.detach(), adversarial.detach(), matching.detach()

    steps = {False: Step(spectral_step, device), True: Step(gan_step, device)}
    start, limit, count, log = time.time(), args.minutes * 60, 0, []
    while (elapsed := time.time() - start) < limit:
        with_gan = bool(args.init) or count >= 600
        set_rate(g_optimiser, cosine(elapsed / limit, args.peak, floor=0.05))
        set_rate(d_optimiser, cosine(elapsed / limit, args.peak / 2, floor=0.05))
        losses = steps[with_gan](*data.batch(args.batch))
        average.update()
        count += 1
        if count % 500 == 0:
            log.append({"step": count, "s": round(elapsed), "losses": [round(loss.item(), 3) for loss in losses]})
            if count % 2000 == 0 or count <= 1000:
                print(log[-1], flush=True)
    average.apply()
    save_file({k: v.detach().half().cpu().contiguous() for k, v in discriminators.state_dict().items()}, args.out / "discriminators.safetensors")
    generator.eval()
    mel, wave = data.batch(64)
    with torch.no_grad():
        spectral = multi_mel(generator(mel)[:, 0], wave).item()
    print("multi-mel", round(spectral, 3), "steps", count, flush=True)
    plain = build_bigvgan(CONFIG, weight_norm=True)
    plain.load_state_dict(generator.state_dict())
    plain.remove_weight_norm()
    save_file({k: v.detach().half().cpu().contiguous() for k, v in plain.state_dict().items()}, args.out / "vocoder.safetensors")
    (args.out / "vocoder_log.json").write_text(json.dumps({"multi_mel": spectral, "steps": count, "log": log}))


if __name__ == "__main__":
    main()
