"""Speech of synthesizers, from which tests/tools/fit_turn_end.py fits the head of the end-of-turn detector.

    python assets/end_of_turn/render.py FOLDER

Writes a folder of WAV files for each voice, with sentences drawn from sentences.toml at drawn rates and
pitches; the same seed draws the same. Needs espeak-ng, and festival with the packages festival-czech,
festvox-czech-*, festvox-suopuhe-* and festvox-ru of Debian. No voice of the sample questions or of the
simulated users is among them.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tomllib
from pathlib import Path

ESPEAK = (
    "en-us", "en-us+m1", "en-us+f1", "en-us+f5", "en-us+croak", "en-us-nyc+m8", "en-gb", "en-gb+f3",
    "en-gb+klatt2", "en-gb-scotland", "en-gb-x-rp+m6", "en-gb-x-gbclan+f2", "en-029+m4", "it", "it+f2", "es",
    "es-419+m3", "fr", "fr-ch+f1", "de", "de+m6", "cs", "fi+f3", "ru", "ru+m1",
)  # fmt: skip
FESTIVAL = {
    "czech_ph": "iso-8859-2",
    "czech_dita": "iso-8859-2",
    "czech_machac": "iso-8859-2",
    "suo_fi_lj_diphone": "iso-8859-1",
    "hy_fi_mv_diphone": "iso-8859-1",
    "msu_ru_nsh_clunits": "utf-8",
}
"""Voice -> the encoding that it reads."""
LANGUAGES = {"czech": "cs", "suo": "fi", "hy": "fi", "msu": "ru"}
LONG, SHORT = 11, 9
"""Sentences of each voice."""
PER_MINUTE, PITCH = (140, 210), (25, 75)
SEED = 11


def main(folder: Path) -> None:
    """Render all voices."""
    texts = tomllib.loads((Path(__file__).parent / "sentences.toml").read_text(encoding="utf-8"))
    rng = random.Random(SEED)
    for voice in ESPEAK:
        own = _files(folder / f"espeak-{voice.replace('+', '-')}", texts[voice[:2]], rng)
        for file, text in own.items():
            rate, pitch = str(rng.randint(*PER_MINUTE)), str(rng.randint(*PITCH))
            subprocess.run(
                ["espeak-ng", "-v", voice, "-s", rate, "-p", pitch, "-w", str(file), text], check=True
            )
    for voice, encoding in FESTIVAL.items():
        own = _files(folder / f"festival-{voice}", texts[LANGUAGES[voice.partition("_")[0]]], rng)
        lines = [f"(voice_{voice})"]
        for file, text in own.items():
            lines.append(f'(utt.save.wave (utt.synth (Utterance Text "{text}")) "{file}" \'riff)')
        script = "\n".join(lines).encode(encoding, errors="replace")
        subprocess.run(["festival", "--pipe"], input=script, check=True)


def _files(folder: Path, texts: dict[str, str], rng: random.Random) -> dict[Path, str]:
    """File -> text of one voice, in a new folder."""
    folder.mkdir(parents=True)
    drawn = []
    for kind, count in (("long", LONG), ("short", SHORT)):
        known = texts[kind].splitlines()
        drawn += rng.sample(known, min(count, len(known)))
    return {folder / f"{place:02}.wav": text for place, text in enumerate(drawn)}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
