"""Stage 4a of the recipe: mel -> waveform, a BigVGAN for the codec's mel.

Loss and steps are those of assets/training/bigvgan_training.py. Mostly the assistant's voice, some user
voices. With `--flow` a part of the mels is what the trained flow makes of the codes, frame for frame on the
same speech: what the vocoder will really be given. With `--start` the generator takes over the layers that it
has in common with a larger one.

    python train_vocoder.py WORK OUT --minutes 20 [--start FILE] [--flow] [--init FOLDER]
"""

from __future__ import annotations

from pathlib import Path

import corpus
import numpy as np
import stage
import torch
import torch.nn.functional as F
from bigvgan_training import GanTraining, in_common, take_weights, without_weight_norm
from graphed import Average, Step
from speech_codes import FRAMES_PER_CODE, MEL, SpeechCoder
from torch import Tensor
from train_flow import CONFIG as FLOW_CONFIG

from engine_runtime.codec.speech_tokenizer.features import CodecMel
from engine_runtime.models.bigvgan import build_bigvgan, receptive_field
from engine_runtime.models.flow import CausalFlow

CONFIG = {
    "resblock": "1", "upsample_rates": [10, 6, 4, 2], "upsample_kernel_sizes": [20, 12, 8, 4],
    "upsample_initial_channel": 512, "resblock_kernel_sizes": [3],
    "resblock_dilation_sizes": [[1, 3]], "activation": "snakebeta", "snake_logscale": True,
    "num_mels": 80, "use_tanh_at_final": False, "use_bias_at_final": False,
}  # fmt: skip
FRAMES = 32  # mel frames of a training segment
SAMPLES = FRAMES * MEL.hop
WINDOW_CODES = 24  # of an answer, in which a segment is cut
USER_WINDOW = 40_000  # samples at 16 kHz, in which a segment of user speech is cut
USER_SHARE = 0.15
FLOW_CODES = 40
FLOW_STEPS, FLOW_CFG = 2, 0.0  # how the bundle's flow is run
SPECTRAL_STEPS = 600  # before the discriminators join


def trained_flow(out: Path, device: str) -> CausalFlow:
    """The flow that its stage left in a folder."""
    flow = CausalFlow(FLOW_CONFIG)
    flow.load_state_dict(stage.read_weights(out / "flow.safetensors"))
    return flow.to(device).eval()


class FlowMels:
    """What the trained flow makes of the codes of some answers, beside the answers themselves."""

    @torch.no_grad()
    def __init__(self, out: Path, answers: corpus.Answers, picks: list[tuple[str, ...]], device: str) -> None:
        coder, flow = SpeechCoder(out / "speech_encoder.safetensors", device), trained_flow(out, device)
        mels, waves = [], []
        for first in range(0, len(picks), 256):
            part = picks[first : first + 256]
            codes = coder.codes(answers.batch(part, FLOW_CODES, 16))
            mels.append(flow.inference(codes, n_steps=FLOW_STEPS, cfg_rate=FLOW_CFG).half())
            waves.append((answers.batch(part, FLOW_CODES, 24) * 32767).short())
        self.mels, self.waves = torch.cat(mels), torch.cat(waves)

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        """mel [size, 80, FRAMES], wave [size, SAMPLES], cut at the same random places."""
        device = self.mels.device
        rows = torch.randint(0, len(self.mels), (size,), device=device)
        first = torch.randint(0, FLOW_CODES * FRAMES_PER_CODE - FRAMES, (size, 1), device=device)
        frames = (first + torch.arange(FRAMES, device=device))[:, None].expand(-1, MEL.n_mels, -1)
        samples = first * MEL.hop + torch.arange(SAMPLES, device=device)
        return self.mels[rows].gather(2, frames).float(), self.waves[rows].gather(1, samples).float() / 32767


class Segments:
    """Random segments with their mels."""

    def __init__(self, work: Path, device: str) -> None:
        self.device = device
        self.answers = corpus.Answers(work / "units.npz", device)
        self.questions = corpus.Questions(work / "users.npz", device)
        self.rng = np.random.default_rng(1)
        self.strings = corpus.training_answers(self.rng, 20_000)
        self.mel = CodecMel(MEL).to(device)
        self.flow_mels: FlowMels | None = None

    def use_flow(self, out: Path, pool: int) -> None:
        """From now on half of each batch are mels that the flow in `out` made, of a pool of answers."""
        self.flow_mels = FlowMels(out, self.answers, self._pick(pool), self.device)

    def _pick(self, count: int) -> list[tuple[str, ...]]:
        return [self.strings[i] for i in self.rng.integers(0, len(self.strings), count)]

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        """mel [size, 80, FRAMES], wave [size, SAMPLES]."""
        users = int(size * USER_SHARE)
        spoken = self._answers(size - users)
        wave = torch.cat([spoken, self._users(users)])
        gain = 10 ** (torch.empty(size, 1, device=self.device).uniform_(-6, 2) / 20)
        wave = (wave * gain).clamp(-0.99, 0.99)
        mel = self.mel(wave)
        if self.flow_mels is not None:
            half = size // 2
            mel[:half], wave[:half] = self.flow_mels.batch(half)
        return mel, wave

    def _answers(self, count: int) -> Tensor:
        """[count, SAMPLES] of the assistant's voice, cut at a random place inside the speech."""
        picks = self._pick(count)
        spoken = self.answers.batch(picks, WINDOW_CODES, 24)
        starts = []
        for units in picks:
            length = min(WINDOW_CODES, self.answers.num_codes(units)) * corpus.GRID24
            starts.append(int(self.rng.integers(0, max(1, length - SAMPLES + 1))))
        first = torch.tensor(starts, device=self.device)[:, None]
        return spoken.gather(1, first + torch.arange(SAMPLES, device=self.device))

    def _users(self, count: int) -> Tensor:
        """[count, SAMPLES] of user voices, brought to 24 kHz by zeros behind the spectrum."""
        wave, _ = self.questions.windows(self.rng, count, USER_WINDOW)
        samples16 = SAMPLES * 2 // 3
        first = torch.randint(0, USER_WINDOW - samples16, (count, 1), device=self.device)
        spectrum = torch.fft.rfft(wave.gather(1, first + torch.arange(samples16, device=self.device)))
        spectrum = F.pad(spectrum, (0, SAMPLES // 2 + 1 - spectrum.shape[1]))
        return torch.fft.irfft(spectrum, SAMPLES) * 1.5


class Training(GanTraining):
    """Of the vocoder of this bundle."""

    def __init__(self, device: str, init: Path | None = None, start: Path | None = None) -> None:
        """`init`: folder of an earlier training to go on from. `start`: weights of a larger generator."""
        generator = build_bigvgan(CONFIG, weight_norm=True)
        if start:
            take_weights(generator, in_common(generator, stage.read_weights(start)))
        if init:
            take_weights(generator, stage.read_weights(init / "vocoder.safetensors"))
        super().__init__(generator, MEL.sample_rate, device)
        if init:
            self.discriminators.load_state_dict(stage.read_weights(init / "discriminators.safetensors"))

    def save(self, out: Path) -> None:
        """The generator without weight norm as the bundle has it, and the discriminators for `--init`."""
        stage.save_weights(self.discriminators, out / "discriminators.safetensors")
        stage.save_weights(without_weight_norm(self.generator), out / "vocoder.safetensors")


def main() -> None:
    """Train for a time, write the vocoder."""
    parser = stage.parser(__doc__, minutes=20.0)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument(
        "--flow", action="store_true", help="train half of each batch on mels of the trained flow"
    )
    parser.add_argument("--init", type=Path, help="folder of an earlier call, to go on from")
    parser.add_argument("--start", type=Path, help="weights of a larger vocoder whose layers are taken over")
    parser.add_argument("--pool", type=int, default=4096, help="answers whose mels the flow makes")
    parser.add_argument("--peak", type=float, default=4e-4, help="learning rate")
    args = parser.parse_args()
    stage.prepare()
    torch.backends.cudnn.benchmark = True
    segments = Segments(args.work, args.device)
    if args.flow:
        segments.use_flow(args.out, args.pool)
    training = Training(args.device, args.init, args.start)
    generator, count, log = training.generator, 0, []
    parameters = stage.count_parameters(generator)
    print("vocoder:", parameters, "parameters, context", receptive_field(CONFIG), flush=True)
    average, save_due = Average(generator, 0.999), stage.Every(stage.SAVE_SECONDS)
    spectral_step, gan_step = Step(training.spectral_step, args.device), Step(training.gan_step, args.device)
    for seconds, progress in stage.training_time(args.minutes):
        training.set_rates(progress, args.peak)
        step = gan_step if args.init or count >= SPECTRAL_STEPS else spectral_step
        losses = step(*segments.batch(args.batch))
        average.update()
        count += 1
        if count % 500 == 0:
            log.append({"step": count, "s": round(seconds), "losses": [round(x.item(), 3) for x in losses]})
            if count % 2000 == 0 or count <= 1000:
                print(log[-1], flush=True)
        if save_due:
            with average.applied():
                training.save(args.out)
    average.apply()
    generator.eval()
    mel, wave = segments.batch(64)
    with torch.no_grad():
        spectral = training.multi_mel(generator(mel)[:, 0], wave).item()
    print("multi-mel", round(spectral, 3), "steps", count, flush=True)
    training.save(args.out)
    stage.write_log(args.out / "vocoder_log.json", multi_mel=spectral, steps=count, log=log)


if __name__ == "__main__":
    main()
