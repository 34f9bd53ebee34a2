"""Rows that are multiplied by fp8 weights in CUDA C++, whose columns are interleaved: of 16 columns, 4 t to
4 t + 3 are stored at 2 t, 2 t + 1, 2 t + 8 and 2 t + 9."""

from __future__ import annotations

import torch
from torch import Tensor


def interleaved(rows: Tensor) -> Tensor:
    """Rows [.., width] as they are stored."""
    stored = torch.empty_like(rows)
    stored[..., _places(rows)] = rows
    return stored


def in_order(stored: Tensor) -> Tensor:
    """Stored rows [.., width] with their columns in order."""
    return stored[..., _places(stored)]


def _places(rows: Tensor) -> Tensor:
    """Where each column is stored. [width]"""
    width = rows.shape[-1]
    assert width % 16 == 0
    column = torch.arange(width, device=rows.device)
    t, i = column % 16 // 4, column % 4
    return column // 16 * 16 + 2 * t + i % 2 + i // 2 * 8
