"""Accuracy report of a quantized checkpoint, measured on the written file with the torch executor.

In: both checkpoints, the calibration, spoken questions. Out: for each layer the error of its products over
calibration inputs, and the agreement of both heads with the unquantized checkpoint over conversations of the
quantized one. Engine thread.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from engine_runtime.bench.reference import compare_with_reference, open_reference
from engine_runtime.bench.teacher_forcing import dialogs
from engine_runtime.bench.verdict import Verdict
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.bundle.trtllm_checkpoint.reading import Checkpoint
from engine_runtime.engine import Engine
from engine_runtime.executors.torch.quantized_linear import read_linear
from engine_runtime.executors.torch.quantized_network import PRODUCTS, load_paged
from engine_runtime.hardware import usable_device
from engine_runtime.loading import load_stages
from engine_runtime.models.moss_lm import MossLMConfig
from engine_runtime.options import EngineOptions
from engine_runtime.table import Section
from engine_runtime.trtllm.calibrate import Calibration
from engine_runtime.types import Pcm

_COLUMNS = {
    "layer": "in the order of the network; layers that stay in plain numbers are left out",
    "attention.qkv": "root of the squared error of q, k and v over that of their values, over kept inputs",
    "attention.dense": "the same of the attention's output",
    "mlp.fc": "the same of the gate and the up projection",
    "mlp.proj": "the same of the MLP's output",
}


def load_engine(bundle: Bundle, checkpoint: Checkpoint, options: EngineOptions) -> Engine:
    """The bundle with the language model of a checkpoint, in its number format, in the torch executor."""
    config = MossLMConfig.from_dict(bundle.lm.config)
    lm = load_paged(checkpoint, bundle.lm, config, device=options.device)
    return Engine(load_stages(bundle, options, lm=lm))


def heads(
    bundle: Bundle,
    plain: Checkpoint,
    quantized: Checkpoint,
    options: EngineOptions,
    questions: Mapping[str, Pcm],
) -> Verdict:
    """Agreement of both heads with the plain checkpoint. VerifyError if there is nothing to compare."""
    config = MossLMConfig.from_dict(bundle.lm.config)
    source, device = plain.weight_source(), usable_device(options.device)
    agreement, note = compare_with_reference(
        lambda: load_engine(bundle, quantized, options),
        lambda: open_reference(config, source, device),
        dialogs(questions, ()),
    )
    return Verdict(agreement.heads(), [note])


@torch.inference_mode()
def layer_errors(
    plain: Checkpoint, quantized: Checkpoint, calibration: Calibration, device: torch.device | str = "cpu"
) -> Section:
    """One row for each layer that is quantized."""
    section = Section("error of each quantized product", dict(_COLUMNS))
    read_plain, read_quantized = plain.reader(), quantized.reader()
    rows: dict[str, dict[str, float | int | str | None]] = {}
    for module in calibration.inputs:
        if not quantized.config.is_quantized(module):
            continue
        layer, name = _split(module)
        modules = [f"{layer}.{member}" for member in PRODUCTS[name]]
        dtype = quantized.config.torch_dtype
        wanted = read_linear(plain.config, read_plain, modules, torch.float32, device)
        found = read_linear(quantized.config, read_quantized, modules, dtype, device)
        inputs = calibration.inputs[module].rows.to(device, dtype)
        rows.setdefault(layer, {"layer": layer})[name] = _error(wanted(inputs.float()), found(inputs).float())
    section.rows = [rows[layer] for layer in sorted(rows, key=_place)]
    return section


def _split(module: str) -> tuple[str, str]:
    """`shared_layers.0.mlp.fc` -> `shared_layers.0`, `mlp.fc`."""
    stack, index, name = module.split(".", 2)
    return f"{stack}.{index}", name


def _place(layer: str) -> tuple[int, int]:
    stack, index = layer.split(".")
    return ("shared_layers", "text_layers", "audio_layers").index(stack), int(index)


def _error(wanted: Tensor, found: Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())
