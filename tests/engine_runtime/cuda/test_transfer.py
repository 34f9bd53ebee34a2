"""Copies that the host does not wait for."""

from __future__ import annotations

import pytest
import torch

from engine_runtime.cuda.transfer import pinned, sent

CPU = torch.device("cpu")


def test_on_the_cpu_nothing_is_copied() -> None:
    values = torch.arange(4)
    assert pinned(values, CPU) is values
    assert sent(values, CPU) is values
    assert sent(values, CPU, torch.float32).dtype == torch.float32


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_host_goes_on_while_the_stream_computes() -> None:
    device = torch.device("cuda")
    values = torch.arange(1 << 20, dtype=torch.float32)
    sent(values, device)  # allocates the pinned memory
    torch.cuda.synchronize()
    torch.cuda._sleep(1_000_000_000)
    busy = torch.cuda.Event()
    busy.record()
    found = sent(values, device)
    assert not busy.query(), "the copy is behind what the stream computes, and was not waited for"
    assert pinned(values, device).is_pinned()
    assert pinned(found, device) is found
    assert torch.equal(found.cpu(), values)
