"""Held-out dialogues for the language model, answered greedily: exact text; codes and subtitles of speech."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import domain
import numpy as np
import torch
from conversations import AUDIO_PAD, EOSP, REPLY_WEIGHT, WEIGHT, Rows
from judgements import NO_REPLY, Judgement, share, summary
from torch import Tensor

from engine_runtime.models.moss_lm import MossLM

MODES = ("s2t", "t2s", "s2s")
BATCH = 384
MOST = 90  # rows of a reply


@dataclass(frozen=True, slots=True)
class HeldOutDialogue:
    """One dialogue as one voice says it."""

    dialogue: domain.Dialogue
    group: str
    codes: list[np.ndarray]
    """Of each turn's question."""


@dataclass(frozen=True, slots=True)
class _Item:
    """One reply to make and what it should be."""

    mode: str
    spoken: HeldOutDialogue
    prompt: np.ndarray
    """[rows, 2], up to the last assistant prefix."""
    codes: np.ndarray

    @property
    def speech(self) -> bool:
        return self.mode != "s2t"


class Evaluation:
    """Asks as speech to text, text to speech and speech to speech; only last turns are judged. What needs no
    reply is only spoken."""

    def __init__(self, rows: Rows, dialogues: list[HeldOutDialogue], device: str) -> None:
        self.rows, self.device = rows, device
        rng = random.Random(9)
        items = [
            self._item(spoken, mode, rng)
            for spoken in dialogues
            for mode in MODES
            if mode != "t2s" or spoken.dialogue.skill not in NO_REPLY
        ]
        self.items = sorted(items, key=lambda item: len(item.prompt))

    def _item(self, spoken: HeldOutDialogue, mode: str, rng: random.Random) -> _Item:
        dialogue = spoken.dialogue
        renditions = {
            turn.question: [codes] for turn, codes in zip(dialogue.turns, spoken.codes, strict=True)
        }
        rows = Rows(self.rows.tokenizer, replace(self.rows.speech, renditions=renditions))
        spoken_share = 0.0 if mode == "t2s" else 1.0
        made = rows.conversation([dialogue], mode != "s2t", rng, 10_000, spoken_share)
        labelled = made[:, WEIGHT] == REPLY_WEIGHT
        starts = np.flatnonzero(labelled & ~np.roll(labelled, 1))  # first rows of replies
        units = dialogue.turns[-1].units
        answer = rows.speech.answers[units] if units else np.zeros(0, np.int64)
        return _Item(mode, spoken, made[: starts[-1] + 1, :2], answer)

    def run(self, model: MossLM) -> dict[str, str]:
        """Shares by mode and voice group (`judgements.summary`), and of replies with the right codes."""
        judged: list[Judgement] = []
        near: dict[str, list[bool]] = {}
        for first in range(0, len(self.items), BATCH):
            part = self.items[first : first + BATCH]
            for item, (ids, codes) in zip(part, self._replies(model, part), strict=True):
                group = item.spoken.group
                said = self.rows.tokenizer.decode([i for i in ids if i != self.rows.special["empty"]])
                if item.speech and not codes:
                    said = ""  # nothing is heard
                judged.append(Judgement(item.mode, group, item.spoken.dialogue, domain.normalize(said)))
                if item.speech:
                    same = _near(codes, item.codes.tolist())
                    near.setdefault(f"{item.mode} codes>90% {group}", []).append(same)
        report = {group: share(values) for group, values in sorted(near.items())}
        for group, shares in summary(judged).items():
            report |= {f"{group}: {name}": value for name, value in shares.items()}
        return report

    def _replies(self, model: MossLM, items: list[_Item]) -> list[tuple[list[int], list[int]]]:
        """Text ids and codes of each reply, without their ends."""
        end = self.rows.special["im_end"]
        texts, audio = self._generate(model, items)
        found = []
        for ids, codes in zip(texts.tolist(), audio.tolist(), strict=True):
            ids = ids[: ids.index(end)] if end in ids else ids
            found.append((ids, [code for code in codes if code < EOSP]))
        return found

    @torch.no_grad()
    def _generate(self, model: MossLM, items: list[_Item]) -> tuple[Tensor, Tensor]:
        """Text ids and audio ids [items, steps] of the greedy replies; behind the end of a reply its end is
        repeated.

        All prompts and replies share one grid of rows, each with its own position.
        """
        end, pad = self.rows.special["im_end"], self.rows.special["modality_pad"]
        position = torch.tensor([len(item.prompt) for item in items], device=self.device)
        grid = torch.zeros(len(items), int(position.max()) + MOST, 2, dtype=torch.long, device=self.device)
        for row, item in zip(grid, items, strict=True):
            row[: len(item.prompt)] = torch.from_numpy(item.prompt.astype(np.int64))
        speech = torch.tensor([item.speech for item in items], device=self.device)
        each = torch.arange(len(items), device=self.device)
        done = torch.zeros(len(items), dtype=torch.bool, device=self.device)
        texts, codes = [], []
        for _ in range(MOST):
            text, code = self._next(model, grid[:, : int(position.max())], each, position - 1)
            texts.append(torch.where(done, end, text))
            codes.append(torch.where(done, EOSP, code))
            row = [torch.where(speech, pad, text), torch.where(speech, code, AUDIO_PAD)]
            grid[each, position] = torch.stack(row, 1)
            done |= torch.where(speech, code == EOSP, text == end)
            position = position + (~done).long()
            if bool(done.all()):
                break
        return torch.stack(texts, 1), torch.stack(codes, 1)

    def _next(self, model: MossLM, rows: Tensor, each: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        """The most likely text id and audio id [B] after row `at` of each sequence."""
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            trunk = model.trunk(rows)
            text = model.text_lm_head(model.text_tail(trunk)[each, at]).argmax(-1)
            audio = model.audio_lm_head(model.audio_tail(trunk)[each, at]).float()
        audio[:, EOSP + 1 :] = -1e9
        return text, audio.argmax(-1)


def _near(made: list[int], wanted: list[int]) -> bool:
    """As many codes, at least nine of ten of them the same."""
    same = sum(a == b for a, b in zip(made, wanted, strict=False))
    return len(made) == len(wanted) and same >= 0.9 * len(made)
