"""Stage 5 of the recipe: the dual-head language model.

Data: conversations of several dialogues under one system turn, as the runtime lays them out; each user turn spoken (codes
of an augmented rendition) or typed, replies as speech or as text. Loss: the reply on its head; at speech positions the
text head learns the word that is being said (the window's subtitles); a little on what the user says. Input codes are
disturbed now and then, so that a wrong code does not throw a reply off.

    python train_lm.py WORK OUT --minutes 12
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import time
from dataclasses import dataclass
from pathlib import Path

import corpus
import domain
import numpy as np
import text
import torch
import torch.nn.functional as F
from graphed import Average, Step, adamw, cosine, set_rate
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from train_flow import encode, load_encoder
from train_tokenizer import CONFIG as ENCODER_CONFIG

from engine_runtime.codec.features import WhisperLogMel
from engine_runtime.models.moss_lm import MossLM, MossLMConfig

CODEBOOK = ENCODER_CONFIG.codebook_size
EOSP, AUDIO_PAD, AUDIO_VOCAB = CODEBOOK, 512, CODEBOOK + 8
LONG, SHORT = 448, 144  # rows of a training sequence: a conversation, one or two turns
AUGMENTATIONS = 4
USER_CODES = 72


def config(tokenizer: Tokenizer) -> MossLMConfig:
    """Sizes of the nano model."""
    return MossLMConfig(
        hidden_size=256, intermediate_size=704, num_attention_heads=8, num_key_value_heads=4, head_dim=32,
        shared_layers=6, text_layers=1, audio_layers=1, text_vocab=tokenizer.get_vocab_size(), audio_vocab=AUDIO_VOCAB,
        modality_pad=tokenizer.token_to_id("<|modality_pad|>"), rope_theta=1e4,
    )  # fmt: skip


@dataclass
class Speech:
    """Codes of everything that is said: user renditions by question, answers by unit string (made on the fly)."""

    renditions: dict[str, list[np.ndarray]]
    answers: dict[tuple[str, ...], np.ndarray]
    unit_codes: dict[str, int]


@torch.no_grad()
def encode_users(path: Path, encoder: nn.Module, device: str, augmentations: int, clean: bool = False) -> list[list[np.ndarray]]:
    """Codes of each utterance, several times with other silence, room and noise around it."""
    data = corpus.Questions(path, device)
    log_mel = WhisperLogMel(16_000, ENCODER_CONFIG.num_mel_bins, "running_max").to(device)
    rng, generator = np.random.default_rng(5), torch.Generator(device).manual_seed(5)
    found: list[list[np.ndarray]] = [[] for _ in range(len(data))]
    window = USER_CODES * corpus.GRID16
    order = np.argsort(data.lengths)
    for first in range(0, len(order), 256):
        picks = order[first : first + 256]
        for _ in range(augmentations):
            lead = rng.integers(800, 9_600, len(picks))
            tail = rng.integers(1_600, 14_400, len(picks))
            segments = [[(int(a), int(data.offsets[p]), int(data.lengths[p]))] for a, p in zip(lead, picks, strict=True)]
            longest = int(max(a + data.lengths[p] + t for a, p, t in zip(lead, picks, tail, strict=True)))
            samples = min(window, -(-longest // corpus.GRID16) * corpus.GRID16)
            wave = corpus.lay_out(data.samples, segments, samples)
            if not clean:
                wave = corpus.augment(wave, generator)
            mel = log_mel(wave)
            if not clean:
                mel = corpus.warp_mel(mel, generator)
            codes = encoder(mel).cpu().numpy().astype(np.int16)
            for row, (a, p, t) in enumerate(zip(lead, picks, tail, strict=True)):
                count = -(-int(a + data.lengths[p] + t) // corpus.GRID16)
                found[p].append(codes[row, : min(count, samples // corpus.GRID16)])
    return found


@torch.no_grad()
def encode_answers(strings: list[tuple[str, ...]], answers: corpus.Answers, encoder: nn.Module, device: str) -> dict[tuple[str, ...], np.ndarray]:
    """Codes of the assistant's speech for each unit string."""
    log_mel = WhisperLogMel(16_000, ENCODER_CONFIG.num_mel_bins, "running_max").to(device)
    found = {}
    for first in range(0, len(strings), 256):
        part = strings[first : first + 256]
        counts = [answers.num_codes(units) for units in part]
        codes = encode(encoder, log_mel, answers.batch(part, max(counts), 16)).cpu().numpy().astype(np.int16)
        for row, (units, count) in enumerate(zip(part, counts, strict=True)):
            found[units] = codes[row, :count]
    return found


class Rows:
    """Lays conversations out as rows with labels (-1 = none)."""

    def __init__(self, tokenizer: Tokenizer, speech: Speech) -> None:
        self.tokenizer, self.speech = tokenizer, speech
        self.special = {name.strip("<|>"): tokenizer.token_to_id(name) for name in text.SPECIAL}

    def ids(self, string: str) -> list[int]:
        """Text ids."""
        return self.tokenizer.encode(string, add_special_tokens=False).ids

    def conversation(self, dialogues: list[domain.Dialogue], speech_reply: bool, rng: random.Random, limit: int,
                     spoken_share: float = 0.66) -> np.ndarray:  # fmt: skip
        """[rows, 5] int16: text id, audio id, text label, audio label, weight of the labels in percent."""
        special, pad = self.special, self.special["modality_pad"]
        out: list[tuple[int, int, int, int, int]] = []

        def say(ids: list[int], weight: int = 0) -> None:
            for token in ids:
                if out and weight:
                    t, a, _, _, _ = out[-1]
                    out[-1] = (t, a, token, -1, weight)
                out.append((token, AUDIO_PAD, -1, -1, 0))

        def voice(codes: np.ndarray, labels: list[int] | None, weight: int) -> None:
            for i, code in enumerate([*codes.tolist(), EOSP]):
                t, a, _, _, _ = out[-1]
                label = -1 if labels is None else (labels[i] if i < len(labels) else special["empty"])
                out[-1] = (t, a, label, code, weight)
                out.append((pad, code, -1, -1, 0))

        newline = self.ids("\n")
        say([special["im_start"], *self.ids("system\n"), *self.ids(text.SYSTEM_SPEECH if speech_reply else text.SYSTEM_TEXT),
             special["im_end"], *newline])  # fmt: skip
        for dialogue in dialogues:
            size = len(out)
            for turn in dialogue.turns:
                say([special["im_start"], *self.ids("user\n")])
                if rng.random() < spoken_share:
                    codes = rng.choice(self.speech.renditions[turn.question])
                    say([special["object_ref_start"]])
                    voice(codes, None, 4)
                else:
                    say(self.ids(text.typed(turn.question, rng)), 4)
                say([special["im_end"], *newline, special["im_start"], *self.ids("assistant\n")])
                if speech_reply:
                    say([special["object_ref_start"]])
                    counts = [self.speech.unit_codes[unit] for unit in turn.units]
                    labels = text.subtitles(self.tokenizer, turn.units, counts, special["empty"])
                    voice(self.speech.answers[turn.units], labels, 100)
                    say([special["im_end"]], 100)
                else:
                    say([*self.ids(domain.sentence(turn.units)), special["im_end"]], 100)
                say(newline)
            if len(out) > limit:
                del out[size:]
                break
        return np.array(out, np.int16)


_WORKER: dict[str, object] = {}


def _start_worker(tokenizer_path: str, speech: Speech) -> None:
    _WORKER["rows"] = Rows(Tokenizer.from_file(tokenizer_path), speech)
    by_skill: dict[str, list[domain.Dialogue]] = {}
    for dialogue in domain.all_dialogues():
        if not dialogue.held_out and all(t.question in speech.renditions for t in dialogue.turns):
            by_skill.setdefault(dialogue.skill, []).append(dialogue)
    _WORKER["by_skill"] = by_skill


# How often each skill is asked: hard and large ones more.
SHARES = {"repeat": 24, "follow_up": 18, "plus": 11, "minus": 11, "count": 9, "unknown": 6, "opposite": 5, "number": 4,
          "capital": 4, "month": 3, "colour": 3, "greeting": 3, "day": 3}  # fmt: skip


def _make(job: tuple[int, int, int]) -> np.ndarray:
    seed, count, limit = job
    rng, rows = random.Random(seed), _WORKER["rows"]
    by_skill = _WORKER["by_skill"]
    assert isinstance(rows, Rows) and isinstance(by_skill, dict)
    skills = [s for s in SHARES if s in by_skill]
    weights = [SHARES[s] for s in skills]
    out = np.full((count, limit, 5), -1, np.int16)
    out[..., 0:2] = 0
    out[..., 4] = 0
    for i in range(count):
        many = 8 if limit == LONG else rng.choice([1, 1, 1, 2])
        picks = [rng.choice(by_skill[s]) for s in rng.choices(skills, weights, k=many)]
        conversation = rows.conversation(picks, rng.random() < 0.62, rng, limit)
        out[i, : len(conversation)] = conversation
    return out


class Evaluation:
    """Held-out dialogues, answered greedily: exact text, and for speech the codes and the subtitles."""

    def __init__(self, rows: Rows, dialogues: list[domain.Dialogue], voices: list[tuple[str, list[np.ndarray]]], device: str) -> None:
        self.items = []
        rng = random.Random(9)
        for dialogue, (voice, codes) in zip(dialogues, voices, strict=True):
            for mode in ("s2t", "t2s", "s2s"):
                for turn, spoken in zip(dialogue.turns, codes, strict=True):
                    rows.speech.renditions[turn.question] = [spoken]
                made = rows.conversation([dialogue], mode != "s2t", rng, 10_000, 0.0 if mode == "t2s" else 1.0)
                # the reply starts behind the last assistant prefix
                starts = [i for i in range(len(made)) if made[i, 4] == 100 and (i == 0 or made[i - 1, 4] != 100)]
                prompt = made[: starts[-1] + 1, :2]
                wanted = domain.sentence(dialogue.turns[-1].units)
                self.items.append((mode, dialogue.skill, voice, prompt, wanted, rows.speech.answers[dialogue.turns[-1].units]))
        self.rows, self.device = rows, device

    @torch.no_grad()
    def run(self, model: MossLM, most: int = 90) -> dict[str, dict[str, str]]:
        """Share of right answers by mode, voice group and skill."""
        special, pad = self.rows.special, self.rows.special["modality_pad"]
        right: dict[str, list[int]] = {}
        order = sorted(range(len(self.items)), key=lambda i: len(self.items[i][3]))
        for first in range(0, len(order), 384):
            part = [self.items[i] for i in order[first : first + 384]]
            length = max(len(item[3]) for item in part)
            grid = torch.zeros(len(part), length + most, 2, dtype=torch.long, device=self.device)
            position = torch.tensor([len(item[3]) for item in part], device=self.device)
            for row, item in enumerate(part):
                grid[row, : len(item[3])] = torch.from_numpy(item[3].astype(np.int64))
            speech = torch.tensor([item[0] != "s2t" for item in part], device=self.device)
            each = torch.arange(len(part), device=self.device)
            texts, codes = [], []
            done = torch.zeros(len(part), dtype=torch.bool, device=self.device)
            for _ in range(most):
                with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
                    trunk = model.trunk(grid[:, : int(position.max())])
                    at = position - 1
                    t = model.text_lm_head(model.text_tail(trunk)[each, at]).argmax(-1)
                    audio = model.audio_lm_head(model.audio_tail(trunk)[each, at]).float()
                audio[:, EOSP + 1 :] = -1e9
                a = audio.argmax(-1)
                texts.append(torch.where(done, special["im_end"], t))
                codes.append(torch.where(done, EOSP, a))
                row = torch.stack([torch.where(speech, pad, t), torch.where(speech, a, AUDIO_PAD)], 1)
                grid[each, position] = row
                done |= torch.where(speech, a == EOSP, t == special["im_end"])
                position = position + (~done).long()
                if bool(done.all()):
                    break
            made_text, made_codes = torch.stack(texts, 1).cpu().numpy(), torch.stack(codes, 1).cpu().numpy()
            for row, (mode, skill, voice, _, wanted, wanted_codes) in enumerate(part):
                ids = [int(i) for i in made_text[row]]
                ids = ids[: ids.index(special["im_end"])] if special["im_end"] in ids else ids
                said = self.rows.tokenizer.decode([i for i in ids if i != special["empty"]])
                ok = domain.normalise(said) == domain.normalise(wanted)
                self._count(right, f"{mode} {voice}", skill, ok)
                if mode != "s2t":
                    made = [int(c) for c in made_codes[row] if c < EOSP]
                    same = sum(x == y for x, y in zip(made, wanted_codes.tolist(), strict=False))
                    self._count(right, f"{mode} codes>90% {voice}", skill, len(made) == len(wanted_codes) and same >= 0.9 * len(made))
        return {group: f"{sum(v)}/{len(v)} = {np.mean(v):.3f}" for group, v in sorted(right.items())}  # type: ignore[misc]

    @staticmethod
    def _count(right: dict[str, list[int]], group: str, skill: str, ok: bool) -> None:
        right.setdefault(group, []).append(int(ok))
        if "s2t" in group or "codes" not in group:
            right.setdefault(f"  {group} / {skill}", []).append(int(ok))


def main() -> None:
    """Encode, train for a time, report, write the model and the tokenizer."""
    parser = argparse.ArgumentParser()
    parser.add_argument("work", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=12.0)
    parser.add_argument("--rows", type=int, default=48_000, help="rows of a step")
    parser.add_argument("--workers", type=int, default=max(2, (os.cpu_count() or 2) - 4))
    parser.add_argument("--peak", type=float, default=2e-3)
    parser.add_argument("--chunk", type=int, default=96, help="steps for which one set of sequences is kept")
    parser.add_argument("--augmentations", type=int, default=AUGMENTATIONS)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    device = args.device
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    begin = time.time()
    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer = text.build_tokenizer(args.out / "tokenizer.json")
    encoder = load_encoder(args.out / "speech_encoder.safetensors", device)
    questions = np.load(args.work / "users.npz")["question"].tolist()
    renditions: dict[str, list[np.ndarray]] = {}
    for question, codes in zip(questions, encode_users(args.work / "users.npz", encoder, device, args.augmentations), strict=True):
        renditions.setdefault(question, []).extend(codes)
    answers = corpus.Answers(args.work / "units.npz", device)
    dialogues = domain.all_dialogues()
    strings = list(dict.fromkeys(turn.units for d in dialogues for turn in d.turns))
    speech = Speech(renditions, encode_answers(strings, answers, encoder, device), {u: int(answers.codes[i]) for u, i in answers.units.items()})
    print(f"{len(questions)} renditions and {len(strings)} answers encoded in {time.time() - begin:.0f} s", flush=True)

    pool = multiprocessing.get_context("fork").Pool(args.workers, _start_worker, (str(args.out / "tokenizer.json"), speech))
    dev = np.load(args.work / "dev.npz")
    dev_codes = encode_users(args.work / "dev.npz", encoder, device, 1, clean=True)
    by_key = {d.key: d for d in dialogues}
    grouped: dict[tuple[str, str], list[np.ndarray]] = {}
    for key, turn, voice, codes in zip(dev["key"].tolist(), dev["turn"], dev["voice"].tolist(), dev_codes, strict=True):
        group = voice if voice in ("flite-rms", "espeak-en-us+f4") else "seen"
        if int(turn) == 0:
            grouped[(key, group)] = []
        grouped[(key, group)].append(codes[0])
    keep = [(by_key[key], (group, codes)) for (key, group), codes in grouped.items() if len(codes) == len(by_key[key].turns)]
    evaluation = Evaluation(Rows(tokenizer, Speech(dict(renditions), speech.answers, speech.unit_codes)), [d for d, _ in keep], [v for _, v in keep], device)

    model = MossLM(config(tokenizer))
    model.reset_parameters()
    model = model.to(device)
    print("lm:", sum(p.numel() for p in model.parameters()), "parameters; text vocabulary", tokenizer.get_vocab_size(), flush=True)
    optimiser = adamw(list(model.parameters()), device, (0.9, 0.95), 0.05)
    average = Average(model, 0.9985)
    pad = model.config.modality_pad

    def step(batch: Tensor) -> tuple[Tensor, ...]:
        rows, labels, weight = batch[..., :2].long(), batch[..., 2:4].long(), batch[..., 4].float() / 100
        disturbed = (torch.rand(rows.shape[:2], device=device) < 0.02) & (rows[..., 0] == pad) & (rows[..., 1] < EOSP)
        code = torch.where(disturbed, torch.randint(0, CODEBOOK, rows.shape[:2], device=device), rows[..., 1])
        rows = torch.stack([rows[..., 0], code], -1)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            text_logits, audio_logits = model(rows)
        text_label, audio_label = labels[..., 0], labels[..., 1]
        text_ce = F.cross_entropy(text_logits.float().flatten(0, 1), text_label.flatten(), ignore_index=-1, reduction="none")
        audio_ce = F.cross_entropy(audio_logits.float().flatten(0, 1), audio_label.flatten(), ignore_index=-1, reduction="none")
        # a subtitle beside a code counts half
        subtitle = (text_label >= 0) & (audio_label >= 0)
        text_weight = weight * (text_label >= 0) * torch.where(subtitle, 0.5, 1.0)
        audio_weight = weight * (audio_label >= 0)
        text_loss = (text_ce * text_weight.flatten()).sum() / text_weight.sum().clamp_min(1)
        audio_loss = (audio_ce * audio_weight.flatten()).sum() / audio_weight.sum().clamp_min(1)
        optimiser.zero_grad(set_to_none=True)
        (text_loss + audio_loss).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        return text_loss.detach(), audio_loss.detach()

    graphs = {LONG: Step(step, device), SHORT: Step(step, device)}
    sizes = {LONG: max(2, args.rows // LONG), SHORT: max(2, args.rows // SHORT)}
    seeds = iter(range(1, 1 << 30))

    def request() -> dict[int, multiprocessing.pool.AsyncResult]:
        jobs = {limit: [(next(seeds), 64, limit) for _ in range(max(1, args.chunk * sizes[limit] // 2 // 64))] for limit in sizes}
        return {limit: pool.map_async(_make, jobs[limit], 1) for limit in jobs}

    waiting = request()
    start, limit_s, count, log, data = time.time(), args.minutes * 60, 0, [], {}
    while (elapsed := time.time() - start) < limit_s:
        if not data or (count % args.chunk == 0 and all(result.ready() for result in waiting.values())):
            data = {limit: torch.from_numpy(np.concatenate(result.get())).to(device) for limit, result in waiting.items()}
            waiting = request()
        limit = LONG if count % 2 else SHORT
        set_rate(optimiser, cosine(elapsed / limit_s, args.peak))
        pick = torch.randint(0, len(data[limit]), (sizes[limit],), device=device)
        losses = graphs[limit](data[limit][pick])
        average.update()
        count += 1
        if count % 500 == 0:
            log.append({"step": count, "s": round(elapsed), "text": round(losses[0].item(), 4), "audio": round(losses[1].item(), 4)})
            print(log[-1], flush=True)
        if count % 5000 == 0:
            print(f"after {count} steps:", {k: v for k, v in evaluation.run(model).items() if "/" not in k}, flush=True)
    pool.terminate()
    average.apply()
    model.eval()
    report = evaluation.run(model)
    for group, value in report.items():
        print(group, value)
    print("steps", count, flush=True)
    save_file({k: v.detach().half().cpu().contiguous() for k, v in model.state_dict().items()}, args.out / "lm.safetensors")
    (args.out / "lm_log.json").write_text(json.dumps({"held_out": report, "steps": count, "log": log}))


if __name__ == "__main__":
    main()
