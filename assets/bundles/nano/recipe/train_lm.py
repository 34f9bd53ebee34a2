"""Stage 5 of the recipe: the dual-head language model.

Data: conversations of several dialogues under one system turn (`conversations.py`). Loss: the reply on its
head; at speech positions the text head learns the word that is being said (the window's subtitles); a little
on what the user says. Input codes are disturbed now and then, mostly to one of the codes next to them in the
codebook, so that a voice that is heard a little differently does not throw a reply off.

    python train_lm.py WORK OUT --minutes 12 [--init BUNDLE/lm.safetensors [--blend 0.5]]
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import augmentation
import corpus
import domain
import numpy as np
import stage
import text
import torch
import torch.nn.functional as F
import voices
from conversations import AUDIO_VOCAB, CODEBOOK, EOSP, LONG, SHORT, Factory, Rows, Speech
from graphed import Average, Step, adamw, cosine, set_rate
from held_out import Evaluation, HeldOutDialogue
from speech_codes import SpeechCoder
from tokenizers import Tokenizer
from torch import Tensor, nn

from engine_runtime.models.moss_lm import MossLM, MossLMConfig

AUGMENTATIONS = 4
USER_CODES = 72  # of a question with silence around it, at most
DISTURBED, DISPLACED = 0.01, 0.06  # shares of input codes: any other code, one of the nearest codes
NEAREST = 6
NEURAL_AUGMENTATIONS = 2  # times those of the other voices, which have more renditions


def config(tokenizer: Tokenizer) -> MossLMConfig:
    """Sizes of the nano model."""
    return MossLMConfig(
        hidden_size=256, intermediate_size=704, num_attention_heads=8, num_key_value_heads=4, head_dim=32,
        shared_layers=6, text_layers=1, audio_layers=1, text_vocab=tokenizer.get_vocab_size(),
        audio_vocab=AUDIO_VOCAB, modality_pad=tokenizer.token_to_id("<|modality_pad|>"), rope_theta=1e4,
    )  # fmt: skip


class UserEncoder:
    """Codes of user questions with random silence, room and noise around them."""

    def __init__(self, path: Path, coder: SpeechCoder, device: str) -> None:
        self.data, self.coder = corpus.Questions(path, device), coder
        self.rng, self.generator = np.random.default_rng(5), torch.Generator(device).manual_seed(5)

    def encode(self, times: int, clean: bool = False) -> list[list[np.ndarray]]:
        """Codes of each question, `times` times; `clean` ones have silence around them and nothing else."""
        found: list[list[np.ndarray]] = [[] for _ in range(len(self.data))]
        order = np.argsort(self.data.lengths)
        for first in range(0, len(order), 256):
            picks = order[first : first + 256]
            for _ in range(times):
                for pick, codes in zip(picks, self._encode(picks, clean), strict=True):
                    found[pick].append(codes)
        return found

    def _encode(self, picks: np.ndarray, clean: bool) -> list[np.ndarray]:
        lead = self.rng.integers(800, 9_600, len(picks))
        tail = self.rng.integers(1_600, 14_400, len(picks))
        lengths = self.data.lengths[picks]
        counts = -(-(lead + lengths + tail) // corpus.GRID16)  # codes, rounded up
        window = min(USER_CODES, int(counts.max()))
        places = zip(lead.tolist(), self.data.offsets[picks].tolist(), lengths.tolist(), strict=True)
        wave = corpus.lay_out(self.data.samples, [[place] for place in places], window * corpus.GRID16)
        if not clean:
            wave = augmentation.augment(wave, self.generator)
        mel = self.coder.log_mel(wave)
        if not clean:
            mel = augmentation.warp_mel(mel, self.generator)
        codes = self.coder.mel_codes(mel).cpu().numpy().astype(np.int16)
        return [row[: min(int(count), window)] for row, count in zip(codes, counts, strict=True)]


def encode_answers(
    strings: list[tuple[str, ...]], answers: corpus.Answers, coder: SpeechCoder
) -> dict[tuple[str, ...], np.ndarray]:
    """Codes of the assistant's speech for each unit string."""
    found = {}
    for first in range(0, len(strings), 256):
        part = strings[first : first + 256]
        counts = [answers.num_codes(units) for units in part]
        codes = coder.codes(answers.batch(part, max(counts), 16)).cpu().numpy().astype(np.int16)
        for row, (units, count) in enumerate(zip(part, counts, strict=True)):
            found[units] = codes[row, :count]
    return found


def encode_speech(work: Path, coder: SpeechCoder, device: str, augmentations: int) -> Speech:
    """Everything that conversations are made of, held-out answers included."""
    renditions: dict[str, list[np.ndarray]] = {}
    for name, times in (("users.npz", augmentations), ("neural.npz", NEURAL_AUGMENTATIONS * augmentations)):
        if not (work / name).exists():
            continue
        users = UserEncoder(work / name, coder, device)
        for question, codes in zip(users.data.text, users.encode(times), strict=True):
            renditions.setdefault(question, []).extend(codes)
    answers = corpus.Answers(work / "units.npz", device)
    strings = list(
        dict.fromkeys(turn.units for dialogue in domain.all_dialogues() for turn in dialogue.turns)
    )
    unit_codes = {unit: int(answers.codes[index]) for unit, index in answers.units.items()}
    return Speech(renditions, encode_answers(strings, answers, coder), unit_codes)


def held_out_dialogues(path: Path, coder: SpeechCoder, device: str) -> list[HeldOutDialogue]:
    """The dialogues of `dev.npz`, each in several voices."""
    dev = np.load(path)
    encoded = UserEncoder(path, coder, device).encode(1, clean=True)
    by_key = {dialogue.key: dialogue for dialogue in domain.training_dialogues()}
    grouped: dict[tuple[str, str], list[np.ndarray]] = {}
    for key, turn, voice, codes in zip(
        dev["key"].tolist(), dev["turn"], dev["voice"].tolist(), encoded, strict=True
    ):
        group = voices.voice_group(voice)
        if int(turn) == 0:
            grouped[key, group] = []
        grouped[key, group].append(codes[0])
    return [
        HeldOutDialogue(by_key[key], group, codes)
        for (key, group), codes in grouped.items()
        if len(codes) == len(by_key[key].turns)
    ]


def nearest_codes(codebook: Tensor) -> Tensor:
    """[codes, d] -> [codes, NEAREST]: the nearest other entries of each."""
    return torch.cdist(codebook, codebook).topk(NEAREST + 1, largest=False).indices[:, 1:]


class Training:
    """The language model with its optimizer."""

    def __init__(self, sizes: MossLMConfig, codebook: Tensor, device: str) -> None:
        self.device, self.neighbours = device, nearest_codes(codebook)
        self.model = MossLM(sizes)
        self.model.reset_parameters()
        self.model = self.model.to(device)
        self.optimizer = adamw(self.model, device, (0.9, 0.95), 0.05)

    def step(self, batch: Tensor) -> tuple[Tensor, ...]:
        """[B, L, 5] int16 of `Rows` -> the losses of the text and of the audio head."""
        rows, labels, weight = batch[..., :2].long(), batch[..., 2:4].long(), batch[..., 4].float() / 100
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            text_logits, audio_logits = self.model(self._disturb(rows))
        text_label, audio_label = labels[..., 0], labels[..., 1]
        # a subtitle beside a code counts half
        subtitle = (text_label >= 0) & (audio_label >= 0)
        text_weight = weight * (text_label >= 0) * torch.where(subtitle, 0.5, 1.0)
        audio_weight = weight * (audio_label >= 0)
        text_loss = _weighted_cross_entropy(text_logits, text_label, text_weight)
        audio_loss = _weighted_cross_entropy(audio_logits, audio_label, audio_weight)
        self.optimizer.zero_grad(set_to_none=True)
        (text_loss + audio_loss).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return text_loss.detach(), audio_loss.detach()

    def _disturb(self, rows: Tensor) -> Tensor:
        """Some codes of speech become others."""
        shape, codes = rows.shape[:2], rows[..., 1]
        speech = (rows[..., 0] == self.model.config.modality_pad) & (codes < EOSP)
        draw = torch.rand(shape, device=self.device)
        random_codes = torch.randint(0, CODEBOOK, shape, device=self.device)
        which = torch.randint(0, NEAREST, shape, device=self.device)
        near = self.neighbours[codes.clamp_max(CODEBOOK - 1), which]
        codes = torch.where(speech & (draw < DISTURBED + DISPLACED), near, codes)
        codes = torch.where(speech & (draw < DISTURBED), random_codes, codes)
        return torch.stack([rows[..., 0], codes], -1)


def _weighted_cross_entropy(logits: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """[B, L, V], [B, L], [B, L] -> the mean over the weights; label -1 counts nothing."""
    each = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), ignore_index=-1, reduction="none")
    return (each * weight.flatten()).sum() / weight.sum().clamp_min(1)


def prepare_tokenizer(init: Path | None, path: Path) -> Tokenizer:
    """Write the text tokenizer: a new one, or the one that the weights to start from were trained with."""
    if init is None:
        return text.build_tokenizer(path)
    tokenizer: Tokenizer = Tokenizer.from_file(str(init.with_name("tokenizer.json")))
    tokenizer.save(str(path))
    return tokenizer


def train(
    training: Training,
    factory: Factory,
    evaluation: Evaluation,
    sizes: dict[int, int],
    args: argparse.Namespace,
) -> tuple[int, list[dict[str, float]]]:
    """Short and long sequences in turn until the time is over: steps, log. `sizes`: sequences of a step."""
    average, save_due = Average(training.model, 0.9985), stage.Every(stage.SAVE_SECONDS)
    steps = {limit: Step(training.step, args.device) for limit in sizes}
    count, log, data = 0, [], {}
    for seconds, progress in stage.training_time(args.minutes):
        if not data or (count % args.chunk == 0 and factory.ready()):
            data = {limit: torch.from_numpy(made).to(args.device) for limit, made in factory.take().items()}
        limit = LONG if count % 2 else SHORT
        set_rate(training.optimizer, cosine(progress, args.peak))
        pick = torch.randint(0, len(data[limit]), (sizes[limit],), device=args.device)
        text_loss, audio_loss = steps[limit](data[limit][pick])
        average.update()
        count += 1
        if count % 500 == 0:
            losses = {"text": round(text_loss.item(), 4), "audio": round(audio_loss.item(), 4)}
            log.append({"step": count, "s": round(seconds), **losses})
            print(log[-1], flush=True)
        if count % 5000 == 0:
            report = evaluation.run(training.model)
            print(f"after {count} steps:", {k: v for k, v in report.items() if "/" not in k}, flush=True)
        if save_due:
            with average.applied():
                stage.save_weights(training.model, args.out / "lm.safetensors")
    average.apply()
    return count, log


def main() -> None:
    """Encode, train for a time, report, write the model and the tokenizer."""
    parser = stage.parser(__doc__, minutes=12.0)
    parser.add_argument("--rows", type=int, default=48_000, help="rows of a step")
    parser.add_argument("--workers", type=int, default=max(2, (os.cpu_count() or 2) - 4))
    parser.add_argument("--peak", type=float, default=2e-3, help="learning rate")
    parser.add_argument("--chunk", type=int, default=96, help="steps for which one set of sequences is kept")
    parser.add_argument("--init", type=Path, help="lm.safetensors to go on from, its tokenizer beside it")
    parser.add_argument(
        "--blend", type=float, default=1.0, help="share of the trained weights, rest of --init"
    )
    parser.add_argument("--augmentations", type=int, default=AUGMENTATIONS, help="codes of each rendition")
    args = parser.parse_args()
    stage.prepare()
    args.out.mkdir(parents=True, exist_ok=True)
    begin = time.time()
    tokenizer = prepare_tokenizer(args.init, args.out / "tokenizer.json")
    coder = SpeechCoder(args.out / "speech_encoder.safetensors", args.device)
    speech = encode_speech(args.work, coder, args.device, args.augmentations)
    spoken = f"{len(speech.renditions)} questions and {len(speech.answers)} answers"
    print(f"{spoken} encoded in {time.time() - begin:.0f} s", flush=True)
    sizes = {limit: max(2, args.rows // limit) for limit in (LONG, SHORT)}
    wanted = {limit: args.chunk * size // 2 for limit, size in sizes.items()}
    factory = Factory(str(args.out / "tokenizer.json"), speech, args.workers, wanted)
    dialogues = held_out_dialogues(args.work / "dev.npz", coder, args.device)
    evaluation = Evaluation(Rows(tokenizer, speech), dialogues, args.device)
    training = Training(config(tokenizer), coder.model.encoder.codebook.weight.detach(), args.device)
    if args.init:
        training.model.load_state_dict(stage.read_weights(args.init))
        print("before:", evaluation.run(training.model), flush=True)
    parameters, vocabulary = stage.count_parameters(training.model), tokenizer.get_vocab_size()
    print("lm:", parameters, "parameters; text vocabulary", vocabulary, flush=True)
    steps, log = train(training, factory, evaluation, sizes, args)
    factory.close()
    if args.init:
        # Training on new data alone made the model sure about sentences that neither training had; the mean
        # keeps the judgement of the start there.
        stage.blend(training.model, stage.read_weights(args.init), args.blend)
    training.model.eval()
    report = evaluation.run(training.model)
    for group, value in report.items():
        print(group, value)
    print("steps", steps, flush=True)
    stage.save_weights(training.model, args.out / "lm.safetensors")
    stage.write_log(args.out / "lm_log.json", held_out=report, steps=steps, log=log)


if __name__ == "__main__":
    main()
