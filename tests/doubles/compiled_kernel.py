"""Takes the place of a compiled CUDA C++ kernel that starts early; keeps what it is launched with."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

RESIDENT_CLUSTERS = {2: 66, 4: 32, 8: 16}
"""By their number of blocks."""
Argument = Tensor | ctypes.Structure | int | None


def constants_of(header: str) -> dict[str, int]:
    """The numbers of layout.cuh."""
    return {name: int(value) for name, value in re.findall(r"^#define (\w+) (\d+)$", header, re.MULTILINE)}


class RecordedKernel:
    """Arguments are checked against the parameters that the source declares.

    Attributes:
        constants: those of layout.cuh.
        blocks, threads, cluster, arguments: of the last launch; arguments by the name of their parameter.
        launches: the arguments of all.
    """

    def __init__(
        self,
        source: str,
        headers: Mapping[str, str],
        name: str,
        shared_bytes: int,
        device: torch.device,
        *,
        is_architecture_specific: bool = False,
    ) -> None:
        declared = re.search(rf"{name}\((.*?)\) {{", source, re.DOTALL)
        assert declared is not None
        self._parameters = [word.strip() for word in declared[1].split(",")]
        self.constants, self.shared_bytes = constants_of(headers["layout.cuh"]), shared_bytes
        self.is_architecture_specific = is_architecture_specific
        self.blocks = self.threads = 0
        self.cluster = 1
        self.arguments: dict[str, Argument] = {}
        self.launches: list[dict[str, Argument]] = []

    def num_resident_clusters(self, threads: int, cluster: int) -> int:
        """Those of an H100, with a block for each multiprocessor."""
        return RESIDENT_CLUSTERS[cluster]

    def launch(
        self,
        blocks: int,
        threads: int,
        arguments: Sequence[Argument],
        *,
        cluster: int = 1,
        starts_early: bool,
    ) -> None:
        assert starts_early
        assert blocks % cluster == 0
        self.blocks, self.threads, self.cluster, self.arguments = blocks, threads, cluster, {}
        for word, argument in zip(self._parameters, arguments, strict=True):
            assert (argument is None or isinstance(argument, Tensor)) == ("*" in word), word
            self.arguments[word.split()[-1].lstrip("*")] = argument
        self.launches.append(self.arguments)

    def number(self, name: str) -> int:
        """An argument of the last launch."""
        value = self.arguments[name]
        assert isinstance(value, int)
        return value
