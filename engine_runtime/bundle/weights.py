"""Loads weights from disk into a network: strict, safe, tensor by tensor, cast to the network's dtype.

In: safetensors files, one or several shards, or checkpoints (.pt) that contain only tensors. Out: the filled
module, with every tensor accounted for. Names and shapes are compared using the headers, before tensors are
read: one BundleError names all missing, unexpected and misshapen tensors. Then tensors are copied from the
file to the device one by one, so that the host never holds much more than one. NaN and infinity are rejected
when they are read, before they affect a reply.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard, cast

import safetensors
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from engine_runtime.errors import BundleError

Progress = Callable[[float], None]
"""Receives the completed share, 0 to 1."""

_AGAIN = "Copy or download the bundle again."
_MAPPED_AT_MOST = 512 << 20
"""Bytes read from a file before it is mapped again: pages that were read count as memory of this process."""
_LISTED_AT_MOST = 40
_NO_WEIGHTS = {"epoch", "step"}
"""Entries of chunk-trained flow checkpoints that are not weights."""
_SAFETENSORS_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
_WEIGHT_NORM_STYLES = (
    ("weight_g", "parametrizations.weight.original0"),
    ("weight_v", "parametrizations.weight.original1"),
)


class Uninitialized(TorchFunctionMode):
    """Inside `with Uninitialized():` modules are built without random initialization, because weights are
    loaded next.

    NOTE: besides the computation, on the meta device `nn.init.normal_` imports the compiler, which takes a
    second.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Skip the functions of torch.nn.init; they return their tensor unchanged."""
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor that was not read yet: its file, size and dtype (as torch names it)."""

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: str


class LoadProgress:
    """Loading progress over several sets of files, each weighted by its bytes."""

    def __init__(self, sets: Iterable[Sequence[Path]], report: Progress | None) -> None:
        self._all = sum(map(_bytes, sets))
        self._before = 0
        self._report = report

    def next(self, files: Sequence[Path]) -> Progress:
        """The progress callback of the next set."""
        before, size = self._before, _bytes(files)
        self._before += size

        def report(share: float) -> None:
            if self._report is not None and self._all:
                self._report((before + share * size) / self._all)

        return report


def load_weights(
    module: nn.Module,
    path: str | Path | Sequence[Path],
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    *,
    either_weight_norm_style: bool = False,
    partial: bool = False,
    progress: Progress | None = None,
) -> None:
    """Fill `module` from one file or several shards, on `device` and in `dtype`.

    The keywords are those of `stream_tensors`. Integer tensors keep their dtype. Raises BundleError; for
    mismatched names or shapes the module is not changed.
    """
    expected = module.state_dict()
    tensors = stream_tensors(
        path,
        {name: tuple(tensor.shape) for name, tensor in expected.items()},
        either_weight_norm_style=either_weight_norm_style,
        partial=partial,
        progress=progress,
    )
    if not any(tensor.is_meta for tensor in expected.values()):
        module.to(device=device, dtype=dtype)
        targets = module.state_dict()
        for name, tensor in tensors:
            targets[name].copy_(tensor)
        return
    # Always a copy, even without a cast: a memory-mapped tensor would change with its file.
    loaded = {
        name: tensor.to(device, dtype if tensor.is_floating_point() else None, copy=True)
        for name, tensor in tensors
    }
    module.load_state_dict(loaded, strict=True, assign=True)
    module.to(device=device, dtype=dtype)


def stream_tensors(
    path: str | Path | Sequence[Path],
    expected: Mapping[str, tuple[int, ...]],
    *,
    either_weight_norm_style: bool = False,
    partial: bool = False,
    progress: Progress | None = None,
) -> Iterator[tuple[str, Tensor]]:
    """The tensors of `expected` (shapes by name), each as stored on disk, on the CPU; read one at a time.

    Everything is checked before this returns, as `find_tensors` does. A tensor is a view of the mapped file:
    copy it to keep it. `progress` reports the reading.
    """
    found = find_tensors(path, expected, either_weight_norm_style=either_weight_norm_style, partial=partial)
    return _read(found, progress)


def find_tensors(
    path: str | Path | Sequence[Path],
    expected: Mapping[str, tuple[int, ...]],
    *,
    either_weight_norm_style: bool = False,
    partial: bool = False,
) -> dict[str, StoredTensor]:
    """Locations of the tensors of `expected` (shapes by name), from the headers of the files.

    BundleError names all tensors that are missing, unexpected or of another shape. `either_weight_norm_style`
    accepts `weight_g/weight_v` where `parametrizations.weight.original0/1` is expected and the other way
    round. `partial` accepts files with additional tensors.
    """
    paths = [Path(path)] if isinstance(path, str | Path) else list(path)
    stored = stored_tensors(paths)
    if either_weight_norm_style:
        stored = in_style_of(expected, stored)
    _check(expected, stored, partial, ", ".join(file.name for file in paths))
    return {name: tensor for name, tensor in stored.items() if name in expected}


def stored_tensors(paths: Iterable[Path]) -> dict[str, StoredTensor]:
    """The tensors of the files by name, from their headers. BundleError for unusable files."""
    tensors: dict[str, StoredTensor] = {}
    for file in paths:
        shard = {tensor.name: tensor for tensor in _stored(file)}
        if doubled := tensors.keys() & shard.keys():
            raise BundleError(
                "{file} repeats {doubled} of another shard.",
                "Use the shards of one model.",
                file=file,
                doubled=_listed(doubled),
            )
        tensors |= shard
    return tensors


def _stored(file: Path) -> Iterator[StoredTensor]:
    if file.suffix != ".safetensors":
        for name, tensor in read_checkpoint(file).items():
            yield StoredTensor(file, name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        return
    with _safe_open(file) as content:
        for name in content.keys():  # noqa: SIM118
            header = content.get_slice(name)
            dtype = header.get_dtype()
            yield StoredTensor(file, name, tuple(header.get_shape()), _SAFETENSORS_DTYPES.get(dtype, dtype))


class TensorReader:
    """Reads the tensors found by `find_tensors`, by name and in any order, each as stored on disk, on the
    CPU.

    A tensor is a view of the mapped file: copy it to keep it. The first read checks its values.
    """

    def __init__(self, found: Mapping[str, StoredTensor]) -> None:
        self._found = found
        self._open: dict[Path, Callable[[str], Tensor]] = {}
        self._mapped = 0
        self._finite: set[str] = set()

    def __call__(self, name: str) -> Tensor:
        """One tensor; BundleError if its file was removed, or if it contains NaN or infinity."""
        if self._mapped >= _MAPPED_AT_MOST:
            self._open.clear()
            self._mapped = 0
        stored = self._found[name]
        if stored.file not in self._open:
            self._open[stored.file] = _opened(stored.file)
        try:
            tensor = self._open[stored.file](stored.name)
            is_finite = name in self._finite or _is_finite(tensor)
        except Exception as error:  # a dtype that torch lacks, a file that was truncated meanwhile
            raise BundleError(
                "{file}: the tensor {stored} cannot be read ({error}).",
                _AGAIN,
                file=stored.file,
                stored=stored.name,
                error=error,
            ) from error
        if not is_finite:
            raise BundleError(
                "{file}: the tensor {stored} holds NaN or infinity.",
                "Compare the files with their hashes (`moss-voice inspect`). If they differ, copy or "
                "download the bundle again; if they do not, the model was saved like this: use an earlier "
                "checkpoint.",
                file=stored.file,
                stored=stored.name,
            )
        self._finite.add(name)
        self._mapped += tensor.nbytes
        return tensor


def _is_finite(tensor: Tensor) -> bool:
    """Whether no value is NaN or infinity.

    A sum is one pass at memory speed, 25 times as fast as `isfinite`, and not finite if a value is not. Only
    if the sum is not finite, which may also be an overflow, each value is checked.
    """
    if not tensor.is_floating_point():
        return True
    values = tensor if tensor.element_size() > 1 else tensor.bfloat16()  # torch has no float8 sum
    return math.isfinite(values.sum()) or bool(values.isfinite().all())


def _opened(file: Path) -> Callable[[str], Tensor]:
    if file.suffix != ".safetensors":
        return read_checkpoint(file).__getitem__
    return cast(Callable[[str], Tensor], _safe_open(file).get_tensor)


def _read(found: Mapping[str, StoredTensor], progress: Progress | None) -> Iterator[tuple[str, Tensor]]:
    read = TensorReader(found)
    all_values, done = sum(map(_values, found.values())), 0
    for name, stored in found.items():
        yield name, read(name)
        done += _values(stored)
        if progress is not None:
            progress(done / all_values if all_values else 1.0)


def read_checkpoint(file: Path) -> dict[str, Tensor]:
    """The tensors of a .pt checkpoint, mapped, not read. BundleError unless it contains only tensors. No code
    in the file is executed.
    """
    try:
        try:
            content = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError:  # written in torch's format before 1.6, which cannot be mapped
            content = torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise BundleError("{file} is missing.", _AGAIN, file=file) from error
    except pickle.UnpicklingError as error:
        raise BundleError(
            "{file} holds more than tensors and was not loaded, because such a file can run code.",
            "Convert it to safetensors where you trust its origin.",
            file=file,
        ) from error
    except Exception as error:  # a damaged file may cause any error: KeyError, AttributeError, ...
        raise BundleError(
            "{file} cannot be read ({kind}: {error}).",
            _AGAIN,
            file=file,
            kind=type(error).__name__,
            error=error,
        ) from error
    return _only_tensors(content, file)


def _only_tensors(content: object, file: Path) -> dict[str, Tensor]:
    if not isinstance(content, Mapping):
        raise BundleError(
            "{file} holds a {kind} where named tensors were expected.", file=file, kind=type(content).__name__
        )
    weights = {str(name): value for name, value in content.items() if name not in _NO_WEIGHTS}
    tensors = {name: value for name, value in weights.items() if _is_plain(value)}
    others = weights.keys() - tensors.keys()
    if others or not tensors:
        raise BundleError(
            "{file} holds {others} where tensors were expected.",
            file=file,
            others=_listed(others) or "no tensor",
        )
    return tensors


def _is_plain(value: object) -> TypeGuard[Tensor]:
    """Whether it is a tensor with values of its own: not sparse, not quantized, not without storage."""
    return (
        isinstance(value, Tensor)
        and value.layout is torch.strided
        and value.device.type == "cpu"
        and not value.is_quantized
        and not value.is_nested
    )


def _safe_open(file: Path) -> Any:
    try:
        return safetensors.safe_open(file, framework="pt", device="cpu")
    except FileNotFoundError as error:
        raise BundleError("{file} is missing.", _AGAIN, file=file) from error
    except safetensors.SafetensorError as error:
        raise BundleError("{file} is damaged ({error}).", _AGAIN, file=file, error=error) from error
    except (OSError, RuntimeError) as error:
        raise BundleError("{file} cannot be read: {error}.", _AGAIN, file=file, error=error) from error


def in_style_of(expected: Iterable[str], stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Tensors by name, those of weight norm renamed to the style that is expected."""
    names = set(expected)
    renamed = {}
    for name, tensor in stored.items():
        if name not in names:
            for old, new in _WEIGHT_NORM_STYLES:
                for have, want in ((old, new), (new, old)):
                    if name.endswith(have) and name.removesuffix(have) + want in names:
                        name = name.removesuffix(have) + want
        renamed[name] = tensor
    return renamed


def _check(
    expected: Mapping[str, tuple[int, ...]],
    stored: Mapping[str, StoredTensor],
    partial: bool,
    source: str,
) -> None:
    problems = []
    if missing := expected.keys() - stored.keys():
        problems.append(f"missing: {_listed(missing)}")
    if not partial and (unexpected := stored.keys() - expected.keys()):
        problems.append(f"unexpected: {_listed(unexpected)}")
    shapes = [
        f"{name} is {list(stored[name].shape)}, expected {list(expected[name])}"
        for name in sorted(expected.keys() & stored.keys())
        if stored[name].shape != expected[name]
    ]
    if shapes:
        problems.append(f"wrong shape: {_listed(shapes)}")
    if problems:
        raise BundleError(
            "The weights in {source} do not fit the network that the manifest describes.\n  {problems}.",
            "Use the weights and the bundle.toml of one model.",
            source=source,
            problems="\n  ".join(problems),
        )


def _listed(names: Iterable[str]) -> str:
    """The names, or the first of very many."""
    ordered = sorted(names)
    more = len(ordered) - _LISTED_AT_MOST
    return ", ".join(ordered[:_LISTED_AT_MOST]) + (f" and {more:,} more" if more > 0 else "")


def _values(tensor: StoredTensor) -> int:
    return torch.Size(tensor.shape).numel()


def _bytes(files: Iterable[Path]) -> int:
    """NOTE: a missing file counts as 0 bytes; reading it raises the error."""
    return sum(file.stat().st_size for file in files if file.is_file())
