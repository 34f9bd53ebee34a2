"""Speech of the simulated users of `moss-voice bench --duplex`, made with flite, espeak-ng and festival.

    python assets/duplex/render.py

Writes one WAV file per clip (mono, 16 kHz, peak 0.6) and clips.json beside this file. Where a "|" stands in a
text the user may pause: the sentence is spoken as a whole, and the end of the word before the mark is taken
from the synthesizer's own segment times. Start and end of the speech are measured by energy. Needs flite,
espeak-ng and festival with the voices ked and slt (HTS).
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import tempfile
import wave
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soxr
from numpy.typing import NDArray

Samples = NDArray[np.float32]
RATE = 16_000
FRAME = RATE // 100
THRESHOLD_DB = -40.0
"""Speech, against the loudest 10 ms of the clip."""
PAD_S = 0.03
PEAK = 0.6
FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Speaker:
    """A voice of a synthesizer; `noises` is the espeak-ng voice that says what is no word."""

    name: str
    engine: str
    voice: str
    noises: str


USERS = (
    Speaker("rms", "flite", "rms", "en-us+m3"),
    Speaker("awb", "flite", "awb", "en-gb-scotland+m2"),
    Speaker("ked", "festival", "ked_diphone", "en-us+m7"),
    Speaker("slt", "festival", "cmu_us_slt_arctic_hts", "en-us+f2"),
    Speaker("f4", "espeak", "en-us+f4", "en-us+f4"),
    Speaker("annie", "espeak", "en-us+Annie", "en-us+Annie"),
    Speaker("andy", "espeak", "en-gb+Andy", "en-gb+Andy"),
    Speaker("linda", "espeak", "en-029+linda", "en-029+linda"),
    Speaker("mario", "espeak", "en-us-nyc+Mario", "en-us-nyc+Mario"),
    Speaker("michael", "espeak", "en-gb-x-rp+Michael", "en-gb-x-rp+Michael"),
)
BYSTANDERS = (
    Speaker("kal", "flite", "kal16", "en-us"),
    Speaker("m5", "espeak", "en-gb+m5", "en-gb+m5"),
)
LONG = (
    ("please count from one | to seven", "count down from nine | to three"),
    ("count up from ten | to sixteen", "please count down from eight | to two"),
    ("count backwards from | twelve to six", "please count from four | to ten"),
    ("say the numbers from | two to eight", "count from thirteen | to nineteen"),
    ("please count from three to nine", "count down from seven to one"),
    ("please count from one to seven", "count down from nine to three"),
    ("please count from four to ten", "count from thirteen to nineteen"),
    ("count up from ten to sixteen", "please count down from eight to two"),
    ("say the numbers from two to eight", "please count from three to nine"),
    ("count from twelve to eighteen", "please count from two to eight"),
)
SHORT = (
    ("what is the capital of | france", "how much is three | plus four", "what day comes after | monday"),
    ("tell me the | colour of grass", "what is the opposite of | winter", "which number follows | eleven"),
    ("name the capital of | spain", "what is nine | minus five", "what month comes before | june"),
    ("can you tell me | the capital of japan", "what colour | is snow", "the opposite of | loud"),
    ("who are you", "what is the capital of italy", "add six and two"),
    ("what is the capital of france", "how much is three plus four", "what day comes after monday"),
    ("tell me the colour of grass", "what is the opposite of winter", "which number follows eleven"),
    ("name the capital of spain", "what is nine minus five", "what month comes before june"),
    ("can you tell me the capital of japan", "what colour is snow", "the opposite of loud"),
    ("who are you", "what is the capital of italy", "add six and two"),
)
INTERRUPTIONS = ("stop, what is two plus two", "wait, what colour is coal", "stop", "wait", "no no", "what")
BACKCHANNELS = ("uh huh", "yeah", "okay", "right", "yeah exactly")
NOISES = {"mm-hm": "[[m,mh'Vm]]", "laughter": "[[h'ah'ah'a]]"}
"""What is no word, by the name that is shown, as phonemes."""
ASIDES = (
    "did you remember to feed the cat",
    "i put your keys on the kitchen table",
    "we should leave in about ten minutes",
)


def main() -> None:
    """Render all clips."""
    for old in FOLDER.glob("*.wav"):
        old.unlink()
    clips = []
    for number, user in enumerate(USERS):
        clips += _say(user, "long", LONG[number])
        clips += _say(user, "short", SHORT[number])
        clips += _say(user, "interruption", INTERRUPTIONS)
        clips += _say(user, "backchannel", BACKCHANNELS)
        throat = Speaker(user.name, "espeak", user.noises, user.noises)
        for shown, phonemes in NOISES.items():
            clips += _say(throat, "backchannel", (phonemes,), shown)
    for bystander in BYSTANDERS:
        clips += _say(bystander, "not_directed", ASIDES)
    lines = ",\n".join("  " + json.dumps(clip) for clip in clips)
    (FOLDER / "clips.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def _say(speaker: Speaker, kind: str, texts: tuple[str, ...], shown: str = "") -> list[dict[str, object]]:
    return [_clip(speaker, kind, text, shown) for text in texts]


def _clip(speaker: Speaker, kind: str, text: str, shown: str) -> dict[str, object]:
    """One file, from just before to just after its speech; times are in the file."""
    parts = [part.split() for part in text.split("|")]
    words = [word for part in parts for word in part]
    said = shown or text.replace(" |", "")
    pcm, rate, ends_s = {"flite": _flite, "festival": _festival, "espeak": _espeak}[speaker.engine](
        speaker.voice, words
    )
    pcm = soxr.resample(pcm, rate, RATE, "VHQ")
    pcm = (pcm * (PEAK / np.abs(pcm).max())).astype(np.float32)
    first, last = _speech(pcm)
    start = max(first - round(PAD_S * RATE), 0)
    clip = pcm[start : last + round(PAD_S * RATE)]
    pauses = [_quiet_near(pcm, ends_s[len(parts[0]) - 1]) - start / RATE] if len(parts) > 1 else []
    name = f"{speaker.name}-{kind}-{re.sub(r'[^a-z]+', '-', said).strip('-')}.wav"
    with wave.open(str(FOLDER / name), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((clip * 32767).astype("<i2").tobytes())
    return {
        "file": name,
        "kind": kind,
        "speaker": speaker.name,
        "voice": f"{speaker.engine} {speaker.voice}",
        "text": said,
        "start_s": round((first - start) / RATE, 3),
        "end_s": round((last - start) / RATE, 3),
        "pauses_s": [round(pause, 3) for pause in pauses],
    }


def _levels_db(pcm: Samples) -> Samples:
    """Level of each 10 ms, against the loudest."""
    frames = pcm[: len(pcm) // FRAME * FRAME].reshape(-1, FRAME)
    power = np.mean(frames**2, axis=1)
    return np.asarray(10 * np.log10(power / power.max() + 1e-12), dtype=np.float32)


def _speech(pcm: Samples) -> tuple[int, int]:
    """First and last sample of the speech."""
    loud = np.flatnonzero(_levels_db(pcm) > THRESHOLD_DB)
    return int(loud[0]) * FRAME, int(loud[-1] + 1) * FRAME


def _quiet_near(pcm: Samples, at_s: float) -> float:
    """The quietest place within 40 ms of a word's end."""
    levels = _levels_db(pcm)
    first = round((at_s - 0.04) * 100)
    place = first + int(np.argmin(levels[first : first + 9]))
    return (place + 0.5) / 100


def _flite(voice: str, words: list[str]) -> tuple[Samples, int, list[float]]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "speech.wav"
        segments = _run("flite", "-voice", voice, "-psdur", "-t", " ".join(words), "-o", str(file)).split()
        pcm, rate = _read(file.read_bytes())
    phones = [(name, float(end)) for name, end in (segment.rsplit(":", 1) for segment in segments)]
    sounding = [end for name, end in phones if name != "pau"]
    counts = [
        sum(
            phone != "pau"
            for phone in _run("flite", "-voice", voice, "-ps", "-t", word, "-o", "none").split()
        )
        for word in words
    ]
    if sum(counts) != len(sounding):
        return pcm, rate, [float("nan")] * len(words)  # only needed where there is a place to pause
    return pcm, rate, [sounding[place - 1] for place in np.cumsum(counts)]


def _festival(voice: str, words: list[str]) -> tuple[Samples, int, list[float]]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "speech.wav"
        script = f"""
            (voice_{voice})
            (set! utt (SynthText "{" ".join(words)}"))
            (mapcar (lambda (w) (format t "%f\\n" (item.feat w 'word_end))) (utt.relation.items utt 'Word))
            (utt.save.wave utt "{file}" 'riff)"""
        ends_s = [float(line) for line in _run("festival", "--pipe", script=script).split()]
        return *_read(file.read_bytes()), ends_s


def _espeak(voice: str, words: list[str]) -> tuple[Samples, int, list[float]]:
    command = ["espeak-ng", "-v", voice, "-s", "150", "--stdout", " ".join(words)]
    raw = subprocess.run(command, check=True, capture_output=True).stdout
    return *_read(raw), []


def _run(*command: str, script: str = "") -> str:
    return subprocess.run(command, input=script, text=True, check=True, capture_output=True).stdout


def _read(data: bytes) -> tuple[Samples, int]:
    # espeak-ng writes to a pipe without knowing the length: take what is there.
    with wave.open(io.BytesIO(data)) as file:
        rate, frames = file.getframerate(), file.getnframes()
        raw = data[44:] if frames * 2 > len(data) else file.readframes(frames)
    return np.frombuffer(raw[: len(raw) // 2 * 2], "<i2").astype(np.float32) / 32768, rate


if __name__ == "__main__":
    main()
