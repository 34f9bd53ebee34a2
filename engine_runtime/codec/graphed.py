"""Which chunks of a vocoder are worth a capture.

In: frames of a push. Packets of a reply come in a few sizes, which are captured once; the rest at the end of
a reply may have any size, and runs as it is: a capture for each would cost more time and memory than it
saves.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine_runtime.cuda.graphs import GraphedCalls


@dataclass(frozen=True, slots=True)
class GraphedFrames:
    """`frames` are the sizes of a push, in mel frames, that go through `calls`."""

    calls: GraphedCalls
    frames: frozenset[int]
