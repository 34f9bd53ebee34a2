"""Judges a vocoder file as the program runs it: copies of recordings, streaming, time.

Of each recording the codec's mel is computed and spoken again, in one call and in the packets of a reply. The
table says how far the mel of the copy is from the mel (L1, natural logarithms), the largest difference
between streaming and one call as a share of the loudest sample, and time per audio of the stream. With
`--own` the vocoder of the bundle is judged, too. A BigVGAN whose streaming differs, a silent copy and values
that are not finite end with an error.

    python assets/training/judge_vocoder.py VOCODER RECORDINGS [--copies DIR] [--bundle DIR --own]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch

from app.audio.wav import SUFFIXES, read_beginning, write_wav
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.bundle.released.full_size import describe
from engine_runtime.bundle.weights import LoadProgress
from engine_runtime.codec.loading import chosen_codec, load_vocoder
from engine_runtime.codec.resample import resample
from engine_runtime.codec.runtime import codec_runtime, packet_frames
from engine_runtime.codec.speech_tokenizer.features import CodecMel
from engine_runtime.codec.vocoder.vocoder import Vocoder
from engine_runtime.errors import MossVoiceError
from engine_runtime.hardware import usable_device
from engine_runtime.options import EngineOptions
from engine_runtime.types import Mel, Pcm

MOST_RECORDINGS, MOST_S = 12, 20.0
DIFFERENCES = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""Of streaming and one call, at most: in half precision the order of sums differs between the two."""
LEAST_RMS = 1e-3
REPEATS = 3
"""Of each recording; the last one is timed."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A line of the table."""

    vocoder: str
    megabytes: float
    held_back_frames: int
    """Mel frames of look-ahead of a sample."""
    mel_distance: float
    streaming_difference: float
    first_packet_ms: float
    rtf: float


def load(bundle: Bundle, options: EngineOptions) -> Vocoder:
    """The vocoder as an engine has it, warmed up."""
    device = usable_device(options.device)
    runtime = codec_runtime(device, bundle.flow, options)
    loading = LoadProgress([bundle.vocoder.weights], None)
    vocoder = load_vocoder(bundle, device, options, runtime, loading)
    vocoder.warm_up(packet_frames(bundle.flow))
    return vocoder


def stream(vocoder: Vocoder, mel: Mel, sizes: Sequence[int]) -> tuple[Pcm, list[float]]:
    """The mel spoken in packets of these sizes, the last one holding on, and the seconds of each call."""
    speaking, parts, times, start = vocoder.stream(), [], [], 0
    while start <= mel.shape[1]:
        size = sizes[min(len(parts), len(sizes) - 1)]
        begin = time.perf_counter()
        packet = mel[:, start : start + size]
        parts.append(speaking.push(packet) if packet.shape[1] else speaking.finish())
        times.append(time.perf_counter() - begin)
        start += max(packet.shape[1], 1)
    return np.concatenate(parts), times


def judge(
    name: str, bundle: Bundle, options: EngineOptions, recordings: Sequence[Pcm], copies: Path
) -> Judgement:
    """See the module. Raises MossVoiceError for a vocoder that fails."""
    bundle = chosen_codec(bundle, options)
    vocoder, sizes, mel_of = load(bundle, options), packet_frames(bundle.flow), CodecMel(bundle.vocoder.mel)
    distances, differences, firsts, spent, audio = [], [], [], 0.0, 0.0
    for index, pcm in enumerate(recordings):
        mel = mel_of(torch.from_numpy(pcm)).numpy()
        whole = vocoder.vocode(mel)
        for _ in range(REPEATS):
            copy, times = stream(vocoder, mel, sizes)
        if len(copy) != len(whole) or not np.isfinite(copy).all() or np.sqrt(np.mean(copy**2)) < LEAST_RMS:
            raise MossVoiceError(
                "{name} made no speech of recording {index}.", "Train it longer.", name=name, index=index
            )
        distances.append(np.abs(mel_of(torch.from_numpy(copy)).numpy() - mel).mean())
        differences.append(np.abs(copy - whole).max() / np.abs(whole).max())
        firsts.append(times[0])
        spent, audio = spent + sum(times), audio + len(copy) / vocoder.sample_rate
        write_wav(copies / f"{index:03}-{name}.wav", copy, vocoder.sample_rate)
    limit = DIFFERENCES[vocoder.like.dtype]
    if vocoder.is_exact and max(differences) > limit:
        raise MossVoiceError(
            "Streaming through {name} differs from one call by {differences:.1e} of the loudest sample, "
            "more than {limit:.0e}.",
            "Report it together with the file.",
            name=name,
            differences=max(differences),
            limit=limit,
        )
    return Judgement(
        name,
        round(sum(file.stat().st_size for file in bundle.vocoder.weights) / 1e6, 1),
        vocoder.right_context_frames,
        round(float(np.mean(distances)), 4),
        float(f"{max(differences):.1e}"),
        round(1e3 * float(np.mean(firsts)), 2),
        round(spent / audio, 5),
    )


def read_recordings(folder: Path, rate: int) -> list[Pcm]:
    """The first recordings of a folder, each as far as it is judged. MossVoiceError if there is none."""
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in SUFFIXES)[:MOST_RECORDINGS]
    if not files:
        raise MossVoiceError(
            "There is no WAV or FLAC file in {folder}.",
            "Give a folder with recordings of speech.",
            folder=folder,
        )
    return [resample(pcm, found, rate) for pcm, found in (read_beginning(file, MOST_S) for file in files)]


def main() -> None:
    """Judge and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("vocoder", type=Path, help="vocoder file")
    parser.add_argument("recordings", type=Path, help="folder of recordings, such as OUT/held_out")
    parser.add_argument("--bundle", default="moss-speech", help="folder or name of the bundle that it is for")
    parser.add_argument("--own", action="store_true", help="judge the vocoder of the bundle, too")
    parser.add_argument("--copies", type=Path, default=Path("copies"), help="folder for the copies")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--codec-dtype", choices=["float32", "float16", "bfloat16"])
    args = parser.parse_args()
    bundle = describe(args.bundle)
    args.copies.mkdir(parents=True, exist_ok=True)
    recordings = read_recordings(args.recordings, bundle.flow.mel.sample_rate)
    options = EngineOptions(device=args.device, codec_dtype=args.codec_dtype, vocoder=args.vocoder)
    rows = [judge(args.vocoder.stem, bundle, options, recordings, args.copies)]
    if args.own:
        rows.append(
            judge(f"of-{bundle.name}", bundle, replace(options, vocoder=None), recordings, args.copies)
        )
    for row in rows:
        print("  ".join(f"{key} {value}" for key, value in asdict(row).items()))
    print(json.dumps([asdict(row) for row in rows]))


if __name__ == "__main__":
    try:
        main()
    except MossVoiceError as error:
        sys.exit(f"judge_vocoder: {error}")
