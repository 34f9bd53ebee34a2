"""A training step as one CUDA graph: small networks are bound by launches, not by arithmetic.

`Step(fn, device)` runs `fn(*tensors) -> tensors` eagerly on a CPU, and as a captured graph on a GPU. The
first calls on the GPU are eager warm-up steps (they train, too); then the step is captured once and replayed.
With it come an optimizer and a moving average of weights that may be captured, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

WARM_UP = 4


class Step:
    """A training step over tensors of fixed shape. On a GPU each call overwrites the last one's results."""

    def __init__(self, fn: Callable[..., tuple[Tensor, ...]], device: str) -> None:
        self.fn, self.use_graph = fn, device == "cuda"
        self.calls = 0
        self.static: list[Tensor] = []
        self.graph: torch.cuda.CUDAGraph | None = None
        self.results: tuple[Tensor, ...] = ()

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        if not self.use_graph:
            return self.fn(*inputs)
        if not self.static:
            self.static = [tensor.clone() for tensor in inputs]
            self.stream = torch.cuda.Stream()
        for static, tensor in zip(self.static, inputs, strict=True):
            static.copy_(tensor)
        self.calls += 1
        if self.calls <= WARM_UP:
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                self.results = self.fn(*self.static)
            torch.cuda.current_stream().wait_stream(self.stream)
        elif self.graph is None:
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.results = self.fn(*self.static)
            self.graph.replay()
        else:
            self.graph.replay()
        return self.results


def cosine(progress: float, peak: float, warm_up: float = 0.02, floor: float = 0.02) -> float:
    """Learning rate at `progress` in 0..1: a linear start, half a cosine from `peak` to its `floor`."""
    scale = 0.5 * (1 + torch.cos(torch.tensor(torch.pi * min(progress, 1.0))).item())
    return peak * min(1.0, progress / warm_up + 1e-3) * (scale * (1 - floor) + floor)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Learning rate as a tensor that a captured step reads (a number on the CPU)."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def adamw(
    module: torch.nn.Module, device: str, betas: tuple[float, float], decay: float
) -> torch.optim.AdamW:
    """AdamW that may be captured; `set_rate` sets its learning rate."""
    parameters = list(module.parameters())
    if device != "cuda":
        return torch.optim.AdamW(parameters, lr=1e-3, betas=betas, weight_decay=decay)
    rate = torch.tensor(1e-3, device=device)
    return torch.optim.AdamW(
        parameters, lr=rate, betas=betas, weight_decay=decay, capturable=True, fused=True
    )


class Average:
    """Exponential moving average of weights; it forgets faster early on, not to be bound to the start."""

    def __init__(self, model: torch.nn.Module, decay: float) -> None:
        self.decay = decay
        self.model = model
        self.values = [p.detach().clone() for p in model.parameters()]
        self.count = 0

    @torch.no_grad()
    def update(self) -> None:
        """After each step."""
        self.count += 1
        decay = min(self.decay, (1 + self.count) / (10 + self.count))
        torch._foreach_lerp_(self.values, [p.detach() for p in self.model.parameters()], 1 - decay)

    def state(self) -> dict[str, Any]:
        """For `restore`."""
        return {"count": self.count, "values": self.values}

    @torch.no_grad()
    def restore(self, state: dict[str, Any]) -> None:
        """Go on with what `state` returned."""
        self.count = state["count"]
        for own, value in zip(self.values, state["values"], strict=True):
            own.copy_(value)

    @torch.no_grad()
    def apply(self) -> None:
        """Replace the weights by their average."""
        for parameter, value in zip(self.model.parameters(), self.values, strict=True):
            parameter.copy_(value)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, the weights are their average; behind it they are what they were, in place."""
        trained = [parameter.detach().clone() for parameter in self.model.parameters()]
        self.apply()
        try:
            yield
        finally:
            with torch.no_grad():
                for parameter, value in zip(self.model.parameters(), trained, strict=True):
                    parameter.copy_(value)
