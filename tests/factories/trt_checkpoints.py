"""Checkpoints of the random bundle, plain and quantized."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from engine_runtime.bundle.bundle import Bundle
from engine_runtime.codec.loading import load_speech_encoder
from engine_runtime.models.moss_lm import MossLMConfig
from engine_runtime.options import Dtype, EngineOptions
from engine_runtime.tensorrt.checkpoint.calibrate import (
    AnsweringModel,
    Calibration,
    CalibrationPrompt,
    Calibrator,
)
from engine_runtime.tensorrt.checkpoint.convert import Conversion, find_language_model
from engine_runtime.tensorrt.checkpoint.quantize import Format, Quantizing, identity
from engine_runtime.tensorrt.checkpoint.quantized_network import load_paged
from engine_runtime.tensorrt.checkpoint.reading import Checkpoint
from engine_runtime.types import Modality

PROMPTS = (
    CalibrationPrompt(np.random.default_rng(0).normal(0, 0.1, 14_000).astype(np.float32), Modality.SPEECH),
    CalibrationPrompt("two plus three", Modality.TEXT),
)
REPLY_ROWS = 6


def convert(bundle: Path, directory: Path, dtype: Dtype = "float32") -> Checkpoint:
    """The bundle's language model as a checkpoint."""
    conversion = Conversion.start(find_language_model(bundle), directory, dtype)
    conversion.write()
    conversion.finish()
    return Checkpoint.open(directory)


def watched_model(
    bundle: Path, checkpoint: Checkpoint, calibrator: Calibrator, device: str = "cpu"
) -> AnsweringModel:
    """A language model that is watched."""
    opened = Bundle.open(bundle)
    config = MossLMConfig.from_dict(opened.lm.config)
    lm = load_paged(checkpoint, opened.lm, config, device=device, wrap=calibrator.wrap)
    return AnsweringModel(opened, lm, load_speech_encoder(opened, EngineOptions(device)))


def calibrate(
    bundle: Path, checkpoint: Checkpoint, device: str = "cpu", reply_tokens: int = REPLY_ROWS
) -> Calibration:
    """What the products see over PROMPTS."""
    calibrator = Calibrator()
    model = watched_model(bundle, checkpoint, calibrator, device)
    return calibrator.run(
        model, PROMPTS, model=identity(checkpoint), reply_tokens=reply_tokens, total=len(PROMPTS)
    )


def quantize(
    checkpoint: Checkpoint,
    directory: Path,
    number_format: Format,
    calibration: Calibration | None,
    *,
    tails: bool = False,
    device: str = "cpu",
) -> Checkpoint:
    """The checkpoint in another format."""
    quantizing = Quantizing.start(
        checkpoint, directory, number_format, calibration, tails=tails, device=device
    )
    quantizing.find_scales()
    quantizing.write()
    quantizing.finish()
    return Checkpoint.open(directory)
