"""moss-voice trt quantize: quantize a converted checkpoint to fp8, int8 or int4, and report the accuracy.

fp8 quantizes weights and inputs of the shared layers with calibrated scales, but not tails, heads,
embeddings, keys and values; int8 and int4 (AWQ) quantize weights only. Calibration runs the model on prompts
and saves its statistics in a file, which other formats reuse.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from app import paths
from app.audio.resample import Resampler
from app.commands.questions import question_paths, read_question, read_questions, read_texts
from app.commands.shared_options import LARGEST_COUNT, add_device_option, device_of, integer
from app.progress import progress_bar, say

if TYPE_CHECKING:
    from engine_runtime.bundle.bundle import Bundle
    from engine_runtime.options import EngineOptions
    from engine_runtime.tensorrt.checkpoint.calibrate import Calibration, CalibrationPrompt
    from engine_runtime.tensorrt.checkpoint.reading import Checkpoint
    from engine_runtime.types import Pcm

FORMATS = ("fp8", "int8", "int4")
STATISTICS = "calibration.safetensors"
REPORT = "quantization_report.json"
SPEEDS = (0.84, 1.19)
SOFTEST_DB = -18.0
_TEXT_EVERY, _TEXT_REPLY_EVERY = 3, 4
"""If there are texts, every third prompt is typed; every fourth reply is text."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "checkpoint", metavar="CHECKPOINT", type=paths.user_path, help="folder created by `trt convert`"
    )
    parser.add_argument(
        "--to", metavar="DIR", type=paths.user_path, required=True, help="folder of the new checkpoint"
    )
    parser.add_argument("--format", choices=FORMATS, default="fp8", help="weight format (default: fp8)")
    parser.add_argument(
        "--tails",
        action="store_true",
        help="also quantize the layers of both tails (default: only the shared layers)",
    )
    parser.add_argument(
        "--bundle",
        type=paths.user_path,
        metavar="DIR",
        default=argparse.SUPPRESS,
        help="bundle that the checkpoint was converted from (default: as for every command)",
    )
    add_device_option(parser)
    parser.add_argument(
        "--wavs",
        type=paths.user_path,
        metavar="DIR",
        help="recordings to calibrate with (default: the shipped questions)",
    )
    parser.add_argument(
        "--texts",
        type=paths.user_path,
        metavar="FILE",
        help="typed questions, one per line",
    )
    parser.add_argument(
        "--prompts",
        type=integer(1, LARGEST_COUNT),
        metavar="N",
        default=500,
        help="prompts to calibrate with (default: 500)",
    )
    parser.add_argument(
        "--reply-tokens",
        type=integer(0, LARGEST_COUNT),
        metavar="N",
        default=32,
        help="tokens of each reply (default: 32)",
    )
    parser.add_argument(
        "--statistics",
        type=paths.user_path,
        metavar="FILE",
        help=f"statistics of the calibration, used if the file exists (default: {STATISTICS} in CHECKPOINT)",
    )
    parser.add_argument(
        "--questions",
        type=paths.user_path,
        metavar="DIR",
        help="recordings for the report (default: the shipped questions)",
    )
    parser.add_argument("--no-report", action="store_true", help="do not measure the loss")
    parser.add_argument("--json", action="store_true", help="end the output with one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Calibrate if required, quantize, measure. Exit status 0 if the heads are aligned."""
    from engine_runtime.bundle.bundle import Bundle
    from engine_runtime.hardware import usable_device
    from engine_runtime.options import EngineOptions
    from engine_runtime.tensorrt.checkpoint.quantize import Quantizing, require_bundle
    from engine_runtime.tensorrt.checkpoint.reading import Checkpoint

    bundle = Bundle.open(paths.find_bundle(arguments.bundle or paths.default_bundle()))
    options = EngineOptions(device=device_of(arguments))
    plain = Checkpoint.open(arguments.checkpoint)
    require_bundle(plain, bundle)
    # Check all arguments before the long part.
    usable_device(options.device)
    rate = bundle.speech_encoder.sample_rate
    questions = None if arguments.no_report else read_questions(arguments.questions, rate)
    Quantizing.start(plain, arguments.to, arguments.format, tails=arguments.tails)
    calibration = _calibration(arguments, bundle, plain, options)
    quantizing = Quantizing.start(
        plain, arguments.to, arguments.format, calibration, tails=arguments.tails, device=options.device
    )
    with progress_bar("scales") as progress:
        quantizing.find_scales(progress)
    with progress_bar("write") as progress:
        quantizing.write(progress)
    with progress_bar("check") as progress:
        quantizing.finish(progress)
    print(arguments.to)
    return 0 if questions is None else _report(arguments, bundle, plain, calibration, options, questions)


def _calibration(
    arguments: argparse.Namespace, bundle: Bundle, plain: Checkpoint, options: EngineOptions
) -> Calibration:
    from engine_runtime.bundle.targets import require_file
    from engine_runtime.codec.loading import load_speech_encoder
    from engine_runtime.models.moss_lm import MossLMConfig
    from engine_runtime.tensorrt.checkpoint.calibrate import AnsweringModel, Calibration, Calibrator
    from engine_runtime.tensorrt.checkpoint.quantize import identity
    from engine_runtime.tensorrt.checkpoint.quantized_network import load_paged

    file: Path = arguments.statistics or arguments.checkpoint / STATISTICS
    if file.is_file():
        say(f"Uses the calibration in {file}.")
        return Calibration.load(file, identity(plain))
    require_file(file, "--statistics")
    files = question_paths(arguments.wavs)
    texts = read_texts(arguments.texts) if arguments.texts else []
    calibrator, config = Calibrator(), MossLMConfig.from_dict(bundle.lm.config)
    lm = load_paged(plain, bundle.lm, config, device=options.device, wrap=calibrator.wrap)
    speech_tokenizer = load_speech_encoder(bundle, options)
    with progress_bar("calibrate") as progress:
        calibration = calibrator.run(
            AnsweringModel(bundle, lm, speech_tokenizer),
            calibration_prompts(files, texts, speech_tokenizer.sample_rate, arguments.prompts),
            model=identity(plain),
            reply_tokens=arguments.reply_tokens,
            total=arguments.prompts,
            progress=progress,
        )
    calibration.save(file)
    say(f"Calibrated with {calibration.prompts} prompts, {calibration.rows} rows; kept in {file}.")
    return calibration


def calibration_prompts(
    files: Sequence[Path], texts: Sequence[str], rate: int, count: int
) -> Iterator[CalibrationPrompt]:
    """`count` prompts at `rate` Hz, one at a time: the first round of recordings is unchanged; later ones are
    resampled (which changes speed, pitch and formants) and attenuated, like the recipe of the nano bundle.
    Deterministic. Raises AudioInputError for a file that cannot be used."""
    from engine_runtime.tensorrt.checkpoint.calibrate import CalibrationPrompt
    from engine_runtime.types import Modality

    generator = np.random.default_rng(0)
    spoken = typed = 0
    for index in range(count):
        reply = Modality.TEXT if index % _TEXT_REPLY_EVERY == _TEXT_REPLY_EVERY - 1 else Modality.SPEECH
        if texts and index % _TEXT_EVERY == _TEXT_EVERY - 1:
            yield CalibrationPrompt(texts[typed % len(texts)], reply)
            typed += 1
            continue
        round_, place = divmod(spoken, len(files))
        pcm = read_question(files[place], rate)
        yield CalibrationPrompt(_varied(pcm, rate, generator) if round_ else pcm, reply)
        spoken += 1


def _varied(pcm: Pcm, rate: int, generator: np.random.Generator) -> Pcm:
    speed, gain_db = generator.uniform(*SPEEDS), generator.uniform(SOFTEST_DB, 0.0)
    resampler = Resampler(round(rate * speed), rate)
    played: Pcm = np.concatenate([resampler.push(pcm), resampler.finish()])
    return played * np.float32(10 ** (gain_db / 20))


def _report(
    arguments: argparse.Namespace,
    bundle: Bundle,
    plain: Checkpoint,
    calibration: Calibration,
    options: EngineOptions,
    questions: dict[str, Pcm],
) -> int:
    from engine_runtime.bench.alignment import align_checkpoint
    from engine_runtime.tensorrt.checkpoint.quantize import layer_errors
    from engine_runtime.tensorrt.checkpoint.reading import Checkpoint

    quantized = Checkpoint.open(arguments.to)
    layers = layer_errors(plain, quantized, calibration, options.device)
    verdict = align_checkpoint(bundle, plain, quantized, options, questions)
    described = f"{arguments.format} with {'quantized' if arguments.tails else plain.config.dtype} tails"
    section = verdict.section(f"{bundle.name}: {described} against {plain.config.dtype}")
    print("\n".join([*layers.lines(), *section.lines()]))
    print(f"\n{described}: {'aligned' if verdict.is_aligned else 'not aligned'}")
    document = {
        "format": arguments.format,
        "tails": arguments.tails,
        "dtype": plain.config.dtype,
        "calibration": {"prompts": calibration.prompts, "rows": calibration.rows},
        "layers": layers.document(),
        "heads": section.document(),
        "aligned": verdict.is_aligned,
    }
    from engine_runtime.tensorrt.checkpoint.tensor_file import write_json

    write_json(arguments.to / REPORT, document)
    if arguments.json:
        print(json.dumps(document))
    return 0 if verdict.is_aligned else 1
