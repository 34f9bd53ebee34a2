"""Training of a BigVGAN: losses, generator and discriminators with their optimizers, weights in and out.

Loss: multi-resolution log-mel L1, then also least-squares GAN with multi-period and multi-resolution
discriminators and feature matching (HiFi-GAN, BigVGAN). What the speech is and when which step is run is said
by the script: `codec_vocoder.py` for any codec, `train_vocoder.py` of the nano bundle.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping

import torch
from discriminators import Discriminators, adversarial_loss, discriminator_loss, matching_loss
from fast_activation import use_fast_activations
from graphed import adamw, cosine, set_rate
from torch import Tensor, nn

from engine_runtime.codec.speech_tokenizer.features import CodecMel
from engine_runtime.models.bigvgan import build_bigvgan
from engine_runtime.models.bigvgan_package import BigVGAN
from engine_runtime.types import MelSpec


class MultiMel(nn.Module):
    """L1 between log-mels at several resolutions."""

    def __init__(self, sample_rate: int) -> None:
        super().__init__()
        sizes = ((64, 10), (128, 20), (256, 40), (512, 80), (1024, 120), (2048, 160))
        self.mels = nn.ModuleList(
            CodecMel(MelSpec(sample_rate, bands, n, n // 4, n, 0.0, sample_rate / 2)) for n, bands in sizes
        )

    def forward(self, made: Tensor, wanted: Tensor) -> Tensor:
        """[B, n], [B, n] -> the sum over resolutions."""
        return torch.stack([(mel(made) - mel(wanted)).abs().mean() for mel in self.mels]).sum()


@torch.no_grad()
def take_weights(generator: BigVGAN, weights: Mapping[str, Tensor]) -> None:
    """Copy plain weights; under a weight norm they become its direction and length.

    Of a channel that was rounded to zeros the direction stays: the norm of zeros has no gradient.
    """
    state = generator.state_dict()
    for name, value in weights.items():
        if name in state:
            state[name].copy_(value)
        else:
            length, direction = value.flatten(1).norm(dim=1).view_as(state[f"{name}_g"]), state[f"{name}_v"]
            direction.copy_(torch.where(length > 0, value, direction))
            state[f"{name}_g"].copy_(length)


def in_common(generator: BigVGAN, larger: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Of the weights of a generator with equal widths and more blocks in each stage those of this one.

    A block is matched by its stage and its kernel size.
    """
    indices = {int(name.split(".")[1]) for name in larger if name.startswith("resblocks.")}
    per_stage = len(indices) // generator.num_upsamples
    found = {name: value for name, value in larger.items() if not name.startswith("resblocks.")}
    for index, block in enumerate(generator.resblocks):
        first, taps = index // generator.num_kernels * per_stage, block.convs1[0].kernel_size[0]
        same = (
            other
            for other in range(first, first + per_stage)
            if larger[f"resblocks.{other}.convs1.0.weight"].shape[2] == taps
        )
        prefix = f"resblocks.{next(same)}."
        found |= {
            f"resblocks.{index}.{name.removeprefix(prefix)}": value
            for name, value in larger.items()
            if name.startswith(prefix)
        }
    own = {name.removesuffix("_g").removesuffix("_v") for name in generator.state_dict()}
    return {name: value for name, value in found.items() if name in own}


def without_weight_norm(generator: BigVGAN) -> BigVGAN:
    """A copy on the CPU whose weights are those of a bundle."""
    plain = build_bigvgan(generator.h, weight_norm=True)
    plain.load_state_dict(generator.state_dict())
    with contextlib.redirect_stdout(io.StringIO()):  # the package prints here
        plain.remove_weight_norm()
    return plain


class GanTraining:
    """Generator and discriminators with their optimizers.

    `inner` are the samples of a segment that count; without the others no sample is judged that depends on
    mel frames beyond the segment, which the generator was not given.
    """

    def __init__(
        self,
        generator: BigVGAN,
        sample_rate: int,
        device: str,
        *,
        inner: slice = slice(None),
        discriminator_width: int = 1,
    ) -> None:
        self.device, self.inner = device, inner
        self.generator = generator.to(device).train()
        self.discriminators = Discriminators(discriminator_width).to(device)
        self.multi_mel = MultiMel(sample_rate).to(device)
        if device == "cuda":
            torch._dynamo.config.recompile_limit = 64  # the activation is compiled for each width and length
        use_fast_activations(self.generator, compiled=device == "cuda")
        self.g_optimizer = adamw(self.generator, device, (0.8, 0.99), 0.01)
        self.d_optimizer = adamw(self.discriminators, device, (0.8, 0.99), 0.01)

    def set_rates(self, progress: float, peak: float) -> None:
        """Half the rate for the discriminators."""
        set_rate(self.g_optimizer, cosine(progress, peak, floor=0.05))
        set_rate(self.d_optimizer, cosine(progress, peak / 2, floor=0.05))

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda")

    def spectral_step(self, mel: Tensor, wave: Tensor) -> tuple[Tensor, ...]:
        """mel [B, 80, frames], wave [B, frames * hop] -> the spectral loss."""
        with self._autocast():
            made = self.generator(mel)[:, 0, self.inner]
        spectral = self.multi_mel(made.float(), wave[:, self.inner])
        self._improve_generator(15 * spectral)
        return (spectral.detach(),)

    def gan_step(self, mel: Tensor, wave: Tensor) -> tuple[Tensor, ...]:
        """mel [B, 80, frames], wave [B, frames * hop] -> spectral, discriminator, adversarial, matching
        losses.

        Both sides learn from the same scores: the discriminators run once for either wave.
        """
        wave = wave[:, self.inner]
        with self._autocast():
            made = self.generator(mel)[:, 0, self.inner].float()
            real_features, made_features = self.discriminators(wave), self.discriminators(made)
        d_loss = discriminator_loss(real_features, made_features)
        adversarial, matching = adversarial_loss(made_features), matching_loss(real_features, made_features)
        spectral = self.multi_mel(made, wave)
        self.d_optimizer.zero_grad(set_to_none=True)
        d_loss.backward(inputs=list(self.discriminators.parameters()), retain_graph=True)
        self._improve_generator(15 * spectral + adversarial + 2 * matching)
        nn.utils.clip_grad_norm_(self.discriminators.parameters(), 50.0)
        self.d_optimizer.step()
        return spectral.detach(), d_loss.detach(), adversarial.detach(), matching.detach()

    def _improve_generator(self, loss: Tensor) -> None:
        self.g_optimizer.zero_grad(set_to_none=True)
        loss.backward(inputs=list(self.generator.parameters()))
        nn.utils.clip_grad_norm_(self.generator.parameters(), 500.0)
        self.g_optimizer.step()
