"""Weights from disk into a network: strict, safe, cast to the dtype the network runs in.

In: safetensors files (or a checkpoint of plain tensors) and a module. Out: the module filled, every tensor
accounted for. All missing, unexpected and misshapen tensors are named in one BundleError, so that one look is
enough.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from .errors import BundleError

_NAMED_AT_MOST = 12
_WEIGHT_NORM_STYLES = (
    ("weight_g", "parametrizations.weight.original0"),
    ("weight_v", "parametrizations.weight.original1"),
)


class Uninitialised(TorchFunctionMode):
    """Inside `with Uninitialised():` modules are built without random values, for weights to be read right
    after.

    NOTE: apart from the work, on the meta device `nn.init.normal_` imports the compiler, which takes a
    second.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Leave out the functions of torch.nn.init; they return the tensor they were given."""
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def load_weights(
    module: nn.Module,
    path: str | Path | Sequence[Path],
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    *,
    either_weight_norm_style: bool = False,
    ignore: Iterable[str] = (),
) -> None:
    """Fill `module` from one file or several shards, then move it to `device` and cast it to `dtype`.

    `either_weight_norm_style` accepts `weight_g/weight_v` where the module has
    `parametrizations.weight.original0/1` and the other way round. `ignore` names entries of the file that are
    no weights (a training step, say). Integer tensors keep their dtype. Raises BundleError; the module is not
    changed then.
    """
    paths = [Path(path)] if isinstance(path, str | Path) else list(path)
    tensors: dict[str, torch.Tensor] = {}
    for file in paths:
        shard = read_tensors(file)
        if doubled := tensors.keys() & shard.keys():
            raise BundleError(
                f"{file} repeats {_name_some(doubled)} of another shard. Use the shards of one model."
            )
        tensors |= shard
    tensors = {name: tensor for name, tensor in tensors.items() if name not in set(ignore)}
    expected = module.state_dict()
    if either_weight_norm_style:
        tensors = _in_style_of(expected, tensors)
    _check(expected, tensors, ", ".join(file.name for file in paths))
    module.load_state_dict(tensors, strict=True, assign=_is_meta(expected))
    module.to(device=device, dtype=dtype)


def read_tensors(file: Path) -> dict[str, torch.Tensor]:
    """All tensors of a .safetensors file, or of a .pt/.bin checkpoint that holds nothing but tensors."""
    try:
        if file.suffix == ".safetensors":
            return safetensors.torch.load_file(file)
        content = torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise BundleError(f"{file} is missing. Copy or download the bundle again.") from error
    except safetensors.SafetensorError as error:
        raise BundleError(f"{file} is damaged ({error}). Copy or download the bundle again.") from error
    except pickle.UnpicklingError as error:
        raise BundleError(
            f"{file} holds more than tensors and was not loaded, because such a file can run code. "
            "Convert it to safetensors where you trust its origin."
        ) from error
    except (OSError, RuntimeError, EOFError) as error:
        raise BundleError(f"{file} cannot be read: {error}. Copy or download the bundle again.") from error
    return _only_tensors(content, file)


def _only_tensors(content: object, file: Path) -> dict[str, torch.Tensor]:
    if not isinstance(content, Mapping):
        raise BundleError(f"{file} holds a {type(content).__name__} where named tensors were expected.")
    tensors = {str(name): value for name, value in content.items() if isinstance(value, torch.Tensor)}
    # Chunk-trained flow checkpoints carry the plain numbers `epoch` and `step` beside the weights.
    others = [name for name, value in content.items() if not isinstance(value, torch.Tensor | int | float)]
    if others or not tensors:
        raise BundleError(
            f"{file} holds {_name_some(map(str, others)) or 'no tensor'} where tensors were expected."
        )
    return tensors


def _in_style_of(
    expected: Mapping[str, torch.Tensor], tensors: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Rename weight-norm tensors to the style that the module uses."""
    renamed = {}
    for name, tensor in tensors.items():
        if name not in expected:
            for old, new in _WEIGHT_NORM_STYLES:
                for have, want in ((old, new), (new, old)):
                    if name.endswith(have) and name.removesuffix(have) + want in expected:
                        name = name.removesuffix(have) + want
        renamed[name] = tensor
    return renamed


def _check(expected: Mapping[str, torch.Tensor], tensors: Mapping[str, torch.Tensor], source: str) -> None:
    problems = []
    if missing := expected.keys() - tensors.keys():
        problems.append(f"missing: {_name_some(missing)}")
    if unexpected := tensors.keys() - expected.keys():
        problems.append(f"unexpected: {_name_some(unexpected)}")
    shapes = [
        f"{name} is {list(tensors[name].shape)}, expected {list(expected[name].shape)}"
        for name in sorted(expected.keys() & tensors.keys())
        if tensors[name].shape != expected[name].shape
    ]
    if shapes:
        problems.append(f"wrong shape: {_name_some(shapes)}")
    if problems:
        raise BundleError(
            f"The weights in {source} do not fit the network that the manifest describes.\n  "
            + "\n  ".join(problems)
            + "\nUse the weights and the bundle.toml of one model."
        )


def _name_some(names: Iterable[str]) -> str:
    found = sorted(names)
    rest = f" and {len(found) - _NAMED_AT_MOST} more" if len(found) > _NAMED_AT_MOST else ""
    return ", ".join(found[:_NAMED_AT_MOST]) + rest


def _is_meta(tensors: Mapping[str, torch.Tensor]) -> bool:
    return any(tensor.is_meta for tensor in tensors.values())
