"""Compares every tensor of a bundle's weight files with the networks that its manifest describes.

In: an open bundle. Out: one `Inventory` per network with all differences in words: tensors that are missing
or unexpected, and those of another shape or dtype. Only headers are read (a .pt file is mapped), so a model
of 20 GB takes seconds. Any thread.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from engine_runtime.bundle.bundle import Bundle
from engine_runtime.bundle.sections import LMSection, VocoderSection
from engine_runtime.bundle.weights import StoredTensor, Uninitialized, in_style_of, stored_tensors
from engine_runtime.errors import BundleError
from engine_runtime.models.bigvgan import build_bigvgan
from engine_runtime.models.flow import CausalFlow, FlowConfig
from engine_runtime.models.hift import HiFT, HiFTConfig
from engine_runtime.models.moss_lm import MossLM, MossLMConfig
from engine_runtime.models.whisper_vq import WhisperVQ, WhisperVQConfig
from engine_runtime.tensorrt.checkpoint.format import expected_tensors, read_config

_CONFIG = "config.json"
"""Config file of a released checkpoint, beside its weights."""
_DTYPE_KEYS = ("dtype", "torch_dtype")
"""In that file: the key of newer and of older releases of transformers."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """The tensors of one network. `dtype` is that of its weights; `source` says where it is stated."""

    network: str
    files: tuple[str, ...]
    expected: int
    found: int
    dtype: str
    source: str
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    wrong_shape: tuple[str, ...] = ()
    """Such as "model.norm.weight is [64], expected [128]"."""
    wrong_dtype: tuple[str, ...] = ()
    problem: str = ""
    """Why the files could not be compared at all."""

    @property
    def differences(self) -> tuple[str, ...]:
        """All differences, one a line."""
        return (
            *([self.problem] if self.problem else []),
            *(f"missing: {name}" for name in self.missing),
            *(f"unexpected: {name}" for name in self.unexpected),
            *(f"wrong shape: {line}" for line in self.wrong_shape),
            *(f"wrong dtype: {line}" for line in self.wrong_dtype),
        )


@dataclass(frozen=True, slots=True)
class _Network:
    """What the manifest describes. Shapes by name; `dtypes` names those that a file states."""

    name: str
    files: Sequence[Path]
    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, str]
    source: str
    partial: bool = False


def take_inventory(bundle: Bundle) -> list[Inventory]:
    """Compare language model, speech encoder, flow and vocoder."""
    return [_compare(network) for network in _networks(bundle)]


def _networks(bundle: Bundle) -> Iterator[_Network]:
    yield _language_model(bundle.lm)
    encoder, flow, vocoder = bundle.speech_encoder, bundle.flow, bundle.vocoder
    with torch.device("meta"), Uninitialized():
        modules = (
            WhisperVQ(WhisperVQConfig.from_dict(encoder.config)),
            CausalFlow(FlowConfig.from_dict(flow.config)),
        )
    yield _network("speech encoder", encoder.weights, modules[0], partial=encoder.weights_hold_more)
    yield _network("flow", flow.weights, modules[1])
    yield _network("vocoder", vocoder.weights, _vocoder(vocoder))


def _vocoder(section: VocoderSection) -> nn.Module:
    # Not on the meta device: BigVGAN computes its filters while it is built.
    with Uninitialized():
        network: nn.Module
        if section.kind == "hift":
            network = HiFT(HiFTConfig.from_dict(section.config))
        else:
            network = build_bigvgan(section.config)
        return network


def _language_model(section: LMSection) -> _Network:
    """Names and shapes of the released layout, or of a converted checkpoint, which states its dtypes."""
    if section.layout == "tensorrt-llm":
        folder = section.weights[0].parent
        specs = expected_tensors(read_config(folder))
        dtypes = {name: str(spec.dtype).removeprefix("torch.") for name, spec in specs.items()}
        shapes = {name: spec.shape for name, spec in specs.items()}
        return _Network("language model", section.weights, shapes, dtypes, _CONFIG)
    with torch.device("meta"), Uninitialized():
        model = MossLM(MossLMConfig.from_dict(section.config))
    network = _network("language model", section.weights, model)
    stated = _stated_dtype(section.weights[0].parent / _CONFIG)
    if stated is None:
        return network
    dtypes = dict.fromkeys(network.shapes, stated)
    return _Network(network.name, network.files, network.shapes, dtypes, _CONFIG)


def _stated_dtype(file: Path) -> str | None:
    """The dtype that the config of a checkpoint states."""
    try:
        config = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    found = [config[key] for key in _DTYPE_KEYS if isinstance(config.get(key), str)]
    return str(found[0]).removeprefix("torch.") if found else None


def _network(name: str, files: Sequence[Path], module: nn.Module, *, partial: bool = False) -> _Network:
    shapes = {key: tuple(tensor.shape) for key, tensor in module.state_dict().items()}
    return _Network(name, files, shapes, {}, "the other tensors", partial)


def _compare(network: _Network) -> Inventory:
    names = tuple(file.name for file in network.files)
    expected = network.shapes
    try:
        stored = in_style_of(expected, stored_tensors(network.files))
    except BundleError as error:
        problem = str(error)
        return Inventory(network.name, names, len(expected), 0, "", network.source, problem=problem)
    both = sorted(expected.keys() & stored.keys())
    wanted = network.dtypes or _most_common(stored, both)
    return Inventory(
        network=network.name,
        files=names,
        expected=len(expected),
        found=len(both),
        dtype=", ".join(sorted(set(wanted.values()))),
        source=network.source,
        missing=tuple(sorted(expected.keys() - stored.keys())),
        unexpected=() if network.partial else tuple(sorted(stored.keys() - expected.keys())),
        wrong_shape=tuple(
            f"{name} is {list(stored[name].shape)}, expected {list(expected[name])}"
            for name in both
            if stored[name].shape != expected[name]
        ),
        wrong_dtype=tuple(
            f"{name} is {stored[name].dtype}, expected {wanted[name]}"
            for name in both
            if name in wanted and stored[name].dtype != wanted[name]
        ),
    )


def _most_common(stored: Mapping[str, StoredTensor], names: Sequence[str]) -> dict[str, str]:
    """Where no file states it, a network's weights have one dtype; integers, such as counters, may differ."""
    floats = {name: stored[name].dtype for name in names if "float" in stored[name].dtype}
    if not floats:
        return {}
    usual, _ = Counter(floats.values()).most_common(1)[0]
    return dict.fromkeys(floats, usual)
