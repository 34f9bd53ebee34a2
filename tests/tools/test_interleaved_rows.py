"""The order of columns that tests on a GPU compare with."""

from __future__ import annotations

import torch

from tests.tools.interleaved_rows import in_order, interleaved


def test_four_columns_are_stored_in_two_pairs() -> None:
    rows = torch.arange(64).view(2, 32)
    stored = interleaved(rows)
    first = [0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15]
    assert stored.flatten().tolist() == [start + column for start in (0, 16, 32, 48) for column in first]
    assert torch.equal(in_order(stored), rows)
