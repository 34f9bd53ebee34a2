"""Errors of a quantized checkpoint's layers, measured on the written file with torch.

In: both checkpoints, the calibration. Out: for each layer the error of its products over calibration inputs.
Any thread.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine_runtime.table import Section
from engine_runtime.tensorrt.checkpoint.calibrate import Calibration
from engine_runtime.tensorrt.checkpoint.quantized_linear import read_linear
from engine_runtime.tensorrt.checkpoint.quantized_network import PRODUCTS
from engine_runtime.tensorrt.checkpoint.reading import Checkpoint

_COLUMNS = {
    "layer": "in the order of the network; layers that stay in plain numbers are left out",
    "attention.qkv": "root of the squared error of q, k and v over that of their values, over kept inputs",
    "attention.dense": "the same of the attention's output",
    "mlp.fc": "the same of the gate and the up projection",
    "mlp.proj": "the same of the MLP's output",
}


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
