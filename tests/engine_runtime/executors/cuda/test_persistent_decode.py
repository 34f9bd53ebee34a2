"""The persistent decode kernel without a GPU: tiling, refusals, and the sizes of both sides."""

from __future__ import annotations

import re
from importlib import resources

import pytest
import torch

from engine_runtime.executors.cuda import persistent_decode
from engine_runtime.executors.cuda import persistent_ops as phases
from engine_runtime.executors.cuda.persistent_decode import _even_blocks, unsuited
from engine_runtime.executors.cuda.weights import build_network
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.options import BlockFormats
from tests.factories.tiny_lm import load_tiny

RELEASED = [(384, 4096), (256, 4096), (1536, 4096), (256, 12288)] * 36 + [(1032, 4096)]


@pytest.mark.parametrize(("most", "blocks"), [(132, 129), (128, 128), (148, 148), (100, 96)])
def test_tiles_are_shared_out_evenly(most: int, blocks: int) -> None:
    assert _even_blocks(most, RELEASED) == blocks


def test_no_block_goes_without_a_tile() -> None:
    assert _even_blocks(132, [(384, 2048), (16, 2048)]) == 16
    assert _even_blocks(132, [(1, 1024)]) == 1


def test_a_cpu_is_refused() -> None:
    model, _ = load_tiny()
    network = build_network(
        model.config,
        model.state_dict().__getitem__,
        formats=BlockFormats(),
        dtype=torch.float32,
        device=torch.device("cpu"),
        max_seq_len=64,
    )
    cache = KVCache(model.config, 4, 16, dtype=torch.float32, device=torch.device("cpu"))
    assert "9.0" in str(unsuited(network, cache))


def test_sizes_and_flags_are_those_of_the_kernel() -> None:
    files = resources.files("engine_runtime.cuda.kernels").joinpath("persistent_decode")
    source = files.joinpath("base.cu").read_text(encoding="utf-8")
    macros = {name: int(value) for name, value in re.findall(r"^#define (\w+) (\d+)\b", source, re.MULTILINE)}
    flags = ("ATTENDS", "NORMED", "GATED", "ADDS", "WIDE", "ROUNDED", "FROM_TABLE", "KEEPS", "TILE_ROWS")
    assert {name: macros[name] for name in flags} == {name: getattr(phases, name) for name in flags}
    assert {
        name.lower(): macros[name.upper()] for name in persistent_decode._FORMATS
    } == persistent_decode._FORMATS
    assert macros["PIECE"] == phases.PIECE
    assert macros["WARPS"] + 1 == persistent_decode._WARPS
    assert macros["AT_PARTS_BARS"] >= 16 * persistent_decode._MOST_STAGES
    assert {path.name for path in files.iterdir()} == {f"{part}.cu" for part in persistent_decode._PARTS}
