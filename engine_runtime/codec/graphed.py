"""Selects the vocoder chunk sizes that are captured.

In: frames of a push. Packets of a reply have a few sizes, each captured once; the last packet may have any
size and runs eagerly, because a capture per size would cost more time and memory than it saves.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine_runtime.cuda.graphs import GraphedCalls


@dataclass(frozen=True, slots=True)
class GraphedFrames:
    """`frames` are the sizes of a push, in mel frames, that run through `calls`."""

    calls: GraphedCalls
    frames: frozenset[int]
