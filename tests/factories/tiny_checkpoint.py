"""Checkpoints of the tiny language model with stored weights, as created by `moss-voice trt`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from engine_runtime.bundle.weights import stored_tensors
from engine_runtime.options import Dtype
from engine_runtime.quantization import FP8_MAX, to_fp8
from engine_runtime.tensorrt.checkpoint.convert import Conversion, LanguageModel
from engine_runtime.tensorrt.checkpoint.format import (
    CONFIG,
    WEIGHTS,
    Quantization,
    linear_modules,
    read_config,
)
from tests.factories.tiny_lm import load_tiny


def convert_tiny(folder: Path, dtype: Dtype = "float32") -> Path:
    """Through the converter; in float32 the stored logits hold."""
    model, _ = load_tiny()
    save_file(model.state_dict(), folder / "model.safetensors")
    stored = stored_tensors([folder / "model.safetensors"])
    source = LanguageModel("tiny", model.config, 1024, stored, "ab" * 32)
    conversion = Conversion.start(source, folder / "checkpoint", dtype)
    conversion.write()
    conversion.finish()
    return conversion.directory


def round_to_fp8(checkpoint: Path, directory: Path) -> Path:
    """A checkpoint with its shared layers in FP8, without calibration."""
    config = replace(read_config(checkpoint), quantization=Quantization("FP8"))
    tensors = load_file(checkpoint / WEIGHTS)
    for name in filter(config.is_quantized, linear_modules(config)):
        scale = tensors[f"{name}.weight"].abs().max().reshape(1) / FP8_MAX
        tensors[f"{name}.weight"] = to_fp8(tensors[f"{name}.weight"] / scale)
        tensors[f"{name}.weights_scaling_factor"] = scale
        tensors[f"{name}.activation_scaling_factor"] = torch.tensor([16 / FP8_MAX])
    save_file(tensors, directory / WEIGHTS)
    (directory / CONFIG).write_text(json.dumps(config.to_dict()))
    return directory
