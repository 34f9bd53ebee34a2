"""Reads a TensorRT-LLM checkpoint: the network and the executors run from it as from a bundle.

In: a folder that was converted (or quantized). Out: its config, and its tensors under our own names, unfused.
Everything is compared with config.json before large tensors are read. Any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from engine_runtime.bundle.weights import Progress, StoredTensor, TensorReader, Uninitialized, find_tensors
from engine_runtime.errors import BundleError
from engine_runtime.models.moss_lm import MossLM, MossLMConfig
from engine_runtime.tensorrt.checkpoint.format import (
    CONFIG,
    WEIGHTS,
    CheckpointConfig,
    CheckpointTensor,
    expected_tensors,
    read_config,
    tensor_slices,
)

ReadTensor = Callable[[str], Tensor]
"""A tensor of rank0.safetensors, or one of ours, by its name."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint on disk that matches its config.json. No tensor is read yet."""

    directory: Path
    config: CheckpointConfig
    specs: Mapping[str, CheckpointTensor]
    stored: Mapping[str, StoredTensor]

    @classmethod
    def open(cls, directory: Path) -> Checkpoint:
        """BundleError for missing, damaged or mismatched files."""
        config = read_config(directory)
        specs = expected_tensors(config)
        try:
            stored = find_tensors(directory / WEIGHTS, {name: spec.shape for name, spec in specs.items()})
        except BundleError as error:
            raise BundleError(
                "{directory} is an incomplete checkpoint.",
                "{error} Convert the model again.",
                directory=directory,
                error=error,
            ) from error
        return cls(directory, config, specs, stored)

    def require(self, config: MossLMConfig) -> None:
        """BundleError unless its network is that of `config`."""
        mine = self.config.lm_config(config.modality_pad)
        names = [field.name for field in fields(mine)]
        other = [name for name in names if getattr(mine, name) != getattr(config, name)]
        if other:
            differences = ", ".join(
                f"{name} ({getattr(mine, name)}, not {getattr(config, name)})" for name in other
            )
            raise BundleError(
                "The checkpoint in {directory} is of another model than the bundle: it differs in "
                "{difference}.",
                "Convert the language model of this bundle.",
                directory=self.directory,
                difference=differences,
            )

    def reader(self) -> ReadTensor:
        """Reads tensors as stored, in any order; copy those to be kept."""
        read = TensorReader(self.stored)

        def checked(name: str) -> Tensor:
            tensor = read(name)
            if tensor.dtype != self.specs[name].dtype:
                raise BundleError(
                    "{directory} has {name} in {dtype}, but {config} says {announced}.",
                    "Convert the model again.",
                    directory=self.directory / WEIGHTS,
                    name=name,
                    dtype=tensor.dtype,
                    config=CONFIG,
                    announced=self.specs[name].dtype,
                )
            return tensor

        return checked

    def weight_source(self, progress: Progress | None = None) -> ReadTensor:
        """Returns each tensor of our state dict on request, in the memory-mapped file.

        `progress` follows one reading of all of them. BundleError for a quantized checkpoint.
        """
        if self.config.quantization.algorithm is not None:
            raise BundleError(
                "The checkpoint in {directory} is quantized ({algorithm}), and unquantized weights are "
                "required here.",
                "Use the checkpoint it was quantized from.",
                directory=self.directory,
                algorithm=self.config.quantization.algorithm,
            )
        read, found = self.reader(), tensor_slices(self.config)
        sizes = {
            name: source.rows * prod(self.specs[source.name].shape[1:]) for name, source in found.items()
        }
        total, done = sum(sizes.values()), 0

        def source(name: str) -> Tensor:
            nonlocal done
            source = found[name]
            done += sizes[name]
            if progress is not None:
                progress(done / total)
            return read(source.name)[source.first : source.first + source.rows]

        return source

    def language_model(
        self,
        modality_pad: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        *,
        progress: Progress | None = None,
    ) -> MossLM:
        """The unfused network with these weights."""
        with torch.device("meta"), Uninitialized():
            model = MossLM(self.config.lm_config(modality_pad))
        source = self.weight_source(progress)
        # Always a copy, even without a cast: a memory-mapped tensor would change with its file.
        weights = {name: source(name).to(device, dtype, copy=True) for name in model.state_dict()}
        model.load_state_dict(weights, strict=True, assign=True)
        return model.eval()
