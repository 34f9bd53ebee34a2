"""Stage 1 of the recipe: text -> speech of users and assistant.

Users speak with flite, espeak-ng and Kokoro; festival and Piper are for tests alone. `Rendition` describes
one way to say a text; `render_many` says a batch of them (festival is started once a batch). The
assistant's voice is flite's slt; `render_units` fits each unit to the 80 ms grid of the speech codes, so
that the codes of a unit do not depend on where in a sentence it stands.
"""

from __future__ import annotations

import io
import random
import subprocess
import tempfile
import wave
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import neural_voices
import numpy as np
from numpy.typing import NDArray
from scipy.signal import resample_poly

RATE = 16_000
ASSISTANT_RATE = 24_000
GRID = 1_280  # samples of 16 kHz in one code: 80 ms
PAUSE_CODES = 2
Samples = NDArray[np.float32]

FLITE_VOICES = ("slt", "awb", "kal16", "kal")
FESTIVAL_VOICES = ("kal_diphone", "ked_diphone", "cmu_us_slt_arctic_hts")
ESPEAK_ACCENTS = ("en-us", "en-gb", "en-gb-scotland", "en-gb-x-rp", "en-gb-x-gbclan", "en-029", "en-us-nyc")
ESPEAK_VARIANTS = (
    "", "+f1", "+f2", "+f3", "+f5", "+m1", "+m2", "+m3", "+m5", "+m6", "+m7", "+m8", "+croak",
    "+klatt2", "+klatt4",
)  # fmt: skip
# Never trained: two synthesizers, and a voice of each of the three others.
HELD_OUT_VOICES = {
    "flite-rms": ("flite", "rms"), "espeak-f4": ("espeak", "en-us+f4"),
    "kokoro-nova": ("kokoro", "af_nova"), "kokoro-liam": ("kokoro", "am_liam"),
    "festival-kal": ("festival", "kal_diphone"), "festival-slt": ("festival", "cmu_us_slt_arctic_hts"),
    "piper-joe": ("piper", "joe"),
}  # fmt: skip
HELD_OUT_ENGINES = ("festival", "piper")
PERSON = "person"  # labels of recordings begin with it
# Festival's HTS voices have no Duration_Stretch: hts_engine takes the rate as an option among its parameters.
HTS_RATE = """
(define (hts_set_rate rate)
  (set! hts_engine_params
    (append (remove_if_rate hts_engine_params) (list (list "-r" rate)))))
(define (remove_if_rate params)
  (cond ((null? params) nil)
        ((string-equal (car (car params)) "-r") (remove_if_rate (cdr params)))
        (t (cons (car params) (remove_if_rate (cdr params))))))
"""


@dataclass(frozen=True, slots=True)
class Rendition:
    """One way to say something.

    `stretch` > 1 is slower, `warp` > 1 a smaller speaker (pitch and formants go up together), `pitch` is
    espeak-ng's 0..99; `continues` has the intonation of a speaker who goes on.
    """

    engine: str
    voice: str
    stretch: float = 1.0
    warp: float = 1.0
    pitch: int = 50
    continues: bool = False

    @property
    def label(self) -> str:
        """Short name for reports."""
        return f"{self.engine}-{self.voice}"


ASSISTANT = Rendition("flite", "slt")


def random_user(rng: random.Random) -> Rendition:
    """A seen voice of flite or espeak-ng."""
    if rng.random() < 0.55:
        warp = rng.uniform(0.82, 1.22) if rng.random() < 0.75 else 1.0
        return Rendition("flite", rng.choice(FLITE_VOICES), rng.uniform(0.82, 1.25), warp)
    voice = rng.choice(ESPEAK_ACCENTS) + rng.choice(ESPEAK_VARIANTS)
    return Rendition("espeak", voice, rng.uniform(0.85, 1.25), rng.uniform(0.88, 1.14), rng.randrange(15, 90))


def neural_user(rng: random.Random) -> Rendition:
    """A seen voice of Kokoro, its vocal tract changed in one case of three."""
    warp = rng.uniform(0.88, 1.14) if rng.random() < 0.33 else 1.0
    return Rendition("kokoro", neural_voices.random_speaker(rng), rng.uniform(0.8, 1.25), warp)


def seen_voice(rng: random.Random) -> Rendition:
    """A seen voice without warp or stretch, for tests."""
    engine = rng.choice(["flite", "espeak", *(neural_voices.engines() & {"kokoro"})])
    if engine == "flite":
        return Rendition("flite", rng.choice(("slt", "awb", "kal16")))
    if engine == "kokoro":
        return Rendition("kokoro", rng.choice(("am_adam", "af_heart", "bf_emma", "bm_george")))
    return Rendition("espeak", rng.choice(("en-us", "en-gb", "en-us+f2", "en-gb+m3")))


def held_out_voice(name: str) -> Rendition:
    """One of the voices that no training ever hears."""
    return Rendition(*HELD_OUT_VOICES[name])


def usable_held_out_voices() -> list[str]:
    """Names of those whose files are here."""
    missing = {"kokoro", "piper"} - neural_voices.engines()
    return [name for name, (engine, _) in HELD_OUT_VOICES.items() if engine not in missing]


def voice_group(label: str) -> str:
    """The group of a `Rendition.label` in reports: a held-out synthesizer, a held-out voice, or "seen"."""
    engine = label.partition("-")[0]
    if engine in HELD_OUT_ENGINES or engine == PERSON:
        return engine
    return label if label in {held_out_voice(name).label for name in HELD_OUT_VOICES} else "seen"


def render_many(jobs: list[tuple[str, Rendition]]) -> list[Samples]:
    """Say each (text, rendition); mono float32 at 16 kHz, trimmed to a little silence, peak 0.6."""
    return [_finish(*raw, rendition.warp) for raw, (_, rendition) in zip(_raw_many(jobs), jobs, strict=True)]


def render_units(texts: list[str], rate: int = ASSISTANT_RATE) -> list[Samples]:
    """Say units in the assistant's voice at `rate`, each a whole number of codes long.

    The voice is asked for a duration that just fills the grid; what is left is silence at the end. A comma at
    the end is a pause of `PAUSE_CODES` more.
    """
    jobs, targets = [], []
    for text, (samples, source_rate) in zip(
        texts, _raw_units([(text, ASSISTANT) for text in texts]), strict=True
    ):
        seconds = len(samples) / source_rate
        codes = max(2, round(seconds * RATE / GRID + 0.15))
        stretch = float(np.clip(codes * GRID / RATE / seconds, 0.85, 1.3))
        jobs.append((text, Rendition(ASSISTANT.engine, ASSISTANT.voice, stretch=stretch)))
        targets.append(codes)
    units = [
        _fit(
            resample(samples, source_rate, rate),
            codes * GRID * rate // RATE,
            pause=PAUSE_CODES * GRID * rate // RATE if text.endswith(",") else 0,
            fade=int(0.008 * rate),
        )
        for text, (samples, source_rate), codes in zip(texts, _raw_units(jobs), targets, strict=True)
    ]
    # One gain for all units keeps the loudness of the words as the voice made it.
    peak = np.quantile([np.abs(unit).max() for unit in units], 0.9)
    return [np.clip(unit * (0.6 / peak), -0.95, 0.95) for unit in units]


def _raw_units(jobs: list[tuple[str, Rendition]]) -> list[tuple[Samples, int]]:
    return [trim(*raw, head_ms=25, tail_ms=45) for raw in _raw_many(jobs)]


def _fit(samples: Samples, length: int, pause: int, fade: int) -> Samples:
    """Cut or pad with zeros to `length`, its last `fade` samples fading out, and `pause` zeros behind it."""
    fitted = np.zeros(length + pause, np.float32)
    fitted[: min(length, len(samples))] = samples[:length]
    fitted[length - fade : length] *= np.linspace(1, 0, fade, dtype=np.float32)
    return fitted


def _raw_many(jobs: list[tuple[str, Rendition]]) -> list[tuple[Samples, int]]:
    jobs = [(f"{text}," if rendition.continues else text, rendition) for text, rendition in jobs]
    results: list[tuple[Samples, int] | None] = [None] * len(jobs)
    festival = [i for i, (_, rendition) in enumerate(jobs) if rendition.engine == "festival"]
    for i, (text, rendition) in enumerate(jobs):
        if rendition.engine == "flite":
            results[i] = _flite(text, rendition)
        elif rendition.engine == "espeak":
            results[i] = _espeak(text, rendition)
        elif rendition.engine == "kokoro":
            results[i] = neural_voices.kokoro(text, rendition.voice, rendition.stretch * rendition.warp)
        elif rendition.engine == "piper":
            results[i] = neural_voices.piper(text, rendition.stretch)
    for i, raw in zip(festival, _festival([jobs[i] for i in festival]), strict=True):
        results[i] = raw
    missing = [jobs[i][0] for i, raw in enumerate(results) if raw is None]
    if missing:
        raise RuntimeError(f"no speech was made for {missing[:3]}")
    return [raw for raw in results if raw is not None]


def _flite(text: str, r: Rendition) -> tuple[Samples, int]:
    stretch = f"duration_stretch={r.stretch * r.warp:.3f}"
    with tempfile.NamedTemporaryFile(suffix=".wav") as file:
        command = ["flite", "-voice", r.voice, "--setf", stretch, "-t", text, "-o", file.name]
        subprocess.run(command, check=True, capture_output=True)
        return read_wav(Path(file.name).read_bytes())


def _espeak(text: str, r: Rendition) -> tuple[Samples, int]:
    speed = int(150 / (r.stretch * r.warp))
    command = ["espeak-ng", "-v", r.voice, "-s", str(speed), "-p", str(r.pitch), "--stdout", text]
    return read_wav(subprocess.run(command, check=True, capture_output=True).stdout)


def _festival(jobs: list[tuple[str, Rendition]]) -> list[tuple[Samples, int]]:
    if not jobs:
        return []
    lines, voice = [HTS_RATE], ""
    with tempfile.TemporaryDirectory() as folder:
        for i, (text, r) in sorted(enumerate(jobs), key=lambda job: job[1][1].voice):
            if r.voice != voice:
                voice = r.voice
                lines.append(f"(voice_{voice})")
            lines.append(f"(Parameter.set 'Duration_Stretch {r.stretch * r.warp:.3f})")
            if "hts" in voice:
                lines.append(f"(hts_set_rate {1 / (r.stretch * r.warp):.3f})")
            lines.append(f'(utt.save.wave (SynthText "{text}") "{folder}/{i}.wav" \'riff)')
        script = "\n".join(lines)
        subprocess.run(["festival", "--pipe"], input=script, text=True, check=True, capture_output=True)
        return [read_wav(Path(f"{folder}/{i}.wav").read_bytes()) for i in range(len(jobs))]


def read_wav(data: bytes) -> tuple[Samples, int]:
    """Mono samples and rate of a 16-bit WAV file."""
    # espeak-ng writes a stream header whose length field is not the real one: take what is there.
    with wave.open(io.BytesIO(data)) as file:
        rate = file.getframerate()
        frames = data[44:] if file.getnframes() * 2 > len(data) else file.readframes(file.getnframes())
    return np.frombuffer(frames[: len(frames) // 2 * 2], np.int16).astype(np.float32) / 32768, rate


def trim(samples: Samples, rate: int, head_ms: float, tail_ms: float) -> tuple[Samples, int]:
    """Without the silence at both ends, but for a little of it."""
    window = rate // 200
    energy = np.sqrt(np.convolve(samples**2, np.ones(window) / window, "same"))
    loud = np.flatnonzero(energy > 0.012 * max(energy.max(), 1e-4))
    start = max(0, loud[0] - int(head_ms * rate / 1000)) if len(loud) else 0
    end = loud[-1] + int(tail_ms * rate / 1000) if len(loud) else len(samples)
    return samples[start:end], rate


def resample(samples: Samples, rate: int, target: int) -> Samples:
    """Polyphase resampling."""
    ratio = Fraction(target, rate).limit_denominator(1000)
    return (
        resample_poly(samples, ratio.numerator, ratio.denominator).astype(np.float32)
        if ratio != 1
        else samples
    )


def _finish(samples: Samples, rate: int, warp: float) -> Samples:
    samples, rate = trim(samples, rate, head_ms=40, tail_ms=80)
    samples = resample(samples, rate, round(RATE / warp))
    return samples * np.float32(0.6 / max(float(np.abs(samples).max()), 1e-3))
