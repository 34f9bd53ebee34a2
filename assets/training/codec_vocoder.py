"""A BigVGAN for the mel of a codec, trained on mels of the recordings in a folder.

The mel is the one that the manifest of the bundle states, computed as the flow was trained to make it. Called
again with the same OUT it goes on where it was, also after Ctrl-C: `--minutes` are those of all calls
together. What is written is a vocoder file for `moss-voice --vocoder` (16 bit, average of the weights), and a
checkpoint to go on from.

    python assets/training/codec_vocoder.py RECORDINGS OUT --minutes 2880 [--bundle moss-speech] [--size base]
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import stage
import torch
from bigvgan_training import GanTraining, without_weight_norm
from graphed import Average, Step
from speech_folder import SpeechFolder
from torch import Tensor

from app.audio.wav import read_wav
from engine_runtime.bundle.manifest import stated
from engine_runtime.bundle.released.full_size import describe
from engine_runtime.bundle.vocoder_file import write_bigvgan
from engine_runtime.codec.speech_tokenizer.features import CodecMel
from engine_runtime.codec.vocoder.vocoder import bigvgan_names
from engine_runtime.errors import MelMismatchError, MossVoiceError
from engine_runtime.hardware import usable_device
from engine_runtime.models.bigvgan import build_bigvgan, receptive_field
from engine_runtime.types import MelSpec


@dataclass(frozen=True, slots=True)
class Size:
    """A generator and what trains it."""

    channels: int
    discriminator_width: int
    peak: float  # learning rate


SIZES = {
    "tiny": Size(32, 1, 1e-3),  # to try the recipe, on a CPU too
    "base": Size(512, 2, 3e-4),  # 9.3 M parameters
    "large": Size(1536, 2, 1e-4),  # 82 M parameters
}
RATES = (10, 6, 4, 2)  # the largest first: later stages reach less far, and what is held back is short
KERNELS, DILATIONS = [3, 7, 11], [[1, 3, 5], [1, 3], [1]]  # the wider, the less dilated, for the same reason
FRAMES = 64  # mel frames of a training segment
SPECTRAL_STEPS = 1_000  # before the discriminators join
GAIN_DB = (-9.0, 3.0)
JUDGED_S = 8  # of each held-out recording
MOST_JUDGED = 12
CHECKPOINT, VOCODER = "checkpoint.pt", "vocoder.safetensors"


def config_of(mel: MelSpec, size: Size) -> dict[str, Any]:
    """The network's config, which states its mel, too. Raises MossVoiceError for another hop."""
    if prod(RATES) != mel.hop:
        raise MossVoiceError(
            "The generator makes {prod} samples of a frame, but the mel has a hop of {hop}.",
            "Choose RATES in codec_vocoder.py whose product is the hop.",
            prod=prod(RATES),
            hop=mel.hop,
        )
    return {
        "resblock": "1",
        "upsample_rates": list(RATES),
        "upsample_kernel_sizes": [2 * rate for rate in RATES],
        "upsample_initial_channel": size.channels,
        "resblock_kernel_sizes": KERNELS,
        "resblock_dilation_sizes": DILATIONS,
        "activation": "snakebeta",
        "snake_logscale": True,
        "use_tanh_at_final": False,
        "use_bias_at_final": False,
        **bigvgan_names(mel),
    }


class CodecVocoder:
    """The training with its state: what a checkpoint holds."""

    def __init__(self, mel: MelSpec, size: Size, device: str) -> None:
        torch.backends.cudnn.benchmark = True  # segments of one length
        self.mel, self.size, self.device = mel, size, device
        self.config = config_of(mel, size)
        self.edge = max(receptive_field(self.config)) + mel.n_fft // mel.hop // 2  # frames that need others
        inner = slice(self.edge * mel.hop, (FRAMES - self.edge) * mel.hop)
        self.gan = GanTraining(
            build_bigvgan(self.config, weight_norm=True),
            mel.sample_rate,
            device,
            inner=inner,
            discriminator_width=size.discriminator_width,
        )
        self.average = Average(self.gan.generator, 0.999)
        self.codec_mel = CodecMel(mel).to(device)
        self.steps, self.seconds = 0, 0.0
        self.log: list[dict[str, Any]] = []
        self._spectral = Step(self.gan.spectral_step, device)
        self._gan = Step(self.gan.gan_step, device)

    def step(self, samples: Tensor, progress: float) -> tuple[Tensor, ...]:
        """Train on segments [B, FRAMES * hop] int16; returns the losses of the step."""
        wave = samples.to(self.device, non_blocking=True).float() / 32767
        low, high = GAIN_DB
        gain = torch.empty(len(wave), 1, device=self.device).uniform_(low, high)
        wave = (wave * 10 ** (gain / 20)).clamp(-1, 1)
        self.gan.set_rates(progress, self.size.peak)
        step = self._spectral if self.steps < SPECTRAL_STEPS else self._gan
        losses = step(self.codec_mel(wave), wave)
        self.average.update()
        self.steps += 1
        return losses

    def save(self, out: Path) -> None:
        """Write the checkpoint, and the average of the weights as a vocoder file."""
        state = {
            "mel": stated(self.mel),
            "config": self.config,
            "steps": self.steps,
            "seconds": self.seconds,
            "log": self.log,
            "generator": self.gan.generator.state_dict(),
            "discriminators": self.gan.discriminators.state_dict(),
            "optimizers": [each.state_dict()["state"] for each in self._optimizers],
            "average": self.average.state(),
        }
        torch.save(state, out / f"{CHECKPOINT}.part")
        (out / f"{CHECKPOINT}.part").replace(out / CHECKPOINT)
        with self.average.applied():
            weights = without_weight_norm(self.gan.generator).state_dict()
        write_bigvgan(
            out / VOCODER, {name: value.half() for name, value in weights.items()}, self.config, self.mel
        )

    def resume(self, file: Path) -> None:
        """Go on from a checkpoint. Raises MelMismatchError if it is of another mel, MossVoiceError if it is
        of another size."""
        state = torch.load(file, map_location=self.device, weights_only=True)
        before = MelSpec(**state["mel"])
        if before != self.mel:
            raise MelMismatchError(
                "{file} was trained on another mel than the bundle's.\n  checkpoint: {before}\n  "
                "bundle:     {mel}.",
                "Choose another folder, or the bundle that it was trained for.",
                file=file,
                before=before,
                mel=self.mel,
            )
        if state["config"] != self.config:
            raise MossVoiceError(
                "{file} is of another --size.", "Choose another folder, or the same size.", file=file
            )
        self.steps, self.seconds, self.log = state["steps"], state["seconds"], state["log"]
        self.gan.generator.load_state_dict(state["generator"])
        self.gan.discriminators.load_state_dict(state["discriminators"])
        for optimizer, kept in zip(self._optimizers, state["optimizers"], strict=True):
            # With the groups as they are: a captured step reads the learning rate from its tensor.
            optimizer.load_state_dict({"state": kept, "param_groups": optimizer.state_dict()["param_groups"]})
        self.average.restore(state["average"])

    @property
    def _optimizers(self) -> tuple[torch.optim.Optimizer, ...]:
        return self.gan.g_optimizer, self.gan.d_optimizer

    @torch.no_grad()
    def mel_distance(self, waves: list[Tensor]) -> float:
        """L1 between the codec's mel of held-out recordings and of their copies, in natural logarithms."""
        with self.average.applied():
            network = without_weight_norm(self.gan.generator).to(self.device).eval()
        mels = [self.codec_mel(wave.to(self.device)) for wave in waves]
        torch.backends.cudnn.benchmark = False  # each recording has another length
        copies = [self.codec_mel(network(mel[None])[0, 0]) for mel in mels]
        torch.backends.cudnn.benchmark = True
        return float(np.mean([(a - b).abs().mean().item() for a, b in zip(copies, mels, strict=True)]))


def train(vocoder: CodecVocoder, speech: SpeechFolder, out: Path, minutes: float, batch: int) -> None:
    """Until the time is over or Ctrl-C; both leave a checkpoint from which the next call goes on."""
    held_out = [read_wav(file)[0] for file in sorted(speech.held_out.glob("*.wav"))[:MOST_JUDGED]]
    hop, most = vocoder.mel.hop, JUDGED_S * vocoder.mel.sample_rate
    waves = [torch.from_numpy(wave[: min(len(wave), most) // hop * hop]) for wave in held_out]
    rng, samples = np.random.default_rng(vocoder.steps), FRAMES * hop
    torch.manual_seed(vocoder.steps)
    save_due = stage.Every(stage.SAVE_SECONDS)

    def save() -> None:
        if not all(loss.isfinite() for loss in losses):
            raise MossVoiceError(
                "The losses are no longer finite at step {steps}.",
                "The last checkpoint is kept: call again with a lower --peak.",
                steps=vocoder.steps,
            )
        vocoder.log.append(
            {
                "step": vocoder.steps,
                "minutes": round(vocoder.seconds / 60, 2),
                "losses": [round(loss.item(), 3) for loss in losses],
                "mel": round(vocoder.mel_distance(waves), 4),
            }
        )
        print(vocoder.log[-1], flush=True)
        vocoder.save(out)

    losses: tuple[Tensor, ...] = ()
    try:
        for seconds, progress in stage.training_time(minutes, vocoder.seconds):
            vocoder.seconds = seconds
            losses = vocoder.step(speech.batch(rng, batch, samples), progress)
            if save_due:
                save()
    except KeyboardInterrupt:
        print("Stopped. The same command goes on.", flush=True)
    if losses:
        save()


def main() -> None:
    """Train for a time, write the vocoder."""
    parser = stage.parser(__doc__, minutes=2880.0)
    parser.add_argument("--bundle", default="moss-speech", help="folder or name of the bundle that it is for")
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--batch", type=int, default=8, help="segments of a step")
    parser.add_argument("--peak", type=float, help="learning rate (default: that of the size)")
    args = parser.parse_args()
    usable_device(args.device)
    stage.prepare()
    size = SIZES[args.size]
    if args.peak is not None:
        size = Size(size.channels, size.discriminator_width, args.peak)
    args.out.mkdir(parents=True, exist_ok=True)
    vocoder = CodecVocoder(describe(args.bundle).flow.mel, size, args.device)
    if (args.out / CHECKPOINT).is_file():
        vocoder.resume(args.out / CHECKPOINT)
    speech = SpeechFolder(args.work, args.out, vocoder.mel.sample_rate)
    parameters = stage.count_parameters(without_weight_norm(vocoder.gan.generator))
    print(
        f"{parameters / 1e6:.1f} M parameters, context {receptive_field(vocoder.config)} frames, "
        f"{speech.hours:.2f} h of speech, {vocoder.steps} steps done",
        flush=True,
    )
    train(vocoder, speech, args.out, args.minutes, args.batch)


if __name__ == "__main__":
    try:
        main()
    except MossVoiceError as error:
        sys.exit(f"codec_vocoder: {error}")
