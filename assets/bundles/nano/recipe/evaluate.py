"""Judge of the recipe: held-out questions through the chain of `moss-voice talk`, heard by another ear.

    python evaluate.py BUNDLE REPORT.json [--questions 200] [--unseen 100] [--follow-ups 40] [--declined 60]
        [--conditions 0] [--person 0] [--outside 0] [--copies 60]

Each question is rendered, given to `app.session.headless.run_file` as a WAV (or typed), and the reply judged:
text must be the answer word for word; speech must be recognized word for word by pocketsphinx with the
grammar of possible answers; after an unfinished question or a backchannel nothing may be said. `right, of
answers recognized as synthesized` leaves out spoken answers that pocketsphinx already mishears in the speech
of the synthesizer, from which the networks learned. `copy synthesis` compares the assistant's own speech
before and after mel and vocoder, and after codes, flow and vocoder.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
import zlib
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import conditions
import domain
import numpy as np
import recognizer
import recordings
import soundfile
import torch
import voices
from domain import balanced
from judgements import NO_REPLY, Judgement, summary
from topics import Units

from app.session.headless import ConversationError, run_file
from app.session.session_settings import SessionSettings
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.codec.speech_tokenizer.features import CodecMel
from engine_runtime.engine import Engine
from engine_runtime.errors import AudioInputError, MossVoiceError
from engine_runtime.types import Modality

LEAD_S, GAP_S, TAIL_S = 0.4, 1.6, 1.0


class SharedEngine:
    """One engine for all conversations: the session's close leaves it open."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def __enter__(self) -> SharedEngine:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing: the next conversation uses it again."""


def write_question(path: Path, waves: list[np.ndarray], condition: str, seed: int) -> None:
    """Questions with pauses between them, as they sound under a condition."""
    parts = [np.zeros(int(LEAD_S * voices.RATE), np.float32)]
    for wave in waves:
        parts += [wave, np.zeros(int(GAP_S * voices.RATE), np.float32)]
    parts.append(np.zeros(int(TAIL_S * voices.RATE), np.float32))
    recording = conditions.disturbed(np.concatenate(parts), condition, seed)
    soundfile.write(path, recording, voices.RATE, subtype="PCM_16")


class Judge:
    """Asks and counts."""

    def __init__(self, bundle: Path) -> None:
        self.engine = SharedEngine(Engine.load(Bundle.open(bundle)))
        self.judged: list[Judgement] = []
        self.wrong: list[dict[str, str]] = []

    def ask(
        self,
        mode: str,
        group: str,
        dialogue: domain.Dialogue,
        rendition: voices.Rendition,
        condition: str = conditions.CLEAN,
    ) -> None:
        """`mode` is s2t, s2s or t2s. Only the last turn of a dialogue is judged."""
        if mode == "t2s" and (len(dialogue.turns) > 1 or dialogue.skill in NO_REPLY):
            return  # one typed question makes a whole conversation of `talk`, and it is complete
        try:
            text, heard = self._reply(mode, dialogue, rendition, condition)
        except AudioInputError:
            text = heard = ""  # no turn at all, or the only one was taken back
        except MossVoiceError as error:
            text = heard = f"({error})"
        units = dialogue.turns[-1].units
        original_is_recognized = mode != "s2t" and bool(units) and is_recognized_as_synthesized(units)
        judgement = Judgement(mode, group, dialogue, heard, original_is_recognized)
        self.judged.append(judgement)
        if not judgement.is_right:
            asked = " / ".join(turn.question for turn in dialogue.turns)
            answer = {"wanted": judgement.wanted, "heard": heard, "subtitle": text}
            self.wrong.append({"mode": mode, "voice": group, "asked": asked, **answer})

    def _reply(
        self, mode: str, dialogue: domain.Dialogue, rendition: voices.Rendition, condition: str
    ) -> tuple[str, str]:
        """Text (or subtitles) of the last reply, and what the ear hears of it (of a text reply: the text)."""
        modality = Modality.TEXT if mode == "s2t" else Modality.SPEECH
        units = dialogue.turns[-1].units
        with tempfile.TemporaryDirectory() as folder:
            question, out = Path(folder) / "q.wav", Path(folder) / "a.wav"
            source: dict[str, Any] = {}
            if mode == "t2s":
                source["text"] = dialogue.turns[0].question.capitalize() + "?"
            else:
                seed = zlib.crc32(dialogue.key.encode())
                write_question(question, _spoken(dialogue, rendition), condition, seed)
                source["wav_in"] = question
            # A reply that is made in the pause comes with the prediction whether the turn is over.
            settings = SessionSettings(reply=modality, speculate="on")
            report = self._report(settings, source, out)
            turns = report["turns"]
            if len(turns) != len(dialogue.turns):
                # A turn with an empty reply may have been taken back.
                text = "" if len(turns) < len(dialogue.turns) and not units else "(turns were missed)"
                return text, text
            confirmed = [known["reason"] for known in report["decisions"] if known["kind"] == "confirm"]
            if confirmed[-1:] == ["unfinished"]:
                return "", ""  # answered only because nothing followed
            reply = turns[-1]["reply"]
            text = domain.normalize(reply["text"])
            if mode == "s2t" or not out.exists():
                return text, text if mode == "s2t" else ""
            pcm, rate = soundfile.read(out, dtype="float32")
            own = pcm[len(pcm) - round(reply["audio_s"] * rate) :]
            return text, recognizer.recognize(own, rate, units) if len(own) > rate // 5 else ""

    def _report(self, settings: SessionSettings, source: dict[str, Any], out: Path) -> dict[str, Any]:
        """The report of the conversation; `out` is written if a reply has speech."""

        def run(**more: Path) -> dict[str, Any]:
            return run_file(lambda _timing=None: self.engine, settings=settings, **source, **more)

        if settings.reply is Modality.TEXT:
            return run()
        try:
            return run(out=out)
        except ConversationError:
            return run()  # raised where no reply has speech; again, if a turn failed


def _spoken(dialogue: domain.Dialogue, rendition: voices.Rendition) -> list[voices.Samples]:
    """The questions of a dialogue; a person has said some of them."""
    questions = [turn.question for turn in dialogue.turns]
    if rendition.engine == voices.PERSON:
        recorded = recordings.questions()
        return [recorded[question] for question in questions]
    return voices.render_many([(question, rendition) for question in questions])


def original(units: Units, waves: Mapping[str, voices.Samples]) -> voices.Samples:
    """An answer as synthesized from the waves of its units, and a quarter of a second of silence."""
    silence = np.zeros(voices.ASSISTANT_RATE // 4, np.float32)
    return np.concatenate([*(waves[unit] for unit in units), silence])


@cache
def is_recognized_as_synthesized(units: Units) -> bool:
    """Whether the ear recognizes the speech of an answer from which the networks learned it."""
    waves = dict(zip(units, voices.render_units(list(units)), strict=True))
    heard = recognizer.recognize(original(units, waves), voices.ASSISTANT_RATE, units, afresh=True)
    return heard == domain.normalize(domain.sentence(units))


def copy_synthesis(engine: Any, dialogues: list[domain.Dialogue]) -> dict[str, str]:
    """Recognition of the assistant's speech as synthesized, and made again from mels and from codes."""
    units = sorted({unit for dialogue in dialogues for unit in dialogue.turns[-1].units})
    waves = dict(zip(units, voices.render_units(units), strict=True))
    stages = engine.stages
    mel_of = CodecMel(stages.vocoder.mel)
    right: dict[str, int] = defaultdict(int)
    for dialogue in dialogues:
        wave = original(dialogue.turns[-1].units, waves)
        with torch.inference_mode():
            mel = mel_of(torch.from_numpy(wave)).numpy()
        codes = stages.speech_tokenizer.encode(voices.resample(wave, voices.ASSISTANT_RATE, voices.RATE))
        versions = {
            "original": wave,
            "mel + vocoder": stages.vocoder.vocode(mel),
            "codes + flow + vocoder": stages.vocoder.vocode(stages.token2mel.convert(codes)),
        }
        wanted = domain.normalize(domain.sentence(dialogue.turns[-1].units))
        for name, pcm in versions.items():
            right[name] += (
                recognizer.recognize(pcm, voices.ASSISTANT_RATE, dialogue.turns[-1].units) == wanted
            )
    return {name: f"{count}/{len(dialogues)}" for name, count in right.items()}


def _said_by_a_person(
    dialogues: list[domain.Dialogue], count: int, rng: random.Random
) -> list[domain.Dialogue]:
    if not count:
        return []
    said = recordings.questions()
    found = [d for d in dialogues if len(d.turns) == 1 and d.turns[0].question in said]
    return rng.sample(found, min(count, len(found)))


def main() -> None:
    """Run all and write the report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("bundle", type=Path)
    parser.add_argument("report", type=Path)
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--unseen", type=int, default=100)
    parser.add_argument("--follow-ups", type=int, default=40)
    parser.add_argument("--declined", type=int, default=60, help="questions out of domain")
    parser.add_argument("--conditions", type=int, default=0, help="questions under each disturbance")
    parser.add_argument("--person", type=int, default=0, help="questions in the recorded voice of a person")
    parser.add_argument("--outside", type=int, default=0, help="sentences and sums of outside.py")
    parser.add_argument("--copies", type=int, default=60)
    args = parser.parse_args()
    rng, start = random.Random(11), time.time()
    dialogues = domain.all_dialogues()
    judge = Judge(args.bundle)
    single = [d for d in dialogues if d.held_out and len(d.turns) == 1]
    seen = balanced(single, args.questions, rng)
    unseen = balanced(single, args.unseen, rng)
    follow_ups = balanced([d for d in dialogues if d.held_out and len(d.turns) > 1], args.follow_ups, rng)
    declined = balanced([d for d in single if d.skill == "unknown"], args.declined, rng)
    names = voices.usable_held_out_voices()
    person = _said_by_a_person(dialogues, args.person, rng)
    disturbed = balanced([d for d in single if d.skill not in NO_REPLY], args.conditions, rng)
    held_out = [d for d in domain.outside_dialogues(dialogues) if d.held_out]
    outside = balanced(held_out, args.outside, random.Random(12))
    for index in range(max(map(len, (seen, unseen, follow_ups, declined, person, disturbed, outside)))):
        voice = voices.seen_voice(rng)
        if index < len(seen):
            for mode in ("s2t", "t2s", "s2s"):
                judge.ask(mode, "seen", seen[index], voice)
        if index < len(unseen):
            name = rng.choice(names)
            for mode in ("s2t", "s2s"):
                voice_of_test = voices.held_out_voice(name)
                judge.ask(mode, voices.voice_group(voice_of_test.label), unseen[index], voice_of_test)
        if index < len(follow_ups):
            for mode in ("s2t", "s2s"):
                judge.ask(mode, "seen", follow_ups[index], voice)
        if index < len(person):
            judge.ask("s2t", voices.PERSON, person[index], voices.Rendition(voices.PERSON, "allison"))
        if index < len(disturbed):
            for condition in conditions.CONDITIONS:
                judge.ask("s2t", f"seen, {condition}", disturbed[index], voice, condition)
        if index < len(declined):
            judge.ask("s2t", "seen", declined[index], voice)
        if index < len(outside):
            judge.ask("s2t", "seen, outside", outside[index], voice)
        if index % 10 == 9:
            right = {group: shares["right"] for group, shares in summary(judge.judged).items()}
            print(f"[{time.time() - start:.0f} s] {index + 1}: {right}", flush=True)
    answered = [dialogue for dialogue in single if dialogue.turns[-1].units]
    chosen = balanced(answered, args.copies, rng)
    copies = copy_synthesis(judge.engine, chosen) if chosen else {}
    report = {"table": summary(judge.judged), "copy_synthesis": copies, "wrong": judge.wrong}
    args.report.write_text(json.dumps(report, indent=1))
    print(json.dumps({k: v for k, v in report.items() if k != "wrong"}, indent=1))


if __name__ == "__main__":
    main()
