"""Modules and parameters: names by attribute path, values loaded once, strict about shape and dtype."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tests.doubles.tensorrt.model_api.graph import DTYPES, Tensor


class Parameter:
    """A weight. Buffers have a value from the start and are not asked of a checkpoint."""

    def __init__(
        self,
        value: torch.Tensor | None = None,
        shape: tuple[int, ...] | None = None,
        dtype: str | None = None,
        is_buffer: bool = False,
    ) -> None:
        assert dtype is not None
        assert (value is None) != (shape is None)
        self.dtype, self.is_buffer = dtype, is_buffer
        self.shape = tuple(shape) if value is None else tuple(value.shape)  # type: ignore[arg-type]
        self._value = value

    def is_inited(self) -> bool:
        return self._value is not None

    @property
    def raw_value(self) -> torch.Tensor:
        assert self._value is not None, "the parameter has no value"
        return self._value

    @property
    def value(self) -> Tensor:
        """A constant of the network under construction."""
        value = self.raw_value
        return Tensor.made_by(lambda: value, dtype=self.dtype, shape=self.shape)

    @value.setter
    def value(self, value: torch.Tensor) -> None:
        assert tuple(value.shape) == self.shape, (tuple(value.shape), self.shape)
        assert value.dtype == DTYPES[self.dtype], (value.dtype, self.dtype)
        self._value = value


class Module:
    """Children and parameters are the attributes that are modules and parameters."""

    def __init__(self) -> None:
        pass

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)  # type: ignore[attr-defined]

    def register_parameter(self, name: str, parameter: Parameter | None) -> None:
        setattr(self, name, parameter)

    def children(self) -> dict[str, Module]:
        return {name: value for name, value in vars(self).items() if isinstance(value, Module)}

    def named_modules_with_parent(
        self, prefix: str = "", parent: Module | None = None
    ) -> Iterator[tuple[str, Module, Module | None]]:
        yield prefix, self, parent
        for name, child in self.children().items():
            yield from child.named_modules_with_parent(f"{prefix}.{name}" if prefix else name, self)

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        for path, module, _ in self.named_modules_with_parent():
            for name, value in vars(module).items():
                if isinstance(value, Parameter):
                    yield (f"{path}.{name}" if path else name), value


class ModuleList(Module):
    def __init__(self, modules: list[Module]) -> None:
        super().__init__()
        self._count = len(modules)
        for index, module in enumerate(modules):
            setattr(self, str(index), module)

    def __iter__(self) -> Iterator[Module]:
        return iter(getattr(self, str(index)) for index in range(self._count))

    def __len__(self) -> int:
        return self._count
