"""Quantizes a checkpoint to fp8, int8 or int4, and measures the error of each layer.

In: a converted checkpoint and calibration statistics. Out: a folder with rank0.safetensors, moss_voice.json
and, last, config.json. The linear layers of the shared layers are quantized, optionally also those of the
tails. Heads, embeddings and norms are not, nor are keys and values, because FP8 context attention requires
all layers in FP8 (the field of the plugin applies to the complete engine). Scales are computed first, layer
by layer, and stored; then the file is written tensor by tensor. `layer_errors` reads it again and compares
its products with the unquantized ones over calibration inputs. Any thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch
from safetensors import safe_open
from torch import Tensor

from engine_runtime.bundle.bundle import Bundle
from engine_runtime.bundle.released.layout import read_json
from engine_runtime.bundle.targets import require_folder
from engine_runtime.bundle.weights import Progress
from engine_runtime.errors import BundleError, ExportError
from engine_runtime.models.moss_lm import MossLMConfig
from engine_runtime.table import Section
from engine_runtime.tensorrt.checkpoint.calibrate import Calibration, Inputs
from engine_runtime.tensorrt.checkpoint.format import (
    ABOUT,
    CONFIG,
    WEIGHTS,
    Algorithm,
    CheckpointConfig,
    Quantization,
    expected_tensors,
    linear_modules,
    lm_fingerprint,
)
from engine_runtime.tensorrt.checkpoint.quantized_network import PRODUCTS, read_linear
from engine_runtime.tensorrt.checkpoint.reading import Checkpoint, ReadTensor
from engine_runtime.tensorrt.checkpoint.scales import (
    QuantizeError,
    find_smoothing,
    fp8_levels,
    fp8_scale,
    group_size,
    int4_levels,
    int4_smoothed,
    pack_int4,
)
from engine_runtime.tensorrt.checkpoint.tensor_file import TensorFile, write_json

Format = Literal["fp8", "int8", "int4"]
FORMATS: dict[Format, Algorithm] = {"fp8": "FP8", "int8": "W8A16", "int4": "W4A16_AWQ"}
_CHUNK_BYTES = 32 << 20
"""Bytes copied at a time from a tensor that is not quantized."""
_ALWAYS_PLAIN = ("*lm_head", "*vocab_embedding")
_TAILS = ("text_layers*", "audio_layers*")
# NOTE: the library reads a pattern in three ways (name of a module, prefix, name of a weight); these mean the
# same in all of them.


def quantized_config(
    config: CheckpointConfig, number_format: Format, tails: bool = False
) -> CheckpointConfig:
    """config.json of the quantized checkpoint; `tails` takes the tails' layers in.

    QuantizeError for a checkpoint that is quantized already, or of sizes that the format does not take.
    """
    if config.quantization.algorithm is not None:
        raise QuantizeError(
            "The checkpoint is quantized already ({algorithm}).",
            "Give one created by `moss-voice trt convert`.",
            algorithm=config.quantization.algorithm,
        )
    quantization = Quantization(
        FORMATS[number_format], exclude_modules=_ALWAYS_PLAIN if tails else (*_ALWAYS_PLAIN, *_TAILS)
    )
    if number_format == "int4":
        heads = config.num_attention_heads * config.head_size
        sizes = (config.hidden_size, heads, config.intermediate_size)
        quantization = replace(quantization, group_size=min(map(group_size, sizes)))
    return replace(config, quantization=quantization)


@dataclass(frozen=True, slots=True)
class Quantizing:
    """Quantization of one checkpoint into one folder: `start`, `find_scales`, `write`, `finish`.

    Attributes:
        scales: the computed scales, by tensor name in the file.
        alphas: the exponent found by the AWQ search, by layer.
    """

    source: Checkpoint
    calibration: Calibration | None
    config: CheckpointConfig
    directory: Path
    device: torch.device
    file: TensorFile
    scales: dict[str, Tensor] = field(default_factory=dict)
    alphas: dict[str, float] = field(default_factory=dict)

    @classmethod
    def start(
        cls,
        source: Checkpoint,
        directory: Path,
        number_format: Format,
        calibration: Calibration | None = None,
        *,
        tails: bool = False,
        device: torch.device | str = "cpu",
    ) -> Quantizing:
        """Check before writing. fp8 and int4 need a calibration to continue; int8 does not.

        QuantizeError for a checkpoint or calibration that does not serve; ExportError for a folder that holds
        something else or may not be written to, or a disk without room.
        """
        config = quantized_config(source.config, number_format, tails)
        require_folder(directory, "--to")
        if calibration is not None:
            _require(calibration, config)
        file = TensorFile(directory / WEIGHTS, expected_tensors(config), {"format": "pt"})
        if any((directory / name).exists() for name in (CONFIG, WEIGHTS)):
            raise ExportError(
                "{directory} holds a checkpoint already.",
                "Choose another folder, or remove it.",
                directory=directory,
            )
        file.unfinished.unlink(missing_ok=True)  # an interrupted run may have had another calibration
        file.require_room()
        return cls(source, calibration, config, directory, torch.device(device), file)

    @torch.inference_mode()
    def find_scales(self, progress: Progress | None = None) -> None:
        """Compute the scales of every quantized layer. Nothing to do for int8."""
        calibration = self.calibration
        if self.config.quantization.algorithm == "W8A16":
            return
        if calibration is None:
            raise QuantizeError(
                "fp8 and int4 need a calibration.", "Run it, or specify its file with --statistics."
            )
        read, products = self.source.reader(), _products(self.config)
        for done, modules in enumerate(products, start=1):
            weights = [read(f"{module}.weight").to(self.device) for module in modules]
            inputs = calibration.inputs[modules[0]]
            if self.config.quantization.algorithm == "FP8":
                self._fp8_scales(modules, weights, inputs)
            else:
                self._int4_scales(modules, weights, inputs)
            if progress is not None:
                progress(done / len(products))

    def write(self, progress: Progress | None = None) -> None:
        """Write the weights."""
        self.file.write(self._produce, progress)

    def finish(self, progress: Progress | None = None) -> None:
        """Verify the written tensors, and complete the checkpoint."""
        self.file.finish(self._produce, progress)
        about = self.source.directory / ABOUT
        if about.is_file():
            write_json(self.directory / ABOUT, read_json(about))
        write_json(self.directory / CONFIG, self.config.to_dict())

    def _fp8_scales(self, modules: tuple[str, ...], weights: list[Tensor], inputs: Inputs) -> None:
        """One scale for all of them: the library joins q, k and v, and the two of a gated MLP, with the
        largest."""
        weight_scale = fp8_scale(torch.stack([weight.abs().amax() for weight in weights]).amax())
        for module in modules:
            self.scales[f"{module}.weights_scaling_factor"] = weight_scale.cpu()
            self.scales[f"{module}.activation_scaling_factor"] = fp8_scale(inputs.amax.amax()).cpu()

    def _int4_scales(self, modules: tuple[str, ...], weights: list[Tensor], inputs: Inputs) -> None:
        rows, mean = inputs.rows.to(self.device), inputs.mean.to(self.device)
        size, dtype = self.config.quantization.group_size, self.config.torch_dtype
        found = find_smoothing(weights, rows, mean, size, dtype)
        self.alphas[modules[0]] = found.alpha
        for module, weight in zip(modules, weights, strict=True):
            _, scale = int4_smoothed(weight, found.factor, rows, size)
            self.scales[f"{module}.prequant_scaling_factor"] = found.factor.cpu()
            self.scales[f"{module}.weights_scaling_factor"] = scale.cpu()

    @torch.inference_mode()
    def _produce(self, name: str) -> Iterator[Tensor]:
        if name in self.scales:
            yield self.scales[name]
            return
        read: ReadTensor = self.source.reader()
        module = name.removesuffix(".weight")
        scale = self.scales.get(f"{module}.weights_scaling_factor")
        if scale is None:
            plain = read(name)
            yield from plain.split(max(1, _CHUNK_BYTES // plain[0].nbytes))
            return
        weight, scale = read(name).to(self.device), scale.to(self.device)
        if self.config.quantization.algorithm == "FP8":
            yield fp8_levels(weight, scale).cpu()
            return
        factor = self.scales[f"{module}.prequant_scaling_factor"].to(self.device)
        yield pack_int4(int4_levels(weight.float() / factor.float(), scale)).cpu()


def identity(checkpoint: Checkpoint) -> str:
    """Identifies the weights of an unquantized checkpoint, as stored by its conversion."""
    with safe_open(checkpoint.directory / WEIGHTS, framework="pt") as content:
        source = (content.metadata() or {}).get("source")
    return source or str((checkpoint.directory / WEIGHTS).stat().st_size)


def require_bundle(checkpoint: Checkpoint, bundle: Bundle) -> None:
    """BundleError unless the checkpoint is of the bundle's language model."""
    checkpoint.require(MossLMConfig.from_dict(bundle.lm.config))
    about = checkpoint.directory / ABOUT
    made_of = read_json(about).get("lm_fingerprint") if about.is_file() else None
    if made_of is not None and made_of != lm_fingerprint(bundle):
        raise BundleError(
            "{directory} was converted from other weights than those of bundle {bundle}.",
            "Give that bundle with --bundle.",
            directory=checkpoint.directory,
            bundle=bundle.name,
        )


def _products(config: CheckpointConfig) -> list[tuple[str, ...]]:
    """Modules of each quantized product, those that share an input together."""
    products = []
    for module in linear_modules(config):
        prefix, _, last = module.rpartition(".")
        layer, _, group = prefix.rpartition(".")
        members = PRODUCTS.get(f"{group}.{last}")
        if members and config.is_quantized(module):
            products.append(tuple(f"{layer}.{member}" for member in members))
    return products


def _require(calibration: Calibration, config: CheckpointConfig) -> None:
    plain = expected_tensors(replace(config, quantization=Quantization()))
    for modules in _products(config):
        inputs = calibration.inputs.get(modules[0])
        if inputs is None or inputs.amax.shape[0] != plain[f"{modules[0]}.weight"].shape[1]:
            raise QuantizeError(
                "The calibration does not fit the checkpoint at {modules}.",
                "Calibrate again with another file for --statistics.",
                modules=modules[0],
            )


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
